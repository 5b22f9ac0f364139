//! A page of metrics in the text format of OpenMetrics.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::histogram::Histogram;

/// Labels of one series.
pub(crate) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Writes metrics, one family after the other.
pub(crate) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

impl Page<'_> {
    /// A number that only grows while the process lives. Appends `_total` to the name.
    pub(super) fn counter<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, series, write_counter)
    }

    /// A number that rises and falls.
    pub(super) fn gauge<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, f64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, series, write_gauge)
    }

    /// A gauge of the whole process, if its value is known.
    pub(super) fn single(&mut self, name: &str, help: &str, value: impl Into<Option<f64>>) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        value.into().map_or(Ok(()), |value| write_gauge(family, value))
    }

    /// A counter of the whole process, if its value is known.
    pub(super) fn total(&mut self, name: &str, help: &str, value: impl Into<Option<f64>>) -> fmt::Result {
        let family = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        value.into().map_or(Ok(()), |value| write_counter(family, value))
    }

    pub(super) fn histogram<'a, L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        series: impl IntoIterator<Item = (L, &'a Histogram)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram, series, |encoder, histogram| histogram.encode(encoder))
    }

    fn family<L: EncodeLabelSet, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        series: impl IntoIterator<Item = (L, T)>,
        write: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in series {
            write(family.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}

/// Whether to write `value` as an integer. Most values are integers.
fn is_whole(value: f64) -> bool {
    value.fract() == 0.0 && value.abs() <= 1e15
}

fn write_counter(mut encoder: MetricEncoder<'_>, value: f64) -> fmt::Result {
    match is_whole(value) {
        true => encoder.encode_counter::<NoLabelSet, u64, f64>(&(value as u64), None),
        false => encoder.encode_counter::<NoLabelSet, f64, f64>(&value, None),
    }
}

fn write_gauge(mut encoder: MetricEncoder<'_>, value: f64) -> fmt::Result {
    match is_whole(value) {
        true => encoder.encode_gauge(&(value as i64)),
        false => encoder.encode_gauge(&value),
    }
}

/// The labels of a feed.
pub(super) fn feed_labels<'a>(feed: &'a str, pipeline: &'a str) -> Labels<'a, 2> {
    [("feed", feed), ("pipeline", pipeline)]
}

pub(super) fn seconds(millis: u64) -> f64 {
    millis as f64 / 1e3
}
