//! Rules for texts: the width of comments and guides, the index of decisions, the changelog.

use std::path::{Path, PathBuf};

use crate::support::repository;

/// Maximum width of comments and guides. rustfmt uses the same for code.
const COLUMNS_MAX: usize = 120;
/// Folders of other authors' files or of build outputs.
const FOREIGN: &[&str] = &["target", ".venv", ".git", ".forebay", "__pycache__"];
/// Generated files.
const GENERATED: &[&str] = &["docs/formats.md", "docs/operators.md"];

/// The project's own files with one of these extensions.
fn own_files(folder: &Path, extensions: &[&str]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let own = entries.filter(|entry| !FOREIGN.contains(&entry.file_name().to_string_lossy().as_ref()));
    let mut files: Vec<_> = own
        .map(|entry| entry.path())
        .flat_map(|path| match path.is_dir() {
            true => own_files(&path, extensions),
            false => {
                let extension = path.extension().and_then(|extension| extension.to_str());
                Vec::from_iter(extension.is_some_and(|found| extensions.contains(&found)).then_some(path))
            }
        })
        .collect();
    files.sort();
    files
}

/// Finds the lines of prose in a text, which an author can wrap.
struct Prose {
    is_markdown: bool,
    is_python: bool,
    /// In a fenced block of Markdown, or in a docstring.
    inside: bool,
    /// In Python, whether a docstring may begin: at the top, and after the colon of a definition.
    may_begin: bool,
}

impl Prose {
    fn of(path: &Path) -> Self {
        let extension = path.extension().and_then(|extension| extension.to_str());
        Self {
            is_markdown: extension == Some("md"),
            is_python: extension == Some("py"),
            inside: false,
            may_begin: true,
        }
    }

    /// Whether the next line is prose. Tables, links and fenced blocks may have any width.
    fn next(&mut self, line: &str) -> bool {
        let text = line.trim_start();
        let is_link = text.contains("://") || text.contains("](");
        if self.is_python {
            return self.next_of_python(text) && !is_link;
        }
        if is_link {
            return false;
        }
        if self.is_markdown {
            self.inside ^= text.starts_with("```");
            return !self.inside && !text.starts_with('|');
        }
        text.starts_with("//") && !text.contains('|')
    }

    fn next_of_python(&mut self, text: &str) -> bool {
        let marks = text.matches("\"\"\"").count();
        if self.inside {
            self.inside = marks == 0;
            return true;
        }
        if text.starts_with('#') || text.is_empty() {
            return true;
        }
        let is_docstring = self.may_begin && text.starts_with("\"\"\"");
        self.inside = is_docstring && marks == 1;
        self.may_begin = text.trim_end().ends_with(':');
        is_docstring
    }
}

