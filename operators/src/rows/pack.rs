//! `pack`: packs token lists of any length into sequences of one length, one window at a time.
//!
//! [`PackLayout`] assigns runs of documents to sequences, from lengths alone. The tokens of the sequences are copied
//! when a window is prepared. The columns that a trainer receives ([`columns`]) are computed later, row by row, for the
//! requested rows.

mod columns;
mod layout;

use std::ops::Range;
use std::sync::Arc;

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Int32Type};
use datafusion::common::{Result, internal_err};

use self::columns::{DOCUMENT_FIELDS, PackedColumn};
use self::layout::{Pack, PackLayout, PackStrategy, list_field};
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, Rows};
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt};
use crate::row_operator::{ColumnValue, ReadColumn, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "pack",
    version: 1,
    category: "list",
    summary: "Packs token lists into sequences of one length",
    parameters: &[
        Parameter::rows("With a list of integers in each row, or a struct of two: input_ids and labels"),
        Parameter::constant("length", ConstantKind::PositiveInteger, "The number of tokens in a sequence"),
        Parameter::constant("strategy", ConstantKind::Text, "'concat' or 'best_fit'").or("'concat'"),
        Parameter::constant("column", ConstantKind::Text, "The column of the documents, if there are several")
            .or("NULL"),
        Parameter::constant("separator", ConstantKind::Integer, "A token added after each document").or("NULL"),
        Parameter::constant("pad_id", ConstantKind::Integer, "The token that pads a sequence").or("0"),
        Parameter::constant("ignore_index", ConstantKind::Integer, "The label of tokens without a prediction")
            .or("-100"),
        Parameter::constant(
            "dtype",
            ConstantKind::Text,
            "The type of input_ids, labels and position_ids, 'int32' or 'int64'",
        )
        .or("'int32'"),
    ],
    returns: "input_ids, labels, position_ids and segment_ids, tensors of length; cu_seq_lens, a list; max_seq_len and \
              tokens, integers",
    determinism: Determinism::WindowOrder,
    rows: Rows::Grows,
    docs: "The documents of a window are packed, in shuffled order if the feed is shuffled. 'concat' joins them and \
           splits them every length tokens, so only the last sequence of a window is padded. 'best_fit' (best-fit \
           decreasing) does not split a document that fits a sequence; longer documents are split into pieces.\n\nA \
           document is a list of tokens, each of which is a label, or a struct of `input_ids` and `labels`, lists of \
           one length. The first token of each document has the label ignore_index in either case.\n\n`labels` and \
           `input_ids` of `'int64'` are what PyTorch's losses and embeddings take. `segment_ids` number the documents \
           of a sequence from 1, and are 0 for padding. `cu_seq_lens`, `segment_ids` and `max_seq_len` are int32 in \
           any case, as attention kernels want them.",
    source: "Ding et al., Fewer Truncations Improve Language Modeling (2024), for 'best_fit'",
    examples: &[Example {
        sql: "SELECT input_ids FROM pack((SELECT [id, id + 10] AS tokens FROM numbers), length => 4)",
        result: "[4] 0 10 1 11; [4] 2 12 3 13; [4] 4 14 0 0",
    }],
    ..Descriptor::BASE
};

/// Maximum length of a sequence. A typing error must not request terabytes.
const LENGTH_MAX: i64 = 1 << 24;
/// The name of the column of bounds.
const BOUNDS: &str = "cu_seq_lens";
/// Tokens copied at a time, so that offsets and arrays stay small.
const TOKENS_PER_PART: usize = 1 << 20;
/// The indices of the columns that a call computes itself.
const TOKENS: usize = 0;
const BOUNDS_AT: usize = 1;
const LABELS: usize = 2;

/// The operator `pack`.
#[derive(Debug)]
pub(crate) struct PackOperator;

impl RowOperator for PackOperator {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn scope(&self) -> RowScope {
        RowScope::Window
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        let pack = Pack::new(arguments)?;
        let column = arguments.column("column", "a list of integers", is_document)?;
        let has_labels = matches!(arguments.field(column).data_type(), DataType::Struct(_));
        let function = |column: PackedColumn| Arc::new(column.function(&pack));
        let [tokens, bounds] = [TOKENS, BOUNDS_AT].map(ColumnValue::Made);
        let labels = if has_labels { ColumnValue::Made(LABELS) } else { tokens.clone() };
        let mut reads = vec![ReadColumn { column, function: Some(function(PackedColumn::Document)) }];
        let mut made = ["packed", BOUNDS].map(list_field).to_vec();
        if has_labels {
            reads.push(ReadColumn { column, function: Some(function(PackedColumn::DocumentLabels)) });
            made.push(list_field("packed_labels"));
        }
        let result = |column: PackedColumn, of: Vec<ColumnValue>| {
            ResultColumn::new(column.field(&pack), ColumnValue::Call(function(column), of))
        };
        Ok(RowPlan {
            columns: vec![("column", column)],
            reads,
            made,
            results: vec![
                result(PackedColumn::InputIds, vec![tokens]),
                result(PackedColumn::Labels, vec![labels, bounds.clone()]),
                result(PackedColumn::PositionIds, vec![bounds.clone()]),
                ResultColumn::new(list_field(BOUNDS), bounds.clone()),
                result(PackedColumn::Tokens, vec![bounds.clone()]),
                result(PackedColumn::SegmentIds, vec![bounds.clone()]),
                result(PackedColumn::MaxSeqLen, vec![bounds]),
            ],
            rows: Arc::new(pack),
        })
    }
}

