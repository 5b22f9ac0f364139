//! BPE vocabularies in which some characters have no token.
//!
//! The library refuses such a vocabulary, or reads it in another way than its release in Python. This module encodes
//! them as that release does: a missing character becomes its bytes if all of them have a token, otherwise the unknown
//! token, otherwise nothing. Only the model is ours. Splitting, normalizing and special tokens remain the library's.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use serde_json::{Value, json};
use tokenizers::pipeline::PipelineToken;

use super::tiktoken::letters;

/// A BPE model.
pub(super) struct Bpe {
    vocabulary: HashMap<String, u32>,
    /// Rank and result of each pair.
    merges: HashMap<(u32, u32), (u32, u32)>,
    unk_token: Option<String>,
    fuse_unk: bool,
    /// The tokens of bytes, if characters without a token become bytes.
    bytes: Option<Box<[Option<u32>; 256]>>,
    ignore_merges: bool,
    prefix: String,
    suffix: String,
    /// The letters of bytes, if the vocabulary is of bytes.
    letters: Option<Box<[char; 256]>>,
    /// The ids that [`complete`] has added.
    added: Range<u32>,
}

/// A symbol of a word while it is merged.
#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    previous: Option<usize>,
    next: Option<usize>,
    is_merged: bool,
}

impl Bpe {
    /// Returns the model of a `tokenizer.json` in the library's own form, and a file that the library can read for
    /// everything else. Returns `None` if the library encodes it in the right way.
    pub(super) fn read(canonical: &str) -> Result<Option<(Self, String)>, String> {
        let mut file: Value = serde_json::from_str(canonical).map_err(|e| e.to_string())?;
        let Some(mut model) = Self::of(&file["model"])? else { return Ok(None) };
        if !model.has_gaps() {
            return Ok(None);
        }
        complete(&mut file, &mut model);
        Ok(Some((model, file.to_string())))
    }

    fn of(model: &Value) -> Result<Option<Self>, String> {
        let flag = |name: &str| model[name].as_bool().unwrap_or(false);
        let text = |name: &str| model[name].as_str().unwrap_or_default().to_owned();
        let (Some("BPE"), Some(entries), Some(pairs)) =
            (model["type"].as_str(), model["vocab"].as_object(), model["merges"].as_array())
        else {
            return Ok(None);
        };
        if model["dropout"].as_f64().is_some_and(|dropout| dropout > 0.0) {
            return Ok(None);
        }
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        let entries = entries.iter().map(|(token, value)| match id(value) {
            Some(id) => Ok((token.clone(), id)),
            None => Err(format!("the token {token:?} has the id {value}")),
        });
        let vocabulary = entries.collect::<Result<HashMap<_, _>, _>>()?;
        let prefix = text("continuing_subword_prefix");
        let token = |token: &str| match vocabulary.get(token) {
            Some(id) => Ok(*id),
            None => Err(format!("a pair of merges needs the token {token:?}, which is not in the vocabulary")),
        };
        let mut merges = HashMap::with_capacity(pairs.len());
        for (pair, rank) in pairs.iter().zip(0..) {
            let (Some(left), Some(right)) = (pair[0].as_str(), pair[1].as_str()) else {
                return Err(format!("{pair} is not a pair of merges"));
            };
            let rest = right.get(prefix.len()..).ok_or_else(|| format!("{right:?} lacks the prefix {prefix:?}"))?;
            merges.insert((token(left)?, token(right)?), (rank, token(&format!("{left}{rest}"))?));
        }
        let byte = |byte| vocabulary.get(&format!("<0x{byte:02X}>")).copied();
        Ok(Some(Self {
            bytes: flag("byte_fallback").then(|| Box::new(std::array::from_fn(byte))),
            letters: flag("byte_level").then(|| Box::new(letters())),
            merges,
            unk_token: model["unk_token"].as_str().map(str::to_owned),
            fuse_unk: flag("fuse_unk"),
            ignore_merges: flag("ignore_merges"),
            prefix,
            suffix: text("end_of_word_suffix"),
            added: 0..0,
            vocabulary,
        }))
    }

    /// Whether the library would refuse the model, or read it in another way.
    fn has_gaps(&self) -> bool {
        let has = |token: &str| self.vocabulary.contains_key(token);
        if !self.suffix.is_empty() {
            // The library takes a word of one such character as it is, without the suffix.
            let is_character = |token: &&String| token.chars().nth(1).is_none();
            let mut characters = self.vocabulary.keys().filter(is_character);
            if characters.any(|token| !has(&format!("{token}{}", self.suffix))) {
                return true;
            }
        }
        match (&self.letters, &self.bytes) {
            (Some(_), _) => !self.missing_letters().is_empty(),
            (None, Some(bytes)) if bytes.iter().any(Option::is_none) => true,
            _ => self.unk_token.as_ref().is_some_and(|unk| !has(unk)),
        }
    }

