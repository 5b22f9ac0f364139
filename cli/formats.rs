//! `forebay formats`: lists the file formats of tables.

use anyhow::Result;
use clap::{Args, ValueEnum};
use forebay_engine::formats::{FORMATS, FormatDescriptor, reference};
use serde_json::{Value, json};

use crate::output;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Output format; markdown prints the whole reference, docs/formats.md.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Json,
    Markdown,
}

pub(crate) fn execute(arguments: &Arguments) -> Result<()> {
    let mut descriptors = FORMATS.iter().map(|format| format.descriptor());
    match arguments.output {
        Format::Markdown => output::line(reference::markdown().trim_end()),
        Format::Json => descriptors.try_for_each(|descriptor| output::json(&as_json(descriptor))),
        Format::Text => {
            let header = ["format", "files", "extensions", "options"].map(str::to_owned).to_vec();
            let rows = descriptors.map(|descriptor| {
                let options: Vec<&str> = descriptor.options.iter().map(|option| option.name).collect();
                let extensions = descriptor.extensions.join(", ");
                vec![descriptor.name.to_owned(), descriptor.summary.to_owned(), extensions, options.join(", ")]
            });
            output::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
        }
    }
}

fn as_json(descriptor: &FormatDescriptor) -> Value {
    let options = descriptor.options.iter();
    let options = options.map(|option| json!({"name": option.name, "default": option.default, "docs": option.docs}));
    json!({
        "name": descriptor.name,
        "aliases": descriptor.aliases,
        "summary": descriptor.summary,
        "extensions": descriptor.extensions,
        "options": options.collect::<Vec<_>>(),
        "may_declare_columns": descriptor.may_declare_columns,
        "row_group": descriptor.row_group,
    })
}
