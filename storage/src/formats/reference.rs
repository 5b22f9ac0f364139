//! The formats' reference, generated from their descriptors.

use std::fmt::Write;

use super::format::{Format, FormatDescriptor};
use super::options::{FormatOption, FormatOptionKind};
use super::registry::FORMATS;
use crate::writers::{WRITE_FORMATS, WriteDescriptor};

/// The whole of `docs/formats.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Formats\n\n\
         <!-- Generated from the formats' descriptors by `forebay_storage::formats::reference::markdown`; do not \
         edit. -->\n\n\
         How formats of tables are detected and read, and which [output files](#formats-of-output-files) can be \
         written.\nIn a folder, a table's files are the files with its format's extensions.\n\
         A row group is a file's unit of storage. A window consists of row groups, or of pieces of them.\n\n\
         | `STORED AS` | files | extensions |\n|---|---|---|\n",
    );
    for format in FORMATS {
        let descriptor = format.descriptor();
        let extensions = code(descriptor.extensions.iter().copied());
        // Writing to a string cannot fail.
        let names = names(descriptor.name, descriptor.aliases, str::to_uppercase);
        let _ = writeln!(text, "| {names} | {} | {extensions} |", descriptor.summary);
    }
    for format in FORMATS {
        let _ = write!(text, "\n{}", section(*format));
    }
    text + "\n" + &output_files()
}

/// The formats of output files.
fn output_files() -> String {
    let mut text = String::from(
        "## Formats of output files\n\n\
         The same rows give the same bytes. A value that a format cannot hold is refused, never changed, except for \
         [texts of csv](#writing-csv) that stand for null.\n\n\
         | format | files | extension |\n|---|---|---|\n",
    );
    let descriptors = || WRITE_FORMATS.iter().map(|format| format.descriptor());
    for descriptor in descriptors() {
        let names = names(descriptor.name, descriptor.aliases, str::to_owned);
        let _ = writeln!(text, "| {names} | {} | `{}` |", descriptor.summary, descriptor.extension);
    }
    for descriptor in descriptors() {
        let _ = write!(text, "\n{}", section_of_output(descriptor));
    }
    text
}

fn section_of_output(descriptor: &WriteDescriptor) -> String {
    let WriteDescriptor { name, columns, nulls, .. } = descriptor;
    // Other sections have the names alone.
    let mut text = format!("### Writing {name}\n\n{columns}\n\n{nulls}\n\n{TABLE_OF_OPTIONS}");
    for option in descriptor.options {
        let choices = match option.kind {
            FormatOptionKind::OneOf(texts) => format!(": {}", code(texts.iter().copied())),
            FormatOptionKind::Flag | FormatOptionKind::Character | FormatOptionKind::Text => String::new(),
        };
        let _ = writeln!(text, "| `{}` | {} | {}{choices} |", option.name, shown(option.default), option.docs);
    }
    text
}

const TABLE_OF_OPTIONS: &str = "| option | default | |\n|---|---|---|\n";

fn section(format: &dyn Format) -> String {
    let descriptor = format.descriptor();
    let columns = match descriptor.may_declare_columns {
        true => "A table may declare its columns. If it does not, they are inferred.",
        false => "A table declares no columns; the files give them.",
    };
    let mut text = format!("## {}\n\n{columns}\n\nA row group is {}.\n", descriptor.name, descriptor.row_group);
    if !descriptor.options.is_empty() {
        text.push('\n');
        text += TABLE_OF_OPTIONS;
    }
    for option in descriptor.options {
        let _ = writeln!(text, "| `{}` | {} | {} |", option.name, default(descriptor, option), option.docs);
    }
    text
}

/// The default of an option, and the values that locations imply.
fn default(descriptor: &FormatDescriptor, option: &FormatOption) -> String {
    let implied = descriptor.implied.iter().filter(|implied| implied.option == option.name);
    let implied = implied.map(|implied| format!("; {} for `{}`", shown(implied.value), implied.suffix));
    shown(option.default) + &implied.collect::<String>()
}

/// A value of an option.
fn shown(value: &str) -> String {
    match value {
        "\t" => "a tab".to_owned(),
        "" => "the empty text".to_owned(),
        value => format!("`{value}`"),
    }
}

fn names(name: &str, aliases: &[&str], letters: fn(&str) -> String) -> String {
    let shown = |name: &str| format!("`{}`", letters(name));
    let aliases: Vec<String> = aliases.iter().copied().map(shown).collect();
    match aliases.is_empty() {
        true => shown(name),
        false => format!("{} (also {})", shown(name), aliases.join(", ")),
    }
}

fn code<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
