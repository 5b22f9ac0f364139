//! Widening that a plan leaves to whoever reads its rows.
//!
//! A quarter of the bytes go over the wire where floats are made of pixels after it. What is left to be done travels as
//! metadata of the column's field, so a reader needs nothing but the rows.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, Schema};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use datafusion::common::{DataFusionError, Result};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};

use super::{Step, Widen, widen_column};
use crate::operator::{Arguments, OperatorUdf};
use crate::tensor::{self, CHANNELS, Images};

/// The key of a field's metadata that holds the float of each value of each channel, as little-endian float32 in base64.
const KEY: &str = "forebay:widen";

/// What makes floats of a column of images.
#[derive(Debug)]
pub struct Later(Widen);

impl Later {
    /// Takes the last step off an output of a plan, if it widens. `schema` is that of the rows that `expr` reads.
    pub fn take(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<(Arc<dyn PhysicalExpr>, Self)>> {
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
        let Some(udf) = call.fun().inner().downcast_ref::<OperatorUdf>() else { return Ok(None) };
        let fields = call.args().iter().map(|arg| arg.return_field(schema)).collect::<Result<Vec<_>>>()?;
        let scalars: Vec<_> = call.args().iter().map(|arg| arg.downcast_ref::<Literal>().map(Literal::value)).collect();
        let (arguments, _) = Arguments::resolve(udf.operator().descriptor(), &fields, &scalars)?;
        match (udf.operator().image_step(&arguments)?, call.args().first()) {
            (Some(Step::Widen(widen)), Some(images)) => Ok(Some((Arc::clone(images), Self(widen)))),
            _ => Ok(None),
        }
    }

    /// A field of images of which this is to be done.
    pub fn left_in(&self, field: &Field) -> Field {
        let floats = self.0.0.as_flattened().iter().flat_map(|float| float.to_le_bytes());
        let mut metadata = field.metadata().clone();
        metadata.insert(KEY.to_owned(), STANDARD.encode(floats.collect::<Vec<u8>>()));
        field.clone().with_metadata(metadata)
    }

    /// What is left to be done with a column of this field, if anything.
    ///
    /// # Errors
    /// Metadata that no [`left_in`](Self::left_in) made.
    pub fn of(field: &Field) -> Result<Option<Self>> {
        let Some(text) = field.metadata().get(KEY) else { return Ok(None) };
        let broken =
            || DataFusionError::Execution(format!("column \"{}\" says wrongly how it is widened", field.name()));
        let bytes = STANDARD.decode(text).map_err(|_| broken())?;
        let (floats, []) = bytes.as_chunks::<4>() else { return Err(broken()) };
        let mut table = Box::new([[0.0; 256]; CHANNELS]);
        if floats.len() != table.as_flattened().len() || !tensor::is_image(field) {
            return Err(broken());
        }
        for (value, bytes) in table.as_flattened_mut().iter_mut().zip(floats) {
            *value = f32::from_le_bytes(*bytes);
        }
        Ok(Some(Self(Widen(table))))
    }

    /// The field of the column once it is done.
    pub fn done_in(&self, field: &Field) -> Result<Field> {
        tensor::field(field.name(), DataType::Float32, tensor::shape(field)?, field.is_nullable())
    }

    /// Does it with a column of `field`.
    pub fn apply(&self, field: &Field, column: &ArrayRef) -> Result<ArrayRef> {
        widen_column("normalize", field, &Images::try_new(field, column)?, &self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{noise, sql};

    #[test]
    fn what_is_left_is_done_as_the_operator_does_it() {
        let (expected, floats) = sql("normalize(image)", vec![noise()]).unwrap();
        let (field, column) = noise();
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let left = Later(crate::normalize::table(mean, std)).left_in(&field);
        let later = Later::of(&left).unwrap().expect("it is left");
        assert_eq!(later.done_in(&left).unwrap(), expected.with_name("image"));
        assert_eq!(&later.apply(&left, &column).unwrap(), &floats);
        assert!(Later::of(&field).unwrap().is_none());
    }

    #[test]
    fn wrong_metadata_is_an_error() {
        let (field, _) = noise();
        for text in ["", "no base64!", "AAAA"] {
            let mut metadata = field.metadata().clone();
            metadata.insert(KEY.to_owned(), text.to_owned());
            assert!(Later::of(&field.clone().with_metadata(metadata)).is_err(), "{text}");
        }
    }
}
