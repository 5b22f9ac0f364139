//! Calls on masks: what mixes their numbers, and crops that they share with images.
//!
//! A draw becomes a position only with the size of an image, and a call does not see the other call's image. So a mask
//! of another size would lose another part than its image, without an error.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, lit, when};
use datafusion::scalar::ScalarValue;

use crate::descriptor::{Descriptor, ParameterKind, TypeClass};
use crate::registry::{find, scalar_udf};

/// The operators whose part of an image depends on its size.
const CROPS: [Crop; 2] = [
    Crop { name: "random_crop", same_ratio: false, places: &["height", "width", "padding"] },
    Crop {
        name: "random_resized_crop",
        same_ratio: true,
        places: &["scale_min", "scale_max", "ratio_min", "ratio_max"],
    },
];

struct Crop {
    name: &'static str,
    /// Whether images of one aspect ratio and different sizes lose the same part.
    same_ratio: bool,
    /// The constants on which the part depends.
    places: &'static [&'static str],
}

/// A call that crops its input by a key. Calls that are [alike](Self::is_like) take the same part of images of one
/// size.
#[derive(Clone, Debug)]
pub struct KeyedCrop<'a> {
    /// The images or masks.
    pub input: &'a Expr,
    /// Whether images of one aspect ratio and different sizes lose the same part.
    pub same_ratio: bool,
    key: &'a str,
    name: &'static str,
    /// The constants on which the part depends.
    places: Vec<ScalarValue>,
}

/// The interpolation of a call that would mix the numbers of a mask.
pub fn smoothing(call: &ScalarFunction) -> Option<&str> {
    let descriptor = find(call.name())?.descriptor();
    let interpolation = constant(descriptor, &call.args, "interpolation")?.try_as_str()??;
    // `center_crop` may scale, and copies pixels otherwise.
    let scales = constant(descriptor, &call.args, "resize").is_none_or(|side| *side != ScalarValue::Int64(Some(0)));
    Some(interpolation).filter(|name| *name != "nearest" && scales)
}

/// The images that a call takes, if it takes any.
pub fn image_of(call: &ScalarFunction) -> Option<&Expr> {
    let first = find(call.name())?.descriptor().parameters.first()?;
    matches!(first.kind, ParameterKind::Input(TypeClass::Image)).then(|| call.args.first())?
}

/// A call that decodes a column of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decoding {
    /// `decode_image`.
    Image,
    /// `decode_mask`.
    Mask,
}

impl Decoding {
    /// What a call decodes, and its argument.
    pub fn of(call: &Expr) -> Option<(Self, &Expr)> {
        let Expr::ScalarFunction(call) = call else { return None };
        let decoding = match call.name() {
            "decode_image" => Self::Image,
            "decode_mask" => Self::Mask,
            _ => return None,
        };
        Some((decoding, call.args.first()?))
    }
}

impl<'a> KeyedCrop<'a> {
    /// The crops by a key in an expression.
    pub fn all(expr: &'a Expr) -> Result<Vec<Self>> {
        let mut crops = Vec::new();
        expr.apply(|expr| {
            if let Expr::ScalarFunction(call) = expr {
                crops.extend(Self::of(call));
            }
            Ok(TreeNodeRecursion::Continue)
        })?;
        Ok(crops)
    }

    fn of(call: &'a ScalarFunction) -> Option<Self> {
        let Crop { name, same_ratio, places } = CROPS.into_iter().find(|crop| crop.name == call.name())?;
        let descriptor = find(name)?.descriptor();
        let key = constant(descriptor, &call.args, "key")?.try_as_str()??;
        let places = places.iter().map(|place| {
            let value = constant(descriptor, &call.args, place)?;
            // 15 and 15.0 mean the same.
            Some(value.cast_to(&DataType::Float64).unwrap_or_else(|_| value.clone()))
        });
        let (places, input) = (places.collect::<Option<_>>()?, call.args.first()?);
        Some(Self { input, key, name, same_ratio, places }).filter(|crop| !crop.key.is_empty())
    }

    /// Whether another call draws the same part of an image of the same size.
    pub fn is_like(&self, other: &KeyedCrop<'_>) -> bool {
        (self.name, self.key, &self.places) == (other.name, other.key, &other.places)
    }

    /// A mask with a check of its size. `mask` decodes `mask_bytes`, and `image_bytes` is the file of its image. Where
    /// there is no image, every mask passes.
    pub fn checked(&self, mask: &Expr, mask_bytes: &Expr, image_bytes: &Expr) -> Result<Expr> {
        let side = |name: &str| {
            when(image_bytes.clone().is_not_null(), called(name, vec![image_bytes.clone()])?)
                .otherwise(called(name, vec![mask_bytes.clone()])?)
        };
        let (height, width) = (side("image_height")?, side("image_width")?);
        called("check_size", vec![mask.clone(), height, width, lit(self.same_ratio), lit(self.key)])
    }
}

fn constant<'a>(descriptor: &Descriptor, args: &'a [Expr], name: &str) -> Option<&'a ScalarValue> {
    let at = descriptor.position(name)?;
    match (descriptor.parameters[at].kind, args.get(at)?) {
        (ParameterKind::Constant(_), Expr::Literal(value, _)) => Some(value),
        _ => None,
    }
}

fn called(name: &str, args: Vec<Expr>) -> Result<Expr> {
    let Some(function) = scalar_udf(name) else { return internal_err!("there is no operator {name}") };
    Ok(Expr::ScalarFunction(ScalarFunction::new_udf(Arc::new(function), args)))
}
