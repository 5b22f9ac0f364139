//! `tokenize_segments`: texts with a mark of what to learn, to token ids with their labels.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err, internal_err};

use super::segment_places::Places;
use super::tiktoken;
use super::token_pairs::{self, TokenPairs};
use super::tokenizer::{Tokenizer, Truncation};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "tokenize_segments",
    version: 2,
    category: "text",
    summary: "Converts texts to token ids, with labels for the parts that a model should learn",
    parameters: &[
        Parameter::input("segments", TypeClass::Segments, "The texts, each with whether to train on it"),
        Parameter::constant(
            "tokenizer",
            ConstantKind::File,
            "A `tokenizer.json`, as saved by Hugging Face's libraries, or a tiktoken vocabulary",
        ),
        Parameter::constant(
            "separately",
            ConstantKind::Boolean,
            "Whether each segment is tokenized alone; otherwise their joined text is",
        )
        .or("false"),
        Parameter::constant(
            "add_special_tokens",
            ConstantKind::Boolean,
            "Whether to add the special tokens of the file's template, once",
        )
        .or("false"),
        Parameter::constant(
            "max_length",
            ConstantKind::Integer,
            "The maximum number of ids, including special tokens; 0 for no limit",
        )
        .or("0"),
        Parameter::constant(
            "truncation",
            ConstantKind::Text,
            "The end of a longer row that is dropped, `'right'` or `'left'`; `'error'` makes it a bad row",
        )
        .or("'right'"),
        Parameter::constant("ignore_index", ConstantKind::Integer, "The label of tokens that are not learned")
            .or("-100"),
        Parameter::constant("pattern", ConstantKind::Text, "The pattern of a tiktoken vocabulary, as for `tokenize`")
            .or("'cl100k_base'"),
    ],
    returns: "a struct of input_ids and labels, lists of Int64 of one length",
    docs: "The labels are the ids of segments with train, and ignore_index elsewhere. They are not shifted: models shift \
           them. A token with text of two segments has a label if one of them has train, like in \
           `return_assistant_tokens_mask` of Hugging Face's `transformers`. Where a tokenizer changes the text, for \
           example its spaces, and joins two segments to several other tokens, the row is bad. Special tokens at the beginning have no \
           label, and those at the end have one if the last segment has.\n\n`chat_segments` makes segments of \
           messages. Segments of a prompt and an answer are `[{'text': prompt, 'train': false}, {'text': answer, \
           'train': true}]`. With `separately`, the prompt has the same ids whatever follows, as trainers of \
           preferences want it. `pack` takes the result as a document. Null in, null out; a segment without text or \
           train is an error.",
    source: "`apply_chat_template(return_assistant_tokens_mask=True)` of Hugging Face's `transformers` 5.23",
    examples: &[Example {
        sql: "tokenize_segments([{'text': 'to be', 'train': false}, {'text': ' or not', 'train': true}], tokenizer => \
              'tokenizer.json')",
        result: "{input_ids: [493, 439, 362, 494], labels: [-100, -100, 362, 494]}",
    }],
    ..Descriptor::BASE
};

/// The operator `tokenize_segments`.
#[derive(Debug)]
pub(crate) struct TokenizeSegments;

/// The settings of one call.
struct Settings {
    tokenizer: Arc<Tokenizer>,
    separately: bool,
    add_special_tokens: bool,
    length_max: usize,
    truncation: Truncation,
    ignore_index: i64,
}

/// The ids of a row, each with whether it has a label.
type Marked = Vec<(u32, bool)>;

