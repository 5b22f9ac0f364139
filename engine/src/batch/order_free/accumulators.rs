//! Accumulators of DataFusion over tallies.

use std::sync::Arc;

use arrow::array::{
    ArrayRef, AsArray, BooleanArray, Float64Array, LargeBinaryArray, LargeBinaryBuilder, UInt64Array, new_null_array,
};
use arrow::datatypes::{DataType, Float64Type, UInt64Type};
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{HashMap, ScalarValue, internal_datafusion_err, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Accumulator, EmitTo, GroupsAccumulator};

use forebay_operators::{aggregated_rows, for_each_value};

use super::tally::{Function, Tally};
use crate::batch::exact_sum::NAN;

/// One group without DISTINCT, and the frame of a window.
#[derive(Debug)]
pub(super) struct OneGroup<T> {
    function: Function,
    tally: T,
}

impl<T: Tally> OneGroup<T> {
    pub(super) fn new(function: Function) -> Self {
        Self { function, tally: T::default() }
    }
}

impl<T: Tally> Accumulator for OneGroup<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each_value(values[0].as_primitive::<Float64Type>(), |value| _ = self.tally.add(value));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each_value(values[0].as_primitive::<Float64Type>(), |value| _ = self.tally.remove(value));
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let parts = Parts::of(states)?;
        for row in 0..parts.counts.len() {
            parts.add_to(&mut self.tally, row)?;
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let columns = Parts::write(std::slice::from_ref(&self.tally));
        columns.iter().map(|column| ScalarValue::try_from_array(column, 0)).collect()
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.tally.result(self.function)))
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.tally.heap_bytes()
    }
}

/// One group with DISTINCT.
///
/// Zeros are one value, as in GROUP BY, and so are all that are not numbers.
#[derive(Debug)]
pub(super) struct DistinctValues<T> {
    function: Function,
    /// How often each value is there, by its bits.
    occurrences: HashMap<u64, u64>,
    /// Has each value once.
    tally: T,
}

impl<T: Tally> DistinctValues<T> {
    pub(super) fn new(function: Function) -> Self {
        Self { function, occurrences: HashMap::default(), tally: T::default() }
    }

    fn distinct(value: f64) -> f64 {
        if value.is_nan() {
            NAN
        } else if value == 0.0 {
            0.0
        } else {
            value
        }
    }

    fn add(&mut self, value: f64) {
        let value = Self::distinct(value);
        let occurrences = self.occurrences.entry(value.to_bits()).or_insert(0);
        *occurrences += 1;
        if *occurrences == 1 {
            self.tally.add(value);
        }
    }

    fn remove(&mut self, value: f64) {
        let value = Self::distinct(value);
        if let Some(occurrences) = self.occurrences.get_mut(&value.to_bits()) {
            *occurrences -= 1;
            if *occurrences == 0 {
                self.occurrences.remove(&value.to_bits());
                self.tally.remove(value);
            }
        }
    }
}

impl<T: Tally> Accumulator for DistinctValues<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each_value(values[0].as_primitive::<Float64Type>(), |value| self.add(value));
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each_value(values[0].as_primitive::<Float64Type>(), |value| self.remove(value));
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            for_each_value(values.as_primitive::<Float64Type>(), |value| self.add(value));
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = Float64Array::from_iter_values(self.occurrences.keys().map(|bits| f64::from_bits(*bits)));
        Ok(vec![SingleRowListArrayBuilder::new(Arc::new(values)).build_list_scalar()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        Ok(ScalarValue::Float64(self.tally.result(self.function)))
    }

    fn size(&self) -> usize {
        // A byte of each entry is that of the table itself.
        let entries = self.occurrences.capacity() * (size_of::<(u64, u64)>() + 1);
        size_of_val(self) + entries + self.tally.heap_bytes()
    }
}

/// All groups without DISTINCT.
pub(super) struct Groups<T> {
    function: Function,
    tallies: Vec<T>,
    /// The bytes that tallies take apart from their own.
    heap_bytes: usize,
}

impl<T: Tally> Groups<T> {
    pub(super) fn new(function: Function) -> Self {
        Self { function, tallies: Vec::new(), heap_bytes: 0 }
    }

    fn take(&mut self, groups: EmitTo) -> Vec<T> {
        let taken = groups.take_needed(&mut self.tallies);
        self.heap_bytes -= taken.iter().map(T::heap_bytes).sum::<usize>();
        taken
    }
}

