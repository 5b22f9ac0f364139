//! `categorify`: `vocab_apply` with the values of rows as vocabulary.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, DictionaryArray, Int64Array, LargeStringBuilder, StringBuilder, UInt64Array,
};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type, Int64Type, UInt64Type};
use datafusion::common::{DataFusionError, Result, ScalarValue, internal_err, plan_err};
use datafusion::logical_expr::function::{AccumulatorArgs, StateFieldsArgs};
use datafusion::logical_expr::{Accumulator, AggregateUDF, AggregateUDFImpl, Signature, Volatility};

use super::fit::{FIT_ON, Fit, KeptList};
use super::{lists, literals};
use crate::descriptor::{ConstantKind, Descriptor, Example, Parameter, TypeClass};
use crate::table::entries::{ENTRIES_MAX, Entries, EntrySlot, READ_AHEAD};
use crate::text::Texts;

/// The name of the aggregate.
pub const VOCABULARY: &str = "__forebay_vocabulary";

/// The order of entries in which they come first. The aggregate then needs the places of rows as its last argument.
pub const FIRST_SEEN: &str = "first_seen";
const FREQUENCY: &str = "frequency";

pub(super) static CATEGORIFY: Fit = Fit {
    descriptor: &Descriptor {
        name: "categorify",
        category: "category",
        summary: "Maps values to ids, with a vocabulary of the values that the rows have",
        parameters: &[
            Parameter::input("value", TypeClass::Category, "The values"),
            Parameter::constant(
                "min_freq",
                ConstantKind::PositiveInteger,
                "How often a value must occur to be an entry of the vocabulary",
            )
            .or("1"),
            Parameter::constant(
                "max_size",
                ConstantKind::PositiveInteger,
                "The most entries; the first ones in the order stay",
            )
            .or("4294967294"),
            Parameter::constant(
                "order",
                ConstantKind::Text,
                "`'frequency'`: the most frequent value first, equally frequent ones ascending; `'first_seen'`: in the \
                 order of the rows",
            )
            .or("'frequency'"),
            Parameter::constant("start", ConstantKind::Integer, "The id of the first entry").or("1"),
            Parameter::constant(
                "other",
                ConstantKind::Integer,
                "The id of values that are not an entry; by default, the id before `start`",
            )
            .or("NULL"),
            Parameter::constant(
                "keep_ids",
                ConstantKind::Text,
                "A name for the vocabulary. Entries of its last version under the root keep their ids, and new ones \
                 follow",
            )
            .or("''"),
            FIT_ON,
        ],
        returns: "Int64",
        docs: "The vocabulary is fitted once, before the feed begins, and kept under the root. Strings are compared \
               byte by byte. Integers above Int64 are no entries. Null is no entry either: null in, null out. Counting \
               holds each column's distinct values in memory, within the limit of batch queries.",
        source: "NVTabular's `Categorify`; Piper's vocabulary with `order => 'first_seen', start => 0`",
        examples: &[
            Example { sql: "categorify(colour)", result: "1 for the most frequent colour" },
            Example { sql: "categorify(user, min_freq => 10)", result: "0 for users with less than 10 rows" },
            Example {
                sql: "categorify(user, keep_ids => 'users')",
                result: "The id that a user had before rows were added",
            },
        ],
        ..Descriptor::BASE
    },
    operator: "vocab_apply",
    constants: &[("vocabulary", "__forebay_vocabulary(value, min_freq, max_size, \"order\")")],
    input: "value",
    choices: &[("order", &[FREQUENCY, FIRST_SEEN])],
    greatest: &[],
    one_less: &[("other", "start")],
    kept: Some(KeptList { name: "keep_ids", most: "max_size" }),
};

/// The aggregate of the entries: a list of integers or of strings. Null without values.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Vocabulary {
    signature: Signature,
}

impl Vocabulary {
    pub(super) fn udaf() -> AggregateUDF {
        AggregateUDF::from(Self { signature: Signature::user_defined(Volatility::Immutable) })
    }
}

/// The type of entries of a column. A column of another type is refused by the operator that the call becomes.
fn entry_type(values: &DataType) -> DataType {
    match values {
        DataType::Dictionary(_, values) => entry_type(values),
        values if values.is_integer() => DataType::Int64,
        _ => DataType::Utf8,
    }
}

fn list_of(item: DataType) -> DataType {
    DataType::new_list(item, true)
}

