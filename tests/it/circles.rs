//! No circles of files: checks which source file uses which, as read from the sources.
//!
//! A file uses another when it names an item that the other defines, in a `use` or in a path. An item that is named
//! through a re-export counts for the file that defines it, so a module may re-export its children, and a child may
//! use what its siblings export through their parent. Code for tests only is left out.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::support::repository;

/// The crates' root files.
const ROOTS: &[&str] = &[
    "arrays/src/lib.rs",
    "cli/main.rs",
    "delivery/src/lib.rs",
    "engine/src/lib.rs",
    "flight-client/src/lib.rs",
    "flight-server/src/lib.rs",
    "fuzz/src/lib.rs",
    "jpeg/src/lib.rs",
    "operators/src/lib.rs",
    "policy/src/lib.rs",
    "protocol/src/lib.rs",
    "python/src/lib.rs",
    "sql/src/lib.rs",
    "storage/src/lib.rs",
];

/// Two files may use each other. In a larger circle, no file can be understood by itself.
const FILES_MAX: usize = 2;

/// Known circles: parts of the JPEG decoder. The list may only become shorter.
const LEFT: &[(&str, &[&str])] = &[
    ("jpeg/src/lib.rs", &["", "band", "geometry", "header", "progressive", "scan", "sequential", "stored"]),
    ("jpeg/src/lib.rs", &["avx2", "bits", "blocks", "cpu", "huffman", "idct", "reduced"]),
];

/// A circle's modules. The empty name stands for the crate's root.
type Circle = BTreeSet<String>;

#[test]
fn no_three_files_use_each_other_in_a_circle() {
    let mut found = String::new();
    for root in ROOTS {
        let crate_ = Crate::read(&repository().join(root));
        for circle in crate_.circles() {
            let is_left = |(of, files): &(&str, &[&str])| {
                *of == *root && circle.iter().all(|file| files.contains(&file.as_str()))
            };
            if !LEFT.iter().any(is_left) {
                found += &format!("{root}:\n{}", crate_.edges_within(&circle));
            }
        }
    }
    assert!(found.is_empty(), "these files use each other in a circle:\n{found}");
}

/// Modules of the engine, and the modules that they must not use.
const APART: [(&str, &str); 4] =
    [("feed", "session"), ("compile", "feed"), ("compile", "session"), ("pipeline", "feed")];

#[test]
fn modules_of_the_engine_use_only_those_below() {
    let engine = Crate::read(&repository().join("engine/src/lib.rs"));
    let edges = engine.edges();
    for (lower, upper) in APART {
        for module in [lower, upper] {
            assert!(engine.modules.contains_key(&vec![module.to_owned()]), "the engine has no module {module}");
        }
        let is_of = |path: &[String], module: &str| path.first().is_some_and(|first| first == module);
        for (path, uses) in edges.iter().filter(|(path, _)| is_of(path, lower)) {
            let used = uses.iter().find(|used| is_of(used, upper));
            assert!(
                used.is_none(),
                "{} must not use {}",
                path.join("::"),
                used.map_or(String::new(), |it| it.join("::"))
            );
        }
    }
}

#[test]
fn a_circle_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    };
    write("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A; const TEXT: &str = \"use crate::d::D;\";");
    write("a/mod.rs", "mod inner; pub use inner::A; // use crate::d::D;");
    write("a/inner.rs", "use crate::b::{self, B as Other}; pub struct A(Other); fn f() { b::g() }");
    write("b.rs", "pub struct B(crate::c::C); pub fn g() {}");
    write("c.rs", "use crate::A; pub struct C(A); #[cfg(test)] mod tests { use crate::d::D; }");
    write("d.rs", "use super::{a, c}; pub struct D(c::C, a::A); fn f() { let x = 'x'; 'outer: loop {} }");
    let circles = Crate::read(&folder.path().join("lib.rs")).circles();
    assert_eq!(circles, [Circle::from(["a::inner", "b", "c"].map(str::to_owned))]);
}

/// The modules of a crate, by path.
struct Crate {
    modules: BTreeMap<Vec<String>, Module>,
}

/// The module of one file.
#[derive(Default)]
struct Module {
    children: BTreeSet<String>,
    uses: Vec<Used>,
    /// Paths outside of `use`.
    paths: Vec<Vec<String>>,
}

/// A name that a `use` brings into scope.
struct Used {
    path: Vec<String>,
    name: String,
    is_public: bool,
}

impl Crate {
    fn read(root: &Path) -> Self {
        let mut read = Self { modules: BTreeMap::new() };
        read.add(Vec::new(), root, root.parent().expect("a file is in a folder"));
        read
    }

