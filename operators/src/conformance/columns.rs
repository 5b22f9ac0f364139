//! Generated columns of every kind, as inputs of the checks.

use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, AsArray, BinaryArray, BinaryViewArray, BooleanArray, FixedSizeListArray, FixedSizeListBuilder,
    Float32Array, Float32Builder, Float64Array, Int8Array, Int32Array, Int64Array, LargeBinaryArray, LargeStringArray,
    ListArray, ListBuilder, StringArray, StringBuilder, StringViewArray, StructArray, UInt8Array, UInt32Array,
    UInt64Array,
};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, Float32Type, Int32Type, Int64Type, UInt8Type, UInt32Type};

use forebay_arrays::FixedShapeTensor;

use crate::descriptor::TypeClass;
use crate::image_column::{self, CHANNELS, Images, Size};
use crate::keyed::Draws;

/// Rows in a generated batch: enough for several nulls, and few enough to run each row alone.
pub(super) const ROWS: usize = 13;

/// The classes of columns in the checks of table operators. Each operator uses the ones that it can.
pub(super) const TABLE_CLASSES: [TypeClass; 5] =
    [TypeClass::Binary, TypeClass::FixedImage, TypeClass::FixedTensor, TypeClass::Hashable, TypeClass::NumberList];

/// Returns columns of every type that the class accepts. About one row in five is null.
pub(super) fn columns(class: TypeClass, draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    match class {
        TypeClass::Image => vec![fixed_images(draws), variable_images(draws)],
        TypeClass::Tensor => {
            let mut all =
                [vec![fixed_images(draws), variable_images(draws), floats(draws)], fixed_tensors(draws)].concat();
            all.retain(|(field, _)| class.accepts(field));
            all
        }
        TypeClass::FixedImage => vec![fixed_images(draws), floats(draws)],
        TypeClass::FixedTensor | TypeClass::TensorOrNumber => fixed_tensors(draws),
        TypeClass::TensorOrList => {
            let mut all = fixed_tensors(draws);
            let lists =
                optional(draws, |draws| (0..TENSOR_LEN).map(|_| Some(draws.below(100) as i32)).collect::<Vec<_>>());
            all.push(column(Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists))));
            all
        }
        TypeClass::Binary => binary_columns(draws, file),
        TypeClass::Mask => binary_columns(draws, png_file),
        TypeClass::Numeric => number_columns(draws),
        TypeClass::Hashable => hashable_columns(draws),
        TypeClass::NumericOrList => [number_columns(draws), list_columns(draws)].concat(),
        TypeClass::Integer | TypeClass::IntegerList | TypeClass::IntegerOrList => {
            let all = columns(TypeClass::NumericOrList, draws).into_iter();
            let coerced = |field: &Field| field.clone().with_data_type(class.coerce(field.data_type()));
            all.filter(|(field, _)| class.accepts(&coerced(field))).collect()
        }
        TypeClass::Text => {
            let parts = ["the window", " ", "\n", "\n\n", "Ñandú", "漢字", "e\u{301}", "🙂", "1984", "- ", "...", "\0"];
            texts(&parts, 0, draws)
        }
        TypeClass::TextOrBinary => {
            let mut all = columns(TypeClass::Text, draws);
            all.extend(binary_columns(draws, file).into_iter().filter(|(field, _)| class.accepts(field)));
            all
        }
        // One digit at least, and any digits are JSON.
        TypeClass::Json => texts(&["1", "9", "42"], 1, draws),
        TypeClass::Messages | TypeClass::Segments => messages(draws),
        TypeClass::Hexadecimal => texts(&["0", "1", "9", "a", "f", "B", "E", "42"], 1, draws),
        TypeClass::Category => {
            let integers = number_columns(draws).into_iter();
            integers
                .filter(|(field, _)| field.data_type().is_integer())
                .chain(texts(&["red", "Ñandú", ""], 0, draws))
                .collect()
        }
        TypeClass::NumberList => list_columns(draws),
        TypeClass::List => {
            let words = optional_lists(draws, |draws| ["red", "", "Ñandú"][draws.below(3) as usize]);
            let mut texts = ListBuilder::new(StringBuilder::new());
            words.iter().for_each(|words| texts.append_option(words.as_ref().map(|words| words.iter().map(Some))));
            let numbers = optional_lists(draws, |draws| draws.below(100) as i32);
            let numbers = numbers.iter().map(|list| list.as_ref().map(|list| list.iter().map(|n| Some(*n))));
            let numbers: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(numbers));
            let large = cast(&numbers, &DataType::new_large_list(DataType::Int64, true));
            let mut all = vec![column(Arc::new(texts.finish())), column(Arc::clone(&numbers))];
            all.push(column(large.unwrap_or(numbers)));
            all.push(groups(4, draws));
            all
        }
        TypeClass::Any => {
            let mut all = hashable_columns(draws);
            all.extend(fixed_tensors(draws));
            all.extend([variable_images(draws), groups(4, draws)]);
            all
        }
        TypeClass::Boxes => vec![groups(4, draws)],
        TypeClass::Points => vec![groups(2, draws), groups(3, draws)],
        TypeClass::Side => {
            let sides = optional(draws, |draws| 1 + draws.below(40) as i32);
            vec![column(Arc::new(Int32Array::from(sides)))]
        }
    }
}