impl AggregateUDFImpl for Vocabulary {
    fn name(&self) -> &'static str {
        VOCABULARY
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        let [values, _, _, _, place @ ..] = types else {
            return plan_err!("{VOCABULARY} takes 4 or 5 arguments, got {}", types.len());
        };
        let values = match values {
            DataType::Dictionary(..) | DataType::Null => entry_type(values),
            // Strings stay in their layout, and integers in their width.
            other => other.clone(),
        };
        let mut coerced = vec![values, DataType::Int64, DataType::Int64, DataType::Utf8];
        coerced.extend(place.iter().map(|_| DataType::UInt64));
        Ok(coerced)
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        Ok(list_of(entry_type(&types[0])))
    }

    fn accumulator(&self, args: AccumulatorArgs) -> Result<Box<dyn Accumulator>> {
        Ok(Box::new(Values {
            are_integers: *args.return_type() == list_of(DataType::Int64),
            min_freq: literals::positive(args.exprs, 1)?,
            max_size: literals::positive(args.exprs, 2)?,
            is_first_seen: literals::text(args.exprs, 3)? == FIRST_SEEN,
            entries: Entries::new(),
            counts: Vec::new(),
            firsts: Vec::new(),
        }))
    }

    fn state_fields(&self, args: StateFieldsArgs) -> Result<Vec<FieldRef>> {
        let item = if *args.return_type() == list_of(DataType::Int64) { DataType::Int64 } else { DataType::LargeUtf8 };
        let field = |name: &str, item| Arc::new(Field::new(format!("{}[{name}]", args.name), list_of(item), true));
        Ok(vec![field("values", item), field("counts", DataType::UInt64), field("firsts", DataType::UInt64)])
    }
}

/// How often each value occurs, and where first.
#[derive(Debug)]
struct Values {
    are_integers: bool,
    min_freq: u64,
    max_size: u64,
    is_first_seen: bool,
    /// The values. Integers are the eight bytes of their little-endian form.
    entries: Entries,
    /// By the index of the entry.
    counts: Vec<u64>,
    /// By the index of the entry, if they are ordered so.
    firsts: Vec<u64>,
}

impl Values {
    #[inline]
    fn add(&mut self, value: &[u8], count: u64, first: impl FnOnce() -> u64) {
        let at = self.entries.add(value) as usize;
        if at == self.counts.len() {
            self.counts.push(count);
            if self.is_first_seen {
                self.firsts.push(first());
            }
            return;
        }
        self.counts[at] += count;
        if self.is_first_seen {
            self.firsts[at] = self.firsts[at].min(first());
        }
    }

    /// Adds the values of a column, each with its count and its place. The count of a text may be zero.
    fn add_all(&mut self, values: &ArrayRef, count: impl Fn(usize) -> u64, first: impl Fn(usize) -> u64) -> Result<()> {
        if self.entries.len() + values.len() > ENTRIES_MAX {
            let message = format!("categorify: a column may have more than {ENTRIES_MAX} values");
            return Err(DataFusionError::ResourcesExhausted(message));
        }
        if self.are_integers {
            let integers = cast(values, &DataType::Int64)?;
            let integers = integers.as_primitive::<Int64Type>();
            for (at, near) in integers.values().chunks(READ_AHEAD).enumerate() {
                self.entries.read_ahead(near);
                for (row, integer) in (at * READ_AHEAD..).zip(near) {
                    if integers.is_valid(row) {
                        self.add(&integer.to_le_bytes(), count(row), || first(row));
                    }
                }
            }
            return Ok(());
        }
        for (row, text) in Texts::try_new(values)?.iter().enumerate() {
            if let Some(text) = text.filter(|_| count(row) > 0) {
                self.add(text.as_bytes(), count(row), || first(row));
            }
        }
        Ok(())
    }

    /// Adds the rows of a dictionary of texts: counts its keys, then looks each text up once.
    fn add_coded(&mut self, rows: &DictionaryArray<Int32Type>, first: impl Fn(usize) -> u64) -> Result<()> {
        let texts = rows.values();
        let mut counts = vec![0; texts.len()];
        let mut firsts = vec![u64::MAX; if self.is_first_seen { texts.len() } else { 0 }];
        for (row, key) in rows.keys().iter().enumerate() {
            let Some(key) = key else { continue };
            counts[key as usize] += 1;
            if self.is_first_seen {
                firsts[key as usize] = firsts[key as usize].min(first(row));
            }
        }
        self.add_all(texts, |key| counts[key], |key| firsts[key])
    }

    /// The value in a slot, if values are integers.
    fn integer(&self, slot: &EntrySlot) -> i64 {
        let mut short = [0; 8];
        self.entries.text(slot, &mut short);
        i64::from_le_bytes(short)
    }

