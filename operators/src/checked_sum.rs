//! Sums of integers with an error instead of a wrapped result.
//!
//! DataFusion's `sum` of integers wraps around in 64 bits. [`checked_sum`] replaces it by a function that adds in 128
//! bits, which no number of rows can fill, and fails if the result does not fit 64. Whether it fails does not depend on
//! the order of rows.

use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Decimal128Array, PrimitiveArray};
use arrow::buffer::NullBuffer;
use arrow::datatypes::{
    ArrowPrimitiveType, DECIMAL128_MAX_PRECISION, DataType, Decimal128Type, Field, FieldRef, Int64Type, UInt64Type,
};
use datafusion::common::tree_node::Transformed;
use datafusion::common::utils::SingleRowListArrayBuilder;
use datafusion::common::{DFSchema, HashMap, Result, ScalarValue, exec_err, internal_err};
use datafusion::functions_aggregate::sum::sum_udaf;
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, EmitTo, Expr, ExprSchemable, GroupsAccumulator, ReversedUDAF,
    Signature, Volatility,
};

use crate::accumulating::{aggregated_rows, for_each_value, replace_aggregates};

/// Replaces sums of integers in `expr`, an expression over `schema` whose types are resolved. Columns keep their names.
///
/// # Errors
/// DataFusion's, for expressions without a type.
pub fn checked_sum(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    replace_aggregates(expr, |called, arguments| match arguments {
        [integer] if *called == *sum_udaf() => Ok(match integer.get_type(schema)? {
            DataType::Int64 | DataType::UInt64 => Some(AggregateUDF::from(CheckedSum::new())),
            _ => None,
        }),
        _ => Ok(None),
    })
}

/// The sum of a group, which is null without values.
type Sum = Option<i128>;

/// DataFusion's `sum` of 64-bit integers, signed or unsigned.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedSum {
    signature: Signature,
}

