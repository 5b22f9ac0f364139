//! The format of a table's files, as declared in SQL. The formats are those of `forebay_storage::formats`.

use forebay_sql::{Place, TableDefinition};
use forebay_storage::{TableFormat, formats};

use crate::error::{Error, Result};

/// The format in `STORED AS`, with its `OPTIONS`. An error carries the place of the cause.
pub(crate) fn format_of(table: &TableDefinition) -> Result<TableFormat, (Place, Error)> {
    let format = formats::find(&table.file_type).map_err(|_| {
        let names: Vec<String> = formats::names().map(str::to_uppercase).collect();
        let error = Error::invalid(format!("unknown file type \"{}\"", table.file_type))
            .with_hint(format!("STORED AS {}", names.join(", ")));
        (table.file_type_place, error)
    })?;
    TableFormat::new(format, &table.location, &table.options).map_err(|error| (table.place, with_hint(error)))
}

/// Converts a storage error, including its hint.
pub(crate) fn with_hint(error: forebay_storage::Error) -> Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Error::from(error).with_hint(hint),
        None => error.into(),
    }
}
