//! Functions of several rows: which results depend on the order of the rows, and how that order is given.
//!
//! Each aggregate of DataFusion is of one [`Class`]:
//!
//! - Free, so the same in every order: `approx_distinct`, `bit_and`, `bit_or`, `bit_xor`, `bool_and`, `bool_or`,
//!   `count`, `grouping`, `regr_count`, and the quantiles of fits.
//! - Free, but for floats, whose sums are rounded: `avg`, `stddev`, `stddev_pop`, `sum`, `var`, `var_pop`. Exact ones
//!   replace them beforehand.
//! - Compared: `max`, `median`, `min`, `percentile_cont`. Over floats, they are written otherwise here.
//! - Ordered: `array_agg`, `first_value`, `last_value`, `nth_value`, `string_agg`. They need ORDER BY, and get places
//!   after it.
//! - Numbered: the vocabularies of fits. In the order of rows, they need the number of each row.
//! - Dependent, and refused: `any_value`, `approx_median`, `approx_percentile_cont`,
//!   `approx_percentile_cont_with_weight`, `corr`, `covar_pop`, `covar_samp`, `regr_avgx`, `regr_avgy`,
//!   `regr_intercept`, `regr_r2`, `regr_slope`, `regr_sxx`, `regr_sxy`, `regr_syy`. The state of most is merged in the
//!   order in which threads finish, and each merge rounds.

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{Transformed, TreeNode, TreeNodeRecursion};
use datafusion::common::{DFSchema, ScalarValue, plan_err};
use datafusion::error::Result;
use datafusion::functions_aggregate::first_last::first_value_udaf;
use datafusion::functions_aggregate::percentile_cont::percentile_cont_udaf;
use datafusion::logical_expr::expr::{
    AggregateFunction, AggregateFunctionParams, NullTreatment, WindowFunction, WindowFunctionParams,
};
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    Expr, ExprSchemable, SortExpr, WindowFrame, WindowFrameBound, WindowFrameUnits, WindowFunctionDefinition, lit,
};

use forebay_operators::fits::{FIRST_SEEN, QUANTILES, VOCABULARY};

use super::Key;

/// The beginning of the names of aggregates that sum floats exactly.
const EXACT: &str = "exact_";

/// How the result of an aggregate depends on the order in which rows arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// It does not.
    Free,
    /// It does not, but for floats: DataFusion compares NaNs and zeros of both signs as they come.
    Compared,
    /// ORDER BY in the call says how.
    Ordered,
    /// A constant argument says whether it does.
    Numbered,
    /// It does, and nothing says how.
    Dependent,
}

/// The class of the aggregate `name`. Unknown ones are refused.
pub(super) fn class(name: &str) -> Class {
    match name {
        "approx_distinct" | "bit_and" | "bit_or" | "bit_xor" | "bool_and" | "bool_or" | "count" | "grouping"
        | "regr_count" | QUANTILES => Class::Free,
        "avg" | "stddev" | "stddev_pop" | "sum" | "var" | "var_pop" => Class::Free,
        name if name.starts_with(EXACT) => Class::Free,
        "max" | "median" | "min" | "percentile_cont" => Class::Compared,
        "array_agg" | "first_value" | "last_value" | "nth_value" | "string_agg" => Class::Ordered,
        VOCABULARY => Class::Numbered,
        _ => Class::Dependent,
    }
}

/// Whether an expression calls an aggregate that needs the number of each row.
pub(super) fn needs_numbers(expr: &Expr) -> Result<bool> {
    expr.exists(|expr| match expr {
        Expr::AggregateFunction(call) => Ok(class(call.func.name()) == Class::Numbered && is_first_seen(call)),
        _ => Ok(false),
    })
}

fn is_first_seen(call: &AggregateFunction) -> bool {
    let is_it = |arg: &Expr| matches!(arg, Expr::Literal(order, _) if order.try_as_str() == Some(Some(FIRST_SEEN)));
    call.params.args.iter().skip(1).any(is_it)
}

