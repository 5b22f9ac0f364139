//! A dispatcher's metrics.

use std::fmt;

use forebay_delivery::{FeedStatus, WorkerStatus};

use super::page::{Page, feed_labels, seconds};
use crate::dispatcher::DispatcherService;
use crate::journal::{FeedReading, OTHER_RANKS};

pub(super) fn write(page: &mut Page<'_>, dispatcher: &DispatcherService) -> fmt::Result {
    let (status, reading) = dispatcher.observe();
    let workers = &status.workers;
    page.single("forebay_dispatcher_workers", "Workers in contact", workers.len() as f64)?;
    let wanted = status.scaling.as_ref().map_or(0.0, |scaling| f64::from(scaling.workers));
    page.total("forebay_dispatcher_workers_lost", "Workers that fell silent", status.workers_lost as f64)?;
    page.single("forebay_dispatcher_workers_wanted", "Workers that there should be", wanted)?;
    let of = |value: fn(&WorkerStatus) -> f64| {
        workers.iter().map(move |worker| ([("worker", worker.address.as_str())], value(worker)))
    };
    page.gauge(
        "forebay_dispatcher_worker_draining",
        "1 for a worker that is about to stop",
        of(|worker| f64::from(u8::from(worker.draining))),
    )?;
    page.gauge(
        "forebay_dispatcher_worker_silent_seconds",
        "Time since a worker's last message",
        of(|worker| seconds(worker.silent_ms)),
    )?;
    page.gauge("forebay_dispatcher_worker_windows", "Windows leased to a worker", of(|worker| worker.windows as f64))?;
    page.gauge(
        "forebay_dispatcher_worker_held_bytes",
        "Source rows of the windows leased to a worker",
        of(|worker| worker.held_bytes as f64),
    )?;
    page.gauge(
        "forebay_dispatcher_worker_memory_limit_bytes",
        "Source rows that a worker may hold",
        of(|worker| worker.memory_bytes as f64),
    )?;
    page.gauge(
        "forebay_dispatcher_worker_refused_feeds",
        "Feeds that a worker cannot compute",
        of(|worker| worker.refused.len() as f64),
    )?;
    page.single("forebay_dispatcher_feeds", "Feeds that are open", status.feeds.len() as f64)?;
    let feeds: Vec<(&FeedStatus, &FeedReading)> = status.feeds.iter().zip(&reading).collect();
    of_feeds(page, &feeds)
}

fn of_feeds(page: &mut Page<'_>, feeds: &[(&FeedStatus, &FeedReading)]) -> fmt::Result {
    let of = |value: fn(&FeedStatus, &FeedReading) -> f64| {
        feeds.iter().map(move |(feed, reading)| (feed_labels(&feed.feed, &reading.pipeline), value(feed, reading)))
    };
    let windows = feeds.iter().flat_map(|(feed, reading)| {
        [
            ("leased", feed.windows_leased),
            ("counted", feed.windows_counted),
            ("ready", feed.windows_ready),
            ("failed", feed.windows_failed),
        ]
        .map(|(state, windows)| {
            let labels = [("feed", &*feed.feed), ("pipeline", reading.pipeline.as_str()), ("state", state)];
            (labels, windows as f64)
        })
    });
    page.gauge("forebay_dispatcher_windows", "Windows ahead of the readers, by state", windows)?;
    page.gauge(
        "forebay_dispatcher_window_typical_seconds",
        "Approximate recent time from a window's lease until it is ready",
        of(|feed, _| seconds(feed.window_ms)),
    )?;
    page.counter("forebay_dispatcher_leases_granted", "Leases granted", of(|feed, _| feed.leases_granted as f64))?;
    page.counter(
        "forebay_dispatcher_leases_recomputed",
        "Leases of windows that had been computed before",
        of(|feed, _| feed.windows_recomputed as f64),
    )?;
    page.counter(
        "forebay_dispatcher_leases_speculative",
        "Leases of a second copy of a window, because the first took too long or could not be reached",
        of(|feed, _| feed.leases_speculative as f64),
    )?;
    page.gauge("forebay_dispatcher_readers", "Readers, each one rank", of(|feed, _| feed.readers.len() as f64))?;
    page.gauge(
        "forebay_dispatcher_readers_waiting",
        "Readers whose loop is waiting for samples",
        of(|feed, _| feed.readers.iter().filter(|reader| reader.waiting.is_some()).count() as f64),
    )?;
    of_jobs(page, feeds)?;
    page.counter(
        "forebay_dispatcher_received_samples",
        "Samples delivered to the loops of readers",
        of(|_, reading| reading.samples as f64),
    )?;
    page.counter(
        "forebay_dispatcher_received_bytes",
        "Bytes of Arrow data that readers received",
        of(|_, reading| reading.bytes as f64),
    )?;
    of_ranks(page, feeds)
}

/// Metrics of jobs with dynamic delivery.
fn of_jobs(page: &mut Page<'_>, feeds: &[(&FeedStatus, &FeedReading)]) -> fmt::Result {
    let jobs: Vec<_> = feeds
        .iter()
        .flat_map(|(feed, reading)| feed.jobs.iter().map(move |job| (feed, reading, job)))
        .map(|(feed, reading, job)| {
            let labels = [("feed", &*feed.feed), ("pipeline", reading.pipeline.as_str()), ("job", job.job.as_str())];
            (labels, job)
        })
        .collect();
    page.gauge(
        "forebay_dispatcher_job_ranks",
        "Ranks of a job with dynamic delivery",
        jobs.iter().map(|(labels, job)| (*labels, job.world_size as f64)),
    )?;
    page.gauge(
        "forebay_dispatcher_job_ranks_awaited",
        "Ranks that the other ranks of a job with dynamic delivery wait for",
        jobs.iter().map(|(labels, job)| (*labels, if job.awaiting_ms > 0 { job.awaited.len() as f64 } else { 0.0 })),
    )?;
    page.gauge(
        "forebay_dispatcher_job_claims_held",
        "Claims held by the ranks of a job",
        jobs.iter().map(|(labels, job)| (*labels, job.claims_held as f64)),
    )
}

/// Metrics of how long loops waited, by rank.
fn of_ranks(page: &mut Page<'_>, feeds: &[(&FeedStatus, &FeedReading)]) -> fmt::Result {
    let ranks: Vec<_> = feeds
        .iter()
        .flat_map(|(feed, reading)| reading.stalled_ms.iter().map(move |(rank, ms)| (feed, reading, *rank, *ms)))
        .map(|(feed, reading, rank, ms)| {
            let rank = if rank == OTHER_RANKS { "other".to_owned() } else { rank.to_string() };
            (&*feed.feed, reading.pipeline.as_str(), rank, seconds(ms))
        })
        .collect();
    let stalled = ranks
        .iter()
        .map(|(feed, pipeline, rank, seconds)| ([("feed", *feed), ("pipeline", pipeline), ("rank", rank)], *seconds));
    let help = "Time that the loops of readers waited for samples, by rank";
    page.counter("forebay_dispatcher_reader_stall_seconds", help, stalled)
}
