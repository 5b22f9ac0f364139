//! Chat templates: Jinja as `transformers` runs it.
//!
//! `{% generation %}` is a tag of `transformers`, which the library does not know. It becomes a filter block that puts
//! [`START`] and [`END`] around its text. These are two of Unicode's noncharacters, which no text should hold.

use std::sync::Arc;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Value};
use minijinja_contrib::pycompat::unknown_method_callback;

use super::clock::Date;
use super::values::JsonStyle;
use crate::files::Loaded;

/// The marks around an answer.
pub(super) const START: char = '\u{10FFFE}';
pub(super) const END: char = '\u{10FFFF}';

/// The number of steps after which a row fails. Real templates take some dozens for each message.
const STEPS_MAX: u64 = 2_000_000;

/// The greatest length of a template. Real ones are shorter than a fifth of it.
const BYTES_MAX: usize = 1 << 17;

/// The stack on which templates are parsed and rendered. The library recurses for long expressions and nested values,
/// whose depth only [`BYTES_MAX`] and [`STEPS_MAX`] bound. A page of it takes memory once it is used.
const STACK_BYTES: usize = 1 << 28;

/// Runs a function that parses or renders templates.
pub(super) fn with_stack<T>(run: impl FnOnce() -> T) -> T {
    stacker::grow(STACK_BYTES, run)
}

/// The name of the only template of an environment.
const NAME: &str = "template";

/// Statements that would read another template.
const OF_FILES: [&str; 5] = ["include", "import", "from", "extends", "block"];

/// Maximum number of cached files. A template takes some kilobytes.
const FILES_KEPT: usize = 64;

static FILES: Loaded<Source> = Loaded::new(FILES_KEPT);

/// A template's text, and the special tokens that stand beside it in its file.
#[derive(Debug)]
pub(super) struct Source {
    template: String,
    variables: Vec<(String, Value)>,
}

impl Source {
    pub(super) fn of_text(template: String) -> Self {
        Self { template, variables: Vec::new() }
    }

    /// Reads a file that a constant names. The error text continues the parameter's name.
    pub(super) fn of_file(file: &str) -> Result<Arc<Self>, String> {
        FILES.get(file, Self::read)
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
        // A template may begin with a brace too, but is not JSON then.
        let Ok(config) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text) else {
            return Ok(Self::of_text(text.to_owned()));
        };
        let template = match config.get("chat_template") {
            Some(serde_json::Value::String(template)) => Some(template.as_str()),
            // Several templates with names; `apply_chat_template` takes this one.
            Some(serde_json::Value::Array(templates)) => {
                let default = templates.iter().find(|template| template["name"] == "default");
                default.and_then(|template| template["template"].as_str())
            }
            _ => None,
        };
        let template = template.ok_or("it has no \"chat_template\"")?.to_owned();
        let tokens = config.iter().filter(|(name, _)| name.ends_with("_token"));
        let variables = tokens.filter_map(|(name, token)| {
            let token = token.as_str().or_else(|| token["content"].as_str())?;
            Some((name.clone(), Value::from(token)))
        });
        Ok(Self { template, variables: variables.collect() })
    }

    pub(super) fn template(&self) -> &str {
        &self.template
    }

    pub(super) fn variables(&self) -> &[(String, Value)] {
        &self.variables
    }
}

/// A template, ready to render.
pub(super) struct Template {
    environment: Environment<'static>,
    marks_answers: bool,
}

impl Template {
    /// Parses a template. The error text continues the parameter's name.
    ///
    /// With `keeps_marks`, the text holds [`START`] and [`END`].
    pub(super) fn new(text: &str, now: Option<Date>, keeps_marks: bool) -> Result<Self, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("has {} bytes, more than {BYTES_MAX}", text.len()));
        }
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| e.to_string())?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(STEPS_MAX));
        environment.set_unknown_method_callback(unknown_method_callback);
        environment.add_filter("tojson", tojson);
        environment.add_filter("generation", move |text: String| match keeps_marks {
            true => format!("{START}{text}{END}"),
            false => text,
        });
        environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(refusal(format!("the template refuses the messages: {message}")))
        });
        environment.add_function("strftime_now", move |format: String| -> Result<String, Error> {
            let now = now.ok_or_else(|| {
                refusal(
                    "the template asks for the date, and a sample must not depend on the clock. Give it one with now \
                     => '2024-07-26'"
                        .to_owned(),
                )
            })?;
            now.format(&format).map_err(|code| refusal(format!("strftime_now does not know {code}")))
        });
        let (text, marks_answers) = with_marks(text);
        environment.add_template_owned(NAME, text).map_err(|error| match unknown_statement(&error) {
            Some(name) => format!("must not read other templates, and has `{name}`{}", at_line(&error)),
            None => format!("is not a template: {}{}", detail(&error), at_line(&error)),
        })?;
        Ok(Self { environment, marks_answers })
    }

    /// Whether the template has `{% generation %}`.
    pub(super) fn marks_answers(&self) -> bool {
        self.marks_answers
    }

    pub(super) fn render(&self, variables: Value) -> Result<String, String> {
        let template = self.environment.get_template(NAME).map_err(|e| e.to_string())?;
        template.render(variables).map_err(|error| match error.kind() {
            ErrorKind::OutOfFuel => format!("the template takes more than {STEPS_MAX} steps{}", at_line(&error)),
            _ => format!("{}{}", detail(&error), at_line(&error)),
        })
    }
}