/// Calls of aggregates over rows with these places, with results that do not depend on the order in which rows arrive.
/// `number` is the number of each row, if [a call needs it](needs_numbers).
pub(super) fn aggregates(
    exprs: Vec<Expr>,
    place: &[Key],
    number: Option<&Expr>,
    input: &DFSchema,
) -> Result<Vec<Expr>> {
    let mut orders: Vec<Vec<SortExpr>> = Vec::new();
    for expr in &exprs {
        expr.apply(|expr| {
            if let Expr::AggregateFunction(call) = expr
                && class(call.func.name()) == Class::Ordered
            {
                orders.push(call.params.order_by.clone());
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
    }
    let names = NamePreserver::new_for_projection();
    let determined = |expr: Expr| -> Result<Expr> {
        let name = names.save(&expr);
        let determined = expr.transform_up(|expr| match expr {
            Expr::AggregateFunction(call) => {
                let call = aggregate(call, &orders, place, number, input)?;
                Ok(Transformed::yes(Expr::AggregateFunction(call)))
            }
            other => Ok(Transformed::no(other)),
        })?;
        Ok(name.restore(determined.data))
    };
    exprs.into_iter().map(determined).collect()
}

fn aggregate(
    mut call: AggregateFunction,
    orders: &[Vec<SortExpr>],
    place: &[Key],
    number: Option<&Expr>,
    input: &DFSchema,
) -> Result<AggregateFunction> {
    match class(call.func.name()) {
        Class::Free => Ok(call),
        Class::Compared if is_of_floats(&call.params.args, input)? => Ok(compared(call)),
        Class::Compared => Ok(call),
        Class::Ordered => ordered(call, orders, place),
        Class::Numbered => {
            if is_first_seen(&call) {
                call.params.args.extend(number.cloned());
            }
            Ok(call)
        }
        Class::Dependent => dependent(call.func.name()),
    }
}

/// The call over floats by functions that compare all floats, as sorting does.
fn compared(call: AggregateFunction) -> AggregateFunction {
    let AggregateFunction { func, mut params } = call;
    let name = func.name().to_owned();
    // DataFusion's optimizer would write min and max.
    let end = params.args.get(1).and_then(constant).filter(|share| *share == 0.0 || *share == 1.0);
    let is_descending = params.order_by.first().is_some_and(|sort| !sort.asc);
    match (name.as_str(), end) {
        ("min", _) => extreme(params, true),
        ("max", _) => extreme(params, false),
        ("percentile_cont", Some(end)) => extreme(params, (end == 0.0) != is_descending),
        ("median", _) => {
            params.args.push(lit(0.5_f64));
            AggregateFunction { func: percentile_cont_udaf(), params }
        }
        _ => AggregateFunction { func, params },
    }
}

/// The number that an expression is, if it is a constant.
fn constant(expr: &Expr) -> Option<f64> {
    match expr {
        Expr::Literal(value, _) => match value.cast_to(&DataType::Float64) {
            Ok(ScalarValue::Float64(number)) => number,
            _ => None,
        },
        Expr::Cast(cast) => constant(&cast.expr),
        _ => None,
    }
}

/// The least or the greatest value of the first argument.
fn extreme(params: AggregateFunctionParams, is_least: bool) -> AggregateFunction {
    let AggregateFunctionParams { mut args, filter, .. } = params;
    args.truncate(1);
    let order = args.iter().map(|arg| SortExpr::new(arg.clone(), is_least, false)).collect();
    AggregateFunction::new_udf(first_value_udaf(), args, false, filter, order, None)
}

fn ordered(mut call: AggregateFunction, orders: &[Vec<SortExpr>], place: &[Key]) -> Result<AggregateFunction> {
    let name = call.func.name().to_owned();
    let params = &mut call.params;
    if params.order_by.is_empty() {
        return plan_err!("{name}() without ORDER BY depends on the order in which rows arrive");
    }
    if params.distinct && matches!(name.as_str(), "array_agg" | "string_agg") {
        // Equal values are one, without a place. DataFusion sorts them by themselves only.
        let is_by_itself = matches!(&params.order_by[..], [by] if params.args.first() == Some(&by.expr));
        return match is_by_itself {
            true => Ok(call),
            false => plan_err!("{name}(DISTINCT …) depends on the order in which rows arrive: order it by itself"),
        };
    }
    // DataFusion sorts once for the calls of a node. An order that begins like a longer one becomes it, so that they
    // still agree with places after them.
    let longest = orders.iter().filter(|order| order.starts_with(&params.order_by)).max_by_key(|order| order.len());
    if let Some(longest) = longest {
        params.order_by.clone_from(longest);
    }
    add_place(&mut params.order_by, &[], place);
    Ok(call)
}

/// A call of a window function over rows with these places, with a result that does not depend on the order in which
/// rows arrive.
///
/// In a frame of ROWS, places order rows with equal keys. In a frame of RANGE or GROUPS they would part them.
pub(super) fn window(mut call: WindowFunction, place: &[Key], input: &DFSchema) -> Result<WindowFunction> {
    let name = call.fun.name().to_owned();
    let is_aggregate = matches!(call.fun, WindowFunctionDefinition::AggregateUDF(_));
    let frame = match (name.as_str(), is_aggregate) {
        ("cume_dist" | "dense_rank" | "percent_rank" | "rank", false) => return Ok(call),
        // They have no frame. One of RANGE with distances would accept a single key.
        ("lag" | "lead" | "ntile" | "row_number", false) => Some(WindowFrame::new(Some(true))),
        ("first_value" | "last_value" | "nth_value", false) => counted(&name, &call.params),
        (_, true) => match class(&name) {
            Class::Free | Class::Compared => {
                if name == "median" && is_of_floats(&call.params.args, input)? {
                    call.fun = WindowFunctionDefinition::AggregateUDF(percentile_cont_udaf());
                    call.params.args.push(lit(0.5_f64));
                }
                let frame = &call.params.window_frame;
                if frame.units != WindowFrameUnits::Rows || is_whole(frame) {
                    return Ok(call);
                }
                Some(frame.clone())
            }
            Class::Ordered if !call.params.distinct => counted(&name, &call.params),
            Class::Ordered | Class::Numbered | Class::Dependent => return dependent(&name),
        },
        _ => return dependent(&name),
    };
    let Some(frame) = frame else {
        return plan_err!("{name}() over RANGE or GROUPS depends on the order in which rows arrive: write ROWS");
    };
    let WindowFunctionParams { partition_by, order_by, window_frame, .. } = &mut call.params;
    *window_frame = frame;
    add_place(order_by, partition_by, place);
    Ok(call)
}

/// The frame of ROWS over which a function has the same value as over its frame, with places among the keys.
fn counted(name: &str, params: &WindowFunctionParams) -> Option<WindowFrame> {
    let frame = &params.window_frame;
    if frame.units == WindowFrameUnits::Rows {
        return Some(frame.clone());
    }
    if is_whole(frame) {
        return Some(WindowFrame::new(None));
    }
    let ignores_nulls = params.null_treatment == Some(NullTreatment::IgnoreNulls);
    let (start, end) = (&frame.start_bound, &frame.end_bound);
    match name {
        // A frame that holds the current row begins with the first row of all.
        "first_value" if start.is_unbounded() && !ignores_nulls && !matches!(end, WindowFrameBound::Preceding(_)) => {
            Some(WindowFrame::new(Some(true)))
        }
        "last_value" if end.is_unbounded() && !ignores_nulls && !matches!(start, WindowFrameBound::Following(_)) => {
            let end = WindowFrameBound::Following(ScalarValue::UInt64(None));
            Some(WindowFrame::new_bounds(WindowFrameUnits::Rows, WindowFrameBound::CurrentRow, end))
        }
        _ => None,
    }
}

/// Whether a frame is the whole partition for each of its rows.
fn is_whole(frame: &WindowFrame) -> bool {
    frame.start_bound.is_unbounded() && frame.end_bound.is_unbounded()
}

fn is_of_floats(args: &[Expr], input: &DFSchema) -> Result<bool> {
    match args.first() {
        Some(arg) => Ok(arg.get_type(input)?.is_floating()),
        None => Ok(false),
    }
}

/// Adds places to an order, but for those whose columns are known to be equal. DataFusion expects a column once.
pub(super) fn add_place(order: &mut Vec<SortExpr>, equal: &[Expr], place: &[Key]) {
    for key in place {
        let sort = key.sort();
        if !equal.contains(&sort.expr) && order.iter().all(|other| other.expr != sort.expr) {
            order.push(sort);
        }
    }
}

fn dependent<T>(name: &str) -> Result<T> {
    let dependent = format!("{name}() depends on the order in which rows arrive");
    match instead(name) {
        Some(instead) if instead.contains('y') => {
            plan_err!("{dependent}: write `{instead}`, of DOUBLE columns without nulls")
        }
        Some(instead) => plan_err!("{dependent}: write `{instead}`"),
        None => plan_err!("{dependent}"),
    }
}

/// An expression that computes about the same in every order.
pub(super) fn instead(name: &str) -> Option<&'static str> {
    Some(match name {
        "any_value" => "min(x)",
        "approx_median" => "median(x)",
        "approx_percentile_cont" => "percentile_cont(0.9) WITHIN GROUP (ORDER BY x)",
        "corr" => "(avg(x * y) - avg(x) * avg(y)) / nullif(stddev_pop(x) * stddev_pop(y), 0)",
        "covar_pop" => "avg(x * y) - avg(x) * avg(y)",
        "covar_samp" => "(sum(x * y) - sum(x) * avg(y)) / nullif(count(*) - 1, 0)",
        _ => return None,
    })
}