/// Returns lists of structs of four fields: those of messages, and those of segments.
fn messages(draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let mut lists = optional_lists(draws, |draws| draws.below(1000) as i32);
    // A chat without messages is an error.
    lists.iter_mut().flatten().filter(|list| list.is_empty()).for_each(|list| list.push(7));
    let lengths = lists.iter().map(|list| list.as_ref().map_or(0, Vec::len));
    let numbers: Vec<i32> = lists.iter().flatten().flatten().copied().collect();
    let text = |text: &dyn Fn(i32) -> String| -> ArrayRef {
        Arc::new(numbers.iter().map(|number| Some(text(*number))).collect::<StringArray>())
    };
    let role = text(&|number| ["user", "assistant", "system"][number as usize % 3].to_owned());
    let content = text(&|number| format!("Ñandú {number}\n"));
    let train: ArrayRef = Arc::new(numbers.iter().map(|number| Some(number % 2 == 0)).collect::<BooleanArray>());
    let columns = [("role", role), ("content", Arc::clone(&content)), ("text", content), ("train", train)];
    let fields: Vec<_> =
        columns.iter().map(|(name, column)| Field::new(*name, column.data_type().clone(), true)).collect();
    let structs = StructArray::new(fields.into(), columns.into_iter().map(|(_, column)| column).collect(), None);
    let item = Arc::new(Field::new_list_field(structs.data_type().clone(), true));
    let nulls = NullBuffer::from_iter(lists.iter().map(Option::is_some));
    let small = ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(structs), Some(nulls));
    let small: ArrayRef = Arc::new(small);
    let DataType::List(item) = small.data_type() else { unreachable!("made above") };
    let large = cast(&small, &DataType::LargeList(Arc::clone(item)));
    vec![column(Arc::clone(&small)), column(large.unwrap_or(small))]
}

/// Returns columns of small files, also as media.
fn binary_columns(draws: &mut Draws, file: fn(&mut Draws) -> Vec<u8>) -> Vec<(Field, ArrayRef)> {
    let files = optional(draws, file);
    let files = || files.iter().map(Option::as_deref);
    let bytes: ArrayRef = Arc::new(files().collect::<BinaryArray>());
    let paths: ArrayRef = Arc::new(StringArray::from(vec![Some("a.jpg"); ROWS]));
    let media = StructArray::from(vec![
        (Arc::new(Field::new("bytes", DataType::Binary, true)), Arc::clone(&bytes)),
        (Arc::new(Field::new("path", DataType::Utf8, true)), paths),
    ]);
    vec![
        column(bytes),
        column(Arc::new(files().collect::<LargeBinaryArray>())),
        column(Arc::new(files().collect::<BinaryViewArray>())),
        column(Arc::new(media)),
    ]
}

/// Returns columns of numbers, among them NaN, infinity and negative zero.
fn number_columns(draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let numbers = optional(draws, |draws| draws.below(1 << 32) as i64 - (1 << 31));
    let all = |number: &dyn Fn(i64) -> f64| numbers.iter().map(|n| n.map(number)).collect::<Vec<_>>();
    let floats = all(&|n| match n % 7 {
        0 => f64::NAN,
        1 => f64::INFINITY,
        2 => -0.0,
        3 => -1.0,
        _ => n as f64 / 1e6,
    });
    vec![
        column(Arc::new(Float64Array::from(floats.clone()))),
        column(Arc::new(floats.iter().map(|n| n.map(|n| n as f32)).collect::<Float32Array>())),
        column(Arc::new(numbers.iter().map(|n| n.map(|n| n as i8)).collect::<Int8Array>())),
        column(Arc::new(numbers.iter().map(|n| n.map(|n| n as i32)).collect::<Int32Array>())),
        column(Arc::new(Int64Array::from(numbers.clone()))),
        column(Arc::new(numbers.iter().map(|n| n.map(|n| n as u8)).collect::<UInt8Array>())),
        column(Arc::new(numbers.iter().map(|n| n.map(|n| n as u32)).collect::<UInt32Array>())),
        column(Arc::new(numbers.iter().map(|n| n.map(|n| n as u64)).collect::<UInt64Array>())),
    ]
}

