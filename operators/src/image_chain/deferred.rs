//! Moves the last step of a plan's output to the reader of the feed.

use std::sync::Arc;

use arrow::datatypes::Schema;
use datafusion::common::Result;
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use forebay_arrays::DeferredStep;

use super::Step;
use crate::operator::{Arguments, OperatorUdf};

/// Returns whether a call of this operator at the end of a column makes samples larger, so that readers may compute it.
pub fn is_last_step(operator: &str) -> bool {
    operator == "normalize"
}

/// Returns the input of `expr` and the remaining step, if `expr` only widens an image column. `schema` is the schema of
/// the input rows.
pub fn defer(expr: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<(Arc<dyn PhysicalExpr>, DeferredStep)>> {
    let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
    let Some(udf) = call.fun().inner().downcast_ref::<OperatorUdf>() else { return Ok(None) };
    let fields = call.args().iter().map(|arg| arg.return_field(schema)).collect::<Result<Vec<_>>>()?;
    let scalars: Vec<_> = call.args().iter().map(|arg| arg.downcast_ref::<Literal>().map(Literal::value)).collect();
    let (arguments, _) = Arguments::resolve(udf.operator().descriptor(), &fields, &scalars)?;
    match (udf.operator().image_step(&arguments)?, call.args().first()) {
        (Some(Step::Widen(widen)), Some(images)) => Ok(Some((Arc::clone(images), DeferredStep::new(widen)))),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::table;
    use crate::testing::{noise, sql};

    #[test]
    fn a_deferred_step_gives_what_the_operator_gives() {
        let (expected, floats) = sql("normalize(image)", vec![noise()]).unwrap();
        let (field, column) = noise();
        let (mean, std) = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]);
        let deferred = DeferredStep::new(table(mean, std)).defer_in(&field);
        let step = DeferredStep::of(&deferred).unwrap().expect("it is deferred");
        assert_eq!(step.finished_field(&deferred).unwrap(), expected.with_name("image"));
        assert_eq!(&step.apply(&deferred, &column).unwrap(), &floats);
    }
}
