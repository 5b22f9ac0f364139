//! The relaxed order of the calls of a chain: calls that keep the size run where images are smallest.
//!
//! Frames keep their order among themselves, because a resize before a crop shows another part than one after it. So
//! the sizes that images have in a chain are known, and a call that keeps the size runs at the place of the fewest
//! pixels, or at the nearest of several. Calls that share such a place keep their order.

use std::cmp::Reverse;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use datafusion::common::Result;
use datafusion::logical_expr::Expr;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::scalar::ScalarValue;

use super::Step;
use crate::descriptor::{Descriptor, Parameter, ParameterKind, TypeClass};
use crate::image_column::{self, Shape, Size};
use crate::operator::{Arguments, OperatorUdf};

/// What a call does to an image's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizing {
    /// The result has this size.
    Frame(Size),
    /// The result has the image's size.
    Kept {
        /// Whether the call may move. One with a `key` follows boxes, points or masks, and stays.
        moves: bool,
    },
}

/// A call that runs at another place than it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MovedCall {
    /// The call, by its number in the written order.
    pub call: usize,
    /// The first and the last of the frames that it moved across.
    pub frames: (usize, usize),
    /// Whether it runs after these frames, and was written before them.
    pub is_later: bool,
    /// The size of images where it was written; `None` if only a file tells.
    pub from: Option<Size>,
    /// The size of images where it runs.
    pub to: Size,
}

/// Returns what a call does to the size of its first argument, or `None` if it is no call from images to images.
pub fn sizing(call: &ScalarFunction) -> Result<Option<Sizing>> {
    let Some(udf) = call.func.inner().downcast_ref::<OperatorUdf>() else { return Ok(None) };
    let descriptor = udf.operator().descriptor();
    let is_on_images =
        descriptor.parameters.first().map(|first| first.kind) == Some(ParameterKind::Input(TypeClass::Image));
    if !is_on_images {
        return Ok(None);
    }
    let scalars: Vec<_> = call.args.iter().map(literal).collect();
    let image = image_column::variable_field("image", DataType::UInt8, true);
    let field = |(at, scalar): (usize, &Option<&ScalarValue>)| {
        Arc::new(match scalar {
            _ if at == 0 => image.clone(),
            Some(scalar) => Field::new("constant", scalar.data_type(), true),
            // Only the row's key.
            None => Field::new("key", DataType::UInt64, true),
        })
    };
    let fields: Vec<_> = scalars.iter().enumerate().map(field).collect();
    // A call that cannot be resolved has other arguments per row.
    let Ok((arguments, _)) = Arguments::resolve(descriptor, &fields, &scalars) else { return Ok(None) };
    Ok(match udf.operator().image_step(&arguments)? {
        Some(Step::Frame(frame)) => Some(Sizing::Frame(frame.size)),
        Some(Step::Change(_)) => Some(Sizing::Kept { moves: !has_key(descriptor, &scalars) }),
        Some(Step::Decode { .. } | Step::Widen(_)) | None => None,
    })
}

fn has_key(descriptor: &Descriptor, scalars: &[Option<&ScalarValue>]) -> bool {
    let key = descriptor.position(Parameter::KEY.name).and_then(|at| scalars.get(at).copied().flatten());
    key.is_some_and(|key| key.try_as_str() != Some(Some("")))
}

fn literal(expr: &Expr) -> Option<&ScalarValue> {
    match expr {
        Expr::Literal(value, _) => Some(value),
        _ => None,
    }
}

/// Describes a call on an image by its constants, without those that are defaults at the end.
pub fn described(call: &ScalarFunction) -> String {
    let Some(udf) = call.func.inner().downcast_ref::<OperatorUdf>() else { return call.name().to_owned() };
    let parameters = udf.operator().descriptor().parameters;
    let constants = parameters.iter().zip(&call.args).skip(1).filter_map(|(at, arg)| Some((at, literal(arg)?)));
    let mut constants: Vec<_> = constants.collect();
    while constants.pop_if(|(parameter, value)| parameter.default_value().as_ref() == Some(*value)).is_some() {}
    let texts: Vec<String> = constants.iter().map(|(_, value)| value.to_string()).collect();
    format!("{}({})", call.name(), texts.join(", "))
}