/// Returns columns of numbers, strings, binary values and booleans.
fn hashable_columns(draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let texts = optional(draws, |draws| "añ漢".repeat(draws.below(9) as usize));
    let bytes = optional(draws, |draws| draws.below(1 << 40).to_le_bytes());
    let flags = optional(draws, |draws| draws.below(2) == 1);
    let mut all = number_columns(draws);
    all.extend([
        column(Arc::new(texts.iter().map(Option::as_deref).collect::<StringArray>())),
        column(Arc::new(texts.iter().map(Option::as_deref).collect::<StringViewArray>())),
        column(Arc::new(bytes.iter().map(Option::as_ref).collect::<BinaryArray>())),
        column(Arc::new(BooleanArray::from(flags))),
    ]);
    all
}

/// Returns columns of lists of numbers, some with null values.
fn list_columns(draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let lists = optional(draws, |draws| {
        let len = draws.below(9);
        (0..len).map(|_| (draws.below(5) > 0).then(|| draws.below(100) as i32)).collect::<Vec<_>>()
    });
    let pairs = optional(draws, |draws| [Some(draws.below(100) as u8), None]);
    // Use few distinct numbers, so that some lists are similar.
    let alike = optional(draws, |draws| [(); 4].map(|()| (draws.below(9) > 0).then(|| draws.below(2) as u32)));
    let list: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
    // Every list can be cast to these types.
    let cast_to = |data_type| cast(&list, &data_type).unwrap_or_else(|_| Arc::clone(&list));
    vec![
        column(cast_to(DataType::new_large_list(DataType::Float32, true))),
        column(cast_to(DataType::new_list(DataType::Float64, true))),
        column(cast_to(DataType::new_list(DataType::UInt8, true))),
        column(Arc::new(FixedSizeListArray::from_iter_primitive::<UInt8Type, _, _>(pairs, 2))),
        column(Arc::new(FixedSizeListArray::from_iter_primitive::<UInt32Type, _, _>(alike, 4))),
        column(Arc::clone(&list)),
    ]
}

/// Returns lists whose lengths follow from their rows, so that two columns of them fit.
fn optional_lists<T>(draws: &mut Draws, mut value: impl FnMut(&mut Draws) -> T) -> Vec<Option<Vec<T>>> {
    let mut row = 0;
    optional(draws, |draws| draws.clone())
        .into_iter()
        .map(|is_some| {
            row += 1;
            is_some.map(|_| (0..row % 4).map(|_| value(draws)).collect())
        })
        .collect()
}

/// Returns lists of boxes or points, some null, some outside of images, some without an area.
fn groups(width: i32, draws: &mut Draws) -> (Field, ArrayRef) {
    let lists = optional_lists(draws, |draws| {
        let number = |draws: &mut Draws| match draws.below(30) {
            0 => f32::NAN,
            1 => f32::INFINITY,
            _ => draws.uniform_in(-10.0, 50.0) as f32,
        };
        (draws.below(9) > 0).then(|| (0..width).map(|_| number(draws)).collect::<Vec<_>>())
    });
    let item = Arc::new(Field::new_list_field(DataType::Float32, true));
    let mut builder = ListBuilder::new(FixedSizeListBuilder::new(Float32Builder::new(), width).with_field(item));
    for list in lists {
        for group in list.iter().flatten() {
            let numbers = builder.values().values();
            match group {
                Some(group) => numbers.append_slice(group),
                None => numbers.append_nulls(width as usize),
            }
            builder.values().append(group.is_some());
        }
        builder.append(list.is_some());
    }
    column(Arc::new(builder.finish()))
}

/// Returns an array as a nullable column.
fn column(array: ArrayRef) -> (Field, ArrayRef) {
    (Field::new("input", array.data_type().clone(), true), array)
}

