//! Vocabularies that continue their last version, so that entries keep their ids while rows are added.

use std::collections::HashSet;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, ListArray, RecordBatch, StructArray, UInt64Array, new_empty_array};
use arrow::buffer::OffsetBuffer;
use arrow::compute::{concat, take};
use arrow::datatypes::{DataType, Int64Type};
use forebay_sql::{FittedField, KeptName};
use forebay_storage::artifact::{Artifact, Catalog};

use super::artifact::{Keeper, only_row, opened};
use super::stage::TableStage;
use crate::error::{Error, ErrorKind, Result};

/// The lists of a value, by field: those that continue their last version.
fn kept(value: &StructArray) -> impl Iterator<Item = (usize, KeptName)> {
    let names = value.fields().iter().map(|field| FittedField::parse(field.name()).and_then(|field| field.kept));
    names.enumerate().filter_map(|(at, kept)| Some((at, kept?)))
}

impl Keeper<'_> {
    /// The row of a stage, with lists that begin with their last versions. Each list becomes the next version of its
    /// name.
    ///
    /// # Errors
    /// `Data` for a version that is damaged, and for one with entries of another type, or with more of them than a call
    /// takes.
    pub(super) async fn with_kept_ids(&self, stage: &TableStage, row: RecordBatch) -> Result<RecordBatch> {
        let Some(value) = row.columns().first().and_then(|column| column.as_struct_opt()) else { return Ok(row) };
        let (fields, mut columns, nulls) = value.clone().into_parts();
        let catalog = Catalog::new(self.stores, self.root)?;
        for (at, kept) in kept(value) {
            loop {
                let latest = catalog.latest_version(&kept.name).await?;
                let before = match &latest.artifact {
                    Some((number, artifact)) => self
                        .version(&kept.name, artifact)
                        .await
                        .map_err(|error| unread(&kept, *number, artifact, error))?,
                    None => None,
                };
                let list = continued(before, value.column(at), &kept)?;
                // Another process may have begun the next version meanwhile.
                if catalog.add_version(&kept.name, latest.number + 1, &stage.fingerprint).await? {
                    columns[at] = list;
                    break;
                }
            }
        }
        let value = StructArray::try_new(fields, columns, nulls);
        let value = value.map_err(|error| Error::internal(format!("a vocabulary has another type: {error}")))?;
        Ok(RecordBatch::try_new(row.schema(), vec![Arc::new(value)]).expect("it has the same type"))
    }

    /// The entries of the version that an artifact holds; `None` for a list without any.
    async fn version(&self, name: &str, artifact: &Artifact) -> Result<Option<ArrayRef>> {
        let row = only_row(&opened(self.stores, artifact.url()).await?).await?;
        let value = row.column(0).as_struct_opt().filter(|value| value.is_valid(0));
        let column = value.and_then(|value| {
            let (at, _) = kept(value).find(|(_, kept)| kept.name == name)?;
            Some(entries(value.column(at)))
        });
        column.ok_or_else(|| Error::new(ErrorKind::Data, "its artifact has no such vocabulary"))
    }
}

/// The error of a version that cannot be read.
fn unread(kept: &KeptName, number: u64, artifact: &Artifact, error: Error) -> Error {
    if !matches!(error.kind(), ErrorKind::Data | ErrorKind::NotFound | ErrorKind::Conflict) {
        return error;
    }
    let message = format!("version {number} of the vocabulary '{}' cannot be read: {}", kept.name, error.message());
    let url = artifact.url();
    Error::new(error.kind(), message).with_hint(format!(
        "restore \"{url}\"; if that is impossible, remove it: entries that this version added then get other ids"
    ))
}

/// The items of the first list of a column, unless it is null.
fn entries(lists: &ArrayRef) -> Option<ArrayRef> {
    lists.as_list_opt::<i32>().filter(|lists| lists.is_valid(0)).map(|lists| lists.value(0))
}