    /// Returns the letters that a vocabulary of bytes lacks, of the bytes that UTF-8 uses.
    fn missing_letters(&self) -> Vec<char> {
        let letters = self.letters.iter().flat_map(|letters| (0..=u8::MAX).zip(letters.iter()));
        let used = letters.filter(|(byte, _)| !matches!(byte, 0xC0 | 0xC1 | 0xF5..));
        used.map(|(_, letter)| *letter).filter(|letter| !self.vocabulary.contains_key(&letter.to_string())).collect()
    }

    /// Returns whether the vocabulary of the file has this id.
    pub(super) fn knows(&self, id: u32) -> bool {
        !self.added.contains(&id)
    }

    /// Appends the tokens of one word.
    pub(super) fn encode(&self, word: &str, out: &mut Vec<PipelineToken>) -> Result<(), String> {
        let lettered: String;
        let word = match &self.letters {
            Some(letters) => {
                lettered = word.bytes().map(|byte| letters[usize::from(byte)]).collect();
                &lettered
            }
            None => word,
        };
        if let Some(id) = self.vocabulary.get(word).filter(|_| self.ignore_merges) {
            out.push(PipelineToken::from(*id));
            return Ok(());
        }
        let symbols = self.symbols(word)?;
        out.extend(self.merged(symbols).into_iter().map(PipelineToken::from));
        Ok(())
    }

    /// Returns the tokens of the characters of a word. An unknown token waits until the next character has a token,
    /// so it comes after the bytes of characters between them, as in the library's release.
    fn symbols(&self, word: &str) -> Result<Vec<u32>, String> {
        let mut ids = Vec::with_capacity(word.len());
        let mut unknown = None;
        let mut characters = word.chars().peekable();
        let mut is_first = true;
        let mut text = String::new();
        while let Some(character) = characters.next() {
            text.clear();
            text.push_str(if is_first { "" } else { &self.prefix });
            text.push(character);
            text.push_str(if characters.peek().is_none() { &self.suffix } else { "" });
            is_first = false;
            if let Some(id) = self.vocabulary.get(&text) {
                ids.extend(unknown.take());
                ids.push(*id);
                continue;
            }
            if let Some(bytes) = &self.bytes {
                let of_text = text.bytes().map(|byte| bytes[usize::from(byte)]);
                if let Some(of_text) = of_text.collect::<Option<Vec<_>>>() {
                    ids.extend(of_text);
                    continue;
                }
            }
            if let Some(token) = &self.unk_token {
                let missing =
                    || format!("{character:?} has no token, and the vocabulary lacks the unk_token {token:?}");
                let id = *self.vocabulary.get(token).ok_or_else(missing)?;
                ids.extend(unknown.filter(|_| !self.fuse_unk));
                unknown = Some(id);
            }
        }
        ids.extend(unknown);
        Ok(ids)
    }

    /// Merges pairs by rank, and equal ranks from the left.
    fn merged(&self, ids: Vec<u32>) -> Vec<u32> {
        let last = ids.len().saturating_sub(1);
        let symbol = |(at, id): (usize, u32)| Symbol {
            id,
            previous: at.checked_sub(1),
            next: (at < last).then_some(at + 1),
            is_merged: false,
        };
        let mut symbols: Vec<Symbol> = ids.into_iter().enumerate().map(symbol).collect();
        let merge = |left: u32, right: u32| self.merges.get(&(left, right)).copied();
        let mut queue: BinaryHeap<Reverse<(u32, usize, u32)>> = BinaryHeap::new();
        for (at, pair) in symbols.windows(2).enumerate() {
            queue.extend(merge(pair[0].id, pair[1].id).map(|(rank, id)| Reverse((rank, at, id))));
        }
        while let Some(Reverse((_, at, id))) = queue.pop() {
            let left = symbols[at];
            let Some(next) = left.next.filter(|_| !left.is_merged) else { continue };
            let right = symbols[next];
            // A pair that was merged in another way is still in the queue.
            if merge(left.id, right.id).is_none_or(|(_, current)| current != id) {
                continue;
            }
            symbols[at] = Symbol { id, next: right.next, ..left };
            symbols[next].is_merged = true;
            if let Some(after) = right.next {
                symbols[after].previous = Some(at);
                queue.extend(merge(id, symbols[after].id).map(|(rank, id)| Reverse((rank, at, id))));
            }
            if let Some(before) = left.previous {
                queue.extend(merge(symbols[before].id, id).map(|(rank, id)| Reverse((rank, before, id))));
            }
        }
        symbols.into_iter().filter(|symbol| !symbol.is_merged).map(|symbol| symbol.id).collect()
    }
}

