//! `mixup` and `cutmix`: their constants, and the columns of their rows.

use std::sync::Arc;

use datafusion::arrow::datatypes::Field;
use datafusion::common::{DFSchema, DFSchemaRef, TableReference};
use datafusion::error::Result;
use forebay_operators::mix::Mix;

use super::{Constants, RowsCall};

pub(super) fn plan(constants: &Constants, rows: &DFSchema) -> Result<(RowsCall, DFSchemaRef)> {
    let descriptor = constants.descriptor;
    // What is wrong with one that is named is said with its type.
    let named = constants.text("image")?;
    let fits = |field: &Field| named.map_or_else(|| Mix::is_image(field), |name| field.name() == name);
    let image = constants.column("image", "a tensor of uint8 or float32 images of one shape", fits, rows)?;
    let label = constants.column("label", "a label", |_| true, rows)?;
    let numbers = (constants.number("alpha")?, constants.number("p")?);
    let classes = constants.integer("num_classes")?.and_then(|classes| usize::try_from(classes).ok());
    let mix = Mix::try_new(descriptor, numbers, classes, rows.field(image), rows.field(label))?;
    let qualifier = TableReference::bare(descriptor.name);
    let mut fields: Vec<_> = rows.fields().iter().map(|field| (Some(qualifier.clone()), Arc::clone(field))).collect();
    let nullable = rows.field(label).is_nullable();
    fields[label].1 = Arc::new(mix.label(rows.field(label).name(), nullable)?);
    let schema = DFSchema::new_with_metadata(fields, rows.metadata().clone())?;
    Ok((RowsCall::Mix { mix, image, label }, Arc::new(schema)))
}
