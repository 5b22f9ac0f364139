//! Vocabularies in tiktoken's format: each line has a token in base64 and its rank.
//!
//! Such a file is converted to a `tokenizer.json`, so that one library encodes both. tiktoken joins the two neighbours
//! whose token has the lowest rank; the library joins by a list of pairs. Every split of a token into two tokens
//! becomes a pair with the token's rank, so both join in the same way.

use std::collections::HashMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;

/// The pattern that splits texts if the call names none.
pub(super) const PATTERN_DEFAULT: &str = "cl100k_base";

const CL100K: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const R50K: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// Returns the regular expression of a tiktoken encoding. The library runs these, and only these, without a
/// regular-expression engine. The error text continues the parameter's name.
pub(super) fn pattern(name: &str) -> Result<&'static str, String> {
    match name {
        "cl100k_base" => Ok(CL100K),
        "o200k_base" => Ok(O200K),
        "r50k_base" => Ok(R50K),
        other => Err(format!("must be 'cl100k_base', 'o200k_base' or 'r50k_base', got \"{other}\"")),
    }
}

/// Maximum length of a token in bytes. The conversion looks for pairs at each position of a token.
const TOKEN_BYTES_MAX: usize = 1024;

/// Returns whether a file is JSON. No line of base64 looks like JSON.
pub(super) fn is_json(bytes: &[u8]) -> bool {
    bytes.trim_ascii_start().first().is_none_or(|byte| *byte == b'{')
}

/// Converts a vocabulary to a `tokenizer.json` that splits texts by the named pattern.
pub(super) fn to_json(bytes: &[u8], name: &str) -> Result<String, String> {
    let pattern = pattern(name)?;
    let text = std::str::from_utf8(bytes).map_err(|e| e.to_string())?;
    let mut ranks: HashMap<Vec<u8>, u32> = HashMap::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty()) {
        let wrong = || format!("line {} is not a token in base64 and its rank", number + 1);
        let (token, rank) = line.split_once(' ').ok_or_else(wrong)?;
        let token = STANDARD.decode(token).map_err(|_| wrong())?;
        let rank = rank.trim_end().parse().ok().filter(|rank| i32::try_from(*rank).is_ok()).ok_or_else(wrong)?;
        if token.is_empty() || token.len() > TOKEN_BYTES_MAX {
            return Err(format!("line {}: a token has {} bytes, not 1 to {TOKEN_BYTES_MAX}", number + 1, token.len()));
        }
        if ranks.insert(token, rank).is_some() {
            return Err(format!("line {}: the token is repeated", number + 1));
        }
    }
    if let Some(byte) = (0..=u8::MAX).find(|byte| !ranks.contains_key(&[*byte][..])) {
        return Err(format!("the byte {byte} is not a token, so some texts could not be encoded"));
    }
    let letters = letters();
    let written = |token: &[u8]| token.iter().map(|byte| letters[usize::from(*byte)]).collect::<String>();
    // Sorted by rank, then by the ranks of the parts.
    let mut merges = Vec::new();
    for (token, rank) in &ranks {
        for at in 1..token.len() {
            let (left, right) = token.split_at(at);
            if let (Some(left_rank), Some(right_rank)) = (ranks.get(left), ranks.get(right)) {
                merges.push(([*rank, *left_rank, *right_rank], [left, right]));
            }
        }
    }
    merges.sort_unstable();
    let merges: Vec<_> = merges.iter().map(|(_, parts)| parts.map(&written)).collect();
    let vocabulary: serde_json::Map<_, _> = ranks.iter().map(|(token, rank)| (written(token), json!(rank))).collect();
    let file = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false},
        ]},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
            "vocab": vocabulary, "merges": merges},
    });
    Ok(file.to_string())
}

/// Returns the letter for each byte in a byte-level vocabulary: the byte itself if printable, otherwise one from 256
/// on.
pub(super) fn letters() -> [char; 256] {
    let mut next = 256;
    std::array::from_fn(|byte| match byte as u8 {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => byte as u8 as char,
        _ => {
            next += 1;
            char::from_u32(next - 1).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    })
}

#[cfg(test)]
mod tests {
    use arrow::array::{AsArray, StringArray};
    use arrow::datatypes::Int32Type;
    use serde_json::Value;

    use super::*;
    use crate::testing::{column, golden, sql};

    fn file() -> String {
        format!("{}/testdata/tokenizers/small.tiktoken", env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn ids_are_tiktokens() {
        let golden = golden("tiktoken");
        let texts: Vec<_> = golden["texts"].as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect();
        for (name, expect) in golden["patterns"].as_object().unwrap() {
            let call = format!("tokenize(text, '{}', true, 0, 'right', '{name}')", file());
            let (_, got) = sql(&call, vec![column("text", StringArray::from(texts.clone()))]).unwrap();
            for (row, ids) in got.as_list::<i32>().iter().enumerate() {
                let ids = ids.unwrap().as_primitive::<Int32Type>().values().to_vec();
                assert_eq!(Value::from(ids), expect[row], "{name}: {:?}", texts[row]);
            }
        }
        let call = format!("detokenize(tokenize(text, '{0}'), '{0}')", file());
        let (_, got) = sql(&call, vec![column("text", StringArray::from(texts.clone()))]).unwrap();
        assert!(got.as_string::<i32>().iter().eq(texts.into_iter().map(Some)));
    }

    #[test]
    fn damaged_vocabularies_are_refused() {
        let whole = std::fs::read_to_string(file()).unwrap();
        let check =
            |text: &str, expect: &str| assert_eq!(to_json(text.as_bytes(), PATTERN_DEFAULT).unwrap_err(), expect);
        check("YQ==", "line 1 is not a token in base64 and its rank");
        check("YQ== -1", "line 1 is not a token in base64 and its rank");
        check("Y 1", "line 1 is not a token in base64 and its rank");
        check("YQ== 1\nYQ== 2", "line 2: the token is repeated");
        check("YQ== 1", "the byte 0 is not a token, so some texts could not be encoded");
        check(&format!("{whole}IA== 1"), "line 701: the token is repeated");
    }

    #[test]
    fn other_patterns_are_refused() {
        let call = format!("tokenize(text, '{}', true, 0, 'right', '\\S+')", file());
        let expect = "tokenize: \"pattern\" must be 'cl100k_base', 'o200k_base' or 'r50k_base', got \"\\S+\"";
        assert_eq!(sql(&call, vec![column("text", StringArray::from(vec!["x"]))]).unwrap_err(), expect);
    }
}
