//! Lays out record batches as the body of one IPC message without copying their values.
//!
//! arrow-ipc's writer copies all buffers into fresh pages of one buffer, which costs more than sending them. Here the
//! body is a list of the arrays' own buffers. Several batches in a row form one message: each column's buffer continues
//! with the next batch's, so only buffers that depend on the row's index in the batch (offsets, validity) are
//! rewritten.

use std::ops::Range;

use arrow::array::{Array, ArrayRef, AsArray, BooleanBufferBuilder, OffsetSizeTrait, RecordBatch};
use arrow::buffer::{BooleanBuffer, Buffer, OffsetBuffer};
use arrow::datatypes::DataType;
use arrow_ipc::{FieldNode, MessageArgs, MessageHeader, MetadataVersion, RecordBatchArgs};
use flatbuffers::FlatBufferBuilder;

/// Alignment of buffers, so that readers need not copy them: arrow-ipc's default.
const ALIGNMENT: usize = 64;

/// A part of a message's body.
pub(super) enum Segment {
    Values(Buffer),
    /// This many zero bytes, fewer than [`ALIGNMENT`].
    Padding(usize),
}

/// A message's body and the facts for its header.
#[derive(Default)]
pub(super) struct Layout {
    rows: usize,
    nodes: Vec<FieldNode>,
    buffers: Vec<arrow_ipc::Buffer>,
    pub(super) segments: Vec<Segment>,
    pub(super) bytes: usize,
}

impl Layout {
    /// Lays out batches of one schema, at least one, as if they were one batch. `None` for types that need arrow-ipc's
    /// writer, and for more values than the offsets of one array can count.
    pub(super) fn new(batches: &[RecordBatch]) -> Option<Self> {
        let mut layout = Self { rows: batches.iter().map(RecordBatch::num_rows).sum(), ..Self::default() };
        for column in 0..batches.first()?.num_columns() {
            let parts: Vec<ArrayRef> = batches.iter().map(|batch| batch.column(column).clone()).collect();
            layout.column(&parts)?;
        }
        Some(layout)
    }

    /// The message's flatbuffer, which describes the body's buffers.
    pub(super) fn header(&self) -> Vec<u8> {
        let mut builder = FlatBufferBuilder::with_capacity(256 + 16 * (self.nodes.len() + self.buffers.len()));
        let nodes = Some(builder.create_vector(&self.nodes));
        let buffers = Some(builder.create_vector(&self.buffers));
        let args = RecordBatchArgs { length: self.rows as i64, nodes, buffers, ..RecordBatchArgs::default() };
        let batch = arrow_ipc::RecordBatch::create(&mut builder, &args);
        let args = MessageArgs {
            version: MetadataVersion::V5,
            header_type: MessageHeader::RecordBatch,
            header: Some(batch.as_union_value()),
            bodyLength: self.bytes as i64,
            custom_metadata: None,
        };
        let message = arrow_ipc::Message::create(&mut builder, &args);
        builder.finish(message, None);
        builder.finished_data().to_vec()
    }

