//! Crops of masks: which calls crop an image and its mask alike, and the check that they need.
//!
//! A draw becomes a position only with the size of an image, and a call does not see the other call's image. So a mask
//! of another size would lose another part than its image, without an error.

use std::sync::Arc;

use datafusion::common::Result;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, lit};
use datafusion::scalar::ScalarValue;

use crate::registry::{find, scalar_udf};

/// The operators whose part of an image depends on its size, and whether a size of the same aspect ratio gives the same
/// part.
const CROPS: [(&str, bool); 2] = [("random_crop", false), ("random_resized_crop", true)];

/// The inputs of two calls that crop by one key. `T` is an expression, or what stands for one.
#[derive(Clone, Debug)]
pub struct CroppedPair<T> {
    /// The two inputs, in the order of the calls.
    pub inputs: [T; 2],
    /// Whether a mask of the image's aspect ratio is right.
    pub same_ratio: bool,
}

impl<T> CroppedPair<T> {
    /// Returns the pair with other inputs.
    pub fn with_inputs<U>(&self, inputs: [U; 2]) -> CroppedPair<U> {
        CroppedPair { inputs, same_ratio: self.same_ratio }
    }
}

impl CroppedPair<Expr> {
    /// Returns the pairs among the crops in these expressions.
    pub fn all(exprs: &[Expr]) -> Result<Vec<Self>> {
        let mut crops: Vec<(&str, bool, &str, &Expr)> = Vec::new();
        for expr in exprs {
            expr.apply(|expr| {
                if let Expr::ScalarFunction(call) = expr
                    && let Some((name, same_ratio)) = CROPS.into_iter().find(|(name, _)| *name == call.name())
                    && let (Some(key), Some(input)) = (key(call), call.args.first())
                {
                    crops.push((name, same_ratio, key, input));
                }
                Ok(TreeNodeRecursion::Continue)
            })?;
        }
        let mut pairs = Vec::new();
        for (index, &(name, same_ratio, key, input)) in crops.iter().enumerate() {
            for &(other_name, _, other_key, other) in &crops[index + 1..] {
                if (name, key) == (other_name, other_key) && input != other {
                    pairs.push(Self { inputs: [input.clone(), other.clone()], same_ratio });
                }
            }
        }
        Ok(pairs)
    }

    /// Returns the mask of the pair, and the same mask with a check of its size:
    /// `check_size(decode_mask(mask), image_height(bytes), image_width(bytes))`. `None` if these are not a mask and an
    /// image as their files have them.
    pub fn checked_mask(&self) -> Option<(&Expr, Expr)> {
        let [one, other] = &self.inputs;
        let (mask, image) = if is_call(one, "decode_mask") { (one, other) } else { (other, one) };
        let Expr::ScalarFunction(decoded) = image else { return None };
        if !is_call(mask, "decode_mask") || !is_call(image, "decode_image") {
            return None;
        }
        let bytes = decoded.args.first()?;
        let [height, width] = ["image_height", "image_width"].map(|name| called(name, vec![bytes.clone()]));
        Some((mask, called("check_size", vec![mask.clone(), height?, width?, lit(self.same_ratio)])?))
    }
}

/// The key of a call that shares its draws.
fn key(call: &ScalarFunction) -> Option<&str> {
    match call.args.get(find(call.name())?.descriptor().position("key")?)? {
        Expr::Literal(ScalarValue::Utf8(Some(key)), _) => Some(key.as_str()).filter(|key| !key.is_empty()),
        _ => None,
    }
}

fn is_call(expr: &Expr, name: &str) -> bool {
    matches!(expr, Expr::ScalarFunction(call) if call.name() == name)
}

fn called(name: &str, args: Vec<Expr>) -> Option<Expr> {
    Some(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(scalar_udf(name)?), args)))
}
