//! `json_extract` and the like: values within texts of JSON.
//!
//! The functions have DuckDB's names and paths. A text that is no JSON is an error, so that its row is a bad row;
//! `json_valid` tells which texts are.

mod path;
mod scan;

use std::sync::Arc;

use arrow::array::{ArrayRef, BooleanArray, Int64Array, ListBuilder, StringBuilder};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_err, plan_err};
use forebay_diagnostics::shortened;

use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::Texts;
use path::Path;
use scan::{Json, unescaped};

/// The most characters of a text in an error.
const TEXT_CHARS_MAX: usize = 40;

/// A function of JSON.
#[derive(Debug)]
pub(crate) struct JsonFunction {
    descriptor: &'static Descriptor,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    ArrayLength,
    Extract,
    ExtractString,
    Keys,
    Type,
    Valid,
}

const TEXT: Parameter = Parameter::input("json", TypeClass::Json, "Texts of JSON");
const PATH: Parameter = Parameter::constant(
    "path",
    ConstantKind::Text,
    "The place of the value: `$.a[0].b`, `$.\"a b\"`, `$[#-1]` for the last item, or the name of a member",
)
.like("'$.a[0].b'");

const JSON: Descriptor = Descriptor {
    category: "text",
    parameters: &[TEXT, PATH.or("'$'")],
    source: "DuckDB's functions of the same names",
    takes_views: true,
    ..Descriptor::BASE
};

pub(crate) static ARRAY_LENGTH: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_array_length",
        summary: "Counts the items of an array in JSON",
        returns: "Int64",
        docs: "0 for a value that is no array. Null where there is no value. Null in, null out.",
        examples: &[Example { sql: "json_array_length('{\"a\": [1, 2]}', '$.a')", result: "2" }],
        ..JSON
    },
    kind: Kind::ArrayLength,
};

pub(crate) static EXTRACT: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_extract",
        summary: "Returns a value in JSON as JSON; also written `json -> path`",
        parameters: &[TEXT, PATH],
        returns: "Utf8, a text of JSON",
        docs: "White space outside strings is left out. Numbers keep their digits and strings their escapes, which \
               DuckDB writes anew. The first of several members of one name counts. JSON's null is the text `null`; \
               null where there is no value. Null in, null out.",
        examples: &[Example { sql: "json_extract('{\"a\": [{\"b\": 1}]}', '$.a[0]')", result: "{\"b\":1}" }],
        ..JSON
    },
    kind: Kind::Extract,
};

pub(crate) static EXTRACT_STRING: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_extract_string",
        summary: "Returns a value in JSON as text; also written `json ->> path`",
        parameters: &[TEXT, PATH],
        returns: "Utf8",
        docs: "A string is its characters; other values are as `json_extract` returns them. Null for JSON's null, and \
               where there is no value. Null in, null out. A cast makes numbers: `CAST(json ->> '$.n' AS BIGINT)`.",
        examples: &[Example { sql: "json_extract_string('{\"a\": \"red\"}', '$.a')", result: "red" }],
        ..JSON
    },
    kind: Kind::ExtractString,
};

pub(crate) static KEYS: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_keys",
        summary: "Lists the names of the members of an object in JSON",
        returns: "a list of Utf8",
        docs: "In the order of the text. Empty for a value that is no object. Null where there is no value. Null in, \
               null out.",
        examples: &[Example { sql: "json_keys('{\"b\": 1, \"a\": 2}')", result: "[b, a]" }],
        ..JSON
    },
    kind: Kind::Keys,
};

pub(crate) static TYPE: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_type",
        summary: "Names the type of a value in JSON",
        returns: "Utf8",
        docs: "OBJECT, ARRAY, VARCHAR, BOOLEAN, NULL, UBIGINT for integers from 0 to 2^64 - 1, BIGINT for negative \
               integers of 64 bits, or DOUBLE for all other numbers. Null where there is no value. Null in, null out.",
        examples: &[Example { sql: "json_type('{\"a\": [1]}', '$.a')", result: "ARRAY" }],
        ..JSON
    },
    kind: Kind::Type,
};

