//! SQL's text functions for numbers too: `substr(id, 1, 2)` is `substr(CAST(id AS VARCHAR), 1, 2)`.
//!
//! DataFusion's accept only texts, and say so in the words of a bug report. The functions here have DataFusion's names
//! and results, and cast numbers and booleans where a text is expected and the call fits in no other way.

use std::sync::Arc;

use arrow::array::AsArray;
use arrow::compute::kernels::length::length;
use arrow::compute::{cast, max};
use arrow::datatypes::{DataType, Field, FieldRef, Int64Type};
use datafusion::common::{Result, exec_err, plan_err};
use datafusion::functions::{regex, string, unicode};
use datafusion::logical_expr::simplify::{ExprSimplifyResult, SimplifyContext};
use datafusion::logical_expr::sort_properties::{ExprProperties, SortProperties};
use datafusion::logical_expr::type_coercion::functions::fields_with_udf;
use datafusion::logical_expr::{
    ColumnarValue, Documentation, Expr, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    TypeSignature,
};

/// Returns DataFusion's text functions in this form, to be registered under the same names.
pub fn text_functions() -> Vec<ScalarUDF> {
    let all = [string::functions(), unicode::functions(), regex::functions()].concat();
    all.into_iter().map(|original| ScalarUDF::from(TextFunction::new(original))).collect()
}

/// The most characters of `lpad` and `rpad`, and the most bytes of `repeat`.
pub const TEXT_LENGTH_MAX: i64 = 16 << 20;
/// The functions whose second argument is a length, or a number of copies.
pub const LENGTHENING: [&str; 3] = ["lpad", "rpad", "repeat"];

/// Returns what the lengths of a lengthening function's texts count.
pub fn length_unit(name: &str) -> &'static str {
    if name == "repeat" { "bytes" } else { "characters" }
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct TextFunction {
    original: Arc<ScalarUDF>,
    signature: Signature,
}

impl TextFunction {
    fn new(original: Arc<ScalarUDF>) -> Self {
        let signature = Signature { type_signature: TypeSignature::UserDefined, ..original.signature().clone() };
        Self { original, signature }
    }

    /// The types that DataFusion's function casts its arguments to, if it takes them.
    fn coerced(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let fields: Vec<FieldRef> = types.iter().map(|of| Arc::new(Field::new("", of.clone(), true))).collect();
        let coerced = fields_with_udf(&fields, self.original.as_ref())?;
        Ok(coerced.iter().map(|field| field.data_type().clone()).collect())
    }
}

/// The types of the arguments at `texts` as texts, unless one of these has no text.
fn with_texts(types: &[DataType], texts: &[usize]) -> Vec<DataType> {
    let mut types = types.to_vec();
    texts.iter().for_each(|&at| types[at] = DataType::Utf8);
    types
}

impl ScalarUDFImpl for TextFunction {
    fn name(&self) -> &str {
        self.original.name()
    }

    fn aliases(&self) -> &[String] {
        self.original.aliases()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let error = match self.coerced(types) {
            Ok(coerced) => return Ok(coerced),
            Err(error) => error.strip_backtrace(),
        };
        let is_plain = |of: &DataType| of.is_numeric() || *of == DataType::Boolean;
        let plain: Vec<usize> = (0..types.len()).filter(|&at| is_plain(&types[at])).collect();
        // The text comes first in nearly all of these functions; then alone, then with others.
        let firsts = (1..=plain.len()).map(|count| plain[..count].to_vec());
        let singles = plain.iter().skip(1).map(|&at| vec![at]);
        let fits = firsts.chain(singles).find_map(|texts| self.coerced(&with_texts(types, &texts)).ok());
        match fits {
            Some(coerced) => Ok(coerced),
            None => {
                let given: Vec<String> = types.iter().map(ToString::to_string).collect();
                let names = self.original.signature().parameter_names.as_deref();
                let signatures = self.original.signature().type_signature.to_string_repr_with_names(names);
                let signatures: Vec<String> = signatures.iter().map(|of| format!("\t{}({of})", self.name())).collect();
                plan_err!(
                    "{error}. No function matches the given name and argument types '{}({})'. You might need to add explicit \
                     type casts.\n\tCandidate functions:\n{}\n",
                    self.name(),
                    given.join(", "),
                    signatures.join("\n")
                )
            }
        }
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.original.return_type(types)
    }

    fn return_field_from_args(&self, arguments: ReturnFieldArgs) -> Result<FieldRef> {
        self.original.return_field_from_args(arguments)
    }

    fn is_strict(&self) -> bool {
        self.original.is_strict()
    }

    fn short_circuits(&self) -> bool {
        self.original.short_circuits()
    }

    fn simplify(&self, arguments: Vec<Expr>, context: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.original.simplify(arguments, context)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        self.original.output_ordering(inputs)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.original.documentation()
    }

    fn invoke_with_args(&self, mut arguments: ScalarFunctionArgs) -> Result<ColumnarValue> {
        // DataFusion makes any text, and the process would end for want of memory. It computes constants while it
        // plans.
        if let Some(length) = longest(self.name(), &arguments)?.filter(|length| *length > TEXT_LENGTH_MAX) {
            let (name, unit) = (self.name(), length_unit(self.name()));
            return exec_err!("{name}: a text of {length} {unit} is too long: {TEXT_LENGTH_MAX} is the most");
        }
        if self.name() != "repeat" && LENGTHENING.contains(&self.name()) {
            without_negative_lengths(&mut arguments);
        }
        self.original.invoke_with_args(arguments)
    }
}

