//! Rows and JSON texts as values of templates, and values as JSON in Python's form.

use std::fmt::Write;

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float16Type, Float32Type, Float64Type};
use minijinja::Value;
use minijinja::value::ValueKind;

use crate::text::Texts;

/// The names by which models give their reasoning. Templates read the first.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// Returns the type that has no JSON, if there is one.
pub(super) fn check(data_type: &DataType) -> Result<(), DataType> {
    match data_type {
        DataType::Null | DataType::Boolean => Ok(()),
        number if number.is_integer() || number.is_floating() => Ok(()),
        text if text.is_string() => Ok(()),
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => check(item.data_type()),
        DataType::Struct(fields) => fields.iter().try_for_each(|field| check(field.data_type())),
        other => Err(other.clone()),
    }
}

/// Returns the value of a row: a text is JSON, anything else is itself. The error text continues the parameter's name.
pub(super) fn read(array: &dyn Array, row: usize) -> Result<Value, String> {
    match Texts::try_new(array) {
        Ok(texts) => match texts.get(row) {
            Some(text) => serde_json::from_str(text).map_err(|e| format!("are not JSON: {e}")),
            None => Ok(Value::from(())),
        },
        Err(_) => value(array, row),
    }
}

/// Returns messages as `apply_chat_template` gives them to templates: without null fields, and with reasoning under the
/// names that templates read.
pub(super) fn messages(value: &Value) -> Result<Value, String> {
    if value.kind() != ValueKind::Seq {
        return Err(format!("must be a list of messages, got a {}", value.kind()));
    }
    let message = |message: Value| {
        if message.kind() != ValueKind::Map {
            return Err(format!("hold a {} where a message should be", message.kind()));
        }
        let field = |name: &str| message.get_attr(name).ok().filter(|value| !value.is_none() && !value.is_undefined());
        let keys = message.try_iter().map_err(|e| e.to_string())?;
        if field("role").is_none() {
            let names: Vec<String> = keys.map(|key| key.to_string()).collect();
            return Err(format!("hold a message without \"role\"; it has {}", names.join(", ")));
        }
        let reasoning = REASONING.iter().find_map(|name| field(name));
        let mut fields: Vec<(String, Value)> = Vec::new();
        if let Some(reasoning) = reasoning.clone().filter(|_| field("thinking").is_none()) {
            fields.push(("thinking".to_owned(), reasoning));
        }
        for key in keys {
            let name = key.to_string();
            match (&reasoning, field(&name)) {
                (Some(reasoning), Some(_)) if name == REASONING[0] => fields.push((name, reasoning.clone())),
                (_, Some(value)) => fields.push((name, value)),
                (_, None) => {}
            }
        }
        if let Some(reasoning) = reasoning.filter(|_| field(REASONING[0]).is_none()) {
            fields.push((REASONING[0].to_owned(), reasoning));
        }
        Ok(Value::from_pairs(fields))
    };
    let messages: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.map(message).collect::<Result<_, _>>()?;
    if messages.is_empty() {
        return Err("must hold a message, got an empty list".to_owned());
    }
    Ok(Value::from(messages))
}

fn value(array: &dyn Array, row: usize) -> Result<Value, String> {
    if array.is_null(row) {
        return Ok(Value::from(()));
    }
    let list =
        |items: arrow::array::ArrayRef| (0..items.len()).map(|at| value(&items, at)).collect::<Result<Vec<_>, _>>();
    Ok(match array.data_type() {
        DataType::Null => Value::from(()),
        DataType::Boolean => Value::from(array.as_boolean().value(row)),
        DataType::Float16 => Value::from(f64::from(array.as_primitive::<Float16Type>().value(row))),
        DataType::Float32 => Value::from(f64::from(array.as_primitive::<Float32Type>().value(row))),
        DataType::Float64 => Value::from(array.as_primitive::<Float64Type>().value(row)),
        DataType::List(_) => Value::from(list(array.as_list::<i32>().value(row))?),
        DataType::LargeList(_) => Value::from(list(array.as_list::<i64>().value(row))?),
        DataType::FixedSizeList(..) => Value::from(list(array.as_fixed_size_list().value(row))?),
        DataType::Struct(fields) => {
            let columns = fields.iter().zip(array.as_struct().columns());
            let present = columns.filter(|(_, column)| column.is_valid(row));
            let pairs = present.map(|(field, column)| Ok((field.name().clone(), value(column, row)?)));
            Value::from_pairs(pairs.collect::<Result<Vec<_>, String>>()?)
        }
        integer if integer.is_integer() => {
            let text = arrow::util::display::array_value_to_string(array, row).map_err(|e| e.to_string())?;
            match (text.parse::<i64>(), text.parse::<u64>()) {
                (Ok(number), _) => Value::from(number),
                (_, Ok(number)) => Value::from(number),
                _ => return Err(format!("hold {text}, which is no integer")),
            }
        }
        _ => match Texts::try_new(array).ok().and_then(|texts| texts.get(row)) {
            Some(text) => Value::from(text),
            None => return Err(format!("hold values of {}, which JSON does not have", array.data_type())),
        },
    })
}

