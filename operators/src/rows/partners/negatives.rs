//! `sample_negatives`: values of other rows, for contrastive losses and recommenders.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, FixedSizeListArray, ListArray};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::interleave;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::Result;

use super::groups::Groups;
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::keyed::Draws;
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt};
use crate::row_operator::{ColumnValue, ReadColumn, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "sample_negatives",
    category: "random",
    summary: "Draws negative examples for each row: values of other rows in its window",
    parameters: &[
        Parameter::rows("With a value in each row"),
        Parameter::constant("column", ConstantKind::Text, "The column of the values"),
        Parameter::constant("count", ConstantKind::PositiveInteger, "The number of values for each row").or("1"),
    ],
    returns: "the columns of rows, and negatives: a tensor of count numbers, or a list of count other values",
    determinism: Determinism::KeyedRandom,
    docs: "Each value is that of a row of the window, drawn with replacement, each row equally likely; so a value is \
           drawn as often as it occurs. A row never gets its own value, nor a null. A row without a value gets those of any row. Negatives are null if the window \
           has no other value. A larger window has more values to draw from; a shuffled feed puts other rows in it in \
           each epoch. The draw depends only on the feed's seed, the epoch, the sample and the call. Count is at most \
           4096.",
    source: "Yi et al., Sampling-Bias-Corrected Neural Modeling for Large Corpus Item Recommendations (2019), for \
             negatives that occur as often as items",
    examples: &[Example {
        sql: "SELECT id, negatives FROM sample_negatives((SELECT id FROM numbers), column => 'id', count => 2)",
        result: "0 [1, 4]; 1 [2, 3]; 2 [4, 0]; 3 [4, 0]; 4 [0, 0]",
    }],
    ..Descriptor::BASE
};

/// Separates the draws of negatives from other hashes.
const NEGATIVES_DOMAIN: u64 = 0x6e65_6761_7469;
/// A typing error must not fill the memory.
const COUNT_MAX: usize = 4_096;
/// Values drawn at a time, so that parts stay small.
const VALUES_PER_PART: usize = 1 << 18;
/// The name of the new column.
const NEGATIVES: &str = "negatives";

/// The operator `sample_negatives`.
#[derive(Debug)]
pub(crate) struct SampleNegatives;

impl RowOperator for SampleNegatives {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn scope(&self) -> RowScope {
        RowScope::Window
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        let count = arguments.positive("count")?;
        if count > COUNT_MAX {
            return arguments.refuse("count", format_args!("must be at most {COUNT_MAX}, got {count}"));
        }
        let what = "integers, floats, booleans, texts or binary values";
        let column = arguments.column("column", what, |field| TypeClass::Hashable.accepts(field))?;
        if arguments.input().iter().any(|field| field.name() == NEGATIVES) {
            return arguments.refuse("rows", format_args!("has a column \"{NEGATIVES}\" already; rename it"));
        }
        let value = arguments.field(column).data_type();
        let item = Arc::new(Field::new_list_field(value.clone(), !value.is_numeric()));
        let data_type = match value.is_numeric() {
            true => DataType::FixedSizeList(Arc::clone(&item), count as i32),
            false => DataType::List(Arc::clone(&item)),
        };
        let field = Arc::new(Field::new(NEGATIVES, data_type, true));
        let mut plan = RowPlan {
            columns: vec![("column", column)],
            reads: vec![ReadColumn::plain(column)],
            made: vec![Arc::clone(&field)],
            ..RowPlan::keeping(arguments.input(), Arc::new(Negatives { count, item }))
        };
        plan.results.push(ResultColumn::new(field, ColumnValue::Made(0)));
        Ok(plan)
    }
}

/// A call of `sample_negatives`, ready to run.
#[derive(Debug)]
struct Negatives {
    count: usize,
    item: FieldRef,
}

impl MakeRows for Negatives {
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let groups = Groups::by_value(window)?;
        let made = move |parents: Vec<RowAt>| {
            let columns = match window.wanted.is_empty() {
                true => Vec::new(),
                false => vec![self.negatives(window, &groups, &parents)?],
            };
            Ok(Made { columns, ..Made::kept(parents) })
        };
        let rows: Vec<RowAt> = window.positions().collect();
        // The engine bounds the window's bytes after each part.
        let parts: Vec<_> = rows.chunks((VALUES_PER_PART / self.count).max(1)).map(<[_]>::to_vec).collect();
        Ok(Box::new(parts.into_iter().map(made)))
    }
}

impl Negatives {
    fn negatives(&self, window: &InputRows<'_>, groups: &Groups, rows: &[RowAt]) -> Result<ArrayRef> {
        let mut drawn = Vec::with_capacity(rows.len() * self.count);
        let mut is_valid = Vec::with_capacity(rows.len());
        let is_tensor = self.item.data_type().is_numeric();
        for row in rows {
            let mut draws = Draws::new(window.random_key(*row), NEGATIVES_DOMAIN ^ window.call);
            let others = (0..self.count).map_while(|_| groups.another_value(*row, &mut draws));
            let before = drawn.len();
            drawn.extend(others.map(|other| (other.part as usize, other.row as usize)));
            is_valid.push(drawn.len() > before);
            if is_tensor && drawn.len() == before {
                // A null tensor has values as well, which nobody reads.
                drawn.extend((0..self.count).map(|_| (row.part as usize, row.row as usize)));
            }
        }
        let values: Vec<&dyn Array> = window.parts.iter().map(|part| part.reads[0].as_ref()).collect();
        let values = interleave(&values, &drawn)?;
        let lengths = is_valid.iter().map(|is_valid| if *is_valid { self.count } else { 0 });
        let offsets = OffsetBuffer::from_lengths(lengths);
        let nulls = Some(NullBuffer::from(is_valid)).filter(|nulls| nulls.null_count() > 0);
        let item = Arc::clone(&self.item);
        Ok(match is_tensor {
            true => Arc::new(FixedSizeListArray::try_new(item, self.count as i32, values, nulls)?),
            false => Arc::new(ListArray::try_new(item, offsets, values, nulls)?),
        })
    }
}
