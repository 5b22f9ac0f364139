//! Messages of libraries in our form.
//!
//! DataFusion, its parser, Arrow and Parquet begin messages with the kinds of their errors, wrap them several times,
//! ask to report bugs, and print their own data structures. A user needs the sentence in the middle. Every error of a
//! library comes through [`plain_message`] or, where other parts of the text are ours, through [`unwrapped`].

/// The beginnings that name the kind of an error.
const KINDS: &[&str] = &[
    "Arrow error: ",
    "Arrow: ",
    "Avro error: ",
    "C Data interface error: ",
    "Cast error: ",
    "Compute error: ",
    "Configuration error: ",
    "Csv error: ",
    "DataFusion error: ",
    "Divide by zero error",
    "EOF: ",
    "Error during planning: ",
    "Execution error: ",
    "External error: ",
    "External: ",
    "General error: ",
    "IO error: ",
    "Internal error: ",
    "internal error: ",
    "Invalid argument error: ",
    "Invalid or Unsupported Configuration: ",
    "Ipc error: ",
    "Io error: ",
    "Json error: ",
    "Memory error: ",
    "NYI: ",
    "Not yet implemented: ",
    "Object Store error: ",
    "Offset overflow error: ",
    "Parquet argument error: ",
    "Parquet error: ",
    "Parser error: ",
    "Resources exhausted: ",
    "SQL error: ",
    "Schema error: ",
    "This feature is not implemented: ",
    "sql parser error: ",
];

/// Where the part begins that asks to report a bug, or lists the calls of the library.
const TAILS: &[&str] =
    &["This issue was likely caused by a bug", "This was likely caused by a bug", "\n\nbacktrace:", "backtrace:  "];

/// The message of a library's error in our style: one line, lower case, no final period, names in double quotes, and
/// nothing about the library.
pub fn plain_message(message: &str) -> String {
    let unwrapped = unwrapped(message);
    let lines: Vec<&str> = unwrapped.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lower_first(&requoted(lines.join(" ").trim_end_matches('.')))
}

/// The message of a library's error without what wraps it: kinds of errors, requests to report a bug, and printed data
/// structures.
pub fn unwrapped(message: &str) -> String {
    let end = TAILS.iter().filter_map(|tail| message.find(tail)).min().unwrap_or(message.len());
    let mut text = message[..end].trim();
    // Each step of planning that passes an error on says so in a line of its own.
    if let Some((_, cause)) = text.rsplit_once("\ncaused by\n") {
        text = cause.trim();
    }
    let mut text = text.to_owned();
    for kind in KINDS {
        text = match *kind {
            "Divide by zero error" => text.replace(kind, "cannot divide by zero"),
            kind => text.replace(kind, ""),
        };
    }
    for (wrapper, end) in [("ParserError(\"", "\")"), ("TokenizerError(\"", "\")"), ("Plan(\"", "\")")] {
        if let Some((before, inside)) = text.split_once(wrapper) {
            text = format!("{before}{}", inside.trim_end_matches('.').trim_end_matches(end));
        }
    }
    if let Some((array, call)) = text.split_once("Array overflow on ") {
        let value = call.trim_start_matches(|char| char != '(');
        text = format!("overflow in {}({array}): {call} does not fit {array}", call.trim_end_matches(value));
    }
    without_structures(text).trim_end().to_owned()
}

/// Replaces the parser's identifiers by their names, and leaves out all other data structures that are printed.
fn without_structures(mut text: String) -> String {
    const IDENT: &str = "Ident { value: \"";
    while let Some(at) = text.find(IDENT) {
        let name: String = text[at + IDENT.len()..].chars().take_while(|&char| char != '"').collect();
        let Some(end) = closing(&text[at..]).map(|end| at + end) else { break };
        let (start, end) = match text[..at].strip_suffix("Identifier(") {
            Some(before) if text[end..].starts_with(')') => (before.len(), end + 1),
            _ => (at, end),
        };
        text.replace_range(start..end, &format!("\"{name}\""));
    }
    let structures = ["Span(", "ValueWithSpan {", "Location(", "Some(", " { ", "quote_style:"];
    if let Some(at) = structures.iter().filter_map(|structure| text.find(structure)).min() {
        // The sentence before it says what is wrong. The last word may be the structure's name.
        let end = text[..at].rfind([':', ',']).or(text[..at].trim_end().rfind(' ')).unwrap_or(0);
        if end > 0 {
            text.truncate(end);
        }
    }
    text
}

/// The end of the braces that begin in `text`.
fn closing(text: &str) -> Option<usize> {
    let mut depth = 0_i32;
    let mut is_quoted = false;
    for (at, char) in text.char_indices() {
        match char {
            '"' => is_quoted = !is_quoted,
            '{' if !is_quoted => depth += 1,
            '}' if !is_quoted => {
                depth -= 1;
                if depth == 0 {
                    return Some(at + 1);
                }
            }
            _ => {}
        }
    }
    None
}

/// Lower-cases the first letter of a sentence, but not of `UNION` or `I/O`.
pub fn lower_first(message: &str) -> String {
    let mut characters = message.chars();
    match (characters.next(), characters.next()) {
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            first.to_lowercase().chain(message.chars().skip(1)).collect()
        }
        _ => message.to_owned(),
    }
}

/// Turns `'name'` into `"name"`; other quotes stay.
pub fn requoted(message: &str) -> String {
    let mut rest = message;
    let mut requoted = String::with_capacity(message.len());
    while let Some((before, after)) = rest.split_once('\'') {
        requoted.push_str(before);
        match after.split_once('\'') {
            Some((name, tail))
                if !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '.') =>
            {
                requoted.push_str(&format!("\"{name}\""));
                rest = tail;
            }
            _ => {
                requoted.push('\'');
                rest = after;
            }
        }
    }
    requoted.push_str(rest);
    requoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_lose_what_wraps_them() {
        for (message, expected) in [
            (
                "Arrow error: Cast error: Cannot cast string 'abc' to value of Int32 type",
                "cannot cast string \"abc\" \
              to value of Int32 type",
            ),
            ("Arrow error: Divide by zero error", "cannot divide by zero"),
            ("Optimizer rule 'simplify' failed\ncaused by\nExecution error: It is odd.", "it is odd"),
            ("Internal error: Odd.\nThis issue was likely caused by a bug in DataFusion's code. Please", "odd"),
            (
                "SQL error: ParserError(\"Expected: FROM, found: x at Line: 1, Column: 8\")",
                "expected: FROM, found: x at Line: 1, Column: 8",
            ),
            (
                "dot access not supported for non-string expr: Identifier(Ident { value: \"q\", quote_style: None, \
                 span: Span(Location(2,56)..Location(2,57)) })",
                "dot access not supported for non-string expr: \"q\"",
            ),
            (
                "unsupported value: Value(ValueWithSpan { value: Null, span: Span(Location(1,1)..) })",
                "unsupported value",
            ),
            ("Int8Array overflow on abs(-128)", "overflow in abs(Int8): abs(-128) does not fit Int8"),
            ("it is not valid Substring { expr: \"s\" }", "it is not valid"),
            ("UNION is odd", "UNION is odd"),
            ("it's '", "it's '"),
            ("", ""),
        ] {
            assert_eq!(plain_message(message), expected, "{message}");
        }
    }

    #[test]
    fn our_own_messages_keep_their_words() {
        let ours = "resize: \"height\" must be a positive integer, got -3";
        assert_eq!(unwrapped(ours), ours);
        let python = "ValueError: Odd 'x'.";
        assert_eq!(unwrapped(python), python);
    }
}