impl<T: Tally> GroupsAccumulator for Groups<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        let values = values[0].as_primitive::<Float64Type>();
        self.tallies.resize_with(total_num_groups, T::default);
        let mut bytes = 0;
        match aggregated_rows(values, opt_filter) {
            None => {
                for (group, value) in group_indices.iter().zip(values.values()) {
                    bytes += self.tallies[*group].add(*value);
                }
            }
            Some(nulls) => {
                for row in nulls.valid_indices() {
                    bytes += self.tallies[group_indices[row]].add(values.value(row));
                }
            }
        }
        self.heap_bytes += bytes;
        Ok(())
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        let parts = Parts::of(values)?;
        self.tallies.resize_with(total_num_groups, T::default);
        for (row, group) in group_indices.iter().enumerate() {
            self.heap_bytes += parts.add_to(&mut self.tallies[*group], row)?;
        }
        Ok(())
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        Ok(Parts::write(&self.take(emit_to)))
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (function, tallies) = (self.function, self.take(emit_to));
        let results: Float64Array = tallies.iter().map(|tally| tally.result(function)).collect();
        Ok(Arc::new(results))
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<Float64Type>();
        let nulls = aggregated_rows(values, opt_filter);
        let count = |row| u64::from(nulls.as_ref().is_none_or(|nulls| nulls.is_valid(row)));
        let counts = UInt64Array::from_iter_values((0..values.len()).map(count));
        let sums = new_null_array(&DataType::LargeBinary, values.len());
        let values = Float64Array::new(values.values().clone(), nulls);
        Ok(vec![Arc::new(counts), Arc::new(values), sums])
    }

    fn size(&self) -> usize {
        self.tallies.capacity() * size_of::<T>() + self.heap_bytes
    }
}

/// Tallies of parts of the rows, as columns of DataFusion: the count of values, the value if there is one, and the sums
/// if there are more. Where each row is a group, they are then the values themselves.
///
/// Sums have 64-bit offsets: those of 100 million groups take more than 2 GiB.
struct Parts<'a> {
    counts: &'a UInt64Array,
    values: &'a Float64Array,
    sums: &'a LargeBinaryArray,
}

impl<'a> Parts<'a> {
    fn of(columns: &'a [ArrayRef]) -> Result<Self> {
        let [counts, values, sums] = columns else {
            return internal_err!("{} columns of partial sums", columns.len());
        };
        let (counts, values) = (counts.as_primitive::<UInt64Type>(), values.as_primitive::<Float64Type>());
        Ok(Self { counts, values, sums: sums.as_binary() })
    }

    fn add_to<T: Tally>(&self, tally: &mut T, row: usize) -> Result<usize> {
        match self.counts.value(row) {
            0 => Ok(0),
            1 => Ok(tally.add(self.values.value(row))),
            count => {
                let mut written = self.sums.value(row);
                let added = tally.merge(count, &mut written);
                added.ok_or_else(|| internal_datafusion_err!("other bytes than those of partial sums"))
            }
        }
    }

    /// The columns of tallies.
    fn write<T: Tally>(tallies: &[T]) -> Vec<ArrayRef> {
        let counts = UInt64Array::from_iter_values(tallies.iter().map(|tally| tally.total().count));
        let single = |tally: &T| (tally.total().count == 1).then(|| tally.total().sum.rounded());
        let values: Float64Array = tallies.iter().map(single).collect();
        let mut sums = LargeBinaryBuilder::with_capacity(tallies.len(), 0);
        let mut bytes = Vec::new();
        for tally in tallies {
            if tally.total().count > 1 {
                bytes.clear();
                tally.write(&mut bytes);
                sums.append_value(&bytes);
            } else {
                sums.append_null();
            }
        }
        vec![Arc::new(counts), Arc::new(values), Arc::new(sums.finish())]
    }
}

#[cfg(test)]
mod tests {
    use super::super::tally::{Moments, Total};
    use super::*;

