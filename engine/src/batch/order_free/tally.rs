//! What is known of the values of a group, and what follows from it.

use std::fmt::Debug;
use std::sync::Arc;

use datafusion::functions_aggregate::average::avg_udaf;
use datafusion::functions_aggregate::stddev::{stddev_pop_udaf, stddev_udaf};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::functions_aggregate::variance::{var_pop_udaf, var_samp_udaf};
use datafusion::logical_expr::AggregateUDF;

use crate::batch::exact_sum::{ExactSquares, ExactSum};

/// A function of the floats of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Function {
    Sum,
    Average,
    Variance,
    PopulationVariance,
    Deviation,
    PopulationDeviation,
}

impl Function {
    pub(super) const ALL: [Self; 6] = [
        Self::Sum,
        Self::Average,
        Self::Variance,
        Self::PopulationVariance,
        Self::Deviation,
        Self::PopulationDeviation,
    ];

    /// DataFusion's function.
    pub(super) fn replaced(self) -> Arc<AggregateUDF> {
        match self {
            Self::Sum => sum_udaf(),
            Self::Average => avg_udaf(),
            Self::Variance => var_samp_udaf(),
            Self::PopulationVariance => var_pop_udaf(),
            Self::Deviation => stddev_udaf(),
            Self::PopulationDeviation => stddev_pop_udaf(),
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sum => "exact_sum",
            Self::Average => "exact_avg",
            Self::Variance => "exact_var",
            Self::PopulationVariance => "exact_var_pop",
            Self::Deviation => "exact_stddev",
            Self::PopulationDeviation => "exact_stddev_pop",
        }
    }

    pub(super) fn needs_squares(self) -> bool {
        !matches!(self, Self::Sum | Self::Average)
    }
}

/// The values of a group, as far as functions need to know them. Methods that add return by how many bytes it grows.
pub(super) trait Tally: Debug + Default + Send + Sync + 'static {
    fn add(&mut self, value: f64) -> usize;

    /// Takes back a value that was added.
    fn remove(&mut self, value: f64) -> usize;

    fn total(&self) -> &Total;

    /// The function of all values, or `None` if there are too few.
    fn result(&self, function: Function) -> Option<f64>;

    /// Writes all but the count for [`Self::merge`].
    fn write(&self, bytes: &mut Vec<u8>);

    /// Adds so many values, which were written. `None` if these bytes were not.
    fn merge(&mut self, count: u64, written: &mut &[u8]) -> Option<usize>;

    /// The bytes that it takes apart from its own.
    fn heap_bytes(&self) -> usize;
}

/// What sums and averages need.
#[derive(Debug, Default)]
pub(super) struct Total {
    pub(super) count: u64,
    pub(super) sum: ExactSum,
}

/// What variances need.
#[derive(Debug, Default)]
pub(super) struct Moments {
    total: Total,
    squares: ExactSquares,
}

impl Tally for Total {
    #[inline]
    fn add(&mut self, value: f64) -> usize {
        self.count += 1;
        self.sum.add(value)
    }

    fn remove(&mut self, value: f64) -> usize {
        self.count -= 1;
        self.sum.remove(value)
    }

    fn total(&self) -> &Total {
        self
    }

    fn result(&self, function: Function) -> Option<f64> {
        match (self.count, function) {
            (0, _) => None,
            (count, Function::Average) => Some(self.sum.average(count)),
            _ => Some(self.sum.rounded()),
        }
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        self.sum.write(bytes);
    }

    fn merge(&mut self, count: u64, written: &mut &[u8]) -> Option<usize> {
        self.count += count;
        self.sum.merge(written)
    }

    fn heap_bytes(&self) -> usize {
        self.sum.heap_bytes()
    }
}

impl Tally for Moments {
    #[inline]
    fn add(&mut self, value: f64) -> usize {
        self.total.add(value) + self.squares.add(value)
    }

    fn remove(&mut self, value: f64) -> usize {
        self.total.remove(value) + self.squares.remove(value)
    }

    fn total(&self) -> &Total {
        &self.total
    }

    fn result(&self, function: Function) -> Option<f64> {
        let count = self.total.count;
        let divisor = match function {
            Function::Variance | Function::Deviation => count.saturating_sub(1),
            _ => count,
        };
        if divisor == 0 {
            return None;
        }
        let variance = self.squares.variance(&self.total.sum, count, divisor);
        Some(match function {
            // The root of what is not a number may have another representation.
            Function::Deviation | Function::PopulationDeviation if !variance.is_nan() => variance.sqrt(),
            _ => variance,
        })
    }

    fn write(&self, bytes: &mut Vec<u8>) {
        self.total.write(bytes);
        self.squares.write(bytes);
    }

    fn merge(&mut self, count: u64, written: &mut &[u8]) -> Option<usize> {
        Some(self.total.merge(count, written)? + self.squares.merge(written)?)
    }

    fn heap_bytes(&self) -> usize {
        self.total.heap_bytes() + self.squares.heap_bytes()
    }
}