    fn column(&mut self, parts: &[ArrayRef]) -> Option<()> {
        let rows: usize = parts.iter().map(|part| part.len()).sum();
        let data_type = parts.first()?.data_type();
        if *data_type == DataType::Null {
            self.nodes.push(FieldNode::new(rows as i64, rows as i64));
            return Some(());
        }
        let nulls: usize = parts.iter().map(|part| part.null_count()).sum();
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
        match nulls {
            0 => self.push([]),
            _ => {
                let bits = |part: &ArrayRef| match part.nulls() {
                    Some(nulls) => nulls.inner().clone(),
                    None => BooleanBuffer::new_set(part.len()),
                };
                self.bits(parts.iter().map(bits).collect());
            }
        }
        match data_type {
            DataType::Boolean => {
                self.bits(parts.iter().map(|part| part.as_boolean().values().clone()).collect());
                Some(())
            }
            DataType::Utf8 | DataType::Binary => self.bytes::<i32>(parts),
            DataType::LargeUtf8 | DataType::LargeBinary => self.bytes::<i64>(parts),
            DataType::List(_) => self.list::<i32>(parts),
            DataType::LargeList(_) => self.list::<i64>(parts),
            DataType::FixedSizeList(_, _) => {
                let values: Vec<_> = parts.iter().map(|part| part.as_fixed_size_list().values().clone()).collect();
                self.column(&values)
            }
            DataType::Map(_, _) => {
                let maps = || parts.iter().map(|part| part.as_map());
                let ranges = self.offsets(&maps().map(|map| map.offsets()).collect::<Vec<_>>())?;
                let entries = maps().zip(ranges);
                let entries = entries.map(|(map, at)| map.entries().slice(at.start, at.end - at.start));
                let entries: Vec<ArrayRef> = entries.map(|entries| std::sync::Arc::new(entries) as _).collect();
                self.column(&entries)
            }
            DataType::Struct(fields) => (0..fields.len()).try_for_each(|field| {
                let children: Vec<_> = parts.iter().map(|part| part.as_struct().column(field).clone()).collect();
                self.column(&children)
            }),
            fixed => {
                let width = match fixed {
                    DataType::FixedSizeBinary(width) => usize::try_from(*width).ok()?,
                    // `None` for dictionaries, views and run ends.
                    _ => fixed.primitive_width()?,
                };
                self.push(parts.iter().map(|part| {
                    let data = part.to_data();
                    data.buffers()[0].slice_with_length(data.offset() * width, data.len() * width)
                }));
                Some(())
            }
        }
    }

    fn bytes<O: OffsetSizeTrait>(&mut self, parts: &[ArrayRef]) -> Option<()> {
        let of = |part: &ArrayRef| match part.data_type() {
            DataType::Utf8 | DataType::LargeUtf8 => {
                let array = part.as_string::<O>();
                (array.offsets().clone(), array.values().clone())
            }
            _ => {
                let array = part.as_binary::<O>();
                (array.offsets().clone(), array.values().clone())
            }
        };
        let parts: Vec<(OffsetBuffer<O>, Buffer)> = parts.iter().map(of).collect();
        let ranges = self.offsets(&parts.iter().map(|(offsets, _)| offsets).collect::<Vec<_>>())?;
        let slice = |((_, values), at): (&(_, Buffer), Range<usize>)| values.slice_with_length(at.start, at.len());
        self.push(parts.iter().zip(ranges).map(slice));
        Some(())
    }

    fn list<O: OffsetSizeTrait>(&mut self, parts: &[ArrayRef]) -> Option<()> {
        let lists: Vec<_> = parts.iter().map(|part| part.as_list::<O>()).collect();
        let ranges = self.offsets(&lists.iter().map(|list| list.offsets()).collect::<Vec<_>>())?;
        let values: Vec<_> =
            lists.iter().zip(ranges).map(|(list, at)| list.values().slice(at.start, at.len())).collect();
        self.column(&values)
    }

    /// Writes offsets that start at zero and count through all parts. Returns the range of values of each part.
    fn offsets<O: OffsetSizeTrait>(&mut self, parts: &[&OffsetBuffer<O>]) -> Option<Vec<Range<usize>>> {
        let range = |offsets: &&OffsetBuffer<O>| offsets[0].as_usize()..offsets[offsets.len() - 1].as_usize();
        let ranges: Vec<Range<usize>> = parts.iter().map(range).collect();
        match (parts, &ranges[..]) {
            ([one], [Range { start: 0, .. }]) => self.push([one.inner().inner().clone()]),
            _ => {
                // No offset is greater than the last one, so only that one must fit.
                O::from_usize(ranges.iter().map(Range::len).sum())?;
                let mut joined: Vec<O> = Vec::with_capacity(parts.iter().map(|offsets| offsets.len()).sum());
                joined.push(O::usize_as(0));
                for offsets in parts {
                    let (base, first) = (joined[joined.len() - 1], offsets[0]);
                    joined.extend(offsets[1..].iter().map(|&offset| base + (offset - first)));
                }
                self.push([Buffer::from_vec(joined)]);
            }
        }
        Some(ranges)
    }

    /// Writes bits. Copies them only if they do not start at a byte, or if several parts become one.
    fn bits(&mut self, parts: Vec<BooleanBuffer>) {
        let bits = match &parts[..] {
            [one] => one.sliced(),
            several => {
                let mut joined = BooleanBufferBuilder::new(several.iter().map(BooleanBuffer::len).sum());
                several.iter().for_each(|part| joined.append_buffer(part));
                joined.finish().into_inner()
            }
        };
        self.push([bits]);
    }

