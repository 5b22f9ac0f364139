//! `sleep`: delays a value. It tests feeds with an operator whose cost is the same on every machine.

use std::time::Duration;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::waiting::waiting;

/// Maximum delay of a row, a minute. A longer delay is a mistake.
const MILLISECONDS_MAX: f64 = 60_000.0;

static DESCRIPTOR: Descriptor = Descriptor {
    name: "sleep",
    version: 1,
    category: "testing",
    summary: "Returns a value unchanged after a delay",
    parameters: &[
        Parameter::input("value", TypeClass::Hashable, "The values"),
        Parameter::constant("milliseconds", ConstantKind::Number, "The delay for each row"),
    ],
    returns: "the type of value; Float32 for Float16, Float64 for decimals",
    docs: "Use it to test feeds: stragglers, scaling, a trainer that is faster than its data. It waits \
           for null rows, too. With a given number of `threads`, the thread does nothing else meanwhile; otherwise the \
           feed has more rows under way. Pass a column: for a constant, the optimizer calls it \
           once, when the query is planned. From 0 to 60000 milliseconds. Null in, null out.",
    source: "PostgreSQL's `pg_sleep`, with a value to return",
    examples: &[Example { sql: "sleep(label, milliseconds => 40)", result: "label" }],
    ..Descriptor::BASE
};

/// The operator `sleep`.
#[derive(Debug)]
pub(crate) struct Sleep;

impl Operator for Sleep {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let milliseconds = arguments.number("milliseconds")?;
        if !(0.0..=MILLISECONDS_MAX).contains(&milliseconds) {
            return arguments
                .refuse("milliseconds", format_args!("must be from 0 to {MILLISECONDS_MAX}, got {milliseconds}"));
        }
        let field = arguments.field("value")?;
        Ok(Field::new("sleep", field.data_type().clone(), field.is_nullable()))
    }

    #[expect(clippy::disallowed_methods, reason = "waiting is what it is for, and it has a thread to itself")]
    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let row = Duration::from_secs_f64(arguments.number("milliseconds")? / 1e3);
        // Sleep once for all rows. Late wake-ups would add up otherwise.
        let all = row.mul_f64(arguments.rows() as f64);
        waiting(|| std::thread::sleep(all));
        arguments.take_array("value")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use arrow::array::{AsArray, Int32Array, StringArray};
    use arrow::datatypes::{DataType, Int32Type};

    use super::*;
    use crate::testing::{column, sql};

    #[test]
    fn values_come_unchanged_and_late() {
        let began = Instant::now();
        let (field, got) = sql("sleep(x, 20)", vec![column("x", Int32Array::from(vec![Some(7), None]))]).unwrap();
        assert!(began.elapsed() >= Duration::from_millis(40), "20 ms for each of two rows");
        assert_eq!(field.data_type(), &DataType::Int32);
        assert_eq!(got.as_primitive::<Int32Type>(), &Int32Array::from(vec![Some(7), None]));
        let (_, got) = sql("sleep(x, 0)", vec![column("x", StringArray::from(vec!["a"]))]).unwrap();
        assert_eq!(got.as_string::<i32>().value(0), "a");
    }

    #[test]
    fn the_time_is_checked() {
        for (milliseconds, got) in [("-1", "-1"), ("60001", "60001"), ("1e300", "1000")] {
            let call = format!("sleep(x, {milliseconds})");
            let error = sql(&call, vec![column("x", Int32Array::from(vec![1]))]).unwrap_err();
            let expect = format!("sleep: \"milliseconds\" must be from 0 to 60000, got {got}");
            assert!(error.starts_with(&expect), "{error}");
        }
    }
}
