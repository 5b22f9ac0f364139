//! `pack`: its constants, and the columns of its rows.

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field};
use datafusion::common::{DFSchema, DFSchemaRef, TableReference, plan_err};
use datafusion::error::Result;
use forebay_operators::pack::columns::Column;
use forebay_operators::pack::{Pack, Strategy, list_field};

use super::{Constants, RowsCall};

/// The longest sequence: a slip of the keyboard should not ask for terabytes.
const LENGTH_MAX: i64 = 1 << 24;

/// The name of the column of bounds.
pub const BOUNDS: &str = "cu_seq_lens";

pub(super) fn plan(constants: &Constants, rows: &DFSchema) -> Result<(RowsCall, DFSchemaRef)> {
    let length = match constants.integer("length")? {
        Some(length) if (1..=LENGTH_MAX).contains(&length) => length as usize,
        _ => {
            let length = constants.value("length")?;
            return plan_err!("pack: \"length\" must be between 1 and {LENGTH_MAX}, got {length}");
        }
    };
    let strategy = match constants.text("strategy")? {
        Some("concat") => Strategy::Concat,
        Some("best_fit") => Strategy::BestFit,
        other => {
            return plan_err!("pack: \"strategy\" must be 'concat' or 'best_fit', got '{}'", other.unwrap_or_default());
        }
    };
    let token = |name: &str| match constants.integer(name)?.map(i32::try_from) {
        Some(Ok(token)) => Ok(Some(token)),
        None => Ok(None),
        Some(Err(_)) => plan_err!("pack: \"{name}\" must be a 32-bit integer, got {}", constants.value(name)?),
    };
    let pack = Pack {
        length,
        strategy,
        separator: token("separator")?,
        pad_id: token("pad_id")?.unwrap_or_default(),
        ignore_index: token("ignore_index")?.unwrap_or_default(),
    };
    let column = constants.column("column", "a list of integers", is_tokens, rows)?;
    let [input_ids, labels, position_ids, tokens] = Column::OUTPUTS.map(|column| column.field(&pack));
    let fields = [input_ids, labels, position_ids, list_field(BOUNDS), tokens];
    let qualifier = TableReference::bare(constants.descriptor.name);
    let qualified = fields.into_iter().map(|field| (Some(qualifier.clone()), field)).collect();
    let schema = DFSchema::new_with_metadata(qualified, Default::default())?;
    Ok((RowsCall::Pack { pack, column }, Arc::new(schema)))
}

fn is_tokens(field: &Field) -> bool {
    match field.data_type() {
        DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _) => {
            item.data_type().is_integer()
        }
        _ => false,
    }
}
