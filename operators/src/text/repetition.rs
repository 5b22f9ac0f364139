//! Repetition in a text: repeated lines and n-grams of words.

use std::collections::{HashMap, HashSet};

use xxhash_rust::xxh3::xxh3_64;

use super::measures::{chars, share};

/// Words and counts of a text, in memory that all texts of a batch reuse.
#[derive(Default)]
pub(crate) struct Words {
    words: Vec<Word>,
    seen: HashSet<u64>,
    counts: HashMap<u64, usize>,
}

struct Word {
    hash: u64,
    chars: usize,
}

impl Words {
    fn split(&mut self, text: &str) {
        self.words.clear();
        let words = text.split_whitespace();
        self.words.extend(words.map(|word| Word { hash: xxh3_64(word.as_bytes()), chars: chars(word) }));
    }

    /// Returns the hash of n consecutive words.
    fn ngram(&self, first: usize, n: usize) -> u64 {
        let words = &self.words[first..first + n];
        words.iter().fold(0, |hash: u64, word| (hash.rotate_left(23) ^ word.hash).wrapping_mul(0x9E37_79B9_7F4A_7C15))
    }

    fn chars(&self, first: usize, n: usize) -> usize {
        self.words[first..first + n].iter().map(|word| word.chars).sum()
    }
}

/// Splits a text at runs of line ends. Only the first and the last line may be empty.
fn lines(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest?;
        match text.find('\n') {
            Some(end) => {
                rest = Some(text[end..].trim_start_matches('\n'));
                Some(&text[..end])
            }
            None => rest.take(),
        }
    })
}

/// Counts lines, duplicate lines, and the characters of the duplicates.
fn duplicates(text: &str, words: &mut Words) -> (usize, usize, usize) {
    words.seen.clear();
    let mut found = (0, 0, 0);
    for line in lines(text) {
        found.0 += 1;
        if !words.seen.insert(xxh3_64(line.as_bytes())) {
            found.1 += 1;
            found.2 += chars(line);
        }
    }
    found
}

pub(super) fn duplicate_lines(text: &str, words: &mut Words) -> f64 {
    let (lines, duplicates, _) = duplicates(text, words);
    share(duplicates, lines)
}

pub(super) fn duplicate_line_chars(text: &str, words: &mut Words) -> f64 {
    let (_, _, duplicate_chars) = duplicates(text, words);
    share(duplicate_chars, chars(text))
}

pub(super) fn top_ngram(text: &str, n: usize, words: &mut Words) -> f64 {
    words.split(text);
    words.counts.clear();
    let Some(last) = words.words.len().checked_sub(n) else { return 0.0 };
    for first in 0..=last {
        *words.counts.entry(words.ngram(first, n)).or_default() += 1;
    }
    let most = words.counts.values().copied().max().unwrap_or(0);
    let top = (0..=last).find(|first| words.counts[&words.ngram(*first, n)] == most);
    let length = top.map_or(0, |first| words.chars(first, n) + n - 1);
    share(length * most, chars(text))
}

pub(super) fn duplicate_ngrams(text: &str, n: usize, words: &mut Words) -> f64 {
    words.split(text);
    words.seen.clear();
    let (mut first, mut repeated) = (0, 0);
    while first + n <= words.words.len() {
        let hash = words.ngram(first, n);
        if words.seen.insert(hash) {
            first += 1;
        } else {
            repeated += words.chars(first, n);
            first += n;
        }
    }
    share(repeated, chars(text))
}
