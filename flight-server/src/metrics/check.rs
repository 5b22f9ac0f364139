//! Parses a page of metrics and panics if it breaks a rule of the format or of naming. The integration tests also use
//! this file.

use std::collections::{BTreeMap, BTreeSet};

/// A parsed page: labels and value of each series, by name.
pub(crate) struct Scrape {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<(String, SeriesLabels), f64>,
}

type SeriesLabels = BTreeMap<String, String>;

impl Scrape {
    /// The families as in `# TYPE`: a counter without its `_total`.
    pub(crate) fn families(&self) -> impl Iterator<Item = &str> {
        self.kinds.keys().map(String::as_str)
    }

    /// The type of each family.
    #[allow(dead_code, reason = "for the integration tests")]
    pub(crate) fn kind(&self, family: &str) -> &str {
        &self.kinds[family]
    }

    /// The label names of a family's series, except `le`.
    #[allow(dead_code, reason = "for the integration tests")]
    pub(crate) fn labels(&self, family: &str) -> BTreeSet<&str> {
        let of_family = self.series.keys().filter(|(name, _)| self.family_of(name) == Some(family));
        of_family.flat_map(|(_, labels)| labels.keys().map(String::as_str)).filter(|&label| label != "le").collect()
    }

    /// The value of the series with exactly these labels.
    #[allow(dead_code, reason = "for the unit tests")]
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let labels = labels.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        self.series.get(&(name.to_owned(), labels)).copied()
    }

    /// The sum over all series of a name.
    #[allow(dead_code, reason = "for the integration tests")]
    pub(crate) fn sum(&self, name: &str) -> f64 {
        self.series.iter().filter(|((of, _), _)| of == name).map(|(_, value)| value).sum()
    }

    fn family_of(&self, name: &str) -> Option<&str> {
        let of = |kind: &str, suffix: &str| {
            let family = name.strip_suffix(suffix)?;
            self.kinds.get_key_value(family).filter(|(_, of)| *of == kind).map(|(family, _)| family.as_str())
        };
        of("counter", "_total")
            .or_else(|| of("gauge", ""))
            .or_else(|| ["_bucket", "_count", "_sum"].iter().find_map(|suffix| of("histogram", suffix)))
    }
}

/// Parses a page.
pub(crate) fn check(text: &str) -> Scrape {
    let body = text.strip_suffix("# EOF\n").expect("the page ends with # EOF");
    let mut scrape = Scrape { kinds: BTreeMap::new(), series: BTreeMap::new() };
    let (mut helped, mut current) = (BTreeSet::new(), String::new());
    for line in body.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP has a text");
            assert!(helped.insert(name.to_owned()), "{name} has HELP twice");
            assert!(!help.trim().is_empty() && !help.ends_with('.'), "{name} has a HELP of one phrase: {help:?}");
            name_is_good(name);
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE has a type");
            assert!(helped.contains(name), "{name} has HELP before TYPE");
            assert!(["counter", "gauge", "histogram"].contains(&kind), "{name} is of type {kind}");
            assert!(scrape.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{name} has TYPE twice");
            name.clone_into(&mut current);
        } else {
            let (name, labels, value) = series(line);
            assert_eq!(scrape.family_of(&name), Some(current.as_str()), "{line:?} follows its TYPE");
            if scrape.kinds[&current] != "gauge" {
                assert!(value >= 0.0, "{line:?} has counted below zero");
            }
            assert!(scrape.series.insert((name, labels), value).is_none(), "twice: {line}");
        }
    }
    assert_eq!(helped.len(), scrape.kinds.len(), "each family has HELP and TYPE");
    buckets(&scrape);
    scrape
}

/// Requires lower-case words and a base unit, and reserves `_total` for counters.
fn name_is_good(name: &str) {
    assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{name} is not words in lower case");
    assert!(name.starts_with("forebay_") || name.starts_with("process_"), "{name} has no prefix of ours");
    for suffix in ["_total", "_count", "_sum", "_bucket", "_ms", "_millis", "_kb", "_mb", "_milliseconds", "_megabytes"]
    {
        assert!(!name.ends_with(suffix), "{name} ends with {suffix}");
    }
}

fn series(line: &str) -> (String, SeriesLabels, f64) {
    let end = line.find(['{', ' ']).unwrap_or_else(|| panic!("{line:?} is a series"));
    let (name, mut rest) = line.split_at(end);
    let mut labels = BTreeMap::new();
    if let Some(inside) = rest.strip_prefix('{') {
        rest = inside;
        while !rest.starts_with('}') {
            let (label, value) = rest.split_once("=\"").unwrap_or_else(|| panic!("{line:?} has a label's value"));
            let is_good = !label.starts_with(|first: char| first.is_ascii_digit() || first == '_')
                && label.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
            assert!(is_good && !label.is_empty(), "{label:?} is a label's name, in {line:?}");
            let (text, left) = quoted(value).unwrap_or_else(|| panic!("{line:?} has a quote that ends"));
            assert!(labels.insert(label.to_owned(), text).is_none(), "{label} is there twice: {line:?}");
            rest = left.strip_prefix(',').unwrap_or(left);
        }
        rest = &rest[1..];
    }
    let value = rest.strip_prefix(' ').and_then(|value| value.parse::<f64>().ok());
    let value = value.filter(|value| value.is_finite()).unwrap_or_else(|| panic!("{line:?} has a number"));
    (name.to_owned(), labels, value)
}

/// The text up to its closing quote, and the rest.
fn quoted(text: &str) -> Option<(String, &str)> {
    let mut unescaped = String::new();
    let mut letters = text.char_indices();
    loop {
        match letters.next()? {
            (at, '"') => return Some((unescaped, &text[at + 1..])),
            (_, '\\') => unescaped.push(match letters.next()?.1 {
                'n' => '\n',
                letter @ ('\\' | '"') => letter,
                _ => return None,
            }),
            (_, letter) => unescaped.push(letter),
        }
    }
}

/// Requires that buckets are cumulative and that the last one is `+Inf`.
fn buckets(scrape: &Scrape) {
    let mut all: BTreeMap<(String, SeriesLabels), Vec<(f64, f64)>> = BTreeMap::new();
    for ((name, labels), &count) in &scrape.series {
        let Some(family) = name.strip_suffix("_bucket").filter(|it| scrape.kinds.contains_key(*it)) else { continue };
        let mut of = labels.clone();
        let le = of.remove("le").expect("a bucket has a bound").parse().expect("+Inf is a number too");
        all.entry((family.to_owned(), of)).or_default().push((le, count));
    }
    for ((family, labels), mut buckets) in all {
        buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
        assert!(buckets.is_sorted_by_key(|&(_, count)| count), "{family} has buckets that add up: {buckets:?}");
        let (le, count) = *buckets.last().expect("it has one");
        let total = scrape.series[&(format!("{family}_count"), labels)];
        assert!(le == f64::INFINITY && count == total, "{family} ends with +Inf: {buckets:?} of {total}");
    }
}