    /// Adds a buffer that consists of parts.
    fn push(&mut self, parts: impl IntoIterator<Item = Buffer>) {
        let begin = self.bytes;
        for part in parts {
            self.bytes += part.len();
            if !part.is_empty() {
                self.segments.push(Segment::Values(part));
            }
        }
        self.buffers.push(arrow_ipc::Buffer::new(begin as i64, (self.bytes - begin) as i64));
        let padding = self.bytes.next_multiple_of(ALIGNMENT) - self.bytes;
        if padding > 0 {
            self.bytes += padding;
            self.segments.push(Segment::Padding(padding));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;

    use arrow::array::{
        BinaryArray, BooleanArray, Decimal128Array, DictionaryArray, FixedSizeBinaryArray, FixedSizeListArray,
        Float16Array, Float32Array, Int8Array, IntervalMonthDayNanoArray, LargeBinaryArray, LargeListArray,
        LargeStringArray, ListArray, MapBuilder, NullArray, StringArray, StringBuilder, StringViewArray, StructArray,
        TimestampMicrosecondArray, UInt8Array, UInt64Array, UInt64Builder,
    };
    use arrow::buffer::NullBuffer;
    use arrow::compute::concat_batches;
    use arrow::datatypes::{
        ArrowPrimitiveType, Field, Fields, Float16Type, Float32Type, Int32Type, IntervalMonthDayNano, SchemaRef,
    };
    use arrow_flight::FlightData;
    use arrow_flight::utils::flight_data_to_arrow_batch;
    use forebay_engine::digest;
    use prost::Message as _;

    use super::super::frames::{Frames, OutgoingMessage};
    use super::*;

    const ROWS: usize = 67;

    /// Columns of all types that are laid out, with and without nulls.
    fn columns() -> Vec<(String, ArrayRef)> {
        let mut columns: Vec<(String, ArrayRef)> = Vec::new();
        for nulls in [0, 3, 8] {
            let is_valid = |row: usize| nulls == 0 || row % nulls != 1;
            let bits = (nulls > 0).then(|| NullBuffer::from_iter((0..ROWS).map(is_valid)));
            let text = |row: usize| is_valid(row).then(|| "äx".repeat(row % 5));
            let some = |row: usize| is_valid(row).then_some(row);
            macro_rules! from_iter {
                ($array:ty, $value:expr) => {
                    Arc::new((0..ROWS).map($value).collect::<$array>()) as ArrayRef
                };
            }
            let item = |data_type| Arc::new(Field::new("item", data_type, true));
            let lists =
                || (0..ROWS).map(|row| is_valid(row).then(|| (0..row % 4).map(|n| (n != 1).then_some(n as i32))));
            let list = ListArray::from_iter_primitive::<Int32Type, _, _>(lists());
            let bytes: ArrayRef = Arc::new(UInt8Array::from_iter_values((0..5 * ROWS).map(|n| n as u8)));
            let tensors = FixedSizeListArray::new(item(DataType::UInt8), 5, bytes, bits.clone());
            let flags: ArrayRef =
                Arc::new((0..3 * ROWS).map(|n| (n % 7 != 0).then_some(n % 2 == 0)).collect::<BooleanArray>());
            let fields: Fields =
                vec![Field::new("s", DataType::Utf8, true), Field::new("l", list.data_type().clone(), true)].into();
            let children = vec![from_iter!(StringArray, text), Arc::new(list.clone()) as ArrayRef];
            let structs: ArrayRef = Arc::new(StructArray::new(fields, children, bits.clone()));
            let nested = ListArray::new(
                item(structs.data_type().clone()),
                OffsetBuffer::from_lengths((0..ROWS - 1).map(|row| row % 2).chain([1])),
                structs.slice(2, ROWS / 2 + 1),
                bits.clone(),
            );
            let mut map = MapBuilder::new(None, StringBuilder::new(), UInt64Builder::new());
            for row in 0..ROWS {
                for entry in 0..row % 3 {
                    map.keys().append_value(format!("k{entry}"));
                    map.values().append_option(some(row).map(|row| row as u64));
                }
                map.append(is_valid(row)).unwrap();
            }
            let half = |row| <Float16Type as ArrowPrimitiveType>::Native::from_bits(row as u16);
            let interval = |row| some(row).map(|row| IntervalMonthDayNano::new(row as i32, 1, 2));
            for (name, column) in [
                ("null", Arc::new(NullArray::new(ROWS)) as ArrayRef),
                ("boolean", from_iter!(BooleanArray, |row| some(row).map(|row| row % 3 == 0))),
                ("int8", from_iter!(Int8Array, |row| some(row).map(|row| row as i8))),
                ("uint64", from_iter!(UInt64Array, |row| some(row).map(|row| row as u64))),
                ("float16", from_iter!(Float16Array, |row| some(row).map(half))),
                ("float32", from_iter!(Float32Array, |row| some(row).map(|row| row as f32))),
                ("decimal", from_iter!(Decimal128Array, |row| some(row).map(|row| row as i128))),
                ("interval", from_iter!(IntervalMonthDayNanoArray, interval)),
                ("timestamp", {
                    let values = (0..ROWS).map(|row| some(row).map(|row| row as i64));
                    Arc::new(values.collect::<TimestampMicrosecondArray>().with_timezone("UTC"))
                }),
                ("fixed", {
                    let values = (0..ROWS).map(|row| is_valid(row).then_some([row as u8; 3]));
                    Arc::new(FixedSizeBinaryArray::try_from_sparse_iter_with_size(values, 3).unwrap())
                }),
                ("string", from_iter!(StringArray, text)),
                ("large_string", from_iter!(LargeStringArray, text)),
                ("binary", from_iter!(BinaryArray, |row| text(row).map(String::into_bytes))),
                ("large_binary", from_iter!(LargeBinaryArray, |row| text(row).map(String::into_bytes))),
                ("list", Arc::new(list)),
                ("large_list", Arc::new(LargeListArray::from_iter_primitive::<Int32Type, _, _>(lists()))),
                ("tensor", Arc::new(tensors)),
                ("flags", Arc::new(FixedSizeListArray::new(item(DataType::Boolean), 3, flags, bits.clone()))),
                ("struct", structs),
                ("nested", Arc::new(nested)),
                ("map", Arc::new(map.finish())),
            ] {
                columns.push((format!("{name}_{nulls}"), column));
            }
        }
        columns
    }

    /// A batch of all columns, and one per column, whose name then shows what failed.
    fn batches() -> Vec<RecordBatch> {
        let batch = |columns: Vec<(String, ArrayRef)>| {
            RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(name, column)| (name, column, true)))
        };
        let alone = columns().into_iter().map(|column| batch(vec![column]).unwrap());
        alone.chain([batch(columns()).unwrap()]).collect()
    }

