//! TABLESAMPLE: a hash of a row's number in the table selects the rows of the sample.
//!
//! DataFusion parses TABLESAMPLE and ignores it. Here it becomes a condition: a call of a function, to which the engine
//! appends the row's id. The sample depends on the seed of REPEATABLE and not on the feed's seed, so that changing the
//! order keeps the data.

use std::sync::Arc;

use datafusion::arrow::array::{AsArray, BooleanArray};
use datafusion::arrow::datatypes::{DataType, UInt64Type};
use datafusion::common::exec_err;
use datafusion::error::Result;
use datafusion::logical_expr::{
    ColumnarValue, Expr, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility, lit,
};
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{TableSample, Value};
use forebay_operators::random_key;

use crate::calls;

/// The name of the sampling function, which occurs only in plans. The engine appends the rows' ids to its arguments.
pub const SAMPLE: &str = "tablesample";
/// Separates the hash space of samples from that of random keys.
const SAMPLE_DOMAIN: u64 = 0x7361_6d70_6c65;

/// The percentage of a sample, above 0 and at most 100.
pub(crate) fn sample_percent(sample: &TableSample) -> Option<f64> {
    let percent = match calls::literal(&sample.quantity.as_ref()?.value)? {
        ScalarValue::Int64(percent) => percent? as f64,
        ScalarValue::Float64(percent) => percent?,
        _ => return None,
    };
    (percent > 0.0 && percent <= 100.0).then_some(percent)
}

/// The seed of a sample; 0 if none is given.
pub(crate) fn sample_seed(sample: &TableSample) -> Option<u64> {
    match &sample.seed {
        None => Some(0),
        Some(seed) => match &seed.value.value {
            Value::Number(seed, _) => seed.parse().ok(),
            _ => None,
        },
    }
}

/// The condition that selects the rows of the sample.
pub(crate) fn condition(percent: f64, seed: u64) -> Expr {
    let function = ScalarUDF::from(SampleClause { signature: Signature::variadic_any(Volatility::Immutable) });
    Arc::new(function).call(vec![lit(percent), lit(seed)])
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct SampleClause {
    signature: Signature,
}

impl ScalarUDFImpl for SampleClause {
    fn name(&self) -> &'static str {
        SAMPLE
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Boolean)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        let [percent, seed, ids] = &args.args[..] else { return exec_err!("TABLESAMPLE only runs inside a pipeline") };
        let (
            ColumnarValue::Scalar(ScalarValue::Float64(Some(percent))),
            ColumnarValue::Scalar(ScalarValue::UInt64(Some(seed))),
        ) = (percent, seed)
        else {
            return exec_err!("TABLESAMPLE takes constants");
        };
        let ids = ids.to_array(rows)?;
        // A percentage of 100 saturates to all rows.
        let bound = (percent / 100.0 * 2f64.powi(64)) as u64;
        let is_in = |id: &u64| *percent >= 100.0 || random_key(*seed, SAMPLE_DOMAIN, *id) < bound;
        let ids = ids.as_primitive::<UInt64Type>();
        let taken: BooleanArray = ids.values().iter().map(|id| Some(is_in(id))).collect();
        Ok(ColumnarValue::Array(Arc::new(taken)))
    }
}
