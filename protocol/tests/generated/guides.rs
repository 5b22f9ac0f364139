//! Tables of options in the guides.

use forebay_protocol::{FeedOptions, JobOptions, OptionKind, OptionSet, OptionSpec, ReadOptions, SessionOptions};

use crate::{Block, in_a_sentence, names_all, of_load, of_session, python};

pub(crate) fn blocks() -> Vec<Block> {
    let block = |file, begin, end, lines| Block { file, begin, end, lines };
    vec![
        block("docs/guide.md", "<!-- begin: options in WITH -->", "<!-- end: options in WITH -->", in_with()),
        block("docs/guide.md", "<!-- begin: options of a job -->", "<!-- end: options of a job -->", of_jobs()),
        block("docs/guide.md", "<!-- begin: flags of a session -->", "<!-- end: flags of a session -->", of_sessions()),
        block("docs/flight.md", "<!-- begin: fields of a request -->", "<!-- end: fields of a request -->", request()),
        block(
            "docs/python.md",
            "<!-- begin: options of load -->",
            "<!-- end: options of load -->",
            arguments(&of_load()),
        ),
        block(
            "docs/python.md",
            "<!-- begin: options of a session -->",
            "<!-- end: options of a session -->",
            arguments(&of_session()),
        ),
    ]
}

fn in_with() -> Vec<String> {
    let specs = FeedOptions::TABLE.iter().chain(ReadOptions::TABLE).filter(|spec| spec.in_with);
    let row = |spec: &OptionSpec| {
        let default = default(spec, "'").unwrap_or_else(|| "none".to_owned());
        [format!("`{}`", spec.name), default, docs(spec, "guide.md", Some("'"))]
    };
    table(["option", "default", ""], specs.map(row))
}

fn of_jobs() -> Vec<String> {
    let row = |spec: &OptionSpec| {
        let otherwise = if spec.name == "compression" { "the format's" } else { "" };
        let default = default(spec, "'").unwrap_or_else(|| otherwise.to_owned());
        [format!("`{}`", spec.name), default, in_a_sentence(spec)]
    };
    table(["option", "default", ""], JobOptions::TABLE.iter().map(row))
}

fn of_sessions() -> Vec<String> {
    let row = |spec: &OptionSpec| {
        let flag = format!("`--{}`", spec.name.replace('_', "-"));
        let variable = spec.environment.map(|variable| format!(" or `{variable}`")).unwrap_or_default();
        [flag + &variable, default(spec, "").unwrap_or_default(), docs(spec, "guide.md", Some(""))]
    };
    table(["flag", "default", ""], SessionOptions::TABLE.iter().filter(|spec| spec.in_cli).map(row))
}

fn request() -> Vec<String> {
    let row = |spec: &OptionSpec| {
        let value = match spec.kind {
            OptionKind::Integer | OptionKind::Count => "integer".to_owned(),
            OptionKind::Boolean | OptionKind::Switch => "true, false".to_owned(),
            OptionKind::Bytes | OptionKind::Memory => "integer (bytes)".to_owned(),
            OptionKind::Choice(words) => listed(words, "\""),
            OptionKind::Lengths => "a list such as `[64, 128]`, or a text such as `\"64,128\"`".to_owned(),
            OptionKind::Columns => "a name, or a list of names".to_owned(),
            OptionKind::Column | OptionKind::Name | OptionKind::Folder => "text".to_owned(),
            OptionKind::Start => "integer, `\"OFFSET\"`, `\"EPOCH:OFFSET\"` or a token".to_owned(),
        };
        let default = match spec.kind {
            // JSON values have no unit.
            OptionKind::Bytes => spec.default.map(|text| format!("`{}`", spec.parse(text).expect("a size"))),
            _ => default(spec, "\""),
        };
        let default = default.unwrap_or_else(|| "none".to_owned());
        let default = if spec.in_with { format!("the pipeline's, else {default}") } else { default };
        [format!("`{}`", spec.name), value, default, docs(spec, "flight.md", None)]
    };
    let own = [
        ["`pipeline`", "text", "required", "the pipeline's name"],
        ["`feed`", "text", "any", "the feed's id; a request for another feed is refused"],
    ];
    let own = own.map(|row| row.map(str::to_owned));
    table(
        ["field", "value", "default", ""],
        own.into_iter().chain(ReadOptions::TABLE.iter().chain(FeedOptions::TABLE).map(row)),
    )
}

fn arguments(specs: &[OptionSpec]) -> Vec<String> {
    let row = |spec: &OptionSpec| {
        let default = python::default(spec).map(|default| format!("`{default}`")).unwrap_or_default();
        [format!("`{}`", spec.name), default, docs(spec, "python.md", Some("\""))]
    };
    table(["argument", "default", ""], specs.iter().map(row))
}

fn table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> Vec<String> {
    let line = |cells: &[String; N]| format!("| {} |", cells.join(" | ")).replace("|  |", "| |");
    let header = [line(&header.map(str::to_owned)), format!("|{}", "---|".repeat(N))];
    header.into_iter().chain(rows.map(|row| line(&row))).collect()
}

/// The default, with quotes around text.
fn default(spec: &OptionSpec, quote: &str) -> Option<String> {
    let is_literal = matches!(
        spec.kind,
        OptionKind::Integer | OptionKind::Count | OptionKind::Boolean | OptionKind::Switch | OptionKind::Start
    );
    let quote = if is_literal { "" } else { quote };
    spec.default.map(|default| format!("`{quote}{default}{quote}`"))
}

/// The documentation for a table in `file`, with a link. The words of a choice get these quotes, if any.
fn docs(spec: &OptionSpec, file: &str, quote: Option<&str>) -> String {
    let words = match (spec.kind, quote) {
        (OptionKind::Choice(words), Some(quote)) if !names_all(spec, words) => format!(": {}", listed(words, quote)),
        _ => String::new(),
    };
    let guide = spec.guide.map(|(title, section)| {
        let section = section.strip_prefix(file).unwrap_or(section);
        format!("; see [{title}]({section})")
    });
    in_a_sentence(spec) + &words + &guide.unwrap_or_default()
}

fn listed(words: &[&str], quote: &str) -> String {
    words.iter().map(|word| format!("`{quote}{word}{quote}`")).collect::<Vec<_>>().join(", ")
}