/// Changes the model of a file so that the library reads it: letters of bytes that are missing get ids above all
/// others, which the model never returns.
fn complete(file: &mut Value, model: &mut Bpe) {
    let added = file["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter_map(|token| Some((token["content"].as_str()?.to_owned(), token["id"].as_u64()?)));
    let added: Vec<(String, u64)> = added.collect();
    let greatest = model.vocabulary.values().map(|id| u64::from(*id)).chain(added.iter().map(|(_, id)| *id)).max();
    let first = greatest.map_or(0, |id| u32::try_from(id + 1).unwrap_or(u32::MAX));
    let missing = model.missing_letters().into_iter().map(String::from);
    model.added = first..first;
    // The library counts on from the vocabulary, whatever ids the file gives to tokens outside it.
    for (token, id) in added.into_iter().filter(|(token, _)| !model.vocabulary.contains_key(token)) {
        file["model"]["vocab"][token] = json!(id);
    }
    for letter in missing {
        file["model"]["vocab"][letter] = json!(model.added.end);
        model.added.end = model.added.end.saturating_add(1);
    }
    file["model"]["byte_fallback"] = json!(false);
    file["model"]["unk_token"] = Value::Null;
}

#[cfg(test)]
mod tests {
    use tokenizers::pipeline::PipelineToken;

    use super::super::tiktoken::PATTERN_DEFAULT;
    use super::super::tokenizer::{Encoding, Tokenizer, Truncation};
    use super::*;
    use crate::testing::golden;

    fn ids(tokenizer: &Tokenizer, encoding: &Encoding, text: &str) -> Result<Vec<u32>, String> {
        let mut out: Vec<PipelineToken> = Vec::new();
        tokenizer.encode(text, encoding, &mut out)?;
        Ok(out.into_iter().map(u32::from).collect())
    }

    #[test]
    fn vocabularies_with_gaps_are_read_as_in_python() {
        let golden = golden("bpe");
        let texts = golden["texts"].as_array().unwrap();
        let (whole, cut) = (Encoding::new(true, 0, Truncation::Right), Encoding::new(true, 3, Truncation::Left));
        for (name, expect) in golden["tokenizers"].as_object().unwrap() {
            let tokenizer = Tokenizer::read(expect["file"].to_string().as_bytes(), PATTERN_DEFAULT).unwrap();
            for (row, text) in texts.iter().enumerate() {
                let text = text.as_str().unwrap();
                let what = format!("{name}: {text:?}");
                match ids(&tokenizer, &whole, text) {
                    Ok(ids) => {
                        assert_eq!(json!(ids), expect["ids"][row], "{what}");
                        let decoded = tokenizer.decode(&ids, false).unwrap();
                        assert_eq!(json!(decoded), expect["decoded"][row], "{what} of {ids:?}");
                    }
                    Err(problem) => {
                        assert!(expect["ids"][row]["error"].is_string(), "{what}: {problem}");
                        assert!(problem.ends_with("lacks the unk_token \"<unk>\""), "{what}: {problem}");
                    }
                }
                if let Ok(ids) = ids(&tokenizer, &cut, text) {
                    assert_eq!(json!(ids), expect["cut"][row], "{what}, cut");
                }
            }
        }
    }

    #[test]
    fn only_vocabularies_with_gaps_are_ours() {
        let golden = golden("bpe");
        let ours = |name: &str| {
            let file = golden["tokenizers"][name]["file"].to_string();
            Bpe::read(&tokenizers::canonicalize_str(&file).unwrap()).unwrap().is_some()
        };
        for (name, expect) in [
            ("all bytes", false),
            ("fuse_unk", false),
            ("some bytes", true),
            ("all letters but one, with a template", true),
        ] {
            assert_eq!(ours(name), expect, "{name}");
        }
    }

    #[test]
    fn ids_that_stand_for_missing_letters_are_unknown() {
        let golden = golden("bpe");
        let file = golden["tokenizers"]["some letters"]["file"].to_string();
        let tokenizer = Tokenizer::read(file.as_bytes(), PATTERN_DEFAULT).unwrap();
        assert_eq!(tokenizer.decode(&(0..400).collect::<Vec<_>>(), false).unwrap(), "<unk>abcababc");
    }
}