/// Returns strings of up to eight of these parts.
fn texts(parts: &[&str], least: u64, draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let texts = optional(draws, |draws| {
        let count = least + draws.below(9 - least);
        (0..count).map(|_| parts[draws.below(parts.len() as u64) as usize]).collect::<String>()
    });
    let texts = || texts.iter().map(Option::as_deref);
    vec![
        column(Arc::new(texts().collect::<StringArray>())),
        column(Arc::new(texts().collect::<LargeStringArray>())),
        column(Arc::new(texts().collect::<StringViewArray>())),
    ]
}

fn optional<T>(draws: &mut Draws, mut value: impl FnMut(&mut Draws) -> T) -> Vec<Option<T>> {
    (0..ROWS).map(|_| (draws.below(5) > 0).then(|| value(draws))).collect()
}

fn nulls(draws: &mut Draws) -> Option<NullBuffer> {
    Some(NullBuffer::from_iter((0..ROWS).map(|_| draws.below(5) > 0)))
}

fn noise(draws: &mut Draws, len: usize) -> Vec<u8> {
    (0..len).map(|_| draws.below(256) as u8).collect()
}

fn side(draws: &mut Draws) -> usize {
    1 + draws.below(30) as usize
}

fn fixed_images(draws: &mut Draws) -> (Field, ArrayRef) {
    let (height, width) = (side(draws), side(draws));
    let pixels = noise(draws, ROWS * height * width * CHANNELS);
    let field = image_column::fixed_field("input", DataType::UInt8, height, width, true);
    let array = image_column::fixed_array::<UInt8Type>(pixels.into(), height, width, nulls(draws));
    match (field, array) {
        (Ok(field), Ok(array)) => (field, array),
        other => unreachable!("generated images are a tensor: {other:?}"),
    }
}

/// Returns the heights and the widths of images, which are null where the image is.
pub(super) fn sides(field: &Field, array: &ArrayRef) -> Result<[ArrayRef; 2], String> {
    let images = Images::try_new(field, array).map_err(|e| e.to_string())?;
    let sizes = (0..images.len()).map(|row| images.get(row).map(|image| image.map(|image| image.size())));
    let sizes = sizes.collect::<datafusion::common::Result<Vec<_>>>().map_err(|e| e.to_string())?;
    let side = |of: fn(Size) -> usize| -> ArrayRef {
        Arc::new(sizes.iter().map(|size| size.map(|size| of(size) as i32)).collect::<Int32Array>())
    };
    Ok([side(|size| size.height), side(|size| size.width)])
}

/// Returns tensors of floats, like those from `normalize`.
fn floats(draws: &mut Draws) -> (Field, ArrayRef) {
    let (height, width) = (side(draws), side(draws));
    let values: Vec<f32> =
        (0..ROWS * height * width * CHANNELS).map(|_| draws.uniform_in(-9.0, 300.0) as f32).collect();
    let field = image_column::fixed_field("input", DataType::Float32, height, width, true);
    let array = image_column::fixed_array::<Float32Type>(values.into(), height, width, nulls(draws));
    match (field, array) {
        (Ok(field), Ok(array)) => (field, array),
        other => unreachable!("generated tensors are tensors: {other:?}"),
    }
}

/// The product of `constant`'s list of numbers, so that the list is a shape of these tensors.
const TENSOR_LEN: usize = 3 * 5 * 8;

/// Returns tensors of one length and of all types, some without a declared shape.
fn fixed_tensors(draws: &mut Draws) -> Vec<(Field, ArrayRef)> {
    let numbers: Vec<i64> = (0..ROWS * TENSOR_LEN).map(|_| draws.below(1 << 40) as i64 - (1 << 39)).collect();
    let small: ArrayRef = Arc::new(numbers.iter().map(|n| *n as i8).collect::<Int8Array>());
    let numbers: ArrayRef = Arc::new(Int64Array::from(numbers));
    let wide = [DataType::Int64, DataType::Float32, DataType::Float64].map(|value| (value, Arc::clone(&numbers)));
    let narrow =
        [DataType::Int16, DataType::Int32, DataType::Float16, DataType::Int8].map(|value| (value, Arc::clone(&small)));
    let unsigned = [DataType::UInt8, DataType::UInt16, DataType::UInt32, DataType::UInt64].map(|value| {
        let numbers = numbers.as_primitive::<Int64Type>();
        let numbers: ArrayRef = Arc::new(numbers.unary::<_, Int64Type>(|n| n & 0xFF));
        (value, numbers)
    });
    let tensors = wide.into_iter().chain(narrow).chain(unsigned);
    let made = tensors.map(|(value, numbers)| {
        let shape = if value == DataType::Int32 { vec![TENSOR_LEN] } else { vec![5, TENSOR_LEN / 15, 3] };
        let tensor = FixedShapeTensor::new(value.clone(), shape);
        let values = cast(&numbers, &value).unwrap_or(numbers);
        let item = Arc::new(Field::new_list_field(value.clone(), false));
        let list = FixedSizeListArray::try_new(item, TENSOR_LEN as i32, values, nulls(draws));
        match (tensor.field("input", true), list) {
            // A fixed-size list without a shape is a tensor too.
            (Some(field), Ok(list)) if value == DataType::Int32 => {
                (field.with_metadata([].into()), Arc::new(list) as ArrayRef)
            }
            (Some(field), Ok(list)) => (field, Arc::new(list) as ArrayRef),
            other => unreachable!("generated tensors are tensors: {other:?}"),
        }
    });
    made.collect()
}

