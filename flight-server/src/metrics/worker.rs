//! A worker's metrics.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_engine::{CallCosts, CostMeter, StoredState};
use prometheus_client::metrics::histogram::Histogram;

use super::page::{Page, feed_labels};
use super::worker_counts::FeedCounts;
use crate::worker::WorkerService;

pub(super) fn write(page: &mut Page<'_>, worker: &WorkerService) -> fmt::Result {
    let metrics = worker.metrics();
    let feeds = metrics.feeds.all();
    let of = |value: fn(&FeedCounts) -> f64| {
        feeds.iter().map(move |(feed, counts)| (feed_labels(feed, &counts.pipeline), value(counts)))
    };
    page.counter("forebay_worker_sent_rows", "Rows of windows sent to readers", of(|counts| counts.sent.rows()))?;
    page.counter(
        "forebay_worker_sent_bytes",
        "Bytes of Arrow data of windows sent to readers",
        of(|counts| counts.sent.bytes()),
    )?;
    page.counter(
        "forebay_worker_windows_prepared",
        "Windows that were read and filtered",
        of(|counts| counts.prepared.load(Ordering::Relaxed) as f64),
    )?;
    page.counter(
        "forebay_worker_windows_failed",
        "Windows that could not be computed",
        of(|counts| counts.failed.load(Ordering::Relaxed) as f64),
    )?;
    let histograms = |which: fn(&FeedCounts) -> &Histogram| {
        feeds.iter().map(move |(feed, counts)| (feed_labels(feed, &counts.pipeline), which(counts)))
    };
    page.histogram(
        "forebay_worker_window_counted_seconds",
        "Time from a window's lease until it was read and filtered",
        histograms(|counts| &counts.counted_seconds),
    )?;
    page.histogram(
        "forebay_worker_window_ready_seconds",
        "Time from a window's lease until it was computed as far as memory allows",
        histograms(|counts| &counts.ready_seconds),
    )?;
    costs(page, &feeds)?;
    windows(page, worker, &feeds)?;
    let usage = worker.usage();
    let wait = worker.store_wait();
    page.single(
        "forebay_worker_store_requests_waiting",
        "Requests to object stores that have waited for five seconds or more",
        wait.as_ref().map_or(0.0, |wait| wait.requests as f64),
    )?;
    page.single(
        "forebay_worker_store_wait_seconds",
        "How long the oldest of them has waited",
        wait.as_ref().map_or(0.0, |wait| super::page::seconds(wait.oldest_ms)),
    )?;
    page.single("forebay_worker_source_memory_bytes", "Source rows of windows in memory", usage.source_bytes as f64)?;
    page.single("forebay_worker_chunk_memory_bytes", "Processed rows of windows in memory", usage.chunk_bytes as f64)?;
    page.single(
        "forebay_worker_chunk_memory_limit_bytes",
        "Approximate limit of processed rows in memory",
        usage.chunk_limit_bytes as f64,
    )?;
    page.total("forebay_worker_chunks_computed", "Chunks of windows that were computed", usage.chunks_computed as f64)?;
    page.total(
        "forebay_worker_chunks_recomputed",
        "Chunks that were computed again because memory did not suffice to keep them",
        usage.chunks_recomputed as f64,
    )?;
    let streams = metrics.streams.load(Ordering::Relaxed) as f64;
    page.single("forebay_worker_streams", "Streams of windows that are open", streams)?;
    let refused = metrics.tickets_refused.load(Ordering::Relaxed) as f64;
    page.total("forebay_worker_tickets_refused", "Requests for windows with an invalid ticket", refused)?;
    let is_reachable = f64::from(u8::from(metrics.is_reachable.load(Ordering::Relaxed)));
    page.single("forebay_worker_dispatcher_reachable", "1 while a dispatcher answers", is_reachable)
}

/// What feeds have cost, by step and by called function.
fn costs(page: &mut Page<'_>, feeds: &[(Arc<str>, Arc<FeedCounts>)]) -> fmt::Result {
    let costs_of = |counts: &FeedCounts| counts.meter.lock().as_ref().map(CostMeter::costs).unwrap_or_default();
    let costs: Vec<_> = feeds.iter().map(|(feed, counts)| (feed, counts, costs_of(counts))).collect();
    let steps = costs.iter().flat_map(|(feed, counts, costs)| {
        let seconds = [costs.reading, costs.preparing, costs.transforming, costs.encoding, costs.storing];
        ["reading", "preparing", "transforming", "encoding", "storing"].into_iter().zip(seconds).map(
            move |(step, seconds)| {
                ([("feed", &***feed), ("pipeline", counts.pipeline.as_str()), ("step", step)], seconds)
            },
        )
    });
    page.counter("forebay_worker_step_seconds", "Time that the steps of computing windows took", steps)?;
    let mut calls: BTreeMap<[(&str, &str); 3], CallCosts> = BTreeMap::new();
    for (feed, counts, costs) in &costs {
        for call in &costs.calls {
            let labels = [("feed", &***feed), ("pipeline", counts.pipeline.as_str()), ("function", call.name.as_str())];
            let sum = calls.entry(labels).or_default();
            sum.seconds += call.seconds;
            sum.rows += call.rows;
            sum.bytes_in += call.bytes_in;
            sum.bytes_out += call.bytes_out;
        }
    }
    let of = |value: fn(&CallCosts) -> f64| calls.iter().map(move |(labels, costs)| (*labels, value(costs)));
    let help = "Time that calls of functions took, without their arguments";
    page.counter("forebay_worker_function_seconds", help, of(|costs| costs.seconds))?;
    page.counter(
        "forebay_worker_function_rows",
        "Rows for which functions were called",
        of(|costs| costs.rows as f64),
    )?;
    let help = "Bytes of the arguments of functions";
    page.counter("forebay_worker_function_input_bytes", help, of(|costs| costs.bytes_in as f64))?;
    let help = "Bytes of the results of functions";
    page.counter("forebay_worker_function_output_bytes", help, of(|costs| costs.bytes_out as f64))
}

/// The windows that the worker holds.
fn windows(page: &mut Page<'_>, worker: &WorkerService, feeds: &[(Arc<str>, Arc<FeedCounts>)]) -> fmt::Result {
    let mut held: HashMap<Arc<str>, [usize; 4]> = HashMap::new();
    for ((feed, _), state, _) in worker.states() {
        let index = match state {
            StoredState::Computing => 0,
            StoredState::Counted { .. } => 1,
            StoredState::Ready { .. } => 2,
            StoredState::Failed(_) => 3,
        };
        held.entry(feed).or_default()[index] += 1;
    }
    let series = feeds.iter().flat_map(|(feed, counts)| {
        let held = held.get(feed).copied().unwrap_or_default();
        ["computing", "counted", "ready", "failed"].into_iter().zip(held).map(move |(state, windows)| {
            ([("feed", &**feed), ("pipeline", counts.pipeline.as_str()), ("state", state)], windows as f64)
        })
    });
    page.gauge("forebay_worker_windows", "Windows that the worker holds, by state", series)
}
