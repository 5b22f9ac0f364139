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
         How formats are detected and read. In a folder, a table's files are the files with its format's extensions.\n\
         A row group is a file's unit of storage. A window consists of row groups, or of pieces of them.\n\n\
         | `STORED AS` | files | extensions |\n|---|---|---|\n",
    );
    for format in FORMATS {
        let descriptor = format.descriptor();
        let extensions = code(descriptor.extensions.iter().copied());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "| {} | {} | {extensions} |", names(descriptor), descriptor.summary);
    }
    for format in FORMATS {
        let _ = write!(text, "\n{}", section(*format));
    }
    text += "\n## Formats of output files\n\n\
             `MATERIALIZE` writes these. Its option `compression` is that of the format; other options have their \
             defaults there.\n";
    for format in WRITE_FORMATS {
        let _ = write!(text, "\n{}", output_section(format.descriptor()));
    }
    text
}

fn output_section(descriptor: &WriteDescriptor) -> String {
    let WriteDescriptor { name, aliases, summary, extension, columns, may_be_partitioned, nulls, refused, options } =
        descriptor;
    let also = match aliases.is_empty() {
        true => String::new(),
        false => format!(" Also named {}.", code(aliases.iter().copied())),
    };
    let summary = capitalized(summary);
    let partitions = if *may_be_partitioned { "" } else { "; `partition_by`" };
    let mut text = format!(
        "### {name} files\n\n{summary}: `.{extension}`.{also}\n\n{columns} {nulls}\n\nRefused: {refused}{partitions}.\n"
    );
    if !options.is_empty() {
        text += "\n| option | default | |\n|---|---|---|\n";
    }
    for option in *options {
        let choices = match option.kind {
            FormatOptionKind::OneOf(texts) => format!(": {}", code(texts.iter().copied())),
            FormatOptionKind::Flag | FormatOptionKind::Character | FormatOptionKind::Text => String::new(),
        };
        let _ = writeln!(text, "| `{}` | {} | {}{choices} |", option.name, shown(option.default), option.docs);
    }
    text
}

fn capitalized(text: &str) -> String {
    let (first, rest) = text.split_at(text.chars().next().map_or(0, char::len_utf8));
    first.to_uppercase() + rest
}

fn section(format: &dyn Format) -> String {
    let descriptor = format.descriptor();
    let columns = match descriptor.may_declare_columns {
        true => "A table may declare its columns. If it does not, they are inferred.",
        false => "A table declares no columns; the files give them.",
    };
    let mut text = format!("## {}\n\n{columns}\n\nA row group is {}.\n", descriptor.name, descriptor.row_group);
    if !descriptor.options.is_empty() {
        text += "\n| option | default | |\n|---|---|---|\n";
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

fn shown(value: &str) -> String {
    match value {
        "\t" => "a tab".to_owned(),
        "" => "the empty text".to_owned(),
        value => format!("`{value}`"),
    }
}

fn names(descriptor: &FormatDescriptor) -> String {
    let upper = |name: &&str| format!("`{}`", name.to_uppercase());
    let aliases: Vec<String> = descriptor.aliases.iter().map(upper).collect();
    match aliases.is_empty() {
        true => upper(&descriptor.name),
        false => format!("{} (also {})", upper(&descriptor.name), aliases.join(", ")),
    }
}

fn code<'a>(words: impl Iterator<Item = &'a str>) -> String {
    words.map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