impl Pack {
    fn new(arguments: &RowArguments<'_>) -> Result<Self> {
        let length = match arguments.integer("length")? {
            Some(length) if (1..=LENGTH_MAX).contains(&length) => length as usize,
            _ => {
                let length = arguments.value("length")?;
                return arguments.refuse("length", format_args!("must be between 1 and {LENGTH_MAX}, got {length}"));
            }
        };
        let strategy = match arguments.text("strategy")? {
            Some("concat") => PackStrategy::Concat,
            Some("best_fit") => PackStrategy::BestFit,
            other => {
                let got = other.unwrap_or_default();
                return arguments.refuse("strategy", format_args!("must be 'concat' or 'best_fit', got '{got}'"));
            }
        };
        let token = |name: &str| match arguments.integer(name)?.map(i32::try_from) {
            Some(Ok(token)) => Ok(Some(token)),
            None => Ok(None),
            Some(Err(_)) => {
                let value = arguments.value(name)?;
                arguments.refuse(name, format_args!("must be a 32-bit integer, got {value}"))
            }
        };
        let wide = match arguments.text("dtype")? {
            Some("int32") => false,
            Some("int64") => true,
            other => {
                let got = other.unwrap_or_default();
                return arguments.refuse("dtype", format_args!("must be 'int32' or 'int64', got '{got}'"));
            }
        };
        Ok(Self {
            length,
            strategy,
            wide,
            separator: token("separator")?,
            pad_id: token("pad_id")?.unwrap_or_default(),
            ignore_index: token("ignore_index")?.unwrap_or_default(),
        })
    }
}

/// Whether a column holds documents: lists of tokens, or structs of tokens and labels.
fn is_document(field: &Field) -> bool {
    match field.data_type() {
        DataType::Struct(fields) => {
            fields.len() == 2
                && DOCUMENT_FIELDS.iter().all(|name| fields.find(name).is_some_and(|(_, field)| is_tokens(field)))
        }
        _ => is_tokens(field),
    }
}

fn is_tokens(field: &Field) -> bool {
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_integer()
        }
        _ => false,
    }
}

impl MakeRows for Pack {
    /// Packs the documents in the window's order.
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let mut rows: Vec<RowAt> = window.positions().collect();
        rows.sort_by_cached_key(|row| ((window.order)(window.random_key(*row)), window.place(*row)));
        let documents: Vec<&[i32]> = rows.iter().map(|row| document(window, *row, TOKENS_READ)).collect();
        let layout = PackLayout::new(self, documents.iter().map(|document| document.len()));
        let (sequences, step) = (layout.len(), (TOKENS_PER_PART / self.length).max(1));
        let parts = (0..sequences).step_by(step).map(move |first| first..(first + step).min(sequences));
        Ok(Box::new(parts.map(move |part| self.sequences(window, &layout, &rows, &documents, part))))
    }
}

impl Pack {
    /// Makes some sequences. Each derives from the document of its first token, and its ordinal is that token's index
    /// in it.
    fn sequences(
        &self,
        window: &InputRows<'_>,
        layout: &PackLayout,
        rows: &[RowAt],
        documents: &[&[i32]],
        part: Range<usize>,
    ) -> Result<Made> {
        let column = |column: &usize| match *column {
            TOKENS => Ok(layout.tokens(self, |at| documents[at], part.clone())),
            BOUNDS_AT => Ok(layout.bounds(part.clone())),
            LABELS => Ok(layout.tokens(self, |at| document(window, rows[at], LABELS_READ), part.clone())),
            other => internal_err!("pack makes no column {other}"),
        };
        let first = |sequence: usize| layout.pieces(sequence)[0];
        Ok(Made {
            columns: window.wanted.iter().map(column).collect::<Result<_>>()?,
            parents: part.clone().map(|sequence| rows[first(sequence).document]).collect(),
            ordinals: part.clone().map(|sequence| Some(first(sequence).start as u64)).collect(),
            partners: Vec::new(),
        })
    }
}

/// The indices of the values that a call reads from each row.
const TOKENS_READ: usize = 0;
const LABELS_READ: usize = 1;

/// Returns the tokens or the labels of a row. The plan has converted them to int32 without nulls.
fn document<'a>(window: &InputRows<'a>, row: RowAt, read: usize) -> &'a [i32] {
    let part = &window.parts[row.part as usize];
    let list = part.reads[read].as_list::<i32>();
    let (offsets, row) = (list.value_offsets(), row.row as usize);
    &list.values().as_primitive::<Int32Type>().values()[offsets[row] as usize..offsets[row + 1] as usize]
}