#[test]
fn comments_and_guides_are_within_120_columns() {
    let mut long = Vec::new();
    let mut read = 0;
    for path in own_files(repository(), &["rs", "py", "md"]) {
        let name = path.strip_prefix(repository()).expect("below the repository").to_owned();
        if GENERATED.iter().any(|generated| name == Path::new(generated)) {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a text");
        let mut prose = Prose::of(&path);
        for (number, line) in text.lines().enumerate() {
            if prose.next(line) && line.chars().count() > COLUMNS_MAX {
                long.push(format!("{}:{}", name.display(), number + 1));
            }
        }
        read += 1;
    }
    assert!(read > 250, "only {read} files were read");
    assert!(long.is_empty(), "{} lines are longer than {COLUMNS_MAX} columns:\n{}", long.len(), long.join("\n"));
}

#[test]
fn prose_is_told_from_code() {
    let lines = |path: &str, text: &str| {
        let mut prose = Prose::of(Path::new(path));
        text.lines().map(|line| prose.next(line)).collect::<Vec<_>>()
    };
    assert_eq!(lines("a.rs", "/// doc\nlet a = 1;\n    // why"), [true, false, true]);
    assert_eq!(lines("a.md", "text\n```\ncode\n```\n| a |\nhttps://b"), [true, false, false, true, false, false]);
    let python =
        lines("a.py", "\"\"\"One.\"\"\"\nx = \"\"\"\n\"\"\"\ndef f():\n    \"\"\"Two\n    more\n    \"\"\"\n    # c");
    assert_eq!(python, [true, false, false, false, true, true, true, true]);
}

#[test]
fn the_index_of_decisions_is_complete() {
    let folder = repository().join("docs/decisions");
    let index = std::fs::read_to_string(folder.join("README.md")).expect("docs/decisions/README.md exists");
    let rows: Vec<Vec<&str>> = index
        .lines()
        .filter(|line| line.starts_with("| ") && line.as_bytes().get(2).is_some_and(u8::is_ascii_digit))
        .map(|line| line.trim_matches('|').split(" | ").map(str::trim).collect())
        .collect();
    let mut expected = Vec::new();
    for path in own_files(&folder, &["md"]) {
        let file = path.file_name().and_then(|name| name.to_str()).expect("a UTF-8 name").to_owned();
        if file == "README.md" {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a decision");
        let heading = text.lines().next().and_then(|line| line.strip_prefix("# ")).expect("a heading");
        let (number, title) = heading.split_once(". ").unwrap_or_else(|| panic!("{file}: write # N. Title"));
        assert_eq!(file.split('-').next(), Some(format!("{number:0>4}").as_str()), "{file} has another number");
        let by = text.lines().find_map(|line| line.strip_prefix("*Superseded by [decision "));
        let status = by.map(|by| format!("superseded by [{}", by.trim_end_matches(['*', '.'])));
        expected.push((
            number.to_owned(),
            format!("[{title}]({file})"),
            status.unwrap_or_else(|| "accepted".to_owned()),
        ));
    }
    let listed: Vec<_> = rows.iter().map(|row| (row[0].to_owned(), row[1].to_owned(), row[3].to_owned())).collect();
    assert_eq!(listed, expected, "docs/decisions/README.md lists each decision: number, title, date, status");
    for row in &rows {
        let is_date = row[2].len() == 10 && row[2].split('-').all(|part| part.parse::<u16>().is_ok());
        assert!(is_date, "decision {}: \"{}\" is not a date such as 2026-11-20", row[0], row[2]);
    }
}

#[test]
fn the_changelog_has_the_form_of_keep_a_changelog() {
    let text = std::fs::read_to_string(repository().join("CHANGELOG.md")).expect("CHANGELOG.md exists");
    assert!(text.starts_with("# Changelog\n") && text.contains("\n## [Unreleased]\n"));
    for line in text.lines().filter(|line| line.starts_with("### ")) {
        let kinds = ["Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"];
        assert!(kinds.contains(&&line[4..]), "\"{line}\" is none of {kinds:?}");
    }
}

/// Folders of the project. The paths of its files begin with one of them.
const ROOMS: &[&str] = &[
    "arrays",
    "benches",
    "cli",
    "delivery",
    "docs",
    "engine",
    "examples",
    "flight-client",
    "flight-server",
    "jpeg",
    "operators",
    "policy",
    "protocol",
    "python",
    "sql",
    "storage",
    "tests",
];

#[test]
fn the_map_and_the_decisions_name_files_that_exist() {
    // Planned folders, of jobs and of the batch engine.
    let planned = ["engine/src/job/", "engine/src/batch/"];
    let mut paths = 0;
    for file in own_files(repository(), &["md"]) {
        let text = std::fs::read_to_string(&file).expect("a text");
        // Paths between two backquotes that begin with a folder of the project.
        for path in text.split('`').skip(1).step_by(2).filter(|text| !text.contains([' ', '<', ',', '*', '\n'])) {
            let parts: Vec<&str> = path.split('/').collect();
            if parts.len() > 2 && ROOMS.contains(&parts[0]) && !planned.contains(&path) {
                paths += 1;
                assert!(repository().join(path).exists(), "{}: there is no {path}", file.display());
            }
        }
    }
    assert!(paths > 100, "only {paths} paths were found");
}
