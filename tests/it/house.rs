//! The repository's own rules: the dependencies between crates, and the freshness of generated files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::repository;

/// The allowed dependencies of each crate. Any other is a design change: see ARCHITECTURE.md.
const EDGES: &[(&str, &[&str])] = &[
    ("forebay", &["forebay-engine", "forebay-flight-client", "forebay-flight-server"]),
    ("forebay-python", &["forebay-arrays", "forebay-engine", "forebay-flight-client", "forebay-flight-server"]),
    (
        "forebay-fuzz",
        &[
            "forebay-arrays",
            "forebay-delivery",
            "forebay-engine",
            "forebay-flight-client",
            "forebay-flight-server",
            "forebay-jpeg",
            "forebay-protocol",
            "forebay-sql",
            "forebay-storage",
        ],
    ),
    (
        "forebay-flight-server",
        &[
            "forebay-delivery",
            "forebay-diagnostics",
            "forebay-engine",
            "forebay-flight-client",
            "forebay-policy",
            "forebay-protocol",
        ],
    ),
    ("forebay-flight-client", &["forebay-arrays", "forebay-delivery", "forebay-protocol"]),
    (
        "forebay-engine",
        &[
            "forebay-arrays",
            "forebay-delivery",
            "forebay-diagnostics",
            "forebay-policy",
            "forebay-protocol",
            "forebay-sql",
            "forebay-operators",
            "forebay-storage",
        ],
    ),
    // Storage is an optional feature of this crate, for the conversion of its errors.
    ("forebay-protocol", &["forebay-arrays", "forebay-delivery", "forebay-diagnostics", "forebay-storage"]),
    ("forebay-delivery", &[]),
    ("forebay-policy", &["forebay-diagnostics"]),
    ("forebay-diagnostics", &[]),
    ("forebay-sql", &["forebay-diagnostics", "forebay-operators"]),
    ("forebay-operators", &["forebay-arrays", "forebay-diagnostics", "forebay-jpeg"]),
    ("forebay-jpeg", &[]),
    ("forebay-arrays", &[]),
    ("forebay-storage", &["forebay-arrays", "forebay-diagnostics"]),
];

/// Foreign crates, and the only crates that may depend on them.
const KEPT_APART: &[(&str, &[&str])] = &[
    ("tonic", &["forebay-flight-client", "forebay-flight-server"]),
    ("arrow-flight", &["forebay-flight-client", "forebay-flight-server"]),
    ("ring", &["forebay-flight-server"]),
    ("object_store", &["forebay-storage"]),
    ("anyhow", &["forebay"]),
    ("clap", &["forebay"]),
    ("pyo3", &["forebay-python"]),
];

/// The maximum length of a chain of dependencies within the workspace.
const CHAIN_MAX: usize = 6;

/// Normal dependencies of each package of the workspace.
fn dependencies() -> BTreeMap<String, BTreeSet<String>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(repository())
        .output()
        .expect("cargo runs");
    let metadata: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata is JSON");
    let names = |package: &Value| {
        let dependencies = package["dependencies"].as_array().expect("a list").iter();
        dependencies
            .filter(|dependency| dependency["kind"].is_null())
            .map(|dependency| dependency["name"].as_str().expect("a name").to_owned())
            .collect()
    };
    let packages = metadata["packages"].as_array().expect("a list");
    packages.iter().map(|package| (package["name"].as_str().expect("a name").to_owned(), names(package))).collect()
}

#[test]
fn dependencies_between_crates_point_one_way() {
    let dependencies = dependencies();
    let allowed: BTreeMap<_, _> = EDGES.iter().copied().collect();
    assert_eq!(dependencies.keys().map(String::as_str).collect::<BTreeSet<_>>(), allowed.keys().copied().collect());
    for (package, names) in &dependencies {
        for name in names.iter().filter(|name| name.starts_with("forebay")) {
            assert!(allowed[package.as_str()].contains(&name.as_str()), "{package} must not depend on {name}");
        }
    }
}

#[test]
fn no_chain_of_crates_is_longer_than_six() {
    let allowed: BTreeMap<_, _> = EDGES.iter().copied().collect();
    fn longest<'a>(of: &'a str, allowed: &BTreeMap<&'a str, &'a [&'a str]>) -> Vec<&'a str> {
        let below = allowed[of].iter().map(|next| longest(next, allowed)).max_by_key(Vec::len);
        std::iter::once(of).chain(below.unwrap_or_default()).collect()
    }
    for package in allowed.keys() {
        let chain = longest(package, &allowed);
        assert!(chain.len() <= CHAIN_MAX, "{} crates depend on each other in a row: {chain:?}", chain.len());
    }
}

#[test]
fn a_trainer_links_neither_datafusion_nor_parquet() {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    // Run in the crate's own folder. Elsewhere, cargo also counts features that other members enable.
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--locked", "--edges", "normal", "--prefix", "none", "--format", "{p}"])
        .current_dir(repository().join("flight-client"))
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("names are text");
    let names: BTreeSet<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.contains("forebay-protocol") && names.contains("arrow-flight"), "{text}");
    for heavy in ["datafusion", "datafusion-common", "parquet", "object_store", "forebay-engine", "forebay-operators"] {
        assert!(!names.contains(heavy), "forebay-flight-client depends on {heavy}");
    }
}

