//! Declarations of options in the Python package.

use forebay_protocol::{OptionKind, OptionSpec, Scope};

use crate::{Block, in_a_sentence, names_all, of_job, of_load, of_session};

pub(crate) fn blocks() -> Vec<Block> {
    let block = |file, begin, end, lines| Block { file, begin, end, lines };
    let (load, job, session) = (of_load(), of_job(), of_session());
    let (begin, end) = ("# begin: options of load", "# end: options of load");
    vec![
        block("python/forebay/__init__.py", begin, end, signature(&load, 4)),
        block("python/forebay/__init__.py", "Options, as in SQL and on the command line:", "", docstring(&load, 4)),
        block("python/forebay/_loads.py", begin, end, signature(&load, 8)),
        block(
            "python/forebay/_loads.py",
            "# begin: options of load of a pipeline",
            "# end: options of load of a pipeline",
            signature(&load, 8),
        ),
        block(
            "python/forebay/_types.py",
            "# begin: options of a feed",
            "# end: options of a feed",
            fields(&load, Scope::Feed),
        ),
        block(
            "python/forebay/_types.py",
            "# begin: options of reading",
            "# end: options of reading",
            fields(&load, Scope::Read),
        ),
        block(
            "python/forebay/_types.py",
            "# begin: options of a job",
            "# end: options of a job",
            fields(&job, Scope::Job),
        ),
        block(
            "python/forebay/_session.py",
            "# begin: options of a session",
            "# end: options of a session",
            signature(&session, 8),
        ),
        block("python/forebay/_session.py", "Options, as on the command line:", "", docstring(&session, 4)),
        block("python/forebay/_options.py", "# begin: checks", "# end: checks", checks()),
    ]
}

pub(crate) fn default(spec: &OptionSpec) -> Option<String> {
    spec.default.map(|default| match spec.kind {
        OptionKind::Boolean | OptionKind::Switch => if default == "true" { "True" } else { "False" }.to_owned(),
        OptionKind::Integer | OptionKind::Count => default.to_owned(),
        _ => format!("\"{default}\""),
    })
}

fn signature(specs: &[OptionSpec], indent: usize) -> Vec<String> {
    specs.iter().map(|spec| format!("{:indent$}{}: {} = None,", "", spec.name, annotation(spec))).collect()
}

/// The fields of a `TypedDict` of the options of `scope`.
fn fields(specs: &[OptionSpec], scope: Scope) -> Vec<String> {
    let specs = specs.iter().filter(|spec| spec.scope == scope);
    specs.map(|spec| format!("    {}: {}", spec.name, annotation(spec))).collect()
}

fn annotation(spec: &OptionSpec) -> String {
    let of_value = match spec.kind {
        OptionKind::Integer | OptionKind::Count => "int".to_owned(),
        OptionKind::Boolean | OptionKind::Switch => "bool".to_owned(),
        OptionKind::Bytes | OptionKind::Memory => "int | str".to_owned(),
        OptionKind::Choice(words) => format!("Literal[\"{}\"]", words.join("\", \"")),
        OptionKind::Column | OptionKind::Name | OptionKind::Start => "str".to_owned(),
        OptionKind::Columns => "str | list[str]".to_owned(),
        OptionKind::Lengths => "list[int]".to_owned(),
        OptionKind::Folder => "str | os.PathLike[str]".to_owned(),
    };
    of_value + " | None"
}

fn docstring(specs: &[OptionSpec], indent: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for spec in specs {
        let default = default(spec).map(|default| format!(" ({default})")).unwrap_or_default();
        let words = match spec.kind {
            OptionKind::Choice(words) if !names_all(spec, words) => format!(": \"{}\"", words.join("\", \"")),
            _ => String::new(),
        };
        let text = format!("- `{}`{default}: {}{words}.", spec.name, in_a_sentence(spec));
        let mut line = " ".repeat(indent.saturating_sub(1));
        for word in text.split(' ') {
            if line.chars().count() + word.chars().count() >= 120 {
                lines.push(std::mem::replace(&mut line, " ".repeat(indent + 1)));
            }
            line = line + " " + word;
        }
        lines.push(line);
    }
    lines
}

/// Generates a dict of names and checks for each scope.
fn checks() -> Vec<String> {
    let mut lines = Vec::new();
    let scopes = [("FEED", Scope::Feed), ("READ", Scope::Read), ("JOB", Scope::Job), ("SESSION", Scope::Session)];
    for (name, scope) in scopes {
        lines.push(format!("{name}: Checks = {{"));
        for spec in of_load().iter().chain(&of_job()).chain(&of_session()).filter(|spec| spec.scope == scope) {
            let check = match spec.kind {
                OptionKind::Integer => "integer".to_owned(),
                OptionKind::Count => "positive".to_owned(),
                OptionKind::Boolean | OptionKind::Switch => "boolean".to_owned(),
                OptionKind::Bytes | OptionKind::Memory => "size".to_owned(),
                OptionKind::Choice(words) => format!("one_of(\"{}\")", words.join("\", \"")),
                OptionKind::Columns => "columns".to_owned(),
                OptionKind::Lengths => "ascending".to_owned(),
                OptionKind::Column | OptionKind::Name | OptionKind::Start => "text".to_owned(),
                OptionKind::Folder => "path".to_owned(),
            };
            lines.push(format!("    \"{}\": arguments.{check},", spec.name));
        }
        lines.push("}".to_owned());
    }
    lines
}
