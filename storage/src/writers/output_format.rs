//! A format of output files with its options.

use std::collections::BTreeMap;
use std::fmt;

use arrow::datatypes::{Schema, SchemaRef};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::format::{DataFile, FileWriter, IndexFile, NewFile, WriteDescriptor, WriteFormat};
use super::registry::find;
use crate::formats::OptionValues;
use crate::{Error, Result};

/// How output files are encoded: a [`WriteFormat`] and the values of its options.
#[derive(Clone)]
pub struct OutputFormat {
    format: &'static dyn WriteFormat,
    options: OptionValues,
}

impl OutputFormat {
    /// The format with this name and these options, and defaults for all others.
    ///
    /// # Errors
    /// `Invalid` for an unknown name, for options that the format does not have, and for invalid values.
    pub fn new(name: &str, given: &[(String, String)]) -> Result<Self> {
        let format = find(name)?;
        let descriptor = format.descriptor();
        if let Some((key, _)) = given.iter().find(|(key, _)| descriptor.options.iter().all(|known| known.name != key)) {
            let names: Vec<&str> = descriptor.options.iter().map(|option| option.name).collect();
            return Err(Error::invalid(format!("{} files have no option \"{key}\"", descriptor.name))
                .with_hint(format!("options of {}: {}", descriptor.name, names.join(", "))));
        }
        let options = OptionValues::of(descriptor.options, |option| {
            let given = given.iter().rev().find(|(key, _)| key == option.name);
            Ok(given.map_or(option.default, |(_, text)| text).to_owned())
        })?;
        format.check_options(&options).map_err(Error::invalid)?;
        Ok(Self { format, options })
    }

    /// The properties of the format that do not depend on its options.
    pub fn descriptor(&self) -> &'static WriteDescriptor {
        self.format.descriptor()
    }

    /// The extension of files, without the first period, such as `csv.gz`.
    pub fn extension(&self) -> &'static str {
        self.format.extension(&self.options)
    }

    /// Checks that files can hold these columns.
    ///
    /// # Errors
    /// `Invalid`, with the column's name, its type and what to do.
    pub fn check(&self, schema: &Schema) -> Result<()> {
        let fields = schema.fields();
        if fields.is_empty() {
            return Err(Error::invalid("there are no columns to write"));
        }
        let twice =
            fields.iter().enumerate().find(|(at, field)| fields.find(field.name()).is_some_and(|it| it.0 < *at));
        if let Some((_, field)) = twice {
            return Err(Error::invalid(format!("two columns are named \"{}\"", field.name()))
                .with_hint("name them apart in the query: column AS name"));
        }
        self.format.check(schema, &self.options)
    }

    /// A writer of a file of these columns. See [`NewFile::key_prefix`].
    ///
    /// # Errors
    /// Those of [`check`](Self::check).
    pub fn writer(&self, schema: &SchemaRef, key_prefix: &str) -> Result<Box<dyn FileWriter>> {
        self.check(schema)?;
        self.format.writer(&NewFile { schema, key_prefix }, &self.options)
    }

    /// Files that readers need beside the data files, which are all written, in the order of their rows.
    ///
    /// # Errors
    /// `Invalid` for facts of another format.
    pub fn index(&self, files: &[DataFile]) -> Result<Vec<IndexFile>> {
        self.format.index(files)
    }

    /// The options in the user's notation.
    fn texts(&self) -> BTreeMap<String, String> {
        self.options.iter().map(|(name, value)| (name.to_owned(), value.text())).collect()
    }
}

impl PartialEq for OutputFormat {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor().name == other.descriptor().name && self.options == other.options
    }
}

impl Eq for OutputFormat {}

impl fmt::Debug for OutputFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.descriptor().name).field("options", &self.texts()).finish()
    }
}

/// The format in JSON. It contains all options, so that a changed default does not change a job that continues.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    name: String,
    options: BTreeMap<String, String>,
}

impl Serialize for OutputFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Written { name: self.descriptor().name.to_owned(), options: self.texts() }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for OutputFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Written { name, options } = Written::deserialize(deserializer)?;
        Self::new(&name, &options.into_iter().collect::<Vec<_>>()).map_err(D::Error::custom)
    }
}