    fn wire(message: OutgoingMessage) -> Vec<u8> {
        let mut frames = Frames::default();
        frames.push(message);
        frames.flush();
        std::iter::from_fn(|| frames.pop()).flatten().collect()
    }

    /// The message of `parts`, read by arrow-ipc's own reader.
    fn read(parts: &[RecordBatch], schema: &SchemaRef) -> RecordBatch {
        let layout = Layout::new(parts).expect("types that are laid out");
        let (bytes, buffers) = (layout.bytes, layout.buffers.clone());
        let sent = wire(OutgoingMessage::of_layout(layout, b"{}"));
        assert_eq!(sent[0], 0, "not compressed");
        assert_eq!(u32::from_be_bytes(sent[1..5].try_into().unwrap()) as usize, sent.len() - 5);
        let data = FlightData::decode(&sent[5..]).unwrap();
        assert_eq!((&data.app_metadata[..], data.data_body.len()), (&b"{}"[..], bytes));
        let header = arrow_ipc::root_as_message(&data.data_header).unwrap();
        assert_eq!(header.bodyLength() as usize, bytes);
        assert!(buffers.iter().all(|buffer| buffer.offset() % ALIGNMENT as i64 == 0), "{buffers:?}");
        let batch = flight_data_to_arrow_batch(&data, SchemaRef::clone(schema), &HashMap::new()).unwrap();
        batch.columns().iter().for_each(|column| column.to_data().validate_full().unwrap());
        batch
    }