#[test]
fn foreign_crates_stay_in_their_rooms() {
    for (package, names) in dependencies() {
        for (foreign, rooms) in KEPT_APART {
            assert!(
                !names.contains(*foreign) || rooms.contains(&package.as_str()),
                "{package} must not depend on {foreign}"
            );
        }
    }
}

/// Source folders of the libraries, which must not know the command line.
const LIBRARIES: &[&str] = &[
    "arrays",
    "delivery",
    "engine",
    "flight-client",
    "flight-server",
    "operators",
    "policy",
    "protocol",
    "python/src",
    "sql",
    "storage",
];

/// All files below `folder` with this extension.
fn files_below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut files: Vec<_> = entries
        .flat_map(|path| match path.is_dir() {
            true => files_below(&path, extension),
            false => Vec::from_iter(path.extension().is_some_and(|found| found == extension).then_some(path)),
        })
        .collect();
    files.sort();
    files
}

/// The first command-line flag in a line of code, except in a whole command such as `forebay run --ids`.
fn flag(line: &str) -> Option<&str> {
    let is_code = !line.trim_start().starts_with("//");
    let parts = is_code.then(|| line.split('`').filter(|part| !part.starts_with("forebay ")));
    parts.into_iter().flatten().find_map(|part| {
        let flags = part.match_indices("--").map(|(at, _)| &part[at..]);
        flags.into_iter().find(|flag| flag.as_bytes().get(2).is_some_and(u8::is_ascii_lowercase))
    })
}

#[test]
fn libraries_name_options_and_not_flags() {
    assert_eq!(flag("(\"it is in use\", \"give another --port\")"), Some("--port\")"));
    assert_eq!(flag("\"start one with `forebay worker --dispatcher {uri}`\""), None);
    let mut read = 0;
    for file in LIBRARIES.iter().flat_map(|folder| files_below(&repository().join(folder), "rs")) {
        if file.components().any(|part| part.as_os_str() == "tests") {
            continue;
        }
        let text = std::fs::read_to_string(&file).expect("a source file");
        // A file's tests are at its end.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text);
        for (number, line) in code.lines().enumerate() {
            let flag = flag(line);
            let place = format!("{}:{}", file.display(), number + 1);
            assert!(flag.is_none(), "{place} says {flag:?}: write option \"name\", of which the CLI makes its flag");
        }
        read += 1;
    }
    assert!(read > 150, "only {read} files were read");
}

#[test]
fn the_operator_reference_is_fresh() {
    let written = std::fs::read_to_string(repository().join("docs/operators.md")).expect("docs/operators.md exists");
    assert!(
        written.trim_end() == forebay_engine::operators::reference::markdown().trim_end(),
        "docs/operators.md is stale: run `cargo run -- operators --output markdown > docs/operators.md`"
    );
}

#[test]
fn the_format_reference_is_fresh() {
    let written = std::fs::read_to_string(repository().join("docs/formats.md")).expect("docs/formats.md exists");
    assert!(
        written.trim_end() == forebay_engine::formats::reference::markdown().trim_end(),
        "docs/formats.md is stale: run `cargo run -- formats --output markdown > docs/formats.md`"
    );
}

/// Folders whose sources may name operators: the operators themselves, tests and benchmarks.
const NAMING_OPERATORS: &[&str] = &["operators", "tests", "benches", "target", "examples", "docs"];

/// An operator's properties are in its descriptor, so no other code needs its name.
#[test]
fn only_operators_know_operators_by_name() {
    let names: BTreeSet<&str> = forebay_engine::operators::descriptors().map(|descriptor| descriptor.name).collect();
    let mut folders = vec![repository().to_path_buf()];
    let mut sources = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().and_then(|name| name.to_str()).expect("a name in UTF-8").to_owned();
            if path.is_dir() && !name.starts_with('.') && !NAMING_OPERATORS.contains(&name.as_str()) {
                folders.push(path);
            } else if name.ends_with(".rs") && name != "tests.rs" {
                sources += 1;
                let text = std::fs::read_to_string(&path).expect("a source");
                let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
                for literal in code.split('"').skip(1) {
                    assert!(!names.contains(literal), "{} names the operator \"{literal}\"", path.display());
                }
            }
        }
    }
    assert!(sources > 100, "only {sources} sources were read");
}
