//! The form of expressions over several rows: aggregates, window functions and grouping sets.

use datafusion::error::Result;
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, NullTreatment, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::{
    Expr, GroupingSet, SortExpr, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition,
};

use super::expressions::{expression, expressions};
use super::form::{Form, without_form};
use super::values::value;

/// Writes an expression over several rows. Their functions are DataFusion's, so the form's version covers them.
pub(super) fn over_rows(form: &mut Form, expr: &Expr) -> Result<()> {
    match expr {
        Expr::AggregateFunction(call) => aggregate(form, call),
        Expr::WindowFunction(call) => window(form, call),
        Expr::GroupingSet(GroupingSet::Rollup(columns)) => {
            form.tag("rollup");
            expressions(form, columns)
        }
        Expr::GroupingSet(GroupingSet::Cube(columns)) => {
            form.tag("cube");
            expressions(form, columns)
        }
        Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => {
            form.tag("grouping sets");
            form.list(sets, |form, set| expressions(form, set))
        }
        other => without_form(format_args!("the expression {}", other.variant_name())),
    }
}

/// Writes the number of sort keys, then each key.
pub(super) fn sorts(form: &mut Form, sorts: &[SortExpr]) -> Result<()> {
    form.list(sorts, |form, sort| {
        let SortExpr { expr, asc, nulls_first } = sort;
        form.flag(*asc);
        form.flag(*nulls_first);
        expression(form, expr)
    })
}

fn aggregate(form: &mut Form, call: &AggregateFunction) -> Result<()> {
    let AggregateFunction { func, params } = call;
    let AggregateFunctionParams { args, distinct, filter, order_by, null_treatment } = params;
    form.tag("aggregate function");
    form.text(func.name());
    expressions(form, args)?;
    form.flag(*distinct);
    form.optional(filter.as_deref(), expression)?;
    sorts(form, order_by)?;
    form.optional(*null_treatment, nulls)
}

fn window(form: &mut Form, call: &WindowFunction) -> Result<()> {
    let WindowFunction { fun, params } = call;
    let WindowFunctionParams { args, partition_by, order_by, window_frame, filter, null_treatment, distinct } = params;
    form.tag("window function");
    // An aggregate and a window function may have one name, as `first_value` has.
    form.tag(match fun {
        WindowFunctionDefinition::AggregateUDF(_) => "of an aggregate",
        WindowFunctionDefinition::WindowUDF(_) => "of a window",
    });
    form.text(fun.name());
    expressions(form, args)?;
    expressions(form, partition_by)?;
    sorts(form, order_by)?;
    frame(form, window_frame)?;
    form.optional(filter.as_deref(), expression)?;
    form.optional(*null_treatment, nulls)?;
    form.flag(*distinct);
    Ok(())
}

fn frame(form: &mut Form, frame: &WindowFrame) -> Result<()> {
    // Another field is private, and follows from these.
    let WindowFrame { units, start_bound, end_bound, .. } = frame;
    form.tag(match units {
        WindowFrameUnits::Rows => "rows",
        WindowFrameUnits::Range => "range",
        WindowFrameUnits::Groups => "groups",
    });
    bound(form, start_bound)?;
    bound(form, end_bound)
}

fn bound(form: &mut Form, bound: &WindowFrameBound) -> Result<()> {
    let (tag, distance) = match bound {
        WindowFrameBound::Preceding(distance) => ("preceding", Some(distance)),
        WindowFrameBound::CurrentRow => ("current row", None),
        WindowFrameBound::Following(distance) => ("following", Some(distance)),
    };
    form.tag(tag);
    // A null is no bound. Its type has no meaning, and depends on who made the frame.
    form.optional(distance.filter(|distance| !distance.is_null()), value)
}

fn nulls(form: &mut Form, treatment: NullTreatment) -> Result<()> {
    form.tag(match treatment {
        NullTreatment::IgnoreNulls => "ignore nulls",
        NullTreatment::RespectNulls => "respect nulls",
    });
    Ok(())
}

