//! Tests that the text generated from the table of options is fresh: the declarations in Python, and the guides'
//! tables.
//!
//! `UPDATE=1 cargo test -p forebay-protocol --test generated` regenerates it.

mod guides;
mod python;

use std::path::Path;

use forebay_protocol::{FeedOptions, JobOptions, OptionSet, OptionSpec, ReadOptions, SessionOptions};

/// Lines of a file that are generated from the table.
struct Block {
    file: &'static str,
    /// The line before them.
    begin: &'static str,
    /// The line after them. A block that ends with an empty line also begins with one.
    end: &'static str,
    lines: Vec<String>,
}

#[test]
fn what_is_written_from_the_table_is_fresh() {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is a folder of the repository");
    for Block { file, begin, end, lines } in guides::blocks().into_iter().chain(python::blocks()) {
        let path = repository.join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let fresh = replaced(&text, begin, end, &lines);
        let fresh = fresh.unwrap_or_else(|| panic!("{file} has no lines \"{begin}\" to \"{end}\""));
        if fresh != text && std::env::var_os("UPDATE").is_some() {
            std::fs::write(&path, fresh).unwrap_or_else(|error| panic!("{file}: {error}"));
            continue;
        }
        assert!(
            fresh == text,
            "{file}, after \"{begin}\", is not what protocol/src/options/table.rs declares: run \
             `UPDATE=1 cargo test -p forebay-protocol --test generated`, and read the difference"
        );
    }
}

/// Replaces the text between the lines `begin` and `end` with these lines.
fn replaced(text: &str, begin: &str, end: &str, lines: &[String]) -> Option<String> {
    let old: Vec<&str> = text.lines().collect();
    let first = old.iter().position(|line| line.trim() == begin)? + 1;
    let searched = first + usize::from(end.is_empty());
    let last = searched + old.get(searched..)?.iter().position(|line| line.trim() == end)?;
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    Some([&old[..first], &lines, &old[last..]].concat().join("\n") + "\n")
}

/// The options that Python's `load` accepts, the most used first.
fn of_load() -> Vec<OptionSpec> {
    ReadOptions::TABLE.iter().chain(FeedOptions::TABLE).filter(|spec| spec.in_python).copied().collect()
}

/// The options that Python's `materialize` accepts, beside those of a feed.
fn of_job() -> Vec<OptionSpec> {
    JobOptions::TABLE.iter().filter(|spec| spec.in_python).copied().collect()
}

/// The options that Python's `Session` accepts.
fn of_session() -> Vec<OptionSpec> {
    SessionOptions::TABLE.iter().filter(|spec| spec.in_python).copied().collect()
}

/// Whether the documentation names all words of a choice, so that a separate list is unnecessary.
fn names_all(spec: &OptionSpec, words: &[&str]) -> bool {
    words.iter().all(|word| spec.docs.contains(word))
}

/// The documentation without its period, to follow a colon.
fn in_a_sentence(spec: &OptionSpec) -> String {
    let (first, rest) = spec.docs.trim_end_matches('.').split_at(1);
    first.to_ascii_lowercase() + rest
}