pub(crate) static VALID: JsonFunction = JsonFunction {
    descriptor: &Descriptor {
        name: "json_valid",
        summary: "Tells whether a text is JSON",
        parameters: &[Parameter::input("json", TypeClass::Text, "The texts")],
        returns: "Boolean",
        docs: "Null in, null out.",
        examples: &[Example { sql: "json_valid('{\"a\": 1}')", result: "true" }],
        ..JSON
    },
    kind: Kind::Valid,
};

/// The operator that `json -> path` calls, or `json ->> path`, which gives text.
pub fn json_access(gives_text: bool) -> &'static str {
    if gives_text { EXTRACT_STRING.descriptor.name } else { EXTRACT.descriptor.name }
}

impl JsonFunction {
    fn path(&self, arguments: &Arguments) -> Result<Path> {
        if self.kind == Kind::Valid {
            return Ok(Path::default());
        }
        match Path::parse(&arguments.text("path")?) {
            Ok(path) => Ok(path),
            Err(why) => plan_err!("{}: \"path\" {why}", self.descriptor.name),
        }
    }

    /// The value at the path in each text.
    fn values<'a>(&self, texts: &'a Texts<'a>, path: &'a Path) -> impl Iterator<Item = Result<Option<Json<'a>>>> {
        let name = self.descriptor.name;
        texts.iter().map(move |text| match text.map(|text| (text, Json::parse(text))) {
            None => Ok(None),
            Some((_, Ok(json))) => Ok(path.find(json)),
            Some((text, Err(why))) => {
                exec_err!("{name}: {:?} is not JSON: {why}", shortened(text, TEXT_CHARS_MAX))
            }
        })
    }
}

impl Operator for JsonFunction {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        // A wrong path is an error of the query.
        self.path(arguments)?;
        let data_type = match self.kind {
            Kind::ArrayLength => DataType::Int64,
            Kind::Keys => DataType::new_list(DataType::Utf8, true),
            Kind::Valid => DataType::Boolean,
            Kind::Extract | Kind::ExtractString | Kind::Type => DataType::Utf8,
        };
        let is_nullable = self.kind != Kind::Valid || arguments.field("json")?.is_nullable();
        Ok(Field::new(self.descriptor.name, data_type, is_nullable))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let path = self.path(arguments)?;
        let texts = Texts::try_new(arguments.array("json")?)?;
        let values = self.values(&texts, &path);
        Ok(match self.kind {
            Kind::Valid => {
                let valid = texts.iter().map(|text| text.map(|text| Json::parse(text).is_ok()));
                Arc::new(valid.collect::<BooleanArray>())
            }
            Kind::ArrayLength => {
                let lengths = values.map(|value| Ok(value?.map(|value| value.items().count() as i64)));
                Arc::new(lengths.collect::<Result<Int64Array>>()?)
            }
            Kind::Keys => {
                let mut keys = ListBuilder::new(StringBuilder::new());
                for value in values {
                    let value = value?;
                    for (name, _) in value.into_iter().flat_map(Json::members) {
                        keys.values().append_value(self.unescaped(name)?);
                    }
                    keys.append(value.is_some());
                }
                Arc::new(keys.finish())
            }
            Kind::Extract | Kind::ExtractString | Kind::Type => {
                let mut found = StringBuilder::new();
                let mut text = String::new();
                for value in values {
                    match value? {
                        None => found.append_null(),
                        Some(value) if self.kind == Kind::Type => found.append_value(type_of(value)),
                        Some(value) if self.kind == Kind::ExtractString && value.first() == b'n' => found.append_null(),
                        Some(value) if self.kind == Kind::ExtractString && value.first() == b'"' => {
                            found.append_value(self.unescaped(value.text())?);
                        }
                        Some(value) => {
                            text.clear();
                            value.write_to(&mut text);
                            found.append_value(&text);
                        }
                    }
                }
                Arc::new(found.finish())
            }
        })
    }
}