/// Returns the relaxed order of the calls of a chain, which are given in the order in which they run as written, and
/// those that moved. `field` is the column of images that the chain begins with.
pub fn relaxed(calls: &[Sizing], field: &Field) -> (Vec<usize>, Vec<MovedCall>) {
    // A place is between two frames, before the first or after the last.
    let first = match image_column::image_type(field) {
        Some((Shape::Fixed { height, width }, _)) => Some(Size { height, width }),
        _ => None,
    };
    let mut sizes = vec![first];
    let mut frames = Vec::new();
    for (at, call) in calls.iter().enumerate() {
        if let Sizing::Frame(size) = call {
            sizes.push(Some(*size));
            frames.push(at);
        }
    }
    // A file's picture counts as larger than any frame.
    let pixels = |place: usize| sizes[place].map_or(usize::MAX, |size| size.height * size.width);
    let nearest = |written: usize| {
        let places = 0..sizes.len();
        places.min_by_key(|place| (pixels(*place), place.abs_diff(written), Reverse(*place))).unwrap_or(written)
    };
    let (mut written, mut order, mut moved) = (0, Vec::with_capacity(calls.len()), Vec::new());
    for (at, call) in calls.iter().enumerate() {
        match call {
            Sizing::Frame(_) => {
                written += 1;
                // A frame runs after all calls of the place before it.
                order.push((written, 0, at));
            }
            Sizing::Kept { moves } => {
                let place = if *moves { nearest(written) } else { written };
                order.push((place, 1, at));
                if let (true, Some(to)) = (place != written, sizes[place]) {
                    let (start, end) = (place.min(written), place.max(written));
                    let (frames, from) = ((frames[start], frames[end - 1]), sizes[written]);
                    moved.push(MovedCall { call: at, frames, is_later: place > written, from, to });
                }
            }
        }
    }
    order.sort_unstable();
    (order.into_iter().map(|(_, _, at)| at).collect(), moved)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Sizing = Sizing::Kept { moves: true };
    const KEYED: Sizing = Sizing::Kept { moves: false };

    fn frame(side: usize) -> Sizing {
        Sizing::Frame(Size { height: side, width: side })
    }

    fn check(calls: &[Sizing], expect: &[usize]) {
        let field = image_column::variable_field("image", DataType::UInt8, false);
        assert_eq!(relaxed(calls, &field).0, expect, "{calls:?}");
    }

    #[test]
    fn calls_that_keep_the_size_run_where_images_are_smallest() {
        check(&[KEPT, frame(256)], &[1, 0]);
        check(&[frame(512), KEPT, KEPT, frame(224)], &[0, 3, 1, 2]);
        check(&[KEPT, frame(512), KEPT, frame(224), KEPT], &[1, 3, 0, 2, 4]);
        check(&[frame(224), frame(512), KEPT], &[0, 2, 1]);
        check(&[KEPT, KEPT], &[0, 1]);
        check(&[frame(32), KEPT, frame(32)], &[0, 1, 2]);
        check(&[frame(32), frame(40), KEPT, frame(32), KEPT], &[0, 1, 3, 2, 4]);
        check(&[KEPT, frame(32), frame(40), frame(32), KEPT], &[1, 0, 2, 3, 4]);
        check(&[KEYED, KEPT, frame(32)], &[0, 2, 1]);
    }

    #[test]
    fn a_known_size_may_be_the_smallest() {
        let field = image_column::fixed_field("image", DataType::UInt8, 32, 32, false).unwrap();
        let (order, moved) = relaxed(&[frame(224), KEPT], &field);
        let size = |side| Size { height: side, width: side };
        assert_eq!(order, [1, 0]);
        let expect = MovedCall { call: 1, frames: (0, 0), is_later: false, from: Some(size(224)), to: size(32) };
        assert_eq!(moved, [expect]);
    }
}
