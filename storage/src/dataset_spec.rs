//! The definition of a dataset.

use arrow::datatypes::SchemaRef;
use serde::{Deserialize, Serialize};

use crate::formats::table_format::TableFormat;
use crate::path_columns::PathColumns;

/// The definition of a dataset.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DatasetSpec {
    /// A file, a folder or a glob, as a path or URL.
    pub location: String,
    /// The format of the files.
    pub format: TableFormat,
    /// The columns of the files, for formats whose tables may declare them. Otherwise they are inferred.
    #[serde(with = "crate::schema::optional", default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<SchemaRef>,
    /// The columns from the names of folders, which follow those of the files.
    #[serde(default, skip_serializing_if = "PathColumns::is_inferred")]
    pub path_columns: PathColumns,
    /// The name of a last column, of each file's path below the table's folder. Without one, there is no such column.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path_column: Option<String>,
}
