//! Converts texts to dictionaries, from any type that the decoder returns.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use arrow::error::ArrowError;

/// Encodes texts of any type as a dictionary: the file's own dictionary if it has at most half as many texts as there
/// are rows, otherwise one entry per row.
pub(super) fn texts_as_dictionary(texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if let Some(own) = texts.as_dictionary_opt::<Int32Type>().filter(|own| own.values().len() <= own.len() / 2) {
        return Ok(Arc::new(own.with_values(cast(own.values(), &DataType::Utf8View)?)));
    }
    let texts = match texts.data_type() {
        // Views would keep the whole dictionary in memory.
        DataType::Dictionary(..) => &cast(texts, &DataType::Utf8)?,
        _ => texts,
    };
    let numbers = Int32Array::from_iter_values(0..texts.len() as i32);
    Ok(Arc::new(DictionaryArray::try_new(numbers, without_pages(cast(texts, &DataType::Utf8View)?))?))
}

/// Copies texts out of the pages that their views refer to, if the pages are much larger than the texts. A piece of a
/// row group keeps the group's whole dictionary alive.
fn without_pages(texts: ArrayRef) -> ArrayRef {
    let views = texts.as_string_view();
    let pages: usize = views.data_buffers().iter().map(|page| page.len()).sum();
    let outside: usize = views.lengths().map(|length| length as usize).filter(|length| *length > 12).sum();
    match pages > 2 * (size_of_val(&views.views()[..]) + outside) {
        true => Arc::new(views.gc()),
        false => texts,
    }
}
