//! Constants of calls: the kinds that parameters accept, their values, and SQL literals.

use arrow::array::Array;
use arrow::datatypes::DataType;
use datafusion::scalar::ScalarValue;

/// The values that a constant accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConstantKind {
    /// An integer above zero.
    PositiveInteger,
    /// An integer.
    Integer,
    /// A finite integer or float.
    Number,
    /// A list of finite numbers.
    NumberList,
    /// A finite number, or a list of these.
    NumberOrList,
    /// A list of strings, or a list of integers.
    Categories,
    /// A string.
    Text,
    /// The path of a file, whose content becomes part of the call. See [`crate::files`].
    File,
    /// Strings, as a list or as a file of lines.
    Vocabulary,
    /// A Jinja template, or the path of a file with one.
    Template,
    /// True or false.
    Boolean,
}

impl ConstantKind {
    /// Whether a value is of this kind.
    pub(crate) fn accepts(&self, value: &ScalarValue) -> bool {
        match self {
            Self::PositiveInteger => integer(value).is_some_and(|n| n > 0),
            Self::Integer => integer(value).is_some(),
            Self::Number => number(value).is_some(),
            Self::NumberList => numbers(value).is_some(),
            Self::NumberOrList => number(value).is_some() || numbers(value).is_some(),
            Self::Categories => {
                texts(value).is_some()
                    || numbers(value).is_some_and(|numbers| numbers.iter().all(|number| number.fract() == 0.0))
            }
            Self::Text => text(value).is_some(),
            Self::File => text(value).is_some_and(|path| !path.is_empty()),
            Self::Template => text(value).is_some_and(|text| !text.is_empty()),
            Self::Vocabulary => text(value).is_some_and(|path| !path.is_empty()) || texts(value).is_some(),
            Self::Boolean => matches!(value, ScalarValue::Boolean(Some(_))),
        }
    }

    /// Returns whether a text of this kind is the path of a file. A template has braces, which no path needs.
    pub fn is_path(&self, text: &str) -> bool {
        match self {
            Self::File | Self::Vocabulary => true,
            Self::Template => !["{{", "{%", "{#"].iter().any(|brace| text.contains(brace)),
            _ => false,
        }
    }

    /// Returns an accepted value, as an SQL literal.
    pub fn example(&self) -> &'static str {
        match self {
            Self::PositiveInteger => "1024",
            Self::Integer => "0",
            Self::Number => "0.5",
            Self::NumberList => "[0.5, 0.5, 0.5]",
            Self::NumberOrList => "4",
            Self::Categories | Self::Vocabulary => "['red', 'green']",
            Self::Text => "'text'",
            Self::File => "'tokenizer.json'",
            Self::Template => "'chat_template.jinja'",
            Self::Boolean => "true",
        }
    }

    /// Returns the wording of the accepted arguments after "must be".
    pub fn wording(&self) -> &'static str {
        match self {
            Self::PositiveInteger => "a positive integer",
            Self::Integer => "an integer",
            Self::Number => "a number",
            Self::NumberList => "a list of numbers",
            Self::NumberOrList => "a number or a list of numbers",
            Self::Categories => "a list of strings or of integers",
            Self::Text => "a string",
            Self::File => "the path of a file",
            Self::Vocabulary => "a list of strings or the path of a file",
            Self::Template => "a template or the path of a file",
            Self::Boolean => "true or false",
        }
    }
}

/// The value of an integer constant that fits into 64 bits.
pub(crate) fn integer(value: &ScalarValue) -> Option<i64> {
    match value {
        ScalarValue::Int8(v) => v.map(i64::from),
        ScalarValue::Int16(v) => v.map(i64::from),
        ScalarValue::Int32(v) => v.map(i64::from),
        ScalarValue::Int64(v) => *v,
        ScalarValue::UInt8(v) => v.map(i64::from),
        ScalarValue::UInt16(v) => v.map(i64::from),
        ScalarValue::UInt32(v) => v.map(i64::from),
        ScalarValue::UInt64(v) => v.and_then(|v| i64::try_from(v).ok()),
        _ => None,
    }
}

/// The value of a finite numeric constant.
pub(crate) fn number(value: &ScalarValue) -> Option<f64> {
    let number = match value {
        ScalarValue::Float32(v) => v.map(f64::from),
        ScalarValue::Float64(v) => *v,
        ScalarValue::Decimal128(Some(v), _, scale) => {
            // Convert through text, so 0.1 becomes the nearest f64 instead of a quotient that is rounded twice.
            format!("{v}e{}", -i32::from(*scale)).parse().ok()
        }
        other => integer(other).map(|v| v as f64),
    };
    number.filter(|v| v.is_finite())
}

/// The values of a list of numbers.
pub(crate) fn numbers(value: &ScalarValue) -> Option<Vec<f64>> {
    let list = match value {
        ScalarValue::List(list) if list.is_valid(0) => list.value(0),
        ScalarValue::LargeList(list) if list.is_valid(0) => list.value(0),
        ScalarValue::FixedSizeList(list) if list.is_valid(0) => list.value(0),
        _ => return None,
    };
    (0..list.len()).map(|i| number(&ScalarValue::try_from_array(&list, i).ok()?)).collect()
}

