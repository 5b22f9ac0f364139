//! Checks that boxes and points move as an image does: a call such as `random_crop_boxes` has the draws of the
//! `random_crop` with its `key`, if that has the same constants.

use datafusion::arrow::datatypes::DataType;
use datafusion::common::plan_err;
use datafusion::error::Result;
use datafusion::logical_expr::Expr;
use datafusion::scalar::ScalarValue;
use forebay_operators::{Descriptor, ParameterKind};

/// The keyed-random calls of a query whose operators draw alike, or have annotations that do.
#[derive(Default)]
pub(super) struct SharedDraws(Vec<Call>);

struct Call {
    descriptor: &'static Descriptor,
    args: Vec<Expr>,
}

impl SharedDraws {
    pub(super) fn add(&mut self, descriptor: &'static Descriptor, args: &[Expr]) {
        if descriptor.position("key").is_some() {
            self.0.push(Call { descriptor, args: args.to_vec() });
        }
    }

    /// Refuses calls for boxes or points that move otherwise than any image of the query. A query that moves no image
    /// with the operator may be about the annotations alone.
    pub(super) fn check(&self) -> Result<()> {
        for call in self.0.iter().filter(|call| call.follows()) {
            let name = call.descriptor.name;
            let (image, key) = (call.descriptor.draws_as(), call.text("key").unwrap_or_default());
            let images: Vec<&Call> = self.0.iter().filter(|it| it.descriptor.name == image).collect();
            let of_key: Vec<&&Call> = images.iter().filter(|it| it.text("key").unwrap_or_default() == key).collect();
            match &of_key[..] {
                [] if images.is_empty() => {}
                [] => {
                    return plan_err!(
                        "{name} has the key '{key}', and no call of {image} has it, so it would not move as the image: \
                         give both the same key"
                    );
                }
                several => {
                    let differences: Option<Vec<String>> = several.iter().map(|it| call.difference(it)).collect();
                    if let Some([first, ..]) = differences.as_deref() {
                        return plan_err!(
                            "{name} and {image} with the key '{key}' differ: {first}, so it would not move as the image"
                        );
                    }
                }
            }
        }
        Ok(())
    }
}

impl Call {
    /// Whether the call is for the annotations of an image.
    fn follows(&self) -> bool {
        self.descriptor.draws_as() != self.descriptor.name
    }

    fn constant(&self, parameter: &str) -> Option<&ScalarValue> {
        match self.args.get(self.descriptor.position(parameter)?)? {
            Expr::Literal(value, _) => Some(value),
            _ => None,
        }
    }

    fn text(&self, parameter: &str) -> Option<String> {
        Some(self.constant(parameter)?.try_as_str()??.to_owned())
    }

    /// The first constant that the call does not have in common with that of an image.
    fn difference(&self, image: &Self) -> Option<String> {
        let constants = self.descriptor.parameters.iter().filter(|it| matches!(it.kind, ParameterKind::Constant(_)));
        constants.map(|parameter| parameter.name).find_map(|name| {
            let (ours, its) = (self.constant(name)?, image.constant(name)?);
            (!are_equal(ours, its)).then(|| format!("\"{name}\" is {ours} and {its}"))
        })
    }
}

/// Whether two constants mean the same: 15 and 15.0 do.
fn are_equal(one: &ScalarValue, other: &ScalarValue) -> bool {
    let number = |value: &ScalarValue| value.cast_to(&DataType::Float64).ok();
    one == other || number(one).is_some_and(|one| number(other) == Some(one))
}
