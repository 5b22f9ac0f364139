//! The id of a snapshot: a hash of all inputs that determine its rows.

use arrow::datatypes::{DataType, Field, Schema};

use crate::formats::options::FormatOptionValue;
use crate::formats::table_format::TableFormat;
use crate::source_file::{Cuts, SourceFile};

/// The id of a snapshot of these files. `first_name` is the first file's path below the dataset's folder, and
/// `has_path_column` says whether the files' names are values of a column.
///
/// Hashes its own encoding, so that the id does not depend on how serde or Arrow write these types.
pub(crate) fn content_id(
    format: &TableFormat,
    schema: &Schema,
    first_name: &str,
    has_path_column: bool,
    files: &[SourceFile],
) -> String {
    let mut hash = ContentHash(blake3::Hasher::new());
    hash.text("forebay snapshot 1");
    hash.text(format.descriptor().name);
    let options = format.descriptor().options.iter().zip(format.options().iter());
    for (option, (name, value)) in options.filter(|(option, _)| !option.only_columns) {
        if format.descriptor().added_options.contains(&name) {
            if value.text() == option.default {
                continue;
            }
            hash.text(name);
        }
        match value {
            FormatOptionValue::Flag(flag) => hash.number(u64::from(*flag)),
            FormatOptionValue::Character(byte) => hash.number(u64::from(*byte)),
            FormatOptionValue::Text(text) => hash.text(text),
        }
    }
    hash.number(schema.fields().len() as u64);
    schema.fields().iter().for_each(|field| hash.field(field));
    hash.number(files.len() as u64);
    // Two locations may hold the same files under different names, which may be a column.
    if format.descriptor().names_are_data || has_path_column {
        hash.text(first_name);
    }
    for file in files {
        match &file.content {
            Some(content) => {
                // Not a path, since those are not empty.
                hash.text("");
                hash.text(&content.digest.to_string());
                // The names of folders may be columns. That of the file may if there is a column of paths.
                let name = file.name_in_artifact();
                hash.text(if has_path_column { name } else { name.rsplit_once('/').map_or("", |(folder, _)| folder) });
            }
            None => {
                hash.text(&file.path);
                hash.number(file.size);
                match file.lasting_etag() {
                    Some(etag) => hash.text(etag),
                    None => hash.text(&format!("modified {}", file.modified_ms)),
                }
            }
        }
        hash.number(file.groups.len() as u64);
        for group in &file.groups {
            for number in [group.rows, group.bytes, group.offset, group.length] {
                hash.number(number);
            }
            match &group.cuts {
                Cuts::Nowhere => hash.number(0),
                Cuts::Anywhere => hash.number(1),
                Cuts::At(rows) => {
                    hash.number(2 + rows.len() as u64);
                    rows.iter().for_each(|row| hash.number(u64::from(*row)));
                }
            }
        }
    }
    hash.0.finalize().to_hex().to_string()
}

struct ContentHash(blake3::Hasher);

impl ContentHash {
    fn number(&mut self, number: u64) {
        self.0.update(&number.to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len() as u64);
        self.0.update(text.as_bytes());
    }

    fn field(&mut self, field: &Field) {
        self.text(field.name());
        self.number(u64::from(field.is_nullable()));
        let mut metadata: Vec<_> = field.metadata().iter().collect();
        metadata.sort();
        self.number(metadata.len() as u64);
        for (key, value) in metadata {
            self.text(key);
            self.text(value);
        }
        self.data_type(field.data_type());
    }

    fn data_type(&mut self, data_type: &DataType) {
        match data_type {
            // The text of these types would contain their fields' metadata in the random order of a hash map.
            DataType::List(field) => self.nested("list", [field.as_ref()]),
            DataType::LargeList(field) => self.nested("large list", [field.as_ref()]),
            DataType::ListView(field) => self.nested("list view", [field.as_ref()]),
            DataType::LargeListView(field) => self.nested("large list view", [field.as_ref()]),
            DataType::FixedSizeList(field, size) => self.nested(&format!("list {size}"), [field.as_ref()]),
            DataType::Map(field, sorted) => self.nested(&format!("map {sorted}"), [field.as_ref()]),
            DataType::Struct(fields) => self.nested("struct", fields.iter().map(AsRef::as_ref)),
            DataType::Union(fields, mode) => {
                self.nested(&format!("union {mode:?}"), fields.iter().map(|(_, f)| f.as_ref()));
            }
            DataType::RunEndEncoded(ends, values) => self.nested("run end", [ends.as_ref(), values.as_ref()]),
            DataType::Dictionary(key, value) => {
                self.text("dictionary");
                self.data_type(key);
                self.data_type(value);
            }
            plain => self.text(&plain.to_string()),
        }
    }

    fn nested<'a>(&mut self, name: &str, fields: impl IntoIterator<Item = &'a Field>) {
        self.text(name);
        for field in fields {
            self.number(1);
            self.field(field);
        }
        self.number(0);
    }
}
