//! What one pass over the samples asks of processors and stores: of the first pass, which fills a cache, and of each
//! later one, which reads it.
//!
//! It knows nothing of who computes: [`advise`](crate::advise) divides by some number of cores, and a
//! [`Job`](crate::Job) by the cores that it looks for.

use crate::{Cut, Store};

/// What all samples of a pass ask for together.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// Core-seconds.
    pub(crate) cpu_seconds: f64,
    /// Bytes read of the source.
    pub(crate) source_bytes: f64,
    /// Bytes read of the cache.
    pub(crate) cache_bytes: f64,
    /// Bytes written to the cache.
    pub(crate) written_bytes: f64,
}

impl Pass {
    /// The first pass, and each later one, if this share of so many samples is kept at a cut.
    pub(crate) fn first_and_later(cuts: &[Cut], samples: f64, cut: Option<&Cut>, share: f64) -> (Self, Self) {
        let whole = cuts.last().map_or(0.0, |cut| cut.compute_seconds_per_sample);
        let source_bytes = samples * cuts.first().map_or(0.0, |cut| cut.bytes_per_sample);
        let kept_bytes = cut.map_or(0.0, |cut| share * samples * cut.bytes_per_sample);
        let saved = cut.map_or(0.0, |cut| share * samples * cut.compute_seconds_per_sample);
        let first = Self { cpu_seconds: samples * whole, source_bytes, cache_bytes: 0.0, written_bytes: kept_bytes };
        let later = Self {
            cpu_seconds: samples * whole - saved,
            source_bytes: (1.0 - share) * source_bytes,
            cache_bytes: kept_bytes,
            written_bytes: 0.0,
        };
        (first, later)
    }

    /// Seconds for which the source is busy.
    pub(crate) fn source_seconds(&self, source: &Store) -> f64 {
        source.reading(self.source_bytes)
    }

    /// Seconds for which the cache is busy.
    pub(crate) fn cache_seconds(&self, cache: &Store) -> f64 {
        cache.reading(self.cache_bytes) + cache.writing(self.written_bytes)
    }
}

/// The share of a cut's rows that fits a limit of bytes.
pub(crate) fn share_within(limit_bytes: f64, samples: f64, cut: &Cut) -> f64 {
    let bytes = samples * cut.bytes_per_sample;
    if bytes > 0.0 { (limit_bytes / bytes).min(1.0) } else { 1.0 }
}
