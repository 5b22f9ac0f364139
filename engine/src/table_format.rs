//! The format of a table's files, as SQL declares it. Which formats there are, `forebay_storage::formats` knows.

use forebay_sql::{Place, TableDefinition};
use forebay_storage::{TableFormat, formats};

use crate::error::{Error, Result};

/// The format that a table is `STORED AS`, with its `OPTIONS`. An error comes with the place of what is wrong.
pub(crate) fn format_of(table: &TableDefinition) -> Result<TableFormat, (Place, Error)> {
    let format = formats::find(&table.file_type).map_err(|_| {
        let names: Vec<String> = formats::names().map(str::to_uppercase).collect();
        let error = Error::invalid(format!("unknown file type \"{}\"", table.file_type))
            .with_hint(format!("STORED AS {}", names.join(", ")));
        (table.file_type_place, error)
    })?;
    TableFormat::new(format, &table.location, &table.options).map_err(|error| (table.place, with_hint(error)))
}

/// Storage's error with its hint.
pub(crate) fn with_hint(error: forebay_storage::Error) -> Error {
    match error.hint().map(str::to_owned) {
        Some(hint) => Error::from(error).with_hint(hint),
        None => error.into(),
    }
}