impl CheckedSum {
    fn new() -> Self {
        Self { signature: Signature::uniform(1, vec![DataType::Int64, DataType::UInt64], Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for CheckedSum {
    /// The name by which the optimizer knows that it may add sums of parts: it groups by the values of
    /// `count(DISTINCT x)` first, in a query that sums too. Then a part that does not fit is an error as well.
    fn name(&self) -> &str {
        "sum"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        match arguments {
            [integer] => Ok(integer.clone()),
            _ => internal_err!("a sum of {} arguments", arguments.len()),
        }
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(match (args.return_type(), args.is_distinct) {
            (DataType::UInt64, false) => Box::new(OneGroup::<UInt64Type>::new()),
            (DataType::UInt64, true) => Box::new(DistinctValues::<UInt64Type>::new()),
            (_, false) => Box::new(OneGroup::<Int64Type>::new()),
            (_, true) => Box::new(DistinctValues::<Int64Type>::new()),
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let (name, data_type) = match args.is_distinct {
            true => ("values", DataType::new_list(args.return_type().clone(), true)),
            false => ("sum", DataType::Decimal128(DECIMAL128_MAX_PRECISION, 0)),
        };
        Ok(vec![Arc::new(Field::new(format_state_name(args.name, name), data_type, true))])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match args.return_type() {
            DataType::UInt64 => Box::new(Groups::<UInt64Type>::new()),
            _ => Box::new(Groups::<Int64Type>::new()),
        })
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

/// A type of 64-bit integers.
trait Integer: ArrowPrimitiveType<Native: Into<i128> + TryFrom<i128> + Eq + Hash> + Debug + Send + Sync + Sized {
    /// The sum in this type.
    fn narrow(sum: i128) -> Result<Self::Native> {
        Self::Native::try_from(sum).or_else(|_| {
            let integer = Self::DATA_TYPE;
            exec_err!(
                "overflow in sum({integer}): {sum} does not fit {integer}; cast its argument to DECIMAL(38, 0) or \
                 DOUBLE"
            )
        })
    }

    /// The sum as a value of this type.
    fn scalar(sum: Sum) -> Result<ScalarValue> {
        let sum = sum.map(Self::narrow).transpose()?;
        ScalarValue::new_primitive::<Self>(sum, &Self::DATA_TYPE)
    }
}

impl Integer for Int64Type {}
impl Integer for UInt64Type {}

/// One group without DISTINCT, and the frame of a window.
#[derive(Debug)]
struct OneGroup<T> {
    sum: i128,
    values: usize,
    of: PhantomData<T>,
}

impl<T: Integer> OneGroup<T> {
    fn new() -> Self {
        Self { sum: 0, values: 0, of: PhantomData }
    }

    fn sum(&self) -> Sum {
        (self.values > 0).then_some(self.sum)
    }
}

impl<T: Integer> Accumulator for OneGroup<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.values += values.len() - values.null_count();
        for_each_value(values, |value| self.sum += value.into());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>();
        self.values -= values.len() - values.null_count();
        for_each_value(values, |value| self.sum -= value.into());
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let sums = states[0].as_primitive::<Decimal128Type>();
        self.values += sums.len() - sums.null_count();
        for_each_value(sums, |sum| self.sum += sum);
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![ScalarValue::Decimal128(self.sum(), DECIMAL128_MAX_PRECISION, 0)])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        T::scalar(self.sum())
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }
}

/// One group with DISTINCT.
#[derive(Debug)]
struct DistinctValues<T: ArrowPrimitiveType> {
    /// How often each value is there.
    occurrences: HashMap<T::Native, u64>,
    /// Of each value once.
    sum: i128,
}

impl<T: Integer> DistinctValues<T> {
    fn new() -> Self {
        Self { occurrences: HashMap::default(), sum: 0 }
    }

    fn add(&mut self, values: &PrimitiveArray<T>) {
        for_each_value(values, |value| {
            let occurrences = self.occurrences.entry(value).or_insert(0);
            *occurrences += 1;
            if *occurrences == 1 {
                self.sum += value.into();
            }
        });
    }
}

impl<T: Integer> Accumulator for DistinctValues<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.add(values[0].as_primitive());
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for_each_value(values[0].as_primitive::<T>(), |value| {
            if let Some(occurrences) = self.occurrences.get_mut(&value) {
                *occurrences -= 1;
                if *occurrences == 0 {
                    self.occurrences.remove(&value);
                    self.sum -= value.into();
                }
            }
        });
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        for values in states[0].as_list::<i32>().iter().flatten() {
            self.add(values.as_primitive());
        }
        Ok(())
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = PrimitiveArray::<T>::from_iter_values(self.occurrences.keys().copied());
        Ok(vec![SingleRowListArrayBuilder::new(Arc::new(values)).build_list_scalar()])
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        T::scalar((!self.occurrences.is_empty()).then_some(self.sum))
    }

    fn size(&self) -> usize {
        // A byte of each entry is that of the table itself.
        size_of_val(self) + self.occurrences.capacity() * (size_of::<(T::Native, u64)>() + 1)
    }
}

/// All groups without DISTINCT.
#[derive(Debug)]
struct Groups<T> {
    sums: Vec<i128>,
    /// Whether a group has a value.
    has_value: Vec<bool>,
    of: PhantomData<T>,
}

impl<T> Groups<T> {
    fn new() -> Self {
        Self { sums: Vec::new(), has_value: Vec::new(), of: PhantomData }
    }

    fn add<V: ArrowPrimitiveType<Native: Into<i128>>>(
        &mut self,
        values: &PrimitiveArray<V>,
        filter: Option<&BooleanArray>,
        groups: &[usize],
        count: usize,
    ) {
        self.sums.resize(count, 0);
        self.has_value.resize(count, false);
        let mut add = |row: usize, value: V::Native| {
            self.sums[groups[row]] += value.into();
            self.has_value[groups[row]] = true;
        };
        match aggregated_rows(values, filter) {
            None => values.values().iter().enumerate().for_each(|(row, value)| add(row, *value)),
            Some(rows) => rows.valid_indices().for_each(|row| add(row, values.value(row))),
        }
    }

    /// The sums of these groups, which are then no longer here.
    fn take(&mut self, groups: EmitTo) -> (Vec<i128>, NullBuffer) {
        let sums = groups.take_needed(&mut self.sums);
        (sums, NullBuffer::from(groups.take_needed(&mut self.has_value)))
    }
}

impl<T: Integer> GroupsAccumulator for Groups<T> {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        group_indices: &[usize],
        opt_filter: Option<&BooleanArray>,
        total_num_groups: usize,
    ) -> Result<()> {
        self.add(values[0].as_primitive::<T>(), opt_filter, group_indices, total_num_groups);
        Ok(())
    }

    fn merge_batch(&mut self, values: &[ArrayRef], group_indices: &[usize], total_num_groups: usize) -> Result<()> {
        self.add(values[0].as_primitive::<Decimal128Type>(), None, group_indices, total_num_groups);
        Ok(())
    }

    fn state(&mut self, emit_to: EmitTo) -> Result<Vec<ArrayRef>> {
        let (sums, nulls) = self.take(emit_to);
        state(sums, Some(nulls))
    }

    fn evaluate(&mut self, emit_to: EmitTo) -> Result<ArrayRef> {
        let (sums, nulls) = self.take(emit_to);
        let sums = sums.into_iter().map(T::narrow).collect::<Result<Vec<_>>>()?;
        Ok(Arc::new(PrimitiveArray::<T>::new(sums.into(), Some(nulls))))
    }

    fn convert_to_state(&self, values: &[ArrayRef], opt_filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        let values = values[0].as_primitive::<T>();
        let sums = values.values().iter().map(|value| (*value).into());
        state(sums.collect(), aggregated_rows(values, opt_filter))
    }

    fn size(&self) -> usize {
        self.sums.capacity() * size_of::<i128>() + self.has_value.capacity()
    }
}

/// The column that other accumulators add sums from. No sum has more than its 38 digits: those of 2^62 rows of 64 bits
/// are less than 2^126, which is less than 10^38.
fn state(sums: Vec<i128>, nulls: Option<NullBuffer>) -> Result<Vec<ArrayRef>> {
    let sums = Decimal128Array::new(sums.into(), nulls).with_precision_and_scale(DECIMAL128_MAX_PRECISION, 0)?;
    Ok(vec![Arc::new(sums)])
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, RecordBatch, UInt64Array};
    use arrow::util::pretty::pretty_format_batches;
    use datafusion::common::tree_node::{TransformedResult, TreeNode};
    use datafusion::datasource::MemTable;
    use datafusion::logical_expr::LogicalPlan;
    use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};

    use super::*;

    const ROWS: i64 = 500;

    /// A key `k`, a group `g` of 3, one `h` of 200, and numbers `n`, `u` and `big`, the first of which may be null.
    /// Sums of `big` fit its type at the end only.
    fn context(partitions: usize) -> SessionContext {
        let n = |k: i64| (k % 7 != 0).then_some(k * k % 101 - 50);
        let big = |k: i64| if k % 2 == 0 { i64::MAX - k } else { i64::MIN + k };
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(Int64Array::from_iter_values(0..ROWS))),
            ("g", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|k| k % 3)))),
            ("h", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|k| k * 7 % 200)))),
            ("n", Arc::new(Int64Array::from_iter((0..ROWS).map(n)))),
            ("u", Arc::new(UInt64Array::from_iter_values((0..ROWS).map(|k| k as u64 % 11)))),
            ("big", Arc::new(Int64Array::from_iter_values((0..ROWS).map(big)))),
        ];
        let rows = RecordBatch::try_from_iter(columns).unwrap();
        let mut parts = vec![Vec::new(); partitions];
        for (batch, first) in (0..rows.num_rows()).step_by(16).enumerate() {
            parts[batch % partitions].push(rows.slice(first, 16.min(rows.num_rows() - first)));
        }
        // Partial aggregates pass on rows that do not share groups with enough others.
        let config = SessionConfig::new()
            .with_target_partitions(partitions)
            .with_batch_size(32)
            .set_str("datafusion.execution.skip_partial_aggregation_probe_rows_threshold", "10")
            .set_str("datafusion.execution.skip_partial_aggregation_probe_ratio_threshold", "0.5");
        let context = SessionContext::new_with_config(config);
        context.register_table("t", Arc::new(MemTable::try_new(rows.schema(), parts).unwrap())).unwrap();
        context
    }

    async fn planned(context: &SessionContext, sql: &str) -> LogicalPlan {
        let state = context.state();
        let plan = state.create_logical_plan(sql).await.unwrap();
        state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).unwrap()
    }

    fn checked(plan: LogicalPlan) -> LogicalPlan {
        plan.transform_up(|node| {
            let Some(input) = node.inputs().first().map(|input| Arc::clone(input.schema())) else {
                return Ok(Transformed::no(node));
            };
            node.map_expressions(|expr| checked_sum(expr, &input))
        })
        .data()
        .unwrap()
    }

    async fn run(context: &SessionContext, plan: LogicalPlan) -> std::result::Result<String, String> {
        let batches = DataFrame::new(context.state(), plan).collect().await;
        let batches = batches.map_err(|error| error.find_root().message().into_owned())?;
        Ok(pretty_format_batches(&batches).unwrap().to_string())
    }

    #[tokio::test]
    async fn sums_that_fit_are_those_of_datafusion() {
        for partitions in [1, 3] {
            let context = context(partitions);
            for sql in [
                "SELECT sum(n), sum(u), sum(n) FILTER (WHERE k % 5 = 1) AS f, sum(n) FILTER (WHERE k < 0) AS e FROM t",
                "SELECT g, sum(n), sum(u) FROM t GROUP BY g ORDER BY g",
                "SELECT h, sum(n) FILTER (WHERE k % 2 = 0) AS f, sum(u) FROM t GROUP BY h ORDER BY h",
                "SELECT k, sum(n) FROM t GROUP BY k ORDER BY k",
                "SELECT g, sum(DISTINCT n), sum(DISTINCT u), sum(n) FROM t GROUP BY g ORDER BY g",
                "SELECT sum(DISTINCT n) FROM t WHERE k < 0",
                "SELECT k, sum(n) OVER (PARTITION BY g ORDER BY k) AS s FROM t ORDER BY k",
                "SELECT k, sum(n) OVER (ORDER BY k ROWS BETWEEN 3 PRECEDING AND 2 FOLLOWING) AS s FROM t ORDER BY k",
                "SELECT k, sum(n) OVER (ORDER BY k ROWS BETWEEN 1 FOLLOWING AND 1 FOLLOWING) AS s FROM t ORDER BY k",
                "SELECT k, sum(DISTINCT n) OVER (ORDER BY k ROWS 30 PRECEDING) AS s FROM t ORDER BY k",
                // DataFusion's intermediate results wrap around, and then back.
                "SELECT sum(big), sum(DISTINCT big) FROM t",
            ] {
                let plan = planned(&context, sql).await;
                let replaced = checked(plan.clone());
                assert_eq!(replaced.schema(), plan.schema(), "{sql}");
                assert!(replaced.display_indent().to_string().contains("sum("), "{sql}");
                assert_ne!(replaced, plan, "{sql}");
                assert_eq!(run(&context, replaced).await, run(&context, plan).await, "{sql}");
            }
        }
    }

    #[tokio::test]
    async fn a_sum_that_does_not_fit_is_an_error_with_its_value() {
        for (sql, sum, integer) in [
            ("SELECT sum(9223372036854775807) FROM t", "4611686018427387903500", "Int64"),
            ("SELECT sum(-9223372036854775807) FROM t WHERE k < 2", "-18446744073709551614", "Int64"),
            ("SELECT g, sum(CASE k WHEN 3 THEN 9223372036854775807 ELSE 1 END) FROM t GROUP BY g", "922337", "Int64"),
            ("SELECT sum(18446744073709551615) FROM t", "9223372036854775807500", "UInt64"),
            ("SELECT sum(DISTINCT 9223372036854775807 - k) FROM t", "46116860184273", "Int64"),
            (
                "SELECT sum(9223372036854775807) OVER (ORDER BY k ROWS 1 PRECEDING) FROM t",
                "1844674407370955161",
                "Int64",
            ),
        ] {
            let context = context(3);
            let error = run(&context, checked(planned(&context, sql).await)).await.unwrap_err();
            assert!(error.starts_with(&format!("overflow in sum({integer}): {sum}")), "{sql}: {error}");
            let end = format!(" does not fit {integer}; cast its argument to DECIMAL(38, 0) or DOUBLE");
            assert!(error.ends_with(&end), "{sql}: {error}");
        }
    }
}