/// The entries of a version, and then the entries of a list that the version lacks.
fn continued(before: Option<ArrayRef>, list: &ArrayRef, kept: &KeptName) -> Result<ArrayRef> {
    let DataType::List(item) = list.data_type() else {
        return Err(Error::internal(format!("the vocabulary '{}' is no list", kept.name)));
    };
    let now = entries(list).unwrap_or_else(|| new_empty_array(item.data_type()));
    let Some(before) = before else { return Ok(Arc::clone(list)) };
    if before.data_type() != now.data_type() {
        let words = |entries: &ArrayRef| if entries.data_type().is_integer() { "integers" } else { "strings" };
        let (before, now) = (words(&before), words(&now));
        let message = format!("the vocabulary '{}' has {before}, and the values are {now}", kept.name);
        return Err(Error::new(ErrorKind::Data, message).with_hint("use another name in keep_ids"));
    }
    if before.len() as u64 > kept.most {
        let (name, entries, most) = (&kept.name, before.len(), kept.most);
        let message =
            format!("the vocabulary '{name}' has {entries} entries already, and at most {most} are asked for");
        return Err(Error::new(ErrorKind::Data, message).with_hint("raise max_size, or use another name in keep_ids"));
    }
    let added = match before.as_primitive_opt::<Int64Type>() {
        Some(before) => {
            let known: HashSet<i64> = before.values().iter().copied().collect();
            places(now.as_primitive::<Int64Type>().values().iter().map(|entry| !known.contains(entry)))
        }
        None => {
            let known: HashSet<&str> = before.as_string::<i32>().iter().flatten().collect();
            places(now.as_string::<i32>().iter().map(|entry| entry.is_some_and(|entry| !known.contains(entry))))
        }
    };
    let joined = take(&now, &added, None).and_then(|added| concat(&[&before, &added]));
    let joined = joined.map_err(|error| {
        let message = format!("the vocabulary '{}' is too large: {error}", kept.name);
        Error::new(ErrorKind::Exhausted, message).with_hint("use min_freq or max_size")
    })?;
    let most = usize::try_from(kept.most).unwrap_or(usize::MAX);
    let joined = joined.slice(0, joined.len().min(most));
    if joined.is_empty() {
        return Ok(Arc::clone(list));
    }
    let joined = ListArray::try_new(Arc::clone(item), OffsetBuffer::from_lengths([joined.len()]), joined, None);
    Ok(Arc::new(joined.map_err(|error| Error::internal(format!("a vocabulary has another type: {error}")))?))
}

/// The places of those that are true.
fn places(are: impl Iterator<Item = bool>) -> UInt64Array {
    are.zip(0..).filter(|(is, _)| *is).map(|(_, place)| place).collect()
}

#[cfg(test)]
mod tests {
    use arrow::array::{Int64Array, StringArray};
    use arrow::datatypes::Field;

    use super::*;

    fn list(items: ArrayRef) -> ArrayRef {
        let item = Arc::new(Field::new_list_field(items.data_type().clone(), true));
        Arc::new(ListArray::new(item, OffsetBuffer::from_lengths([items.len()]), items, None))
    }

    fn texts(texts: &[&str]) -> ArrayRef {
        Arc::new(StringArray::from(texts.to_vec()))
    }

    #[test]
    fn new_entries_follow_those_of_the_version_before() {
        let kept = |most| KeptName { most, name: "users".to_owned() };
        let before = Some(texts(&["b", "a", "gone"]));
        let now = list(texts(&["c", "a", "b", "d"]));
        let all = continued(before.clone(), &now, &kept(100)).unwrap();
        assert_eq!(&entries(&all).unwrap(), &texts(&["b", "a", "gone", "c", "d"]));
        let some = continued(before.clone(), &now, &kept(4)).unwrap();
        assert_eq!(&entries(&some).unwrap(), &texts(&["b", "a", "gone", "c"]));
        let none: ArrayRef = Arc::new(ListArray::new_null(Arc::new(Field::new_list_field(DataType::Utf8, true)), 1));
        assert_eq!(&entries(&continued(before.clone(), &none, &kept(100)).unwrap()).unwrap(), &before.clone().unwrap());
        assert_eq!(&continued(None, &now, &kept(1)).unwrap(), &now);
        let few = continued(before.clone(), &now, &kept(2)).unwrap_err();
        assert_eq!(few.message(), "the vocabulary 'users' has 3 entries already, and at most 2 are asked for");
        let integers = list(Arc::new(Int64Array::from(vec![3, 1])));
        let mixed = continued(before, &integers, &kept(100)).unwrap_err();
        assert_eq!(mixed.message(), "the vocabulary 'users' has strings, and the values are integers");
        let before: ArrayRef = Arc::new(Int64Array::from(vec![1, 2]));
        let all = continued(Some(before), &integers, &kept(100)).unwrap();
        assert_eq!(entries(&all).unwrap().as_primitive::<Int64Type>().values(), &[1, 2, 3]);
    }
}
