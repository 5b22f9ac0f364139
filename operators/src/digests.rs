//! `md5`, `sha224`, `sha256`, `sha384`, `sha512`: digests of texts and bytes.
//!
//! All are one struct. The result is text in hexadecimal digits, as in DuckDB and Postgres.

use std::fmt::Write;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, StringArray, StringBuilder};
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, internal_err};
use md5::Md5;
use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};

use crate::descriptor::{Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};
use crate::text::Texts;

/// An operator that computes digests.
#[derive(Debug)]
pub(crate) struct DigestOf {
    descriptor: &'static Descriptor,
    digest: fn(&[u8], &mut String),
}

const DIGEST: Descriptor = Descriptor {
    category: "text",
    parameters: &[Parameter::input("value", TypeClass::TextOrBinary, "The values")],
    returns: "Utf8, lower-case hexadecimal digits",
    docs: "A text is its UTF-8 bytes. Null in, null out.",
    takes_views: true,
    ..Descriptor::BASE
};

pub(crate) static MD5: DigestOf = DigestOf {
    descriptor: &Descriptor {
        name: "md5",
        summary: "Computes the MD5 digest of a value",
        source: "RFC 1321",
        examples: &[Example { sql: "md5('a')", result: "0cc175b9c0f1b6a831c399e269772661" }],
        ..DIGEST
    },
    digest: hexadecimal::<Md5>,
};

pub(crate) static SHA224: DigestOf = DigestOf {
    descriptor: &Descriptor {
        name: "sha224",
        summary: "Computes the SHA-224 digest of a value",
        source: "FIPS 180-4",
        examples: &[Example { sql: "sha224('a')", result: "abd37534c7d9a2efb9465de931cd7055ffdb8879563ae98078d6d6d5" }],
        ..DIGEST
    },
    digest: hexadecimal::<Sha224>,
};

pub(crate) static SHA256: DigestOf = DigestOf {
    descriptor: &Descriptor {
        name: "sha256",
        summary: "Computes the SHA-256 digest of a value",
        source: "FIPS 180-4",
        examples: &[Example {
            sql: "sha256('a')",
            result: "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb",
        }],
        ..DIGEST
    },
    digest: hexadecimal::<Sha256>,
};

pub(crate) static SHA384: DigestOf = DigestOf {
    descriptor: &Descriptor {
        name: "sha384",
        summary: "Computes the SHA-384 digest of a value",
        source: "FIPS 180-4",
        examples: &[Example { sql: "left(sha384('a'), 16)", result: "54a59b9f22b0b808" }],
        ..DIGEST
    },
    digest: hexadecimal::<Sha384>,
};

pub(crate) static SHA512: DigestOf = DigestOf {
    descriptor: &Descriptor {
        name: "sha512",
        summary: "Computes the SHA-512 digest of a value",
        source: "FIPS 180-4",
        examples: &[Example { sql: "left(sha512('a'), 16)", result: "1f40fc92da241694" }],
        ..DIGEST
    },
    digest: hexadecimal::<Sha512>,
};

fn hexadecimal<D: Digest>(bytes: &[u8], text: &mut String) {
    for byte in D::digest(bytes) {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
}

impl Operator for DigestOf {
    fn descriptor(&self) -> &'static Descriptor {
        self.descriptor
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Ok(Field::new(self.descriptor.name, DataType::Utf8, arguments.field("value")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let array = arguments.array("value")?;
        let digests: StringArray = match array.data_type() {
            DataType::Binary => self.all(array.as_binary::<i32>()),
            DataType::LargeBinary => self.all(array.as_binary::<i64>()),
            DataType::BinaryView => self.all(array.as_binary_view()),
            text if text.is_string() => {
                let texts = Texts::try_new(array)?;
                self.all(texts.iter().map(|text| text.map(str::as_bytes)))
            }
            other => return internal_err!("{other} has no digest, and its type class refuses it"),
        };
        Ok(Arc::new(digests))
    }
}

impl DigestOf {
    fn all<'a>(&self, values: impl IntoIterator<Item = Option<&'a [u8]>>) -> StringArray {
        let mut digests = StringBuilder::new();
        let mut text = String::new();
        for value in values {
            match value {
                Some(bytes) => {
                    text.clear();
                    (self.digest)(bytes, &mut text);
                    digests.append_value(&text);
                }
                None => digests.append_null(),
            }
        }
        digests.finish()
    }
}
