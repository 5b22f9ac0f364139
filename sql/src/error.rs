//! The only error type of this crate: what is wrong in a request's text, where, and how to fix it.
//!
//! Every error here is an invalid request, so errors have no kind: the caller must change the text, and a retry is
//! useless. The exception is a process that got no thread to parse on, which may pass. `Display` returns only the
//! message, for logs and for wrapping; [`Error::render`] returns the lines for a person.

use std::fmt::Write as _;

use datafusion::sql::sqlparser::tokenizer::{Location, Span};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Maximum number of characters of a source line in [`Error::render`].
const LINE_CHARS_MAX: usize = 160;

/// The replacement for a tab in [`Error::render`].
const TAB: &str = "    ";

/// A position in a text: line and column, both from 1, columns counted in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1, in characters; a tab is one.
    pub column: u64,
}

impl Place {
    /// The start of a text.
    pub(crate) const START: Place = Place { line: 1, column: 1 };

    /// The place of a parser's location. The parser marks unknown locations with line 0.
    pub(crate) fn of(location: Location) -> Option<Place> {
        (location.line > 0).then_some(Place { line: location.line, column: location.column })
    }

    /// The start of a parser's span.
    pub(crate) fn start(span: Span) -> Option<Place> {
        Place::of(span.start)
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// What is wrong in the text of a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    message: String,
    place: Option<Place>,
    hint: Option<String>,
    is_shortage: bool,
    missing_table: Option<String>,
}

impl Error {
    /// An error with a message: lower case, no final period, names in double quotes.
    pub fn new(message: impl Into<String>) -> Self {
        Error { message: message.into(), place: None, hint: None, is_shortage: false, missing_table: None }
    }

    /// The error for a text that could not be parsed because the process lacks something, and not because it is wrong.
    pub(crate) fn shortage(message: impl Into<String>) -> Self {
        Error { is_shortage: true, ..Self::new(message) }
    }

    /// Whether the process lacked something. A retry may succeed.
    pub fn is_shortage(&self) -> bool {
        self.is_shortage
    }

    /// Sets the place of the cause in the text.
    #[must_use]
    pub fn with_place(mut self, place: Place) -> Self {
        self.place = Some(place);
        self
    }

    /// Sets the hint: how to fix the text.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Sets the name of the table that does not exist.
    #[must_use]
    pub(crate) fn with_missing_table(mut self, name: &str) -> Self {
        self.missing_table = Some(name.to_owned());
        self
    }

    /// Sets the place unless a more exact one is already known.
    #[must_use]
    pub(crate) fn or_place(mut self, place: Option<Place>) -> Self {
        self.place = self.place.or(place);
        self
    }

    /// What is wrong.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The place in the text, if known.
    pub fn place(&self) -> Option<Place> {
        self.place
    }

    /// The table whose absence is all that is wrong, as far as known: without its columns, a query cannot be checked.
    pub fn missing_table(&self) -> Option<&str> {
        self.missing_table.as_deref()
    }

    /// How to fix the text, if known.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// Renders the error for a person: message, place, the source line with a caret under the place, hint.
    ///
    /// `text` is the parsed text, and `source_name` its name for the user, usually a file name.
    pub fn render(&self, source_name: &str, text: &str) -> String {
        let mut rendered = format!("error: {}\n", self.message);
        if let Some(place) = self.place {
            let number = place.line.to_string();
            let margin = " ".repeat(number.len());
            let line = usize::try_from(place.line - 1).ok().and_then(|line| text.split('\n').nth(line));
            // Writing to a String cannot fail.
            let _ = writeln!(rendered, "{margin}--> {source_name}:{}:{}", place.line, place.column);
            if let Some(line) = line {
                let (shown, caret) = excerpt(line, place.column);
                let _ = writeln!(rendered, "{margin} |");
                let _ = writeln!(rendered, "{}", format!("{number} | {shown}").trim_end());
                let _ = writeln!(rendered, "{margin} | {}^", " ".repeat(caret));
            }
        }
        if let Some(hint) = &self.hint {
            let _ = writeln!(rendered, "hint: {hint}");
        }
        rendered
    }
}

/// The part of a line around a column, and the number of characters before the caret.
fn excerpt(line: &str, column: u64) -> (String, usize) {
    let at = usize::try_from(column.saturating_sub(1)).unwrap_or(usize::MAX);
    let length = line.chars().count();
    let first = if length > LINE_CHARS_MAX { at.min(length).saturating_sub(LINE_CHARS_MAX / 2) } else { 0 };
    let mut shown = String::new();
    let mut caret = 0;
    if first > 0 {
        shown.push('…');
        caret += 1;
    }
    for (index, character) in line.chars().enumerate().skip(first).take(LINE_CHARS_MAX) {
        let from = shown.chars().count();
        match character {
            '\t' => shown.push_str(TAB),
            // Control characters could move the cursor of the terminal.
            other if other.is_control() => shown.push(' '),
            other => shown.push(other),
        }
        if index < at {
            caret += shown.chars().count() - from;
        }
    }
    if length > first + LINE_CHARS_MAX {
        shown.push('…');
    }
    (shown, caret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn render_points_at_the_place() {
        let text = "CREATE PIPELINE p AS\n\tSELECT \"größe\", lable FROM t";
        let error = Error::new("column \"lable\" not found")
            .with_place(Place { line: 2, column: 18 })
            .with_hint("did you mean \"label\"?");
        assert_eq!(
            error.render("train.sql", text),
            "error: column \"lable\" not found\n \
             --> train.sql:2:18\n  \
             |\n\
             2 |     SELECT \"größe\", lable FROM t\n  \
             |                     ^\n\
             hint: did you mean \"label\"?\n"
        );
        assert_eq!(error.to_string(), "column \"lable\" not found");
    }

    #[test]
    fn render_survives_places_outside_the_text() {
        let error = Error::new("odd");
        assert_eq!(error.render("x", "y"), "error: odd\n");
        for (line, column) in [(1, 1), (1, 99), (9, 9), (1, 0), (1, u64::MAX)] {
            let _ = error.clone().with_place(Place { line, column }).render("x", "y");
        }
    }

    #[test]
    fn render_cuts_long_lines() {
        let text = format!("{}X{}", "a".repeat(500), "b".repeat(500));
        let rendered = Error::new("m").with_place(Place { line: 1, column: 501 }).render("x", &text);
        let lines: Vec<&str> = rendered.lines().collect();
        assert!(lines[3].chars().count() < 180, "{rendered}");
        let caret = lines[4].chars().position(|c| c == '^');
        assert_eq!(lines[3].chars().position(|c| c == 'X'), caret, "{rendered}");
    }
}
