//! `repeat_rows`: repeats each row as often as its column says, to balance classes or to weigh samples.

use std::sync::Arc;

use arrow::array::{ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Float64Type};
use datafusion::common::{Result, exec_err, internal_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};

use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, Rows};
use crate::keyed::Draws;
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt};
use crate::row_operator::{ReadColumn, RowArguments, RowOperator, RowPlan, RowScope};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "repeat_rows",
    category: "random",
    summary: "Repeats each row as often as a column says",
    parameters: &[
        Parameter::rows("With a number in each row"),
        Parameter::constant("times", ConstantKind::Text, "The column of the numbers"),
    ],
    returns: "the repeated rows, with all their columns",
    determinism: Determinism::KeyedRandom,
    rows: Rows::Grows,
    docs: "A row with the number 2.3 occurs twice in 7 epochs of 10 and three times in the others. The draw depends only \
           on the feed's seed, the epoch, the sample and the call. A number below 1 keeps the row in some epochs only, \
           and 0 drops it. Each repetition is a sample of its own with its own random crops and draws. Repetitions are \
           in one window, whose order a feed shuffles. Numbers are 0 to 65536. A null, a negative number or a larger \
           one makes the row a bad row.",
    source: "PyTorch's `WeightedRandomSampler`, without its randomness in the whole part of a weight",
    examples: &[Example {
        sql: "SELECT id FROM repeat_rows((SELECT id, CASE WHEN id > 2 THEN 2 ELSE 1 END AS times FROM numbers), times \
              => 'times')",
        result: "0; 1; 2; 3; 3; 4; 4",
    }],
    ..Descriptor::BASE
};

/// Separates the draws of repetitions from other hashes.
const REPEAT_DOMAIN: u64 = 0x7265_7065_6174;
/// The most repetitions of a row. A typing error must not fill the memory.
const TIMES_MAX: f64 = 65_536.0;
/// Rows made at a time, so that their parts stay small.
const ROWS_PER_PART: usize = 1 << 16;

/// The operator `repeat_rows`.
#[derive(Debug)]
pub(crate) struct RepeatRows;

impl RowOperator for RepeatRows {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn scope(&self) -> RowScope {
        RowScope::Row
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        let column = arguments.column("times", "a number", |field| field.data_type().is_numeric())?;
        Ok(RowPlan {
            columns: vec![("times", column)],
            reads: vec![ReadColumn { column, function: Some(Arc::new(ScalarUDF::from(TimesUdf::new()))) }],
            ..RowPlan::keeping(arguments.input(), Arc::new(Self))
        })
    }
}

impl MakeRows for RepeatRows {
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let repeated = window.positions().flat_map(move |row| {
            let (part, at) = window.at(row);
            let times = part.reads[0].as_primitive::<Float64Type>().value(at);
            let share = Draws::new(window.random_key(row), REPEAT_DOMAIN ^ window.call).uniform();
            let times = times.floor() as u64 + u64::from(share < times.fract());
            (0..times).map(move |ordinal| (row, ordinal))
        });
        Ok(Box::new(Parts { rows: repeated }))
    }
}

/// Repeated rows in parts.
struct Parts<I> {
    rows: I,
}

impl<I: Iterator<Item = (RowAt, u64)>> Iterator for Parts<I> {
    type Item = Result<Made>;

    fn next(&mut self) -> Option<Self::Item> {
        let (parents, ordinals): (Vec<_>, Vec<_>) =
            self.rows.by_ref().take(ROWS_PER_PART).map(|(row, ordinal)| (row, Some(ordinal))).unzip();
        (!parents.is_empty()).then(|| Ok(Made { parents, ordinals, ..Made::default() }))
    }
}

/// The numbers of repetitions as float64 without nulls. Runs row by row, so that a wrong number is a bad row.
#[derive(Debug, PartialEq, Eq, Hash)]
struct TimesUdf {
    signature: Signature,
}

impl TimesUdf {
    fn new() -> Self {
        Self { signature: Signature::any(1, Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for TimesUdf {
    fn name(&self) -> &str {
        "repeat_times"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let [value] = &args.args[..] else { return internal_err!("repeat_times has one argument") };
        let times: ArrayRef = cast(&value.to_array(args.number_rows)?, &DataType::Float64)?;
        for times in times.as_primitive::<Float64Type>() {
            match times {
                Some(times) if (0.0..=TIMES_MAX).contains(&times) => {}
                Some(times) => return exec_err!("repeat_rows: \"times\" must be from 0 to {TIMES_MAX}, got {times}"),
                None => return exec_err!("repeat_rows: \"times\" is null"),
            }
        }
        Ok(ColumnarValue::Array(times))
    }
}