/// Returns the numbers of a list, or the single number given in place of a list.
pub(crate) fn number_or_list(value: &ScalarValue) -> Option<Vec<f64>> {
    numbers(value).or_else(|| number(value).map(|number| vec![number]))
}

/// The values of a list of strings.
pub(crate) fn texts(value: &ScalarValue) -> Option<Vec<String>> {
    let list = match value {
        ScalarValue::List(list) if list.is_valid(0) => list.value(0),
        ScalarValue::LargeList(list) if list.is_valid(0) => list.value(0),
        ScalarValue::FixedSizeList(list) if list.is_valid(0) => list.value(0),
        _ => return None,
    };
    (0..list.len()).map(|i| text(&ScalarValue::try_from_array(&list, i).ok()?).map(str::to_owned)).collect()
}

/// The value of a string constant.
pub(crate) fn text(value: &ScalarValue) -> Option<&str> {
    match value {
        ScalarValue::Utf8(v) | ScalarValue::LargeUtf8(v) | ScalarValue::Utf8View(v) => v.as_deref(),
        _ => None,
    }
}

/// Parses the SQL literal of a default value or an example; `None` if the text is not a literal.
pub(crate) fn parse_literal(text: &str) -> Option<ScalarValue> {
    let text = text.trim();
    if text == "NULL" {
        return Some(ScalarValue::Null);
    }
    if let Some(list) = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')) {
        let numbers = list
            .split(',')
            .map(|item| item.trim().parse().ok().map(|n| ScalarValue::Float64(Some(n))))
            .collect::<Option<Vec<_>>>()?;
        return Some(ScalarValue::List(ScalarValue::new_list(&numbers, &DataType::Float64, true)));
    }
    if let Some(quoted) = text.strip_prefix('\'').and_then(|t| t.strip_suffix('\'')) {
        return Some(ScalarValue::Utf8(Some(quoted.replace("''", "'"))));
    }
    if let Ok(flag) = text.parse() {
        return Some(ScalarValue::Boolean(Some(flag)));
    }
    if let Ok(integer) = text.parse() {
        return Some(ScalarValue::Int64(Some(integer)));
    }
    text.parse().ok().map(|number| ScalarValue::Float64(Some(number)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::descriptor::ParameterKind;

    fn check(kind: ConstantKind, value: ScalarValue, expect: &str) {
        let got = ParameterKind::Constant(kind).check(&value).err().unwrap_or_default();
        assert_eq!(got, expect, "{kind:?} {value:?}");
    }

    #[test]
    fn constants_are_checked_in_words() {
        use ConstantKind::*;
        check(PositiveInteger, ScalarValue::Int64(Some(224)), "");
        check(PositiveInteger, ScalarValue::UInt8(Some(1)), "");
        check(PositiveInteger, ScalarValue::Int64(Some(-3)), "must be a positive integer, got -3");
        check(PositiveInteger, ScalarValue::Float64(Some(2.5)), "must be a positive integer, got 2.5");
        check(PositiveInteger, ScalarValue::from("tall"), "must be a positive integer, got \"tall\"");
        check(PositiveInteger, ScalarValue::Int64(None), "must be a positive integer, got NULL");
        check(Integer, ScalarValue::UInt64(Some(u64::MAX)), "must be an integer, got 18446744073709551615");
        check(Number, ScalarValue::Int32(Some(1)), "");
        check(Number, ScalarValue::Decimal128(Some(15), 2, 1), "");
        check(Number, ScalarValue::Float64(Some(f64::NAN)), "must be a number, got NaN");
        check(NumberList, parse_literal("[1, 2.5]").unwrap(), "");
        check(NumberList, ScalarValue::Int64(Some(1)), "must be a list of numbers, got 1");
        check(Text, ScalarValue::from("x"), "");
        check(Boolean, ScalarValue::Int64(Some(1)), "must be true or false, got 1");
    }

    #[test]
    fn defaults_are_parsed_as_sql_literals() {
        assert_eq!(parse_literal("0.08"), Some(ScalarValue::Float64(Some(0.08))));
        assert_eq!(parse_literal("-7"), Some(ScalarValue::Int64(Some(-7))));
        assert_eq!(parse_literal("true"), Some(ScalarValue::Boolean(Some(true))));
        assert_eq!(parse_literal("'it''s'"), Some(ScalarValue::from("it's")));
        assert_eq!(numbers(&parse_literal("[0.5, 1]").unwrap()), Some(vec![0.5, 1.0]));
        assert_eq!(parse_literal("now()"), None);
    }

    #[test]
    fn a_decimal_becomes_the_nearest_float() {
        assert_eq!(number(&ScalarValue::Decimal128(Some(1), 1, 1)), Some(0.1));
    }
}
