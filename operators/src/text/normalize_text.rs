//! `normalize_text`: one spelling for texts that look the same.

use std::sync::Arc;

use arrow::array::{ArrayRef, StringArray};
use arrow::buffer::{Buffer, OffsetBuffer};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err};
use unicode_normalization::{
    IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfd_quick, is_nfkc_quick, is_nfkd_quick,
};

use super::{Texts, offset};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "normalize_text",
    version: 1,
    category: "text",
    summary: "Converts text to a Unicode normalization form",
    parameters: &[
        Parameter::input("text", TypeClass::Text, "The texts"),
        Parameter::constant("form", ConstantKind::Text, "`'nfc'`, `'nfd'`, `'nfkc'` or `'nfkd'`").or("'nfc'"),
    ],
    returns: "Utf8",
    docs: "NFC composes and NFD decomposes characters. The K forms also replace characters that only look different, \
           such as ligatures and full-width letters. To change case, strip text or replace patterns, use `lower`, \
           `btrim` and `regexp_replace`. Null in, null out.",
    source: "Unicode Standard Annex 15, implemented by the `unicode-normalization` crate; tested against Python's \
             `unicodedata`",
    examples: &[Example { sql: "normalize_text('ﬁne', form => 'nfkc')", result: "fine" }],
    ..Descriptor::BASE
};

/// The operator `normalize_text`.
#[derive(Debug)]
pub(crate) struct NormalizeText;

#[derive(Debug, Clone, Copy)]
enum UnicodeForm {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
}

impl Operator for NormalizeText {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        form(arguments)?;
        Ok(Field::new("text", DataType::Utf8, arguments.field("text")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let form = form(arguments)?;
        let texts = Texts::try_new(arguments.array("text")?)?;
        let mut offsets = Vec::with_capacity(texts.len() + 1);
        let mut out = String::new();
        offsets.push(0);
        for text in texts.iter() {
            normalize(text.unwrap_or_default(), form, &mut out);
            offsets.push(offset(DESCRIPTOR.name, out.len())?);
        }
        let offsets = OffsetBuffer::new(offsets.into());
        StringArray::try_new(offsets, Buffer::from_vec(out.into_bytes()), texts.nulls().cloned())
            .map(|texts| Arc::new(texts) as ArrayRef)
            .map_err(|e| exec_datafusion_err!("{}: {e}", DESCRIPTOR.name))
    }
}

fn form(arguments: &Arguments) -> Result<UnicodeForm> {
    match arguments.text("form")?.to_ascii_lowercase().as_str() {
        "nfc" => Ok(UnicodeForm::Nfc),
        "nfd" => Ok(UnicodeForm::Nfd),
        "nfkc" => Ok(UnicodeForm::Nfkc),
        "nfkd" => Ok(UnicodeForm::Nfkd),
        other => arguments.refuse("form", format_args!("must be 'nfc', 'nfd', 'nfkc' or 'nfkd', got \"{other}\"")),
    }
}

/// Appends a text in this form. Most texts have this form already, and a quick check detects them.
fn normalize(text: &str, form: UnicodeForm, out: &mut String) {
    let quick = match form {
        _ if text.is_ascii() => IsNormalized::Yes,
        UnicodeForm::Nfc => is_nfc_quick(text.chars()),
        UnicodeForm::Nfd => is_nfd_quick(text.chars()),
        UnicodeForm::Nfkc => is_nfkc_quick(text.chars()),
        UnicodeForm::Nfkd => is_nfkd_quick(text.chars()),
    };
    match (quick, form) {
        (IsNormalized::Yes, _) => out.push_str(text),
        (_, UnicodeForm::Nfc) => out.extend(text.nfc()),
        (_, UnicodeForm::Nfd) => out.extend(text.nfd()),
        (_, UnicodeForm::Nfkc) => out.extend(text.nfkc()),
        (_, UnicodeForm::Nfkd) => out.extend(text.nfkd()),
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::{Array, AsArray, StringViewArray};

    use crate::testing::{column, golden, sql};

    #[test]
    fn forms_are_pythons() {
        let golden = golden("text");
        let texts: Vec<_> = golden["strange"].as_array().unwrap().iter().map(|text| text.as_str()).collect();
        for (form, expect) in golden["normalized"].as_object().unwrap() {
            let call = format!("normalize_text(text, '{form}')");
            let (_, got) = sql(&call, vec![column("text", StringViewArray::from(texts.clone()))]).unwrap();
            for (row, got) in got.as_string::<i32>().iter().enumerate() {
                assert_eq!(got, expect[row].as_str(), "{form} of {:?}", texts[row]);
            }
        }
    }

    #[test]
    fn nulls_stay_and_other_forms_are_refused() {
        let texts = || vec![column("text", StringViewArray::from(vec![None, Some("e\u{301}")]))];
        let (_, got) = sql("normalize_text(text, 'NFC')", texts()).unwrap();
        assert!(got.is_null(0) && got.as_string::<i32>().value(1) == "é");
        let expect = "normalize_text: \"form\" must be 'nfc', 'nfd', 'nfkc' or 'nfkd', got \"ascii\"";
        assert_eq!(sql("normalize_text(text, 'ascii')", texts()).unwrap_err(), expect);
    }
}