    fn assert_survive(parts: &[RecordBatch]) {
        let schema = parts[0].schema();
        let (expected, got) = (concat_batches(&schema, parts).unwrap(), read(parts, &schema));
        assert_eq!(expected, got, "{schema}");
        assert_eq!(digest(&expected), digest(&got), "{schema}");
    }

    #[test]
    fn all_types_survive_at_any_offset() {
        for batch in batches() {
            for first in [0, 1, 2, 7, 8, 9, 16, 63, 64, 66] {
                for rows in [0, 1, 2, 3, 8, 9, 31] {
                    assert_survive(&[batch.slice(first, rows.min(ROWS - first))]);
                }
            }
            assert_survive(&[batch]);
        }
    }

    #[test]
    fn batches_in_a_row_are_one() {
        for batch in batches() {
            for cuts in
                [&[0, 3, 3, 11, 40][..], &[0, ROWS], &[1, 2, 3, 4, 5, 6], &[8, 16, 24], &[5, 5, 5], &[0, 0, 9, 9]]
            {
                let parts: Vec<_> = cuts.windows(2).map(|cut| batch.slice(cut[0], cut[1] - cut[0])).collect();
                assert_survive(&parts);
                // Parts from separate tasks have arrays of their own.
                let own = |part: &RecordBatch| concat_batches(&batch.schema(), [part, part]).unwrap();
                assert_survive(&parts.iter().map(own).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn batches_without_rows_or_columns_survive() {
        for batch in batches() {
            assert_survive(&[RecordBatch::new_empty(batch.schema())]);
        }
        let count = arrow::array::RecordBatchOptions::new().with_row_count(Some(9));
        let none =
            RecordBatch::try_new_with_options(Arc::new(arrow::datatypes::Schema::empty()), vec![], &count).unwrap();
        assert_eq!(read(&[none.clone(), none.clone()], &none.schema()).num_rows(), 18);
    }

    #[test]
    fn large_values_are_not_copied() {
        let values: ArrayRef = Arc::new(UInt8Array::from_iter_values((0..40 << 10).map(|n| n as u8)));
        let address = values.to_data().buffers()[0].as_ptr();
        let batch = RecordBatch::try_from_iter([("x", values)]).unwrap();
        let mut frames = Frames::default();
        frames.push(OutgoingMessage::of_layout(
            Layout::new(&[batch.slice(0, 20 << 10), batch.slice(20 << 10, 20 << 10)]).unwrap(),
            b"",
        ));
        frames.flush();
        let sent: Vec<_> = std::iter::from_fn(|| frames.pop()).collect();
        let lies_in_it =
            |bytes: &&bytes::Bytes| (0..40 << 10).contains(&(bytes.as_ptr().addr().wrapping_sub(address.addr())));
        assert_eq!(sent.iter().filter(lies_in_it).map(|bytes| bytes.len()).sum::<usize>(), 40 << 10);
    }

    #[test]
    fn other_types_are_left_to_arrow() {
        let views: ArrayRef = Arc::new(StringViewArray::from(vec!["a", "b"]));
        let keys: ArrayRef = Arc::new(["a", "b"].into_iter().collect::<DictionaryArray<Int32Type>>());
        for column in [views, keys] {
            assert!(Layout::new(&[RecordBatch::try_from_iter([("x", column)]).unwrap()]).is_none());
        }
        assert!(Layout::new(&[]).is_none());
    }

    #[test]
    fn offsets_that_overflow_are_left_to_arrow() {
        // Two gigabytes of zeros, whose pages are never touched.
        let zeros = Buffer::from_vec(vec![0u8; i32::MAX as usize - 10]);
        let offsets = OffsetBuffer::new(vec![0, i32::MAX - 10].into());
        let half: ArrayRef = Arc::new(BinaryArray::new(offsets, zeros, None));
        let half = RecordBatch::try_from_iter([("x", half)]).unwrap();
        assert!(Layout::new(std::slice::from_ref(&half)).is_some());
        assert!(Layout::new(&[half.clone(), half]).is_none());
        let list = LargeListArray::from_iter_primitive::<Float32Type, _, _>([Some([Some(1.0)])]);
        assert_survive(&[RecordBatch::try_from_iter([("x", Arc::new(list) as ArrayRef)]).unwrap()]);
    }
}
