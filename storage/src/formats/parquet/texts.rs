//! Texts as dictionaries, whichever way the decoder gives them.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, DictionaryArray, Int32Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Int32Type};
use arrow::error::ArrowError;

/// Texts of any kind as a number each, and what the numbers stand for: the file's own dictionary where that has at most half as
/// many texts as there are rows, else each row's text.
pub(super) fn texts_as_dictionary(texts: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    if let Some(own) = texts.as_dictionary_opt::<Int32Type>().filter(|own| own.values().len() <= own.len() / 2) {
        return Ok(Arc::new(own.with_values(cast(own.values(), &DataType::Utf8View)?)));
    }
    let texts = match texts.data_type() {
        // As views they would keep all of a dictionary.
        DataType::Dictionary(..) => &cast(texts, &DataType::Utf8)?,
        _ => texts,
    };
    let numbers = Int32Array::from_iter_values(0..texts.len() as i32);
    Ok(Arc::new(DictionaryArray::try_new(numbers, without_pages(cast(texts, &DataType::Utf8View)?))?))
}

/// Views of texts without the pages that they were in, if these are much longer than what is looked at: a piece of a row group
/// comes with all of its dictionary.
fn without_pages(texts: ArrayRef) -> ArrayRef {
    let views = texts.as_string_view();
    let pages: usize = views.data_buffers().iter().map(|page| page.len()).sum();
    let outside: usize = views.lengths().map(|length| length as usize).filter(|length| *length > 12).sum();
    match pages > 2 * (size_of_val(&views.views()[..]) + outside) {
        true => Arc::new(views.gc()),
        false => texts,
    }
}
