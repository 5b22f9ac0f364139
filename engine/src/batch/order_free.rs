//! Aggregates of floats whose results do not depend on the order of rows.
//!
//! DataFusion adds floats in the order in which rows arrive. The last bits of a sum, and of averages and variances,
//! then depend on the number of threads, on the memory limit, and on chance. [`order_free`] replaces these functions in
//! a plan by functions over exact sums, which have the same names and types for the rest of the plan. Sums of integers
//! and decimals have no order, and stay as they are.
//!
//! A group has a [`tally`], to which rows, and sums of other rows, are added. What is computed from it at the end is
//! rounded once. Only a standard deviation is rounded twice: it is the root of a variance.

mod accumulators;
mod tally;

use std::sync::Arc;

use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::tree_node::{Transformed, TransformedResult};
use datafusion::common::{DFSchema, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{AggregateFunctionParams, WindowFunctionParams};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::utils::{AggregateOrderSensitivity, format_state_name};
use datafusion::logical_expr::{
    Accumulator, AggregateUDF, AggregateUDFImpl, Expr, ExprSchemable, GroupsAccumulator, LogicalPlan, ReversedUDAF,
    Signature, Volatility,
};
use forebay_operators::replace_aggregates;

use self::accumulators::{DistinctValues, Groups, OneGroup};
use self::tally::{Function, Moments, Total};

/// Replaces functions of floats whose results depend on the order of rows, in a plan whose types are resolved. The
/// columns of all parts of the plan keep their names and types.
///
/// # Errors
/// Those of DataFusion, for expressions without a type.
pub(crate) fn order_free(plan: LogicalPlan) -> Result<LogicalPlan> {
    plan.transform_up_with_subqueries(|node| {
        let input = match &node {
            LogicalPlan::Aggregate(aggregate) => Arc::clone(aggregate.input.schema()),
            LogicalPlan::Window(window) => Arc::clone(window.input.schema()),
            _ => return Ok(Transformed::no(node)),
        };
        node.map_expressions(|expr| {
            replace_aggregates(expr, |called, arguments| replacement(called, arguments, &input))
        })
    })
    .data()
}

fn replacement(called: &AggregateUDF, arguments: &[Expr], input: &DFSchema) -> Result<Option<AggregateUDF>> {
    let Some(function) = Function::ALL.into_iter().find(|function| *function.replaced() == *called) else {
        return Ok(None);
    };
    let types = arguments.iter().map(|argument| argument.get_type(input)).collect::<Result<Vec<_>>>()?;
    if called.return_type(&types)? != DataType::Float64 {
        return Ok(None);
    }
    if types != [DataType::Float64] {
        return internal_err!("the arguments of {called} are not resolved: {types:?}");
    }
    Ok(Some(AggregateUDF::from(OrderFree::new(function))))
}

/// A function over an exact sum of floats.
#[derive(Debug, PartialEq, Eq, Hash)]
struct OrderFree {
    function: Function,
    signature: Signature,
}

impl OrderFree {
    fn new(function: Function) -> Self {
        Self { function, signature: Signature::exact(vec![DataType::Float64], Volatility::Immutable) }
    }
}

impl AggregateUDFImpl for OrderFree {
    /// Not the name of the function that it replaces. An optimizer rule knows "sum" by its name, and adds sums of parts
    /// that are rounded already.
    fn name(&self) -> &str {
        self.function.name()
    }

    /// The name of the replaced function's column. Plans refer to columns by their names.
    fn schema_name(&self, params: &AggregateFunctionParams) -> Result<String> {
        self.function.replaced().schema_name(params)
    }

    fn window_function_schema_name(&self, params: &WindowFunctionParams) -> Result<String> {
        self.function.replaced().window_function_schema_name(params)
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        let function = self.function;
        Ok(match (args.is_distinct, function.needs_squares()) {
            (false, false) => Box::new(OneGroup::<Total>::new(function)),
            (false, true) => Box::new(OneGroup::<Moments>::new(function)),
            (true, false) => Box::new(DistinctValues::<Total>::new(function)),
            (true, true) => Box::new(DistinctValues::<Moments>::new(function)),
        })
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let field = |name, data_type| Arc::new(Field::new(format_state_name(args.name, name), data_type, true));
        if args.is_distinct {
            let values = DataType::List(Arc::new(Field::new_list_field(DataType::Float64, true)));
            return Ok(vec![field("values", values)]);
        }
        // See `accumulators::Parts`.
        Ok(vec![
            field("count", DataType::UInt64),
            field("value", DataType::Float64),
            field("sums", DataType::LargeBinary),
        ])
    }

    fn groups_accumulator_supported(&self, args: AccumulatorArgs) -> bool {
        !args.is_distinct
    }

    fn create_groups_accumulator(&self, _: AccumulatorArgs) -> Result<Box<dyn GroupsAccumulator>> {
        Ok(match self.function.needs_squares() {
            false => Box::new(Groups::<Total>::new(self.function)),
            true => Box::new(Groups::<Moments>::new(self.function)),
        })
    }

    fn order_sensitivity(&self) -> AggregateOrderSensitivity {
        AggregateOrderSensitivity::Insensitive
    }

    fn reverse_expr(&self) -> ReversedUDAF {
        ReversedUDAF::Identical
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{ArrayRef, AsArray, Float32Array, Float64Array, Int64Array, RecordBatch, UInt64Array};
    use arrow::compute::{concat_batches, take_record_batch};
    use arrow::datatypes::{Float64Type, Int64Type};
    use datafusion::datasource::MemTable;
    use datafusion::prelude::{DataFrame, SessionConfig, SessionContext};

    use super::super::exact_sum::tests::random;
    use super::tally::Tally;
    use super::*;
    use forebay_operators::for_each_value;

    fn unit(seed: u64, index: u64) -> f64 {
        (random(seed, index) >> 11) as f64 / (1_u64 << 53) as f64
    }

    const ROWS: u64 = 1000;
    const SEED: u64 = 7;

    /// A row number `k`, a group `g` of 5, one `h` of 700, numbers `x` of different sizes, `y` and `i`, which may be
    /// null, `z` that has few values, and a large `w`, whose variance is small.
    fn rows() -> RecordBatch {
        let is_null = |seed, index| random(seed, index).is_multiple_of(11);
        let x = |k| (unit(1, k) - 0.5) * 10_f64.powi((random(2, k) % 9) as i32);
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("k", Arc::new(Int64Array::from_iter_values(0..ROWS as i64))),
            ("g", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|k| (random(3, k) % 5) as i64)))),
            ("h", Arc::new(Int64Array::from_iter_values((0..ROWS).map(|k| (random(4, k) % 700) as i64)))),
            ("x", Arc::new(Float64Array::from_iter((0..ROWS).map(|k| (!is_null(5, k)).then(|| x(k)))))),
            ("y", Arc::new(Float32Array::from_iter_values((0..ROWS).map(|k| unit(6, k) as f32)))),
            (
                "i",
                Arc::new(Int64Array::from_iter(
                    (0..ROWS).map(|k| (!is_null(7, k)).then_some(random(8, k) as i64 >> 30)),
                )),
            ),
            ("z", Arc::new(Float64Array::from_iter_values((0..ROWS).map(|k| (random(9, k) % 40) as f64 * 0.1)))),
            ("w", Arc::new(Float64Array::from_iter_values((0..ROWS).map(|k| 1e9 + unit(10, k))))),
        ];
        RecordBatch::try_from_iter(columns).unwrap()
    }

    /// How a query runs.
    #[derive(Clone, Copy, Debug)]
    struct Setting {
        partitions: usize,
        batch_rows: usize,
        /// The order of rows.
        order: u64,
        /// Whether rows are passed on that do not share groups with enough others.
        is_passing: bool,
    }

    const FIRST: Setting = Setting { partitions: 1, batch_rows: 8192, order: 0, is_passing: false };
    const OTHERS: [Setting; 5] = [
        Setting { partitions: 1, batch_rows: 100, order: 1, is_passing: false },
        Setting { partitions: 2, batch_rows: 7, order: 2, is_passing: false },
        Setting { partitions: 4, batch_rows: 64, order: 3, is_passing: false },
        Setting { partitions: 4, batch_rows: 50, order: 4, is_passing: true },
        Setting { partitions: 7, batch_rows: 13, order: 5, is_passing: true },
    ];

    fn context(setting: Setting) -> SessionContext {
        let Setting { partitions, batch_rows, order, is_passing } = setting;
        let config = SessionConfig::new().with_target_partitions(partitions).with_batch_size(batch_rows);
        let (least, ratio) = if is_passing { ("10", "0.0") } else { ("100000", "0.8") };
        let config = config
            .set_str("datafusion.execution.skip_partial_aggregation_probe_rows_threshold", least)
            .set_str("datafusion.execution.skip_partial_aggregation_probe_ratio_threshold", ratio);
        let context = SessionContext::new_with_config(config);
        let mut places: Vec<u64> = (0..ROWS).collect();
        places.sort_by_key(|place| random(SEED + order, *place));
        let rows = take_record_batch(&rows(), &UInt64Array::from(places)).unwrap();
        let mut parts = vec![Vec::new(); partitions];
        for (batch, first) in (0..rows.num_rows()).step_by(batch_rows).enumerate() {
            parts[batch % partitions].push(rows.slice(first, batch_rows.min(rows.num_rows() - first)));
        }
        context.register_table("t", Arc::new(MemTable::try_new(rows.schema(), parts).unwrap())).unwrap();
        context
    }

    /// The plan as it would be run, and with exact sums.
    async fn plans(context: &SessionContext, sql: &str) -> (LogicalPlan, LogicalPlan) {
        let state = context.state();
        let plan = state.create_logical_plan(sql).await.unwrap();
        let plan = state.analyzer().execute_and_check(plan, state.config_options(), |_, _| {}).unwrap();
        let exact = order_free(plan.clone()).unwrap();
        assert_eq!(exact.schema(), plan.schema(), "{sql}");
        (plan, exact)
    }

    async fn run(context: &SessionContext, plan: LogicalPlan) -> RecordBatch {
        let schema = Arc::clone(plan.schema().inner());
        let batches = DataFrame::new(context.state(), plan).collect().await.unwrap();
        concat_batches(batches.first().map_or(&schema, |batch| batch.schema_ref()), &batches).unwrap()
    }

    /// The bits of all values, column by column.
    fn bits(rows: &RecordBatch) -> Vec<Vec<Option<u64>>> {
        let column = |column: &ArrayRef| match column.data_type() {
            DataType::Float64 => column.as_primitive::<Float64Type>().iter().map(|x| x.map(f64::to_bits)).collect(),
            DataType::Int64 => {
                let integers = column.as_primitive::<Int64Type>();
                integers.iter().map(|x| x.map(|x| x as u64)).collect()
            }
            other => panic!("a column of {other}"),
        };
        rows.columns().iter().map(column).collect()
    }

    /// The query has the same bits however it is run, and what DataFusion computes differs by rounding only.
    async fn check(sql: &str) {
        let first = context(FIRST);
        let (plain, exact) = plans(&first, sql).await;
        assert!(exact.display_indent().to_string().contains("exact_"), "{sql}");
        let (plain, exact) = (run(&first, plain).await, run(&first, exact).await);
        close(&plain, &exact, sql);
        for setting in OTHERS {
            let context = context(setting);
            let (_, plan) = plans(&context, sql).await;
            assert_eq!(bits(&run(&context, plan).await), bits(&exact), "{sql}, {setting:?}, seed {SEED}");
        }
    }

    fn close(plain: &RecordBatch, exact: &RecordBatch, sql: &str) {
        assert_eq!(plain.num_rows(), exact.num_rows(), "{sql}");
        for (plain, exact) in plain.columns().iter().zip(exact.columns()) {
            assert_eq!(plain.data_type(), exact.data_type(), "{sql}");
            if plain.data_type() != &DataType::Float64 {
                assert_eq!(plain, exact, "{sql}");
                continue;
            }
            let pairs = plain.as_primitive::<Float64Type>().iter().zip(exact.as_primitive::<Float64Type>());
            for pair in pairs {
                match pair {
                    (None, None) => {}
                    // Sums of values up to 1e8 that cancel.
                    (Some(a), Some(b)) if (a - b).abs() <= 1e-9 * a.abs().max(b.abs()) + 1e-4 => {}
                    (a, b) => panic!("{sql}: {a:?} and {b:?}"),
                }
            }
        }
    }

    const ALL_OF_X: &str = "sum(x), avg(x), var(x), var_pop(x), stddev(x), stddev_pop(x)";

    #[tokio::test]
    async fn aggregates_do_not_depend_on_the_order_of_rows() {
        check(&format!("SELECT {ALL_OF_X} FROM t")).await;
        check(&format!("SELECT g, {ALL_OF_X}, count(*) FROM t GROUP BY g ORDER BY g")).await;
        check(&format!("SELECT h, {ALL_OF_X}, min(x) FROM t GROUP BY h ORDER BY h")).await;
        check("SELECT g, sum(y), avg(y), var(y), avg(i), stddev_pop(i), sum(i) FROM t GROUP BY g ORDER BY g").await;
        check("SELECT sum(w), avg(w), sum(x + w), sum(-x), avg(x * y) FROM t").await;
        check("SELECT g, h % 3 AS r, sum(x) FROM t GROUP BY ROLLUP (g, h % 3) ORDER BY g, r").await;
    }

    #[tokio::test]
    async fn filters_and_orders_and_missing_values() {
        check(
            "SELECT g, sum(x) FILTER (WHERE y > 0.5) AS a, avg(x) FILTER (WHERE i > 0), var(x) FILTER (WHERE i > 0), \
             sum(x) FILTER (WHERE k = 17) FROM t GROUP BY g ORDER BY g",
        )
        .await;
        check("SELECT h, avg(x) FILTER (WHERE i > 0), stddev(x) FILTER (WHERE y > 0.9) FROM t GROUP BY h ORDER BY h")
            .await;
        check("SELECT sum(x ORDER BY k), avg(x ORDER BY y DESC) FROM t").await;
        check("SELECT sum(x), avg(x), var(x), var_pop(x), stddev_pop(x) FROM t WHERE k < 0").await;
        check("SELECT g, sum(x), var_pop(x) FROM t WHERE x IS NULL GROUP BY g ORDER BY g").await;
        check("SELECT sum(x), avg(x), var(x), var_pop(x), stddev(x), stddev_pop(x) FROM t WHERE k = 1").await;
    }

    #[tokio::test]
    async fn distinct_values() {
        // Several arguments are not rewritten to GROUP BY, and one is.
        check("SELECT g, sum(DISTINCT z), avg(DISTINCT x), var(DISTINCT z) FROM t GROUP BY g ORDER BY g").await;
        check("SELECT g, sum(DISTINCT z), avg(DISTINCT z), var_pop(DISTINCT z) FROM t GROUP BY g ORDER BY g").await;
        check("SELECT sum(DISTINCT z), sum(x), count(DISTINCT z), avg(DISTINCT x) FROM t").await;
        check("SELECT count(DISTINCT h), sum(x) FROM t").await;
        check("SELECT k, sum(DISTINCT z) OVER (PARTITION BY g ORDER BY k) FROM t ORDER BY k").await;
    }

    #[tokio::test]
    async fn windows() {
        for frame in [
            "ORDER BY k ROWS BETWEEN 3 PRECEDING AND CURRENT ROW",
            "ORDER BY k ROWS BETWEEN 2 PRECEDING AND 5 FOLLOWING",
            "ORDER BY k RANGE BETWEEN 20 PRECEDING AND 10 PRECEDING",
            "ORDER BY k DESC",
            "ORDER BY k ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING",
            "",
        ] {
            let over = format!("OVER (PARTITION BY g {frame})");
            check(&format!(
                "SELECT k, sum(x) {over}, avg(x) {over} AS a, var_pop(y) {over}, stddev_pop(y) {over}, avg(i) {over}, \
                 sum(x) FILTER (WHERE i > 0) {over} FROM t ORDER BY k"
            ))
            .await;
        }
        check("SELECT k, sum(x) OVER (PARTITION BY g ORDER BY k ROWS 3 PRECEDING) - avg(x) OVER () FROM t ORDER BY k")
            .await;
    }

    #[tokio::test]
    async fn subqueries_and_names() {
        check("SELECT k, x FROM t WHERE x > (SELECT avg(x) FROM t) ORDER BY k").await;
        check("SELECT k, (SELECT sum(s.x) FROM t AS s WHERE s.g = t.g) FROM t ORDER BY k").await;
        check("SELECT g, sum(x) AS s FROM t GROUP BY g HAVING sum(x) > (SELECT avg(x) FROM t) ORDER BY s").await;
        check("WITH a AS (SELECT g, avg(x) AS m FROM t GROUP BY g) SELECT avg(m), sum(m * g) FROM a").await;
        check("SELECT g, sum(x) / count(x) - avg(x), sum(x) + sum(x) FROM t GROUP BY g ORDER BY sum(x)").await;
        check("SELECT a.g, a.s FROM (SELECT g, sum(x) OVER (PARTITION BY g) AS s FROM t) AS a ORDER BY a.g").await;
        let positive = "SELECT g FROM t GROUP BY g HAVING sum(x) > 0";
        check(&format!("SELECT sum(x) FROM t UNION ALL SELECT avg(x) FROM t WHERE g IN ({positive}) ORDER BY 1")).await;
    }

    #[tokio::test]
    async fn the_rounded_sum_is_that_of_exact_arithmetic() {
        let context = context(OTHERS[4]);
        let (_, plan) = plans(&context, "SELECT sum(x), avg(x), var(w), stddev(w) FROM t").await;
        let got = run(&context, plan).await;
        let rows = rows();
        let (mut x, mut w) = (Total::default(), Moments::default());
        let floats = |name| rows.column_by_name(name).unwrap().as_primitive::<Float64Type>();
        for_each_value(floats("x"), |value| _ = x.add(value));
        for_each_value(floats("w"), |value| _ = w.add(value));
        let expected = [
            x.result(Function::Sum),
            x.result(Function::Average),
            w.result(Function::Variance),
            w.result(Function::Deviation),
        ];
        let expected: Vec<_> = expected.into_iter().map(|value| vec![value.map(f64::to_bits)]).collect();
        assert_eq!(bits(&got), expected);
    }

    #[tokio::test]
    async fn what_has_no_order_stays_as_it_is() {
        let context = context(FIRST);
        let sql = "SELECT sum(i), sum(CAST(x AS DECIMAL(20, 3))), avg(CAST(x AS DECIMAL(20, 3))), count(x), max(x), \
                   sum(i) OVER (), rank() OVER (ORDER BY i) FROM t GROUP BY i";
        let (plain, exact) = plans(&context, sql).await;
        assert_eq!(plain, exact);
    }
}