    #[test]
    fn groups_are_merged_and_emitted() {
        let values: ArrayRef = Arc::new(Float64Array::from(vec![
            Some(1.5),
            None,
            Some(1e300),
            Some(-0.0),
            Some(f64::NAN),
            Some(2.5),
            Some(1e-300),
            Some(-1e300),
        ]));
        let values = [values];
        let filter = BooleanArray::from(vec![
            Some(true),
            Some(true),
            Some(true),
            Some(true),
            Some(true),
            Some(true),
            Some(true),
            None,
        ]);
        let groups = [0, 0, 1, 2, 3, 0, 1, 1];
        for function in [Function::Sum, Function::Average] {
            let mut all = Groups::<Total>::new(function);
            all.update_batch(&values, &groups, None, 5).unwrap();
            // Values of one group that are far from each other.
            assert!(all.size() > all.tallies.capacity() * size_of::<Total>());
            let mut parts = Groups::<Total>::new(function);
            let rows = parts.convert_to_state(&values, None).unwrap();
            parts.merge_batch(&rows, &groups, 5).unwrap();
            let mut merged = Groups::<Total>::new(function);
            let columns = all.state(EmitTo::All).unwrap();
            merged.merge_batch(&columns, &[0, 1, 2, 3, 4], 5).unwrap();
            assert_eq!(all.size(), 0);
            let ends = match function {
                Function::Sum => [Some(4.0), Some(1e-300), Some(0.0), Some(NAN), None],
                _ => [Some(2.0), Some(1e-300 / 3.0), Some(0.0), Some(NAN), None],
            };
            for mut groups in [parts, merged] {
                let first = groups.evaluate(EmitTo::First(2)).unwrap();
                let rest = groups.evaluate(EmitTo::All).unwrap();
                let got: Vec<_> = [first, rest]
                    .iter()
                    .flat_map(|part| part.as_primitive::<Float64Type>().iter().collect::<Vec<_>>())
                    .map(|value| value.map(f64::to_bits))
                    .collect();
                assert_eq!(got, ends.map(|value| value.map(f64::to_bits)), "{function:?}");
                assert_eq!(groups.heap_bytes, 0);
            }
            let mut filtered = Groups::<Total>::new(function);
            filtered.update_batch(&values, &groups, Some(&filter), 5).unwrap();
            let mut converted = Groups::<Total>::new(function);
            let rows = converted.convert_to_state(&values, Some(&filter)).unwrap();
            converted.merge_batch(&rows, &groups, 5).unwrap();
            let (filtered, converted) =
                (filtered.evaluate(EmitTo::All).unwrap(), converted.evaluate(EmitTo::All).unwrap());
            let large = filtered.as_primitive::<Float64Type>().value(1);
            assert_eq!(large, if function == Function::Sum { 1e300 } else { 5e299 });
            assert_eq!(
                filtered.as_primitive::<Float64Type>().value(1).to_bits(),
                converted.as_primitive::<Float64Type>().value(1).to_bits()
            );
        }
    }

    #[test]
    fn frames_and_distinct_values_take_back() {
        let array = |values: &[f64]| -> [ArrayRef; 1] { [Arc::new(Float64Array::from(values.to_vec()))] };
        let (zero, nan) = (-0.0, f64::from_bits(0xfff8_0000_0000_0001));
        let mut frame = OneGroup::<Moments>::new(Function::PopulationVariance);
        frame.update_batch(&array(&[1e200, f64::INFINITY, 3.0, 5.0])).unwrap();
        assert!(matches!(frame.evaluate().unwrap(), ScalarValue::Float64(Some(value)) if value.is_nan()));
        frame.retract_batch(&array(&[1e200, f64::INFINITY])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::Float64(Some(1.0)));
        frame.retract_batch(&array(&[3.0, 5.0])).unwrap();
        assert_eq!(frame.evaluate().unwrap(), ScalarValue::Float64(None));

        let mut distinct = DistinctValues::<Total>::new(Function::Average);
        distinct.update_batch(&array(&[0.0, zero, 3.0, 3.0, nan, f64::NAN])).unwrap();
        assert_eq!(distinct.tally.count, 3);
        distinct.retract_batch(&array(&[nan, 3.0, nan])).unwrap();
        assert_eq!(distinct.evaluate().unwrap(), ScalarValue::Float64(Some(1.5)));
        let state: Vec<ArrayRef> =
            distinct.state().unwrap().iter().map(|value| value.to_array_of_size(1).unwrap()).collect();
        let mut merged = DistinctValues::<Total>::new(Function::Average);
        merged.update_batch(&array(&[3.0, 6.0])).unwrap();
        merged.merge_batch(&state).unwrap();
        assert_eq!(merged.evaluate().unwrap(), ScalarValue::Float64(Some(3.0)));
        distinct.retract_batch(&array(&[zero, 0.0, 3.0])).unwrap();
        assert_eq!(distinct.evaluate().unwrap(), ScalarValue::Float64(None));
    }
}