    /// Reads `file`, whose children are in `folder`.
    fn add(&mut self, path: Vec<String>, file: &Path, folder: &Path) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let module = Module::read(&without_tests(tokens(&text)));
        let children = module.children.clone();
        self.modules.insert(path.clone(), module);
        for name in children {
            let (own, folder_of): (PathBuf, PathBuf) = (folder.join(format!("{name}.rs")), folder.join(&name));
            let own = if own.exists() { own } else { folder_of.join("mod.rs") };
            let child = [&path[..], &[name]].concat();
            self.add(child, &own, &folder_of);
        }
    }

    /// The module where the lookup of `path` starts, and the rest of the path; `None` for other crates.
    fn begin(&self, from: &[String], path: &[String]) -> Option<(Vec<String>, Vec<String>)> {
        let (first, rest) = path.split_first()?;
        match first.as_str() {
            "crate" => Some((Vec::new(), rest.to_vec())),
            "self" => Some((from.to_vec(), rest.to_vec())),
            "super" => {
                let supers = path.iter().take_while(|part| *part == "super").count();
                Some((from[..from.len().saturating_sub(supers)].to_vec(), path[supers..].to_vec()))
            }
            child if self.modules[from].children.contains(child) => Some((from.to_vec(), path.to_vec())),
            name => {
                let used = self.modules[from].uses.iter().find(|used| used.name == name && used.path[..] != *path)?;
                let (module, first) = self.begin_of_use(from, &used.path)?;
                Some((module, [&first[..], rest].concat()))
            }
        }
    }

    /// Like [`begin`](Self::begin), for the path of a `use`.
    fn begin_of_use(&self, from: &[String], path: &[String]) -> Option<(Vec<String>, Vec<String>)> {
        let is_local = matches!(path.first()?.as_str(), "crate" | "self" | "super");
        (is_local || self.modules[from].children.contains(&path[0])).then(|| self.begin(from, path))?
    }

    /// The module that defines the item that `path` names in `module`.
    fn definition(&self, mut module: Vec<String>, path: &[String], hops: usize) -> Option<Vec<String>> {
        let mut rest = path;
        while let Some((first, after)) = rest.split_first()
            && self.modules[&module].children.contains(first)
        {
            module.push(first.clone());
            rest = after;
        }
        let Some((first, after)) = rest.split_first() else { return Some(module) };
        match self.modules[&module].uses.iter().find(|used| used.name == *first) {
            Some(used) if hops > 0 => {
                // A re-export from another crate has no module here.
                let (from, path) = self.begin_of_use(&module, &used.path)?;
                self.definition(from, &[&path[..], after].concat(), hops - 1)
            }
            _ => Some(module),
        }
    }

    /// The modules that each module uses.
    fn edges(&self) -> BTreeMap<&[String], BTreeSet<Vec<String>>> {
        let uses = |(path, module): (&'_ Vec<String>, &'_ Module)| -> BTreeSet<Vec<String>> {
            let used = module.uses.iter().map(|used| (&used.path, used.is_public));
            let named = module.paths.iter().map(|path| (path, false));
            let mut edges = BTreeSet::new();
            for (name, is_public) in used.chain(named) {
                let Some((from, rest)) = self.begin(path, name) else { continue };
                let Some(defined) = self.definition(from, &rest, 8) else { continue };
                let is_facade = is_public && defined.starts_with(path);
                if defined != *path && !is_facade {
                    edges.insert(defined);
                }
            }
            edges
        };
        self.modules.iter().map(|(path, module)| (path.as_slice(), uses((path, module)))).collect()
    }

    /// The modules that `from` reaches in one step or more.
    fn reached(edges: &BTreeMap<&[String], BTreeSet<Vec<String>>>, from: &[String]) -> BTreeSet<Vec<String>> {
        let (mut reached, mut open) = (BTreeSet::new(), vec![from.to_vec()]);
        while let Some(module) = open.pop() {
            for next in &edges[module.as_slice()] {
                if reached.insert(next.clone()) {
                    open.push(next.clone());
                }
            }
        }
        reached
    }

    fn circles(&self) -> Vec<Circle> {
        let edges = self.edges();
        let reached: BTreeMap<&[String], _> = edges.keys().map(|path| (*path, Self::reached(&edges, path))).collect();
        let mut circles = BTreeSet::new();
        for (path, from) in &reached {
            let circle: Circle = (from.iter())
                .filter(|other| reached[other.as_slice()].contains(*path))
                .map(|other| other.join("::"))
                .collect();
            if circle.len() > FILES_MAX {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    fn edges_within(&self, circle: &Circle) -> String {
        let edges = self.edges();
        let lines = edges.iter().filter(|(path, _)| circle.contains(&path.join("::"))).map(|(path, to)| {
            let to = to.iter().map(|to| to.join("::")).filter(|to| circle.contains(to)).collect::<Vec<_>>();
            format!("    {} uses {}\n", path.join("::"), to.join(", "))
        });
        lines.collect()
    }
}

impl Module {
    fn read(tokens: &[String]) -> Self {
        let mut module = Self::default();
        let mut at = 0;
        while at < tokens.len() {
            let token = |ahead: usize| tokens.get(at + ahead).map_or("", String::as_str);
            match token(0) {
                "mod" if token(2) == ";" => {
                    module.children.insert(token(1).to_owned());
                    at += 3;
                }
                "use" => {
                    let before = &tokens[at.saturating_sub(4)..at];
                    let is_public = match before.last().map(String::as_str) {
                        Some("pub") => true,
                        Some(")") => before.iter().any(|token| token == "pub"),
                        _ => false,
                    };
                    let mut used = Vec::new();
                    at = use_tree(tokens, at + 1, &[], &mut used);
                    module.uses.extend(used.into_iter().map(|(path, name)| Used { path, name, is_public }));
                }
                first if is_name(first) && token(1) == "::" => {
                    let mut path = vec![first.to_owned()];
                    at += 1;
                    while tokens.get(at).is_some_and(|token| token == "::")
                        && tokens.get(at + 1).is_some_and(|token| is_name(token))
                    {
                        path.push(tokens[at + 1].clone());
                        at += 2;
                    }
                    module.paths.push(path);
                }
                _ => at += 1,
            }
        }
        module
    }
}

/// Reads a tree of a `use`, starting at `at`. Returns the index of its end.
fn use_tree(tokens: &[String], mut at: usize, prefix: &[String], used: &mut Vec<(Vec<String>, String)>) -> usize {
    let mut path = prefix.to_vec();
    loop {
        match tokens[at].as_str() {
            "{" => {
                at += 1;
                while tokens[at] != "}" {
                    at = use_tree(tokens, at, &path, used);
                    at += usize::from(tokens[at] == ",");
                }
                return at + 1;
            }
            "*" => return at + 1,
            "::" => at += 1,
            name => {
                path.push(name.to_owned());
                at += 1;
                if tokens[at] == "::" {
                    continue;
                }
                if path.len() > 1 && name == "self" {
                    path.pop();
                }
                let mut name = path.last().expect("it has a name").clone();
                if tokens[at] == "as" {
                    name.clone_from(&tokens[at + 1]);
                    at += 2;
                }
                used.push((path, name));
                return at;
            }
        }
    }
}

fn is_name(token: &str) -> bool {
    token.starts_with(|first: char| first.is_alphabetic() || first == '_')
}

/// Removes the tokens of items that are compiled only for tests.
fn without_tests(tokens: Vec<String>) -> Vec<String> {
    const TEST: [&str; 7] = ["#", "[", "cfg", "(", "test", ")", "]"];
    let (mut kept, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        if !tokens[at..].iter().take(TEST.len()).eq(TEST) {
            kept.push(tokens[at].clone());
            at += 1;
            continue;
        }
        at += TEST.len();
        let mut depth = 0_i32;
        while at < tokens.len() {
            depth += i32::from(["{", "(", "["].contains(&tokens[at].as_str()));
            depth -= i32::from(["}", ")", "]"].contains(&tokens[at].as_str()));
            at += 1;
            if depth == 0 && [";", "}"].contains(&tokens[at - 1].as_str()) {
                break;
            }
        }
    }
    kept
}

/// Splits a text into names, `::` and single characters, without comments, strings and lifetimes.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = |pattern: &str| rest.find(pattern).map_or(rest.len(), |at| at + pattern.len());
        let length = if rest.starts_with("//") {
            end("\n")
        } else if rest.starts_with("/*") {
            end("*/")
        } else if let Some(hashes) = raw_string(rest) {
            let close = format!("\"{}", "#".repeat(hashes));
            let open = rest.find('"').expect("a raw string has a quote") + 1;
            rest[open..].find(&close).map_or(rest.len(), |at| open + at + close.len())
        } else if first == '"' {
            quoted(rest, '"')
        } else if first == '\'' {
            character(rest)
        } else if first.is_alphabetic() || first == '_' {
            let length = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            tokens.push(rest[..length].to_owned());
            length
        } else if rest.starts_with("::") {
            tokens.push("::".to_owned());
            2
        } else {
            if !first.is_whitespace() {
                tokens.push(first.to_string());
            }
            first.len_utf8()
        };
        rest = &rest[length..];
    }
    tokens
}

/// The number of hashes of the raw string at the beginning of `text`.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix('b').unwrap_or(text).strip_prefix('r')?;
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    rest[hashes..].starts_with('"').then_some(hashes)
}

/// The length of a literal between quotes.
fn quoted(text: &str, quote: char) -> usize {
    let mut is_escaped = false;
    for (at, character) in text.char_indices().skip(1) {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            other if other == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal, or of the quote of a lifetime.
fn character(text: &str) -> usize {
    let mut characters = text.chars().skip(1);
    match (characters.next(), characters.next()) {
        (Some('\\'), _) | (_, Some('\'')) => quoted(text, '\''),
        _ => 1,
    }
}