/// The options of Python's `json.dumps`.
pub(super) struct JsonStyle {
    pub(super) indent: Option<String>,
    pub(super) separators: (String, String),
    pub(super) sort_keys: bool,
    pub(super) ensure_ascii: bool,
}

impl JsonStyle {
    /// Writes a value. The error names what JSON does not have.
    pub(super) fn write(&self, value: &Value, depth: usize, out: &mut String) -> Result<(), String> {
        // Values come from JSON and from templates, whose own depth is bounded.
        if depth > DEPTH_MAX {
            return Err(format!("a value is nested more than {DEPTH_MAX} times"));
        }
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => out.push_str(&value.to_string()),
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone()).map_err(|e| e.to_string())?)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq | ValueKind::Iterable => {
                let items: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.collect();
                self.block(('[', ']'), items.len(), depth, out, |at, out| self.write(&items[at], depth + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter().map_err(|e| e.to_string())?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.block(('{', '}'), keys.len(), depth, out, |at, out| {
                    self.text(&keys[at].to_string(), out);
                    out.push_str(&self.separators.1);
                    let item = value.get_item(&keys[at]).map_err(|e| e.to_string())?;
                    self.write(&item, depth + 1, out)
                })?;
            }
            other => return Err(format!("tojson: {other} is not JSON")),
        }
        Ok(())
    }

    fn block(
        &self,
        (open, close): (char, char),
        count: usize,
        depth: usize,
        out: &mut String,
        item: impl Fn(usize, &mut String) -> Result<(), String>,
    ) -> Result<(), String> {
        let line = |depth: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                out.extend(std::iter::repeat_n(indent.as_str(), depth));
            }
        };
        out.push(open);
        for at in 0..count {
            if at > 0 {
                out.push_str(&self.separators.0);
            }
            line(depth + 1, out);
            item(at, out)?;
        }
        if count > 0 {
            line(depth, out);
        }
        out.push(close);
        Ok(())
    }

    fn text(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                other if other < ' ' || self.ensure_ascii && other > '~' => {
                    for unit in other.encode_utf16(&mut [0; 2]) {
                        // Writing to a string cannot fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                other => out.push(other),
            }
        }
        out.push('"');
    }
}

/// The greatest depth of a value.
const DEPTH_MAX: usize = 128;

/// Writes a float as Python does.
fn float(number: f64) -> String {
    if number.is_nan() {
        return "NaN".to_owned();
    }
    if number.is_infinite() {
        return if number > 0.0 { "Infinity" } else { "-Infinity" }.to_owned();
    }
    // Rust's shortest digits are Python's; only the exponent is written in another way.
    let digits = format!("{number:e}");
    let (mantissa, exponent) = digits.split_once('e').unwrap_or((&digits, "0"));
    match exponent.parse::<i32>() {
        Ok(exponent) if !(-4..16).contains(&exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{mantissa}e{sign}{:02}", exponent.abs())
        }
        _ => format!("{number:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::float;

    // The texts are those of Python's repr.
    #[test]
    fn floats_are_written_as_in_python() {
        for (number, expect) in [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.5e300, "1.5e+300"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.25e-7, "1.25e-07"),
            (123456789.125, "123456789.125"),
        ] {
            assert_eq!(float(number), expect);
        }
    }
}