/// In a plan of SQL, the names of columns repeat most parts of the calls that compute them. These calls have no names.
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use datafusion::functions_aggregate::count::count_udaf;
    use datafusion::functions_aggregate::first_last::first_value_udaf;
    use datafusion::functions_aggregate::sum::sum_udaf;
    use datafusion::functions_window::nth_value::first_value_udwf;
    use datafusion::logical_expr::col;
    use datafusion::scalar::ScalarValue;

    use super::*;

    fn form_of(expr: &Expr) -> String {
        let mut form = Form::new("", |_, _| Ok(()));
        expression(&mut form, expr).expect("a form");
        form.finish()
    }

    fn assert_different(exprs: &[Expr]) {
        let forms: BTreeSet<String> = exprs.iter().map(form_of).collect();
        assert_eq!(forms.len(), exprs.len());
    }

    fn sum(change: fn(&mut AggregateFunction)) -> Expr {
        let mut call = AggregateFunction::new_udf(sum_udaf(), vec![col("a")], false, None, Vec::new(), None);
        change(&mut call);
        Expr::AggregateFunction(call)
    }

    fn sum_over(change: fn(&mut WindowFunction)) -> Expr {
        let mut call = WindowFunction::new(sum_udaf(), vec![col("a")]);
        change(&mut call);
        Expr::WindowFunction(Box::new(call))
    }

    fn rows(start: ScalarValue, end: ScalarValue) -> WindowFrame {
        let (start, end) = (WindowFrameBound::Preceding(start), WindowFrameBound::Following(end));
        WindowFrame::new_bounds(WindowFrameUnits::Rows, start, end)
    }

    fn up_to(units: WindowFrameUnits, end: WindowFrameBound) -> WindowFrame {
        WindowFrame::new_bounds(units, WindowFrameBound::Preceding(distance(3)), end)
    }

    fn distance(rows: u64) -> ScalarValue {
        ScalarValue::UInt64(Some(rows))
    }

    #[test]
    fn every_part_of_an_aggregate_counts() {
        assert_different(&[
            sum(|_| {}),
            sum(|call| call.func = count_udaf()),
            sum(|call| call.params.args = vec![col("b")]),
            sum(|call| call.params.args = vec![col("a"), col("b")]),
            sum(|call| call.params.distinct = true),
            sum(|call| call.params.filter = Some(Box::new(col("b")))),
            sum(|call| call.params.filter = Some(Box::new(col("c")))),
            sum(|call| call.params.order_by = vec![col("b").sort(true, false)]),
            sum(|call| call.params.order_by = vec![col("b").sort(true, true)]),
            sum(|call| call.params.order_by = vec![col("b").sort(false, false)]),
            sum(|call| call.params.order_by = vec![col("c").sort(true, false)]),
            sum(|call| call.params.null_treatment = Some(NullTreatment::IgnoreNulls)),
            sum(|call| call.params.null_treatment = Some(NullTreatment::RespectNulls)),
            sum_over(|_| {}),
        ]);
    }

    #[test]
    fn every_part_of_a_window_function_counts() {
        use WindowFrameUnits::{Groups, Range, Rows};

        assert_different(&[
            sum_over(|_| {}),
            sum_over(|call| call.fun = WindowFunctionDefinition::AggregateUDF(count_udaf())),
            sum_over(|call| call.fun = WindowFunctionDefinition::AggregateUDF(first_value_udaf())),
            sum_over(|call| call.fun = WindowFunctionDefinition::WindowUDF(first_value_udwf())),
            sum_over(|call| call.params.args = vec![col("b")]),
            sum_over(|call| call.params.partition_by = vec![col("b")]),
            sum_over(|call| call.params.partition_by = vec![col("c")]),
            sum_over(|call| call.params.order_by = vec![col("b").sort(true, false)]),
            sum_over(|call| call.params.order_by = vec![col("b").sort(true, true)]),
            sum_over(|call| call.params.order_by = vec![col("b").sort(false, false)]),
            sum_over(|call| call.params.window_frame = rows(distance(1), distance(1))),
            sum_over(|call| call.params.window_frame = rows(distance(2), distance(1))),
            sum_over(|call| call.params.window_frame = rows(distance(1), distance(2))),
            sum_over(|call| call.params.window_frame = rows(distance(1), ScalarValue::UInt64(None))),
            sum_over(|call| call.params.window_frame = rows(ScalarValue::UInt64(None), distance(1))),
            sum_over(|call| call.params.window_frame = up_to(Rows, WindowFrameBound::CurrentRow)),
            sum_over(|call| call.params.window_frame = up_to(Range, WindowFrameBound::CurrentRow)),
            sum_over(|call| call.params.window_frame = up_to(Groups, WindowFrameBound::CurrentRow)),
            sum_over(|call| call.params.window_frame = up_to(Rows, WindowFrameBound::Preceding(distance(1)))),
            sum_over(|call| call.params.window_frame = up_to(Rows, WindowFrameBound::Following(distance(1)))),
            sum_over(|call| call.params.filter = Some(Box::new(col("b")))),
            sum_over(|call| call.params.null_treatment = Some(NullTreatment::IgnoreNulls)),
            sum_over(|call| call.params.null_treatment = Some(NullTreatment::RespectNulls)),
            sum_over(|call| call.params.distinct = true),
        ]);
    }

    #[test]
    fn a_frame_without_bounds_has_one_form() {
        let unbounded = sum_over(|call| {
            call.params.window_frame = rows(ScalarValue::UInt64(None), ScalarValue::Null);
        });
        assert_eq!(form_of(&sum_over(|_| {})), form_of(&unbounded));
    }

    #[test]
    fn grouping_sets_differ() {
        let [a, b] = ["a", "b"].map(col);
        let both = vec![a.clone(), b.clone()];
        assert_different(
            &[
                GroupingSet::Rollup(both.clone()),
                GroupingSet::Cube(both.clone()),
                GroupingSet::GroupingSets(vec![both.clone()]),
                GroupingSet::GroupingSets(vec![both.clone(), vec![]]),
                GroupingSet::GroupingSets(vec![vec![], both.clone()]),
                GroupingSet::GroupingSets(vec![vec![a.clone()], vec![b.clone()]]),
                GroupingSet::Rollup(vec![b, a]),
            ]
            .map(Expr::GroupingSet),
        );
    }
}
