//! Assigns a call site to each keyed-random call of a query, and passes it its row's key.
//!
//! A call site is the operator's name and its ordinal among the calls of that operator without a `key`. Adding a flip
//! to a pipeline therefore does not change its crops. Calls of one operator with one `key` have the same site.

use std::collections::HashMap;

use datafusion::common::plan_err;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, LogicalPlan, lit};
use forebay_operators::{Descriptor, Determinism, shared_site};
use forebay_protocol::CallOrder;
use forebay_sql::SAMPLE;
use xxhash_rust::xxh3::xxh3_64;

use super::relaxed::{reordered, without_marks};
use super::shared_draws::SharedDraws;
use crate::compile::hidden_columns::{RANDOM_KEY, SAMPLE_ID, STEP_LENGTH, hidden_column};
use crate::compile::reduced_decode;
use crate::function::FunctionUdf;

/// The call sites assigned so far.
#[derive(Default)]
pub(super) struct CallSites {
    /// The order in which calls run.
    order: CallOrder,
    /// The calls that run in another order than written, in words.
    moves: Vec<String>,
    /// Calls of each operator.
    sites: HashMap<String, u64>,
    /// Calls that decode images at reduced size.
    fast: u64,
    /// Calls that draw alike.
    shared: SharedDraws,
}

impl CallSites {
    /// Begins a query whose calls run in this order.
    pub(super) fn new(order: CallOrder) -> Self {
        Self { order, ..Self::default() }
    }

    /// The calls that run in another order than written, in words.
    pub(super) fn into_moves(self) -> Vec<String> {
        self.moves
    }

    /// Adds to each call in `expr` over `input` the hidden columns that its operator depends on. `is_of_table` is false
    /// above an operator that derives rows.
    pub(super) fn weave(&mut self, expr: Expr, input: &LogicalPlan, is_of_table: bool) -> Result<Expr> {
        let name = expr.schema_name().to_string();
        let (key, step) = (hidden_column(input, RANDOM_KEY)?, hidden_column(input, STEP_LENGTH)?);
        let id = hidden_column(input, SAMPLE_ID)?;
        let woven = expr
            .transform_up(|expr| {
                let Expr::ScalarFunction(call) = expr else { return Ok(Transformed::no(expr)) };
                let mut args = call.args.clone();
                let descriptor = forebay_operators::find(call.name()).map(|operator| operator.descriptor());
                match descriptor.map(|descriptor| descriptor.determinism) {
                    Some(Determinism::KeyedRandom) => {
                        descriptor.into_iter().for_each(|descriptor| self.shared.add(descriptor, &args));
                        let shared = descriptor.and_then(|descriptor| shared(descriptor, &args));
                        let site = shared.unwrap_or_else(|| self.site(call.name()));
                        args.extend([Expr::Column(key.clone()), lit(site)]);
                    }
                    Some(Determinism::StepLength) => args.push(Expr::Column(step.clone())),
                    None if FunctionUdf::of_call(&call).is_some_and(FunctionUdf::draws) => {
                        args.extend([Expr::Column(key.clone()), lit(self.site(call.name()))]);
                    }
                    None if call.name() == SAMPLE && !is_of_table => {
                        return plan_err!("TABLESAMPLE selects rows of a table by number, and these rows are derived");
                    }
                    None if call.name() == SAMPLE => args.push(Expr::Column(id.clone())),
                    Some(Determinism::Deterministic | Determinism::WindowOrder) | None => {
                        return Ok(Transformed::no(Expr::ScalarFunction(call)));
                    }
                }
                Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction::new_udf(call.func, args))))
            })
            .data()?;
        let ordered = match self.order {
            CallOrder::Exact => woven,
            CallOrder::Relaxed => reordered(woven, input.schema(), &mut self.moves)?,
        };
        let woven = reduced_decode::settled(without_marks(ordered)?, &mut self.fast)?;
        // An output column's name is the text of its expression, which must not show the arguments added here.
        if woven.schema_name().to_string() == name { Ok(woven) } else { Ok(woven.alias(name)) }
    }

    /// Refuses annotations that would not move as their image.
    pub(super) fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// The number of the next call site of `operator`.
    pub(super) fn site(&mut self, operator: &str) -> u64 {
        let ordinal = self.sites.entry(operator.to_owned()).or_insert(0);
        let site = xxh3_64(format!("{operator}#{ordinal}").as_bytes());
        *ordinal += 1;
        site
    }
}

/// The site of a call that shares its draws by a `key`.
fn shared(descriptor: &Descriptor, args: &[Expr]) -> Option<u64> {
    match args.get(descriptor.position("key")?)? {
        Expr::Literal(value, _) => match value.try_as_str()?? {
            "" => None,
            key => Some(shared_site(descriptor.draws_as(), key)),
        },
        _ => None,
    }
}