    /// The slots of the entries of the vocabulary, in their order.
    fn chosen(&self) -> Vec<EntrySlot> {
        let key = |slot: &EntrySlot| match self.are_integers {
            true => self.integer(slot).cast_unsigned() ^ 1 << 63,
            false => self.entries.beginning(slot),
        };
        let room = if self.min_freq == 1 { self.entries.len() } else { 0 };
        let mut chosen: Vec<(u64, u64, EntrySlot)> = Vec::with_capacity(room);
        for (at, slot) in self.entries.in_order().into_iter().enumerate() {
            match self.is_first_seen {
                _ if self.counts[at] < self.min_freq => {}
                true => chosen.push((self.firsts[at], 0, slot)),
                false => chosen.push((u64::MAX - self.counts[at], key(&slot), slot)),
            }
        }
        chosen.sort_unstable_by(|(rank, key, slot), (other_rank, other_key, other)| {
            let (mut short, mut other_short) = ([0; 8], [0; 8]);
            let texts = || self.entries.text(slot, &mut short).cmp(self.entries.text(other, &mut other_short));
            (rank, key).cmp(&(other_rank, other_key)).then_with(texts)
        });
        chosen.truncate(usize::try_from(self.max_size).unwrap_or(usize::MAX));
        chosen.into_iter().map(|(_, _, slot)| slot).collect()
    }

    /// Calls `write` with the text in each slot.
    fn each_text(&self, slots: &[EntrySlot], mut write: impl FnMut(&str)) -> Result<()> {
        for slot in slots {
            let mut short = [0; 8];
            match std::str::from_utf8(self.entries.text(slot, &mut short)) {
                Ok(text) => write(text),
                Err(error) => return internal_err!("a string is no text: {error}"),
            }
        }
        Ok(())
    }

    fn integers(&self, slots: &[EntrySlot]) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(slots.iter().map(|slot| self.integer(slot))))
    }
}

impl Accumulator for Values {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let places = match (self.is_first_seen, values.get(4)) {
            (false, _) => None,
            (true, Some(places)) => Some(places.as_primitive::<UInt64Type>().values()),
            (true, None) => return internal_err!("the rows of a vocabulary have no places"),
        };
        let first = |row: usize| places.map_or(0, |places| places[row]);
        match values[0].as_dictionary_opt() {
            Some(coded) => self.add_coded(coded, first),
            None => self.add_all(&values[0], |_| 1, first),
        }
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let slots = self.entries.in_order();
        let values: ArrayRef = if self.are_integers {
            self.integers(&slots)
        } else {
            let mut texts = LargeStringBuilder::new();
            self.each_text(&slots, |text| texts.append_value(text))?;
            Arc::new(texts.finish())
        };
        let [counts, firsts] = [&mut self.counts, &mut self.firsts].map(std::mem::take).map(UInt64Array::from);
        Ok(vec![lists::scalar(values), lists::scalar(Arc::new(counts)), lists::scalar(Arc::new(firsts))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        let [values, counts, firsts] = states else { return internal_err!("a vocabulary has another state") };
        let [values, counts, firsts] = [values, counts, firsts].map(|list| list.as_list::<i32>());
        for row in 0..values.len() {
            let (counts, firsts) = (counts.value(row), firsts.value(row));
            let counts = counts.as_primitive::<UInt64Type>().values();
            let firsts = firsts.as_primitive::<UInt64Type>().values();
            self.add_all(&values.value(row), |at| counts[at], |at| firsts[at])?;
        }
        Ok(())
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let item = if self.are_integers { DataType::Int64 } else { DataType::Utf8 };
        if self.entries.len() == 0 {
            return ScalarValue::try_from(&list_of(item));
        }
        let slots = self.chosen();
        if self.are_integers {
            return Ok(lists::scalar(self.integers(&slots)));
        }
        let mut bytes = 0;
        self.each_text(&slots, |text| bytes += text.len())?;
        if i32::try_from(bytes).is_err() {
            let message = format!("categorify: a vocabulary of {bytes} bytes is too large: use min_freq or max_size");
            return Err(DataFusionError::ResourcesExhausted(message));
        }
        let mut texts = StringBuilder::with_capacity(slots.len(), bytes);
        self.each_text(&slots, |text| texts.append_value(text))?;
        Ok(lists::scalar(Arc::new(texts.finish())))
    }

    fn size(&self) -> usize {
        let numbers = self.counts.capacity() + self.firsts.capacity();
        size_of_val(self) + self.entries.bytes() + numbers * size_of::<u64>()
    }
}