fn refusal(problem: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, problem)
}

/// Returns the cause of an error, in the library's words if they are not ours.
fn detail(error: &Error) -> String {
    match error.detail() {
        Some(detail) if error.kind() == ErrorKind::InvalidOperation => detail.to_owned(),
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    }
}

fn at_line(error: &Error) -> String {
    error.line().map(|line| format!(", in line {line} of the template")).unwrap_or_default()
}

fn unknown_statement(error: &Error) -> Option<&'static str> {
    let name = error.detail()?.strip_prefix("unknown statement ")?;
    OF_FILES.into_iter().find(|other| *other == name)
}

/// Replaces the tags of answers by blocks that the library knows, on the same lines. Variables that an answer sets stay
/// in it, as in `transformers`. Comments, expressions and raw text stay as they are.
fn with_marks(text: &str) -> (String, bool) {
    let mut out = String::with_capacity(text.len());
    let (mut rest, mut has_marks) = (text, false);
    while let Some(start) =
        rest.match_indices('{').map(|(at, _)| at).find(|at| rest[at + 1..].starts_with(['%', '#', '{']))
    {
        let (before, tag) = rest.split_at(start);
        let length = match &tag[..2] {
            "{#" => tag.find("#}").map(|at| at + 2),
            "{{" => end_of(tag, "}}"),
            _ => end_of(tag, "%}"),
        };
        let Some(length) = length else { break };
        out.push_str(before);
        rest = &tag[length..];
        let tag = &tag[..length];
        let (left, name, right) = if tag.starts_with("{%") { parts(tag) } else { ("", "", "") };
        match name {
            "generation" => {
                has_marks = true;
                out.push_str(&format!("{{%{left} with %}}{{% filter generation {right}%}}"));
            }
            "endgeneration" => out.push_str(&format!("{{%{left} endfilter %}}{{% endwith {right}%}}")),
            "raw" => {
                out.push_str(tag);
                let mut tags = rest.match_indices("{%").map(|(at, _)| at);
                let is_end = |at: &usize| {
                    rest[*at..].find("%}").is_some_and(|end| parts(&rest[*at..at + end + 2]).1 == "endraw")
                };
                let (raw, after) = rest.split_at(tags.find(is_end).unwrap_or(rest.len()));
                out.push_str(raw);
                rest = after;
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    (out, has_marks)
}

/// Splits a tag into the sign at its beginning, its text, and the sign at its end.
fn parts(tag: &str) -> (&str, &str, &str) {
    let tag = &tag[2..tag.len() - 2];
    let left = if tag.starts_with(['-', '+']) { &tag[..1] } else { "" };
    let inner = &tag[left.len()..];
    let right = if inner.ends_with(['-', '+']) { &inner[inner.len() - 1..] } else { "" };
    (left, inner[..inner.len() - right.len()].trim(), right)
}

/// Returns where a tag ends. Texts in quotes do not end it.
fn end_of(tag: &str, end: &str) -> Option<usize> {
    let (mut quote, mut is_escaped) = (None, false);
    for (at, letter) in tag.char_indices() {
        match quote {
            Some(_) if is_escaped => is_escaped = false,
            Some(_) if letter == '\\' => is_escaped = true,
            Some(open) if letter == open => quote = None,
            Some(_) => {}
            None if matches!(letter, '"' | '\'') => quote = Some(letter),
            None if at >= 2 && tag[at..].starts_with(end) => return Some(at + end.len()),
            None => {}
        }
    }
    None
}

/// The filter `tojson` of `transformers`: Python's `json.dumps` without escapes for HTML.
fn tojson(value: Value, options: Kwargs) -> Result<String, Error> {
    let indent = match options.get::<Option<Value>>("indent")? {
        Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
        Some(indent) if !indent.is_none() => {
            let spaces = usize::try_from(indent.clone()).unwrap_or(0).min(INDENT_MAX);
            Some(" ".repeat(spaces))
        }
        _ => None,
    };
    let separators = match options.get::<Option<Value>>("separators")? {
        Some(pair) if !pair.is_none() => {
            (pair.get_item_by_index(0)?.to_string(), pair.get_item_by_index(1)?.to_string())
        }
        _ => (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned()),
    };
    let style = JsonStyle {
        indent,
        separators,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        ensure_ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut out = String::new();
    style.write(&value, 0, &mut out).map_err(refusal)?;
    Ok(out)
}

/// The greatest number of spaces of an indent. A typing error must not request gigabytes.
const INDENT_MAX: usize = 64;
