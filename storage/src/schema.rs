//! An Arrow schema as text, for use in JSON: its Arrow IPC encoding in base64.
//!
//! The encoding keeps all metadata in a fixed order, and every Arrow reader supports it.

use std::panic::catch_unwind;
use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use arrow_ipc::convert::{IpcSchemaEncoder, fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_ipc::writer::DictionaryTracker;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

use crate::{Error, Result};

/// For `#[serde(with = "forebay_storage::schema_text")]` on a schema.
pub mod schema_text {
    use super::*;

    /// Writes a schema as text.
    pub fn serialize<S: Serializer>(schema: &SchemaRef, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&encode(schema))
    }

    /// Parses the output of [`serialize`].
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SchemaRef, D::Error> {
        decode(&String::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

/// The same for an optional schema.
pub(crate) mod optional {
    use super::*;

    pub(crate) fn serialize<S: Serializer>(schema: &Option<SchemaRef>, serializer: S) -> Result<S::Ok, S::Error> {
        match schema {
            Some(schema) => serializer.serialize_some(&encode(schema)),
            None => serializer.serialize_none(),
        }
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SchemaRef>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| decode(&text).map_err(D::Error::custom)).transpose()
    }
}

fn encode(schema: &Schema) -> String {
    let mut dictionaries = DictionaryTracker::new(true);
    let encoded = IpcSchemaEncoder::new().with_dictionary_tracker(&mut dictionaries).schema_to_fb(schema);
    STANDARD.encode(encoded.finished_data())
}

fn decode(text: &str) -> Result<SchemaRef> {
    let damaged = |why: String| Error::invalid(format!("the schema is damaged: {why}"));
    let bytes = STANDARD.decode(text).map_err(|e| damaged(format!("not base64: {e}")))?;
    let encoded = root_as_schema(&bytes).map_err(|e| damaged(format!("not an Arrow schema: {e}")))?;
    // The encoding is already verified, but Arrow's decoder panics on unknown types.
    match catch_unwind(|| fb_to_schema(encoded)) {
        Ok(schema) => Ok(Arc::new(schema)),
        Err(_) => Err(damaged("it holds a type that Arrow does not know".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::datatypes::{DataType, Field, TimeUnit};

    fn schema() -> Schema {
        let metadata = |n: usize| (0..n).map(|i| (format!("k\u{e9}y {i}"), format!("\"{i}\"\n"))).collect();
        let item = Arc::new(Field::new("item", DataType::Float32, true).with_metadata(metadata(3)));
        let dictionary = DataType::Dictionary(DataType::Int16.into(), DataType::Utf8.into());
        let types = [
            DataType::FixedSizeList(Arc::clone(&item), 6),
            DataType::List(Arc::new(Field::new("item", DataType::Struct(vec![item.as_ref().clone()].into()), false))),
            dictionary.clone(),
            DataType::List(Arc::new(Field::new("item", dictionary, true))),
            DataType::Timestamp(TimeUnit::Microsecond, Some("Europe/Berlin".into())),
            DataType::Decimal128(38, -3),
            DataType::FixedSizeBinary(16),
            DataType::Null,
        ];
        let fields: Vec<Field> = (types.into_iter().enumerate())
            .map(|(i, data_type)| Field::new(i.to_string(), data_type, i % 2 == 0).with_metadata(metadata(i)))
            .collect();
        Schema::new_with_metadata(fields, metadata(20))
    }

    #[test]
    fn a_schema_comes_back_whole_and_its_text_is_stable() {
        assert_eq!(*decode(&encode(&schema())).unwrap(), schema());
        assert_eq!(encode(&schema()), encode(&schema()));
        assert_eq!(*decode(&encode(&Schema::empty())).unwrap(), Schema::empty());
    }

    /// Replaces each byte with each of three values. There is no random seed to print.
    #[test]
    fn a_damaged_schema_is_an_error_or_another_schema() {
        let bytes = STANDARD.decode(encode(&schema())).unwrap();
        let mut errors = 0;
        for at in 0..bytes.len() {
            for change in [0xff, 0x01, 0x10] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                errors += usize::from(decode(&STANDARD.encode(damaged)).is_err());
            }
        }
        assert!(errors > 100, "only {errors} errors");
        for text in ["", "?", "AAAA"] {
            assert!(decode(text).unwrap_err().to_string().starts_with("the schema is damaged: "), "{text:?}");
        }
    }
}
