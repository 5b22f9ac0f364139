//! `tokenize_segments`: texts with a mark of what to learn, to token ids with their labels.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field};
use datafusion::common::{Result, exec_datafusion_err, internal_err};

use super::tiktoken;
use super::token_pairs::{self, TokenPairs};
use super::tokenizer::{Encoding, Tokenizer, Truncation};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "tokenize_segments",
    version: 1,
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
           `return_assistant_tokens_mask` of Hugging Face's `transformers`. Special tokens at the beginning have no \
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
        if self.add_special_tokens {
            self.add_special(&mut marked, segments.last().is_some_and(|(_, train)| *train))?;
        }
        match (self.length_max, self.truncation) {
            (most, _) if most == 0 || marked.len() <= most => {}
            (most, Truncation::Right) => marked.truncate(most),
            (most, Truncation::Left) => drop(marked.drain(..marked.len() - most)),
            (most, Truncation::Refused) => {
                let length = marked.len();
                return Err(format!(
                    "a row of {length} tokens is longer than {most}; truncation => 'right' would cut it"
                ));
            }
        }
        Ok(marked)
    }

    fn encode(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        self.tokenizer.encode(text, &Encoding::new(add_special_tokens, 0, Truncation::Right), &mut ids)?;
        Ok(ids.into_iter().map(u32::from).collect())
    }

    fn separate(&self, segments: &[(&str, bool)]) -> Result<Marked, String> {
        let mut marked = Marked::new();
        for (text, train) in segments {
            marked.extend(self.encode(text, false)?.into_iter().map(|id| (id, *train)));
        }
        Ok(marked)
    }

    /// Tokenizes the whole text. The tokenizer gives no places, so the tokens of a text's beginning are compared with
    /// those of the whole. Where they differ, a token has text of both sides.
    fn joined(&self, whole: &str, segments: &[(&str, bool)]) -> Result<Marked, String> {
        let ids = self.encode(whole, false)?;
        let mut marked: Marked = ids.iter().map(|id| (*id, false)).collect();
        let (mut bytes, mut first, mut current) = (0, 0, false);
        for (text, train) in segments {
            if *train != current {
                let before = self.encode(&whole[..bytes], false)?;
                let common = before.iter().zip(&ids).take_while(|(left, right)| left == right).count();
                if current {
                    let end = common + usize::from(common < before.len());
                    marked.iter_mut().take(end).skip(first).for_each(|(_, has_label)| *has_label = true);
                }
                (first, current) = (common, *train);
            }
            bytes += text.len();
        }
        if current {
            marked.iter_mut().skip(first).for_each(|(_, has_label)| *has_label = true);
        }
        Ok(marked)
    }

    /// Puts the special tokens of the file's template around a row.
    fn add_special(&self, marked: &mut Marked, is_last_trained: bool) -> Result<(), String> {
        // The template adds the same tokens to every text, so those of the empty text are all of them. Those of a text
        // of one token show which of them come first.
        let special = self.encode("", true)?;
        let (bare, probe) = (self.encode("a", false)?, self.encode("a", true)?);
        let first = probe.windows(bare.len().max(1)).position(|window| window == bare).unwrap_or(special.len());
        let (before, after) = special.split_at(first.min(special.len()));
        marked.splice(0..0, before.iter().map(|id| (*id, false)));
        marked.extend(after.iter().map(|id| (*id, is_last_trained)));
        Ok(())
    }
}