/// Makes texts of negative length empty. DataFusion would reserve 2^64 bytes for a column of them.
fn without_negative_lengths(arguments: &mut ScalarFunctionArgs) {
    if let Some(ColumnarValue::Array(lengths)) = arguments.args.get_mut(1)
        && let Some(numbers) = lengths.as_primitive_opt::<Int64Type>()
    {
        let numbers = numbers.unary::<_, Int64Type>(|length| length.max(0));
        *lengths = Arc::new(numbers);
    }
}

/// The greatest length of the texts that `lpad`, `rpad` or `repeat` would make of these arguments.
fn longest(name: &str, arguments: &ScalarFunctionArgs) -> Result<Option<i64>> {
    let [text, number, ..] = &arguments.args[..] else { return Ok(None) };
    if !LENGTHENING.contains(&name) {
        return Ok(None);
    }
    let rows = |value: &ColumnarValue| match value {
        ColumnarValue::Array(array) => Ok(Arc::clone(array)),
        ColumnarValue::Scalar(value) => value.to_array(),
    };
    let numbers = rows(number)?;
    let Some(numbers) = numbers.as_primitive_opt::<Int64Type>() else { return Ok(None) };
    if name != "repeat" {
        return Ok(max(numbers));
    }
    let lengths = length(&rows(text)?)?;
    let lengths = cast(&lengths, &DataType::Int64)?;
    let lengths = lengths.as_primitive::<Int64Type>();
    let of_all = |numbers: Option<i64>| Some(max(lengths)?.saturating_mul(numbers?));
    Ok(match (lengths.len(), numbers.len()) {
        (texts, counts) if texts == counts => {
            let products = lengths.iter().zip(numbers).map(|(length, count)| Some(length?.saturating_mul(count?)));
            products.flatten().max()
        }
        // One of them is a constant.
        _ => of_all(max(numbers)),
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use datafusion::scalar::ScalarValue;

    use super::*;

    fn check(name: &str, types: &[DataType], expected: &[DataType]) {
        let function = text_functions().into_iter().find(|function| function.name() == name).unwrap();
        let coerced = function.coerce_types(types).map_err(|error| error.to_string());
        assert_eq!(coerced.as_deref(), Ok(expected), "{name}{types:?}");
    }

    #[test]
    fn numbers_are_texts_where_only_these_fit() {
        use DataType::{Boolean, Int64, Utf8};
        check("substr", &[Int64, Int64, Int64], &[Utf8, Int64, Int64]);
        check("substr", &[Utf8, Int64], &[Utf8, Int64]);
        check("upper", &[Boolean], &[Utf8]);
        check("replace", &[Int64, Int64, Utf8], &[Utf8, Utf8, Utf8]);
        check("starts_with", &[Utf8, Int64], &[Utf8, Utf8]);
        check("to_hex", &[Int64], &[Int64]);
    }

    #[test]
    fn other_calls_are_refused_with_datafusions_signatures() {
        let substr = text_functions().into_iter().find(|function| function.name() == "substr").unwrap();
        let error = substr.coerce_types(&[DataType::Date32, DataType::Utf8]).unwrap_err().to_string();
        assert!(error.contains("'substr(Date32, Utf8)'") && error.contains("\tsubstr(str: "), "{error}");
    }

    #[test]
    fn texts_have_a_greatest_length() {
        let invoke = |name: &str, texts: Option<&[&str]>, numbers: &[i64]| {
            let function = text_functions().into_iter().find(|function| function.name() == name).unwrap();
            let text = match texts {
                Some(texts) => ColumnarValue::Array(Arc::new(StringArray::from(texts.to_vec()))),
                None => ColumnarValue::Scalar(ScalarValue::from("ab")),
            };
            let number = match numbers {
                [number] => ColumnarValue::Scalar(ScalarValue::from(*number)),
                numbers => ColumnarValue::Array(Arc::new(Int64Array::from(numbers.to_vec()))),
            };
            let field = |name: &str, of: DataType| Arc::new(Field::new(name, of, true));
            let arguments = ScalarFunctionArgs {
                arg_fields: vec![field("text", DataType::Utf8), field("number", DataType::Int64)],
                args: vec![text, number],
                number_rows: texts.map_or(numbers.len(), <[&str]>::len),
                return_field: field("text", DataType::Utf8),
                config_options: Arc::default(),
            };
            function.inner().invoke_with_args(arguments).map(|_| ()).map_err(|error| error.strip_backtrace())
        };
        let most = TEXT_LENGTH_MAX;
        for (name, texts, numbers, length) in [
            ("lpad", None, &[2_000_000_000][..], 2_000_000_000),
            ("rpad", Some(&["a", "b"][..]), &[1, most + 1], most + 1),
            ("rpad", Some(&["a", "b"]), &[most + 1], most + 1),
            ("repeat", None, &[most / 2 + 1], most + 2),
            ("repeat", Some(&["a", "abc"]), &[most], 3 * most),
            ("repeat", None, &[1, most], 2 * most),
            ("repeat", Some(&["a", "abc"]), &[3, most / 3 + 1], most + 2),
            ("repeat", None, &[i64::MAX], i64::MAX),
        ] {
            let unit = length_unit(name);
            let said = format!("Execution error: {name}: a text of {length} {unit} is too long: {most} is the most");
            assert_eq!(invoke(name, texts, numbers), Err(said), "{name} {texts:?} {numbers:?}");
        }
        // The longest text is next to the least number.
        assert_eq!(invoke("repeat", Some(&["a", "abc"]), &[most / 2, 1]), Ok(()));
        assert_eq!(invoke("repeat", None, &[-5]), Ok(()));
        assert_eq!(invoke("lpad", Some(&["a", "b"]), &[3, -4]), Ok(()));
    }
}
