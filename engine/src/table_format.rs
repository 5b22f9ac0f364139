//! The format of a table's files, as declared in SQL. The formats are those of `forebay_storage::formats`.

use std::sync::Arc;

use forebay_sql::{Place, TableDefinition};
use forebay_storage::{PathColumns, TableFormat, formats};

use crate::error::{Error, Result};

/// The option of every format that turns the columns from folders such as `dt=2026-01-01` off.
const HIVE_PARTITIONING: &str = "hive_partitioning";

/// The format in `STORED AS`, with its `OPTIONS`. An error carries the place of the cause.
pub(crate) fn format_of(table: &TableDefinition) -> Result<TableFormat, (Place, Error)> {
    let format = formats::find(&table.file_type).map_err(|_| {
        let names: Vec<String> = formats::names().map(str::to_uppercase).collect();
        let error = Error::invalid(format!("unknown file type \"{}\"", table.file_type))
            .with_hint(format!("STORED AS {}", names.join(", ")));
        (table.file_type_place, error)
    })?;
    let options: Vec<_> = table.options.iter().filter(|(name, _)| name != HIVE_PARTITIONING).cloned().collect();
    let checked = TableFormat::new(format, &table.location, &options).and_then(|format| {
        format.check()?;
        Ok(format)
    });
    checked.map_err(|error| {
        // The message names the option.
        let message = error.to_string();
        let is_in = |name: &str| message.contains(&format!("\"{name}\""));
        let named = |name: &str| is_in(name) || name.strip_prefix("format.").is_some_and(is_in);
        (place_of(table, named), with_hint(error))
    })
}

/// The place of the first option whose name fits, or of the statement.
fn place_of(table: &TableDefinition, fits: impl Fn(&str) -> bool) -> Place {
    let mut options = table.options.iter().zip(&table.option_places);
    options.find(|((name, _), _)| fits(name)).map_or(table.place, |(_, place)| *place)
}

/// The columns of a table that are in its files' paths.
pub(crate) fn path_columns_of(table: &TableDefinition) -> Result<PathColumns, (Place, Error)> {
    let option = table.options.iter().find(|(name, _)| name == HIVE_PARTITIONING).map(|(_, value)| value.as_str());
    match (option, &table.path_columns) {
        (Some("false"), None) => Ok(PathColumns::Ignored),
        (None | Some("true"), None) => Ok(PathColumns::Inferred),
        (None | Some("true"), Some(declared)) => Ok(PathColumns::Declared(Arc::clone(declared))),
        (Some("false"), Some(_)) => Err((
            place_of(table, |name| name == HIVE_PARTITIONING),
            Error::invalid(format!("PARTITIONED BY contradicts the option '{HIVE_PARTITIONING}' 'false'")),
        )),
        (Some(other), _) => Err((
            place_of(table, |name| name == HIVE_PARTITIONING),
            Error::invalid(format!("\"{HIVE_PARTITIONING}\" must be true or false, got '{other}'")),
        )),
    }
}

/// Converts a storage error, including its hint.
pub(crate) fn with_hint(error: forebay_storage::Error) -> Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Error::from(error).with_hint(hint),
        None => error.into(),
    }
}
