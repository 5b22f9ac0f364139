//! The format of a table's files, as declared in SQL. The formats are those of `forebay_storage::formats`.

use std::sync::Arc;

use forebay_sql::{Place, TableDefinition};
use forebay_storage::formats::Format;
use forebay_storage::{PathColumns, TableFormat, formats};

use crate::error::{Error, Result};

/// The option of every format that turns the columns from folders such as `dt=2026-01-01` off.
const HIVE_PARTITIONING: &str = "hive_partitioning";
/// The option of every format that names a column of the files' paths.
const PATH_COLUMN: &str = "path_column";

/// The format in `STORED AS`, with its `OPTIONS`. An error carries the place of the cause.
pub(crate) fn format_of(table: &TableDefinition) -> Result<TableFormat, (Place, Error)> {
    let format = formats::find(&table.file_type).map_err(|_| {
        let names: Vec<String> = formats::names().map(str::to_uppercase).collect();
        let error = Error::invalid(format!("unknown file type \"{}\"", table.file_type))
            .with_hint(format!("STORED AS {}", names.join(", ")));
        (table.file_type_place, error)
    })?;
    of_options(format, &table.location, &table.options).map_err(|error| {
        // The message names the option.
        let message = error.to_string();
        let is_in = |name: &str| message.contains(&format!("\"{name}\""));
        let named = |name: &str| is_in(name) || name.strip_prefix("format.").is_some_and(is_in);
        (place_of(table, named), error)
    })
}

/// A format with those of a table's options that are its own.
pub(crate) fn of_options(
    format: &'static dyn Format,
    location: &str,
    options: &[(String, String)],
) -> Result<TableFormat> {
    let is_own = |(name, _): &&(String, String)| name != HIVE_PARTITIONING && name != PATH_COLUMN;
    let own: Vec<_> = options.iter().filter(is_own).cloned().collect();
    let checked = TableFormat::new(format, location, &own).and_then(|format| {
        format.check()?;
        Ok(format)
    });
    checked.map_err(with_hint)
}

/// The place of the first option whose name fits, or of the statement.
fn place_of(table: &TableDefinition, fits: impl Fn(&str) -> bool) -> Place {
    let mut options = table.options.iter().zip(&table.option_places);
    options.find(|((name, _), _)| fits(name)).map_or(table.place, |(_, place)| *place)
}

/// The columns of a table that are in its files' paths.
pub(crate) fn path_columns_of(table: &TableDefinition) -> Result<PathColumns, (Place, Error)> {
    let inferred = path_columns_of_options(&table.options)
        .map_err(|error| (place_of(table, |name| name == HIVE_PARTITIONING), error))?;
    match (inferred, &table.path_columns) {
        (PathColumns::Ignored, Some(_)) => Err((
            place_of(table, |name| name == HIVE_PARTITIONING),
            Error::invalid(format!("PARTITIONED BY contradicts the option '{HIVE_PARTITIONING}' 'false'")),
        )),
        (_, Some(declared)) => Ok(PathColumns::Declared(Arc::clone(declared))),
        (inferred, None) => Ok(inferred),
    }
}

/// Whether the options of a table ask for columns from its files' paths.
pub(crate) fn path_columns_of_options(options: &[(String, String)]) -> Result<PathColumns> {
    let option = options.iter().find(|(name, _)| name == HIVE_PARTITIONING).map(|(_, value)| value.as_str());
    match option {
        Some(no) if no.eq_ignore_ascii_case("false") => Ok(PathColumns::Ignored),
        None => Ok(PathColumns::Inferred),
        Some(yes) if yes.eq_ignore_ascii_case("true") => Ok(PathColumns::Inferred),
        Some(other) => Err(Error::invalid(format!("\"{HIVE_PARTITIONING}\" must be true or false, got '{other}'"))),
    }
}

/// The name of the column that the options of a table ask for, with its files' paths.
pub(crate) fn path_column_of_options(options: &[(String, String)]) -> Option<String> {
    options.iter().find(|(name, _)| name == PATH_COLUMN).map(|(_, value)| value.clone())
}

/// Converts a storage error, including its hint.
pub(crate) fn with_hint(error: forebay_storage::Error) -> Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Error::from(error).with_hint(hint),
        None => error.into(),
    }
}
