//! A format with its options: how the files of one table are encoded.

use std::collections::BTreeMap;
use std::fmt;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::format::{Format, FormatDescriptor};
use super::memory::InMemoryRows;
use super::options::{FormatOption, FormatOptionValue, OptionValues};
use super::registry::{find, find_stored};
use crate::{Error, Result};

/// How the files of a table are encoded: a [`Format`] and the values of its options.
#[derive(Clone)]
pub struct TableFormat {
    format: &'static dyn Format,
    options: OptionValues,
}

impl TableFormat {
    /// The format of a table at `location` with the options given in SQL.
    ///
    /// # Errors
    /// `Invalid` for options that the format does not have, and for invalid values.
    pub fn new(format: &'static dyn Format, location: &str, given: &[(String, String)]) -> Result<Self> {
        let descriptor = format.descriptor();
        // In SQL, format options may have this prefix.
        let name_of = |key: &str| key.strip_prefix("format.").unwrap_or(key).to_owned();
        if let Some((key, _)) = given.iter().find(|(key, _)| !has_option(descriptor, &name_of(key))) {
            return Err(Error::invalid(format!("a {} table has no option \"{key}\"", descriptor.name))
                .with_hint(options_hint(descriptor)));
        }
        let options = OptionValues::of(descriptor.options, |option| {
            let given = given.iter().rev().find(|(key, _)| name_of(key) == option.name);
            let implied =
                || descriptor.implied.iter().find(|it| it.option == option.name && location.ends_with(it.suffix));
            Ok(match given {
                Some((_, text)) => text.clone(),
                None => implied().map_or(option.default, |implied| implied.value).to_owned(),
            })
        })?;
        Ok(Self { format, options })
    }

    /// Checks the values of the options, as opening a table does.
    ///
    /// # Errors
    /// `Invalid` for values that the format refuses.
    pub fn check(&self) -> Result<()> {
        self.format.check_options(&self.options).map_err(Error::invalid)
    }

    /// The format `name` with the default of each option.
    ///
    /// # Errors
    /// `Invalid` for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
        Self::new(find(name)?, "", &[])
    }

    /// The format of rows in memory.
    pub(crate) fn in_memory() -> Self {
        Self { format: &InMemoryRows, options: OptionValues::default() }
    }

    /// The format.
    pub fn format(&self) -> &'static dyn Format {
        self.format
    }

    /// The properties of the format that do not depend on a file.
    pub fn descriptor(&self) -> &'static FormatDescriptor {
        self.format.descriptor()
    }

    /// The value of each option.
    pub fn options(&self) -> &OptionValues {
        &self.options
    }
}

fn has_option(descriptor: &FormatDescriptor, name: &str) -> bool {
    descriptor.options.iter().any(|option| option.name == name)
}

fn options_hint(descriptor: &FormatDescriptor) -> String {
    let names: Vec<String> = descriptor.options.iter().map(|option| option.name.to_owned()).collect();
    match names.split_last() {
        None => "leave OPTIONS out".to_owned(),
        Some((last, [])) => format!("option of {}: {last}", descriptor.name),
        Some((last, others)) => format!("options of {}: {} and {last}", descriptor.name, others.join(", ")),
    }
}

impl PartialEq for TableFormat {
    fn eq(&self, other: &Self) -> bool {
        self.descriptor().name == other.descriptor().name && self.options == other.options
    }
}

impl Eq for TableFormat {}

impl fmt::Debug for TableFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(self.descriptor().name);
        for (name, value) in self.options.iter() {
            shown.field(name, &value.text());
        }
        shown.finish()
    }
}

/// A format in JSON. It contains all options, so that a changed default does not change existing tables.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenFormat {
    name: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    options: BTreeMap<String, String>,
}

impl Serialize for TableFormat {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let name = self.descriptor().name.to_owned();
        let descriptor = self.descriptor();
        // Workers of an earlier version do not know the options that were added.
        let is_written = |(option, (name, value)): &(&FormatOption, (&str, &FormatOptionValue))| {
            !descriptor.added_options.contains(name) || value.text() != option.default
        };
        let options = descriptor.options.iter().zip(self.options.iter()).filter(is_written);
        let options = options.map(|(_, (name, value))| (name.to_owned(), value.text())).collect();
        WrittenFormat { name, options }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for TableFormat {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let WrittenFormat { name, options } = WrittenFormat::deserialize(deserializer)?;
        let format = find_stored(&name).map_err(D::Error::custom)?;
        let descriptor = format.descriptor();
        if let Some(unknown) = options.keys().find(|key| !has_option(descriptor, key)) {
            return Err(D::Error::custom(format!("format \"{name}\" has no option \"{unknown}\"")));
        }
        let values = OptionValues::of(descriptor.options, |option| {
            let missing = || Error::invalid(format!("option \"{}\" of format \"{name}\" is missing", option.name));
            match options.get(option.name) {
                Some(text) => Ok(text.clone()),
                None if descriptor.added_options.contains(&option.name) => Ok(option.default.to_owned()),
                None => Err(missing()),
            }
        });
        Ok(Self { format, options: values.map_err(D::Error::custom)? })
    }
}
