//! Lists that were fitted, outside of the plans that use them.
//!
//! A vocabulary may have millions of entries. A plan is copied, compared and printed often, so it holds a text that
//! identifies the list, like the text of a [pinned file](crate::files). The list lives as long as its owner.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use arrow::array::{Array, ArrayRef, ListArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::Field;
use datafusion::common::ScalarValue;

use crate::table::vocabulary::Vocabulary;

/// The beginning of the texts.
const FITTED: &str = "fitted list#";

/// The lists of this process, by text.
static LISTS: Mutex<BTreeMap<String, Weak<FittedList>>> = Mutex::new(BTreeMap::new());

/// A list that calls of this process may name.
#[derive(Debug)]
pub struct FittedList {
    text: String,
    values: ArrayRef,
    vocabulary: OnceLock<Result<Arc<Vocabulary>, String>>,
}

impl FittedList {
    /// Makes `values` available to calls, as long as the returned value lives.
    pub fn provide(values: ArrayRef) -> Arc<Self> {
        let rows = RecordBatch::try_from_iter([("values", Arc::clone(&values))]).expect("one column is a batch");
        let text = format!("{FITTED}{}", forebay_arrays::digest(&rows));
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = lists.get(&text).and_then(Weak::upgrade) {
            return found;
        }
        let list = Arc::new(Self { text: text.clone(), values, vocabulary: OnceLock::new() });
        lists.insert(text, Arc::downgrade(&list));
        list
    }

    /// The text by which calls name the list.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The vocabulary that a text names, if it names a list.
    pub(crate) fn vocabulary(text: &str) -> Option<Result<Arc<Vocabulary>, String>> {
        if !text.starts_with(FITTED) {
            return None;
        }
        let list = LISTS.lock().unwrap_or_else(PoisonError::into_inner).get(text).and_then(Weak::upgrade)?;
        Some(list.vocabulary.get_or_init(|| Vocabulary::of_values(&list.values).map(Arc::new)).clone())
    }
}

impl Drop for FittedList {
    fn drop(&mut self) {
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        // Another one with the same values may have taken its place.
        if lists.get(&self.text).is_some_and(|list| list.strong_count() == 0) {
            lists.remove(&self.text);
        }
    }
}

/// A list as a scalar.
pub(super) fn scalar(values: ArrayRef) -> ScalarValue {
    let item = Arc::new(Field::new_list_field(values.data_type().clone(), true));
    ScalarValue::List(Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([values.len()]), values, None)))
}

#[cfg(test)]
mod tests {
    use arrow::array::StringArray;

    use super::*;

    #[test]
    fn a_list_lives_as_long_as_its_owners() {
        let values = || -> ArrayRef { Arc::new(StringArray::from(vec!["a list", "of this test"])) };
        let list = FittedList::provide(values());
        let text = list.text().to_owned();
        let again = FittedList::provide(values());
        assert!(Arc::ptr_eq(&list, &again));
        drop(list);
        assert_eq!(FittedList::vocabulary(&text).unwrap().unwrap().len(), 2);
        drop(again);
        assert!(FittedList::vocabulary(&text).is_none());
        assert!(FittedList::vocabulary("a file#0123").is_none());
    }
}