impl Operator for TokenizeSegments {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        Settings::read(arguments)?;
        Ok(token_pairs::field("tokens", arguments.field("segments")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let settings = Settings::read(arguments)?;
        let (lists, structs) = lists(arguments.array("segments")?)?;
        let column = |name: &str, to: DataType| -> Result<ArrayRef> {
            match structs.as_struct().column_by_name(name) {
                Some(column) => Ok(cast(column, &to)?),
                None => internal_err!("a segment has no {name}, which its type class refuses"),
            }
        };
        let (texts, train) = (column("text", DataType::Utf8)?, column("train", DataType::Boolean)?);
        let (texts, train) = (texts.as_string::<i32>(), train.as_boolean());
        let mut pairs = TokenPairs::new(DESCRIPTOR.name, texts.len());
        let named = |problem: String| exec_datafusion_err!("{}: {problem}", DESCRIPTOR.name);
        for range in &lists.ranges {
            let segments =
                range.clone().map(|at| match texts.is_valid(at) && train.is_valid(at) && structs.is_valid(at) {
                    true => Ok((texts.value(at), train.value(at))),
                    false => Err(named("a segment has no text, or no train".to_owned())),
                });
            let segments = segments.collect::<Result<Vec<_>>>()?;
            for (id, has_label) in settings.tokens(&segments).map_err(named)? {
                pairs.input(Some(i64::from(id)));
                pairs.label(Some(if has_label { i64::from(id) } else { settings.ignore_index }));
            }
            pairs.end_row()?;
        }
        Ok(Arc::new(pairs.finish(lists.nulls.as_ref())?))
    }
}

/// The rows of a column of lists.
struct Lists {
    /// The items of each row; none of a null.
    ranges: Vec<std::ops::Range<usize>>,
    nulls: Option<arrow::buffer::NullBuffer>,
}

fn lists(array: &ArrayRef) -> Result<(Lists, ArrayRef)> {
    let (offsets, items): (Vec<usize>, _) = match array.data_type() {
        DataType::List(_) => {
            let list = array.as_list::<i32>();
            (list.value_offsets().iter().map(|at| *at as usize).collect(), list.values())
        }
        DataType::LargeList(_) => {
            let list = array.as_list::<i64>();
            (list.value_offsets().iter().map(|at| *at as usize).collect(), list.values())
        }
        other => return internal_err!("tokenize_segments got {other}, which its type class refuses"),
    };
    let range = |row: usize| {
        let end = if array.is_null(row) { offsets[row] } else { offsets[row + 1] };
        offsets[row]..end
    };
    let ranges = (0..array.len()).map(range).collect();
    Ok((Lists { ranges, nulls: array.nulls().cloned() }, Arc::clone(items)))
}

impl Settings {
    fn read(arguments: &Arguments) -> Result<Self> {
        let truncation = Truncation::read(arguments)?;
        let length_max = arguments.integer("max_length")?;
        let Some(length_max) = usize::try_from(length_max).ok() else {
            return arguments.refuse("max_length", format_args!("must not be negative, got {length_max}"));
        };
        let (file, pattern) = (arguments.text("tokenizer")?, arguments.text("pattern")?);
        if let Err(problem) = tiktoken::pattern(&pattern) {
            return arguments.refuse("pattern", problem);
        }
        let tokenizer = match Tokenizer::get(&file, &pattern) {
            Ok(tokenizer) => tokenizer,
            Err(problem) => return arguments.refuse_file("tokenizer", problem),
        };
        Ok(Self {
            tokenizer,
            separately: arguments.flag("separately")?,
            add_special_tokens: arguments.flag("add_special_tokens")?,
            length_max,
            truncation,
            ignore_index: arguments.integer("ignore_index")?,
        })
    }

    fn tokens(&self, segments: &[(&str, bool)]) -> Result<Marked, String> {
        let whole: String = segments.iter().map(|(text, _)| *text).collect();
        let mut marked = match self.separately {
            true => self.separate(segments)?,
            false => self.joined(&whole, segments)?,
        };
        let (before, after) = if self.add_special_tokens { self.special()? } else { Default::default() };
        let special = before.len() + after.len();
        match (self.length_max, self.truncation) {
            (most, _) if most == 0 || marked.len() + special <= most => {}
            (most, Truncation::Refused) => {
                let length = marked.len() + special;
                return Err(format!(
                    "a row of {length} tokens is longer than {most}; truncation => 'right' would cut it"
                ));
            }
            (most, _) if most < special => {
                return Err(format!("max_length => {most} has no room for the {special} special tokens of the file"));
            }
            (most, Truncation::Right) => marked.truncate(most - special),
            (most, Truncation::Left) => drop(marked.drain(..marked.len() + special - most)),
        }
        let is_last_trained = segments.last().is_some_and(|(_, train)| *train);
        marked.splice(0..0, before.into_iter().map(|id| (id, false)));
        marked.extend(after.into_iter().map(|id| (id, is_last_trained)));
        Ok(marked)
    }

    fn separate(&self, segments: &[(&str, bool)]) -> Result<Marked, String> {
        let mut marked = Marked::new();
        for (text, train) in segments {
            marked.extend(self.tokenizer.ids(text, false)?.into_iter().map(|id| (id, *train)));
        }
        Ok(marked)
    }

    /// Tokenizes the whole text. A token has a label if some of its text is trained.
    fn joined(&self, whole: &str, segments: &[(&str, bool)]) -> Result<Marked, String> {
        let ids = self.tokenizer.ids(whole, false)?;
        let mut marked: Marked = ids.iter().map(|id| (*id, false)).collect();
        let places = Places::new(&self.tokenizer, whole, &ids);
        let (mut bytes, mut from, mut current) = (0, 0, false);
        for (text, train) in segments.iter().filter(|(text, _)| !text.is_empty()) {
            if *train != current {
                let across = places.across(bytes)?;
                if current {
                    marked[from..across.end].iter_mut().for_each(|(_, has_label)| *has_label = true);
                }
                (from, current) = (across.start, *train);
            }
            bytes += text.len();
        }
        if current {
            marked[from..].iter_mut().for_each(|(_, has_label)| *has_label = true);
        }
        Ok(marked)
    }

    /// Returns the special tokens that the file's template puts before and after a text.
    fn special(&self) -> Result<(Vec<u32>, Vec<u32>), String> {
        // The template adds the same tokens to every text, so those of the empty text are all of them. Those of a text
        // of one token show which of them come first.
        let mut before = self.tokenizer.ids("", true)?;
        let (bare, probe) = (self.tokenizer.ids("a", false)?, self.tokenizer.ids("a", true)?);
        let first = probe.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(before.len());
        let after = before.split_off(first.min(before.len()));
        Ok((before, after))
    }
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;
    use arrow::datatypes::Int64Type;