impl JsonFunction {
    fn unescaped<'a>(&self, string: &'a str) -> Result<std::borrow::Cow<'a, str>> {
        match unescaped(string) {
            Some(text) => Ok(text),
            None => exec_err!(
                "{}: {} has half of a surrogate pair, which is no text",
                self.descriptor.name,
                shortened(string, TEXT_CHARS_MAX)
            ),
        }
    }
}

fn type_of(value: Json<'_>) -> &'static str {
    let text = value.text();
    match value.first() {
        b'{' => "OBJECT",
        b'[' => "ARRAY",
        b'"' => "VARCHAR",
        b't' | b'f' => "BOOLEAN",
        b'n' => "NULL",
        b'-' if text.parse::<i64>().is_ok() => "BIGINT",
        _ if text.parse::<u64>().is_ok() => "UBIGINT",
        _ => "DOUBLE",
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, StringArray};
    use arrow::datatypes::Int64Type;

    use crate::testing::{column, sql};

    const TEXT: &str = r#"{"a": [1.50, {"b": "x\u00e9\n"}, null], "n": -1}"#;

    fn text(call: &str) -> std::result::Result<Option<String>, String> {
        let (_, found) = sql(call, vec![column("j", StringArray::from(vec![Some(TEXT), None]))])?;
        assert!(found.is_null(1), "{call}");
        let found = found.as_string::<i32>();
        Ok(found.is_valid(0).then(|| found.value(0).to_owned()))
    }

    /// The expected values are DuckDB's, except for the digits of numbers and the escapes of strings.
    #[test]
    fn values_are_found() {
        for (call, expected) in [
            ("json_extract(j, '$.a')", Some(r#"[1.50,{"b":"x\u00e9\n"},null]"#)),
            ("json_extract(j, 'n')", Some("-1")),
            ("json_extract(j, '$.a[2]')", Some("null")),
            ("json_extract(j, '$.a[3]')", None),
            ("json_extract_string(j, '$.a[1].b')", Some("xé\n")),
            ("json_extract_string(j, '$.a[0]')", Some("1.50")),
            ("json_extract_string(j, '$.a[2]')", None),
            ("json_type(j, '$')", Some("OBJECT")),
            ("json_type(j, '$.n')", Some("BIGINT")),
            ("json_type(j, '$.a[0]')", Some("DOUBLE")),
        ] {
            assert_eq!(text(call).unwrap().as_deref(), expected, "{call}");
        }
        let json = || vec![column("j", StringArray::from(vec![TEXT]))];
        let (_, lengths) = sql("json_array_length(j, '$.a')", json()).unwrap();
        assert_eq!(lengths.as_primitive::<Int64Type>().value(0), 3);
        let (_, keys) = sql("json_keys(j, '$')", json()).unwrap();
        let keys = keys.as_list::<i32>().value(0);
        assert_eq!(keys.as_string::<i32>(), &StringArray::from(vec!["a", "n"]));
    }

    #[test]
    fn what_is_no_json_or_no_path_is_named() {
        let error = sql("json_extract(j, 'a')", vec![column("j", StringArray::from(vec!["{x"]))]).unwrap_err();
        assert!(error.starts_with("json_extract: \"{x\" is not JSON: "), "{error}");
        let error = text("json_extract(j, '$.a[*]')").unwrap_err();
        assert!(error.contains("json_extract: \"path\" must be a path such as '$.a[0].b'"), "{error}");
        let half = vec![column("j", StringArray::from(vec![r#""\ud800""#]))];
        let error = sql("json_extract_string(j, '$')", half).unwrap_err();
        assert!(error.contains("half of a surrogate pair"), "{error}");
    }
}
