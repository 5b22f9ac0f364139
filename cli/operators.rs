//! `forebay operators`: lists the functions that pipelines can call.

use anyhow::Result;
use clap::{Args, ValueEnum};
use forebay_engine::nearest;
use forebay_engine::operators::{Descriptor, Determinism, descriptor, descriptors, reference};
use serde_json::{Value, json};

use crate::exit::refuse;
use crate::output;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Operator to describe.
    name: Option<String>,
    /// Output format; markdown prints the whole reference, docs/operators.md.
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
    let all: Vec<&Descriptor> = descriptors().collect();
    let chosen = match &arguments.name {
        None => all,
        Some(name) => match descriptor(name) {
            Some(descriptor) => vec![descriptor],
            None => {
                let hint = match nearest(name, all.iter().map(|descriptor| descriptor.name)) {
                    Some(nearest) => format!("did you mean \"{nearest}\"?"),
                    None => "`forebay operators` lists them all".to_owned(),
                };
                refuse!("there is no operator \"{name}\"\nhint: {hint}");
            }
        },
    };
    match arguments.output {
        Format::Markdown => output::line(reference::markdown().trim_end()),
        Format::Json => chosen.into_iter().try_for_each(|descriptor| output::json(&as_json(descriptor))),
        Format::Text if arguments.name.is_some() => describe(chosen[0]),
        Format::Text => {
            let header = ["operator", "category", "summary"].map(str::to_owned).to_vec();
            let rows = chosen.into_iter().map(|descriptor| {
                vec![signature(descriptor), descriptor.category.to_owned(), descriptor.summary.to_owned()]
            });
            output::table(&std::iter::once(header).chain(rows).collect::<Vec<_>>())
        }
    }
}

fn signature(descriptor: &Descriptor) -> String {
    let parameters = descriptor.parameters.iter().map(|parameter| match parameter.default {
        Some(default) => format!("{} => {default}", parameter.name),
        None => parameter.name.to_owned(),
    });
    format!("{}({})", descriptor.name, parameters.collect::<Vec<_>>().join(", "))
}

fn describe(descriptor: &Descriptor) -> Result<()> {
    output::line(&format!("{}\n  {}\n", signature(descriptor), descriptor.summary))?;
    for parameter in descriptor.parameters {
        output::line(&format!("  {}: {}; {}", parameter.name, parameter.kind.wording(), parameter.docs))?;
    }
    let drawn = match descriptor.determinism {
        Determinism::KeyedRandom => " Random, by the feed's seed, the epoch and the row.",
        Determinism::Deterministic | Determinism::StepLength | Determinism::WindowOrder => "",
    };
    output::line(&format!(
        "  returns {}\n\n{}{drawn}\n\nversion {}; follows {}",
        descriptor.returns, descriptor.docs, descriptor.version, descriptor.source
    ))?;
    descriptor
        .examples
        .iter()
        .try_for_each(|example| output::line(&format!("\n  {}\n  -> {}", example.sql, example.result)))
}

fn as_json(descriptor: &Descriptor) -> Value {
    let parameters: Vec<_> = descriptor
        .parameters
        .iter()
        .map(|parameter| {
            json!({
                "name": parameter.name,
                "accepts": parameter.kind.wording(),
                "default": parameter.default,
                "docs": parameter.docs,
            })
        })
        .collect();
    json!({
        "name": descriptor.name,
        "version": descriptor.version,
        "category": descriptor.category,
        "summary": descriptor.summary,
        "parameters": parameters,
        "returns": descriptor.returns,
        "keyed_random": descriptor.determinism == Determinism::KeyedRandom,
        "docs": descriptor.docs,
        "source": descriptor.source,
    })
}
