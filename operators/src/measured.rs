//! Makes the calls of an expression count what they cost.
//!
//! Each call counts its own time, without that of its arguments. A chain of image operators counts each operator.

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

use arrow::datatypes::{DataType, FieldRef, Schema};
use datafusion::common::Result;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::logical_expr::{
    ColumnarValue, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use forebay_arrays::column_bytes;

use crate::call_cost::CallCost;
use crate::image_chain::chain_costs;

/// The same expression, whose calls count what they cost. Appends their costs to `costs`, in the order in which they
/// run. `schema` is the schema of the input rows. No later rewrite recognises the calls.
///
/// # Errors
/// Those of DataFusion's rewriting.
pub fn measured(
    expr: Arc<dyn PhysicalExpr>,
    schema: &Schema,
    costs: &mut Vec<Arc<CallCost>>,
) -> Result<Arc<dyn PhysicalExpr>> {
    let measured = expr.transform_up(|expr| {
        let Some(call) = expr.downcast_ref::<ScalarFunctionExpr>() else { return Ok(Transformed::no(expr)) };
        if let Some(of_chain) = chain_costs(call.fun()) {
            costs.extend(of_chain);
            return Ok(Transformed::no(expr));
        }
        let constants = call.args().iter().filter_map(|arg| arg.downcast_ref::<Literal>());
        let constants: Vec<_> = constants.map(|literal| literal.value().to_string()).collect();
        let name = call.fun().name();
        let cost = Arc::new(CallCost::new(name, format!("{name}({})", constants.join(", "))));
        costs.push(Arc::clone(&cost));
        let function = ScalarUDF::from(MeasuredFunction { function: call.fun().clone(), cost });
        let (field, config) = (call.return_field(schema)?, Arc::new(call.config_options().clone()));
        let call = ScalarFunctionExpr::new(call.name(), Arc::new(function), call.args().to_vec(), field, config);
        Ok(Transformed::yes(Arc::new(call) as Arc<dyn PhysicalExpr>))
    });
    measured.data()
}

/// A function that counts what it costs.
#[derive(Debug)]
struct MeasuredFunction {
    function: ScalarUDF,
    cost: Arc<CallCost>,
}

impl PartialEq for MeasuredFunction {
    fn eq(&self, other: &Self) -> bool {
        self.function == other.function
    }
}

impl Eq for MeasuredFunction {}

impl Hash for MeasuredFunction {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.function.hash(state);
    }
}

impl ScalarUDFImpl for MeasuredFunction {
    fn name(&self) -> &str {
        self.function.name()
    }

    fn signature(&self) -> &Signature {
        self.function.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.function.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        self.function.return_field_from_args(args)
    }

    fn short_circuits(&self) -> bool {
        self.function.short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.function.conditional_arguments(args)
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.function.coerce_types(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let (rows, bytes_in) = (args.number_rows, args.args.iter().map(value_bytes).sum());
        let begun = Instant::now();
        let result = self.function.invoke_with_args(args);
        let time = begun.elapsed();
        self.cost.add(time, rows, bytes_in, result.as_ref().map_or(0, value_bytes));
        result
    }
}

fn value_bytes(value: &ColumnarValue) -> u64 {
    match value {
        ColumnarValue::Array(array) => column_bytes(array),
        ColumnarValue::Scalar(_) => 0,
    }
}
