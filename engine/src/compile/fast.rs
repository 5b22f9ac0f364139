//! `decode_image(…, fast => true)`: where it counts is settled on the query, before the optimizer.
//!
//! A reduced picture is decoded where the call stands within the one that shrinks it. Whether it still does after the
//! optimizer depends on what else is asked for: a decoded picture that two columns share is computed once, by itself. So each
//! call that counts is made unlike any other, and all others are made exact.

use std::collections::HashMap;

use datafusion::common::metadata::FieldMetadata;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, lit};
use datafusion::scalar::ScalarValue;

const DECODE: &str = "decode_image";
/// The operators that may have a smaller picture.
const SHRINKING: [&str; 2] = ["resize", "random_resized_crop"];
/// Where `fast` is among the arguments.
const FAST: usize = 1;
/// What the literal's metadata hold, with a number of its own.
const SITE: &str = "forebay:site";

/// `expr` with each call's `fast` as it counts; `sites` grows by those that do.
pub(super) fn settled(expr: Expr, sites: &mut u64) -> Result<Expr> {
    expr.transform_down(|expr| {
        let Expr::ScalarFunction(mut call) = expr else { return Ok(Transformed::no(expr)) };
        if is_fast(&call) {
            call.args[FAST] = lit(false);
            return Ok(Transformed::yes(Expr::ScalarFunction(call)));
        }
        if SHRINKING.contains(&call.func.name())
            && let Some(Expr::ScalarFunction(decode)) = call.args.first_mut()
            && is_fast(decode)
        {
            let metadata = HashMap::from([(SITE.to_owned(), sites.to_string())]);
            decode.args[FAST] = Expr::Literal(ScalarValue::Boolean(Some(true)), Some(FieldMetadata::from(metadata)));
            *sites += 1;
            return Ok(Transformed::yes(Expr::ScalarFunction(call)));
        }
        Ok(Transformed::no(Expr::ScalarFunction(call)))
    })
    .data()
}

/// Whether a call wants a reduced picture, and has not been settled.
fn is_fast(call: &ScalarFunction) -> bool {
    call.name() == DECODE && matches!(call.args.get(FAST), Some(Expr::Literal(ScalarValue::Boolean(Some(true)), None)))
}
