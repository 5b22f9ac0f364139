//! Decoding at reduced size: decides on the query, before the optimizer runs, which calls may do so.
//!
//! A call decodes a smaller image if it is an argument of the call that shrinks the image. The optimizer may change
//! that, depending on the other columns: it moves an image that two columns share into a call of its own. So each call
//! that may decode at reduced size is made unique, and all others are made exact.

use std::collections::HashMap;

use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, lit};
use datafusion::scalar::ScalarValue;
use forebay_operators::ReducedDecode;

/// The metadata of a literal that marks a decided call, with a unique number.
const SITE: &str = "forebay:site";

/// Decides the flag of each decoding call in `expr`. Adds the number of calls that may decode at reduced size to
/// `sites`.
pub(super) fn settled(expr: Expr, sites: &mut u64) -> Result<Expr> {
    expr.transform_down(|expr| {
        let Expr::ScalarFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
        if let Some(flag) = open_flag(&call) {
            call.args[flag] = lit(false);
            return Ok(Transformed::yes(Expr::ScalarFunction(call)));
        }
        if role(&call) == ReducedDecode::Shrinks
            && let Some(Expr::ScalarFunction(decode)) = call.args.first_mut()
            && let Some(flag) = open_flag(decode)
        {
            let metadata = HashMap::from([(SITE.to_owned(), sites.to_string())]);
            decode.args[flag] = Expr::Literal(ScalarValue::Boolean(Some(true)), Some(FieldMetadata::from(metadata)));
            *sites += 1;
            return Ok(Transformed::yes(Expr::ScalarFunction(call)));
        }
        Ok(Transformed::no(Expr::ScalarFunction(call)))
    })
    .data()
}

/// Whether an expression decodes an image at the size that the call around it asks for.
pub(super) fn is_reduced(expr: &Expr) -> bool {
    let Expr::ScalarFunction(call) = expr else { return false };
    let ReducedDecode::Decodes(flag) = role(call) else { return false };
    let at = forebay_operators::find(call.name()).and_then(|operator| operator.descriptor().position(flag));
    at.and_then(|at| call.args.get(at))
        .is_some_and(|flag| matches!(flag, Expr::Literal(ScalarValue::Boolean(Some(true)), _)))
}

fn role(call: &ScalarFunction) -> ReducedDecode {
    let operator = forebay_operators::find(call.name());
    operator.map_or(ReducedDecode::Unrelated, |operator| operator.descriptor().reduced_decode)
}

/// The position of the argument that permits a reduced size, or `None` if the call does not permit it or is already
/// decided.
fn open_flag(call: &ScalarFunction) -> Option<usize> {
    let ReducedDecode::Decodes(flag) = role(call) else { return None };
    let at = forebay_operators::find(call.name())?.descriptor().position(flag)?;
    matches!(call.args.get(at), Some(Expr::Literal(ScalarValue::Boolean(Some(true)), None))).then_some(at)
}
