//! Finds chains of image operators in the expressions of a physical plan.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Schema, UInt64Type};
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use datafusion::physical_expr::expressions::Literal;
use datafusion::physical_expr::{PhysicalExpr, ScalarFunctionExpr};
use datafusion::scalar::ScalarValue;

use super::chain::{AtSite, Chain};
use crate::call_cost::CallCost;
use crate::descriptor::Determinism;
use crate::operator::{Arguments, OperatorUdf};

/// Replaces each chain of two or more image operators in `expr` by one function with the same result.
///
/// `schema` is the schema of the input rows.
pub fn fuse(expr: Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Arc<dyn PhysicalExpr>> {
    expr.transform_down(|expr| {
        Ok(match fused(&expr, schema)? {
            Some(fused) => Transformed::yes(fused),
            None => Transformed::no(expr),
        })
    })
    .data()
}

/// Returns the costs of a chain's calls, in the order in which they run; `None` for another function.
pub(crate) fn chain_costs(function: &ScalarUDF) -> Option<Vec<Arc<CallCost>>> {
    function.inner().downcast_ref::<ChainUdf>().map(|udf| udf.chain.costs())
}

/// Returns the chain that ends with `top`, as one call.
fn fused(top: &Arc<dyn PhysicalExpr>, schema: &Schema) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(end) = top.downcast_ref::<ScalarFunctionExpr>() else { return Ok(None) };
    let (mut steps, mut texts) = (Vec::new(), Vec::new());
    let mut key: Option<Arc<dyn PhysicalExpr>> = None;
    let mut source = Arc::clone(top);
    while let Some(call) = source.downcast_ref::<ScalarFunctionExpr>() {
        let Some(udf) = call.fun().inner().downcast_ref::<OperatorUdf>() else { break };
        let fields = call.args().iter().map(|arg| arg.return_field(schema)).collect::<Result<Vec<_>>>()?;
        let scalars: Vec<_> = call.args().iter().map(|arg| arg.downcast_ref::<Literal>().map(Literal::value)).collect();
        let descriptor = udf.operator().descriptor();
        let (arguments, is_complete) = Arguments::resolve(descriptor, &fields, &scalars)?;
        let Some(step) = udf.operator().image_step(&arguments)? else { break };
        let mut site = 0;
        if descriptor.determinism == Determinism::KeyedRandom {
            let [.., row_key, _] = call.args() else { break };
            let Some(Some(ScalarValue::UInt64(Some(literal)))) = scalars.last() else { break };
            if !is_complete || key.as_ref().is_some_and(|key| key != row_key) {
                break;
            }
            site = *literal;
            key = Some(Arc::clone(row_key));
        }
        let text = described(descriptor.name, &call.args()[1..]);
        let cost = Arc::new(CallCost::new(descriptor.name, text.clone()));
        steps.push(AtSite { step, site, cost });
        texts.push(text);
        let Some(input) = call.args().first() else { break };
        source = Arc::clone(input);
    }
    if steps.len() < 2 {
        return Ok(None);
    }
    steps.reverse();
    texts.reverse();
    let Some(chain) = Chain::new(steps) else { return Ok(None) };
    let udf = ChainUdf { chain, text: texts.join(" > "), signature: Signature::any(2, Volatility::Immutable) };
    let name = format!("image_chain[{}]", udf.text);
    let args = [source].into_iter().chain(key).collect();
    let field = Arc::clone(&end.return_field(schema)?);
    let config = Arc::new(end.config_options().clone());
    Ok(Some(Arc::new(ScalarFunctionExpr::new(&name, Arc::new(ScalarUDF::from(udf)), args, field, config))))
}

/// Describes a call without its first argument, which is another call, and without the arguments that the engine
/// appends.
fn described(name: &str, args: &[Arc<dyn PhysicalExpr>]) -> String {
    let constants = args.iter().filter_map(|arg| arg.downcast_ref::<Literal>());
    let constants: Vec<_> = constants.map(|literal| literal.value().to_string()).collect();
    format!("{name}({})", constants.join(", "))
}

/// A chain as a function of a column of files or images and, if a step is random, of the rows' keys.
#[derive(Debug)]
struct ChainUdf {
    chain: Chain,
    /// The calls with their constants. Chains with equal text are equal.
    text: String,
    signature: Signature,
}

impl PartialEq for ChainUdf {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for ChainUdf {}

impl Hash for ChainUdf {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl ScalarUDFImpl for ChainUdf {
    fn name(&self) -> &str {
        "image_chain"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        internal_err!("image_chain is made after planning, with its return field")
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let keys = args.args.get(1).map(|keys| keys.to_array(rows)).transpose()?;
        let keys = keys.as_ref().map(|keys| keys.as_primitive::<UInt64Type>());
        let column = args.args[0].to_array(rows)?;
        Ok(ColumnarValue::Array(self.chain.run(&args.arg_fields[0], &column, keys)?))
    }
}
