//! Rules for texts: the index of decisions, the changelog.

use std::path::{Path, PathBuf};

use crate::support::repository;

/// Folders that hold what others wrote, or what was built.
const FOREIGN: &[&str] = &["target", ".venv", ".git", ".forebay", "__pycache__"];
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