fn variable_images(draws: &mut Draws) -> (Field, ArrayRef) {
    let sizes: Vec<_> = (0..ROWS).map(|_| (side(draws), side(draws))).collect();
    let lengths: Vec<_> = sizes.iter().map(|(height, width)| height * width * CHANNELS).collect();
    let pixels = noise(draws, lengths.iter().sum());
    let shapes: Vec<_> = sizes.iter().flat_map(|(height, width)| [*height as i32, *width as i32, 3]).collect();
    let offsets = OffsetBuffer::from_lengths(lengths);
    match image_column::variable_array::<UInt8Type>(pixels.into(), offsets, shapes.into(), nulls(draws)) {
        Ok(array) => (image_column::variable_field("input", DataType::UInt8, true), array),
        Err(problem) => unreachable!("generated images are a tensor: {problem}"),
    }
}

/// Returns a small image file: a PNG of noise, or a fixed JPEG, since there is no encoder here.
fn file(draws: &mut Draws) -> Vec<u8> {
    const JPEG: &[u8] = include_bytes!("../../testdata/colour.jpg");
    if draws.below(3) == 0 {
        return JPEG.to_vec();
    }
    png_file(draws)
}

fn png_file(draws: &mut Draws) -> Vec<u8> {
    let (height, width) = (side(draws), side(draws));
    let mut file = vec![];
    let mut encoder = png::Encoder::new(&mut file, width as u32, height as u32);
    let (color, samples) = match draws.below(3) {
        0 => (png::ColorType::Grayscale, 1),
        1 => (png::ColorType::Rgba, 4),
        _ => (png::ColorType::Rgb, 3),
    };
    encoder.set_color(color);
    let pixels = noise(draws, height * width * samples);
    let written = encoder.write_header().and_then(|mut writer| writer.write_image_data(&pixels));
    debug_assert!(written.is_ok(), "writing to memory cannot fail");
    file
}

/// Returns one file per column, so that an error in one does not hide the others.
pub(super) fn damaged_files(draws: &mut Draws) -> (Field, ArrayRef) {
    let mut file = file(draws);
    match draws.below(3) {
        0 => file.truncate(draws.below(file.len() as u64) as usize),
        1 => {
            let len = draws.below(300) as usize;
            file.truncate(8);
            file.extend(noise(draws, len));
        }
        _ => {
            for _ in 0..1 + draws.below(8) {
                let at = draws.below(file.len() as u64) as usize;
                file[at] = draws.below(256) as u8;
            }
        }
    }
    let array = BinaryArray::from_iter_values(vec![file; ROWS]);
    (Field::new("input", DataType::Binary, true), Arc::new(array))
}

pub(super) fn lying_images(draws: &mut Draws) -> (Field, ArrayRef) {
    let lengths: Vec<_> = (0..ROWS).map(|_| draws.below(20) as usize).collect();
    let shapes: Vec<_> = (0..ROWS * 3)
        .map(|_| match draws.below(4) {
            0 => draws.below(1 << 32) as i32,
            _ => draws.below(4) as i32,
        })
        .collect();
    let pixels = noise(draws, lengths.iter().sum());
    match image_column::variable_array::<UInt8Type>(
        pixels.into(),
        OffsetBuffer::from_lengths(lengths),
        shapes.into(),
        None,
    ) {
        Ok(array) => (image_column::variable_field("input", DataType::UInt8, true), array),
        Err(problem) => unreachable!("the storage is sound, only the shapes lie: {problem}"),
    }
}