    use super::*;
    use crate::testing::{column, sql, tokenizer};

    /// The tokens that have a label, and all ids, as text.
    fn learned(file: &str, segments: &[(&str, bool)], rest: &str) -> std::result::Result<(Vec<usize>, String), String> {
        let struct_of = |(text, train): &(&str, bool)| format!("named_struct('text', '{text}', 'train', {train})");
        let segments: Vec<_> = segments.iter().map(struct_of).collect();
        let call = format!("tokenize_segments([{}], '{}'{rest})", segments.join(", "), tokenizer(file));
        let (_, made) = sql(&call, vec![column("x", StringArray::from(vec![""]))])?;
        let list = |name: &str| -> Vec<i64> {
            let list = made.as_struct().column_by_name(name).unwrap().as_list::<i32>().value(0);
            list.as_primitive::<Int64Type>().values().to_vec()
        };
        let (ids, labels) = (list("input_ids"), list("labels"));
        assert!(ids.iter().zip(&labels).all(|(id, label)| *label == -100 || id == label));
        let of = Tokenizer::get(&tokenizer(file), "cl100k_base").unwrap();
        let ids: Vec<_> = ids.iter().map(|id| of.decode(&[*id as u32], false).unwrap()).collect();
        Ok(((0..labels.len()).filter(|at| labels[*at] != -100).collect(), ids.join("|")))
    }

    #[test]
    fn labels_are_those_of_tokens_with_trained_text() {
        let check = |segments: &[(&str, bool)], expect: &[usize], tokens: &str| {
            let got = learned("gpt2", segments, "").unwrap();
            assert_eq!(got, (expect.to_vec(), tokens.to_owned()), "{segments:?}");
        };
        check(&[("foo   ", false), ("bar", true)], &[3, 4], "fo|o|  | b|ar");
        check(&[("foo   ", true), ("bar", false)], &[0, 1, 2, 3], "fo|o|  | b|ar");
        check(&[("foo   ", false), ("", true), ("bar", false)], &[], "fo|o|  | b|ar");
        check(&[("foo", false), ("   ", true), ("bar", false)], &[2, 3], "fo|o|  | b|ar");
        let (_, whole) = learned("gpt2", &[("It is therefore", true)], "").unwrap();
        let (labels, tokens) = learned("gpt2", &[("It is there", false), ("fore", true)], "").unwrap();
        assert_eq!((labels.len(), &tokens), (1, &whole), "only the token across the boundary");
        assert_eq!(tokens.split('|').nth(labels[0]), Some("efore"));
        // Characters of several tokens belong to one segment as a whole.
        let (labels, _) = learned("gpt2", &[("a", false), ("🙂", true), ("b", false)], "").unwrap();
        let count = learned("gpt2", &[("🙂", true)], "").unwrap().0.len();
        assert!(count > 1);
        assert_eq!(labels, (1..=count).collect::<Vec<_>>());
    }

    #[test]
    fn tokenizers_that_change_the_text_are_compared_by_tokens() {
        let check = |segments: &[(&str, bool)], expect: &[&str]| {
            let (labels, tokens) = learned("bert", segments, "").unwrap();
            let tokens: Vec<_> = tokens.split('|').collect();
            assert_eq!(labels.iter().map(|at| tokens[*at]).collect::<Vec<_>>(), expect, "{segments:?} {tokens:?}");
        };
        check(&[("TO BE ", false), ("OR NOT", true)], &["or", "not"]);
        check(&[("TO  BE", true), (" OR NOT", false)], &["to", "be"]);
        // Half a character decodes to U+FFFD, so a text that holds it is not compared by text.
        assert_eq!(
            learned("gpt2", &[("\u{FFFD}foo   ", false), ("bar", true)], "").unwrap_err(),
            "tokenize_segments: the tokens where \"\u{FFFD}foo   \" and \"bar\" meet do not show which text they hold, \
             because the tokenizer changes the text; separately => true tokenizes each segment alone"
        );
    }

    #[test]
    fn special_tokens_stay_in_rows_that_are_cut() {
        let segments = [("to be ", false), ("or not to be", true)];
        let tokens = |rest: &str| learned("bert", &segments, rest).map(|(_, tokens)| tokens);
        let call = |max: usize, cut: &str| tokens(&format!(", false, true, {max}, '{cut}'"));
        assert_eq!(call(0, "right").unwrap(), "[CLS]|to|be|or|not|to|be|[SEP]");
        assert_eq!(call(8, "error").unwrap(), "[CLS]|to|be|or|not|to|be|[SEP]");
        assert_eq!(call(5, "right").unwrap(), "[CLS]|to|be|or|[SEP]");
        assert_eq!(call(5, "left").unwrap(), "[CLS]|not|to|be|[SEP]");
        assert_eq!(
            call(7, "error").unwrap_err(),
            "tokenize_segments: a row of 8 tokens is longer than 7; truncation => 'right' would cut it"
        );
        assert_eq!(
            call(1, "right").unwrap_err(),
            "tokenize_segments: max_length => 1 has no room for the 2 special tokens of the file"
        );
    }
}
