//! Tests against torchvision, with the draws of the rows' keys: see golden/annotations.py.

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListBuilder, Float32Builder, ListBuilder};
use arrow::datatypes::Float32Type;
use datafusion::logical_expr::{Expr, lit};
use datafusion::prelude::col;
use serde_json::Value;

use crate::testing::{Column, column, fixed, golden, image, keyed, keys, select, sql, udf};

/// Makes a column of one list of groups, repeated.
fn repeated(name: &str, groups: &[Vec<f32>], rows: usize) -> Column {
    let width = groups[0].len() as i32;
    let mut builder = ListBuilder::new(FixedSizeListBuilder::new(Float32Builder::new(), width));
    for _ in 0..rows {
        for group in groups {
            builder.values().values().append_slice(group);
            builder.values().append(true);
        }
        builder.append(true);
    }
    column(name, builder.finish())
}

/// Returns the groups of each row.
fn groups(array: &ArrayRef) -> Vec<Vec<Vec<f32>>> {
    let row = |row: ArrayRef| {
        let groups = row.as_fixed_size_list();
        (0..groups.len()).map(|at| groups.value(at).as_primitive::<Float32Type>().values().to_vec()).collect()
    };
    (0..array.len()).map(|at| row(array.as_list::<i32>().value(at))).collect()
}

fn read(value: &Value) -> Vec<Vec<f32>> {
    let numbers = |group: &Value| group.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect();
    value.as_array().unwrap().iter().map(numbers).collect()
}

/// Moves the golden annotations of `kind`, and hands each result with torchvision's to `compare`.
fn each(case: &str, operator: &str, constants: &[Expr], kind: &str, compare: impl Fn(&[f32], &[f32], &str)) {
    let golden = golden("annotations");
    let expected = golden["cases"][case][kind].as_array().unwrap();
    let annotations = repeated("a", &read(&golden[kind]), expected.len());
    let mut arguments = vec![col("a"), lit(golden["height"].as_i64().unwrap()), lit(golden["width"].as_i64().unwrap())];
    arguments.extend_from_slice(constants);
    let name = format!("{operator}_{kind}");
    let is_random = name.starts_with("random");
    let call = if is_random { keyed(&name, arguments) } else { udf(&name).call(arguments) };
    let (_, got) = select(call, vec![annotations, keys(expected.len() as u64)]).unwrap();
    for (row, (got, expected)) in groups(&got).iter().zip(expected).enumerate() {
        let expected = read(expected);
        assert_eq!(got.len(), expected.len());
        for (at, (got, expected)) in got.iter().zip(&expected).enumerate() {
            compare(got, expected, &format!("{case}: {kind} {at} of row {row}: {got:?}, torchvision {expected:?}"));
        }
    }
}

fn check(case: &str, operator: &str, constants: &[Expr]) {
    let near = |got: &[f32], expected: &[f32]| got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 2e-3);
    each(case, operator, constants, "boxes", |got, expected, text| {
        let has_area = expected[2] - expected[0] > 1e-3 && expected[3] - expected[1] > 1e-3;
        assert!(if has_area { near(got, expected) } else { got == [0.0; 4] }, "{text}");
    });
    let golden = golden("annotations");
    let size = golden["cases"][case]["size"].as_array().unwrap();
    let [height, width] = [0, 1].map(|at| size[at].as_f64().unwrap() as f32);
    each(case, operator, constants, "points", |got, expected, text| {
        // At an edge, rounding decides.
        let within = |margin: f32| {
            let is_within = |x: f32, side: f32| (-margin..side + margin).contains(&x);
            is_within(expected[0], width) && is_within(expected[1], height)
        };
        let is_outside = got.iter().all(|x| x.is_nan());
        assert!(if is_outside { !within(-1e-3) } else { within(1e-3) && near(got, expected) }, "{text}");
    });
}

#[test]
fn movements_are_torchvisions() {
    let key = lit("view");
    check("resize", "resize", &[lit(20), lit(61)]);
    check("center_crop", "center_crop", &[lit(20), lit(30)]);
    check("center_crop_larger", "center_crop", &[lit(45), lit(30)]);
    let border = crate::constants::parse_literal("[1, 2, 5, 3]").unwrap();
    check("pad", "pad", &[lit(border)]);
    check("random_crop", "random_crop", &[lit(20), lit(30), key.clone()]);
    check("random_crop_padding", "random_crop", &[lit(37), lit(60), key.clone(), lit(4)]);
    check("random_resized_crop", "random_resized_crop", &[lit(32), lit(64), key.clone()]);
    check("random_hflip", "random_hflip", std::slice::from_ref(&key));
    check("random_vflip", "random_vflip", std::slice::from_ref(&key));
    check("random_rotate", "random_rotate", &[lit(30.0), key]);
}

/// Reads a mask: two digits for each pixel.
fn ids(text: &Value) -> Vec<u8> {
    let digits = text.as_str().unwrap().as_bytes().as_chunks::<2>().0;
    digits.iter().map(|digits| u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap()).collect()
}

/// Returns the pixels of an id of three bytes. 0 is black, which fills what a mask does not cover.
fn pixel(id: u8) -> [u8; 3] {
    if id == 0 { [0; 3] } else { [id, 255 - id, id / 2 + 1] }
}

/// Returns the golden mask, repeated.
fn mask(height: usize, width: usize, rows: usize) -> Column {
    let id = |y: usize, x: usize| (1 + (7 * x + 31 * y + x * y) % 250) as u8;
    let one: Vec<u8> = (0..height * width).flat_map(|at| pixel(id(at / width, at % width))).collect();
    fixed(height, width, one.repeat(rows))
}

#[test]
fn masks_are_torchvisions() {
    let golden = golden("annotations");
    let side = |name: &str| golden[name].as_u64().unwrap() as usize;
    let check = |case: &str, operator: &str, constants: &[Expr]| {
        let expected = golden["cases"][case]["masks"].as_array().unwrap();
        let arguments = [&[col("image")], constants].concat();
        let is_random = operator.starts_with("random");
        let call = if is_random { keyed(operator, arguments) } else { udf(operator).call(arguments) };
        let masks = mask(side("height"), side("width"), expected.len());
        let got = select(call, vec![masks, keys(expected.len() as u64)]).unwrap();
        for (row, expected) in expected.iter().enumerate() {
            let (height, width, pixels) = image(&got, row).unwrap();
            let size = golden["cases"][case]["size"].as_array().unwrap();
            assert_eq!([height, width].map(Value::from)[..], size[..], "{case}");
            let expected: Vec<u8> = ids(expected).into_iter().flat_map(pixel).collect();
            let differing = (0..expected.len()).find(|at| pixels[*at] != expected[*at]);
            let place = differing.map(|at| [at / 3 / width, at / 3 % width]);
            assert_eq!((pixels.len(), place), (expected.len(), None), "{case}: row {row} differs at y, x");
        }
    };
    let ranges = [lit(0.08), lit(1.0), lit(0.75), lit(4.0 / 3.0)];
    let sized = |height: i32, width: i32| [lit(height), lit(width)];
    check("resize", "resize", &[&sized(20, 61)[..], &[lit("nearest")]].concat());
    check("center_crop", "center_crop", &sized(20, 30));
    check("center_crop_larger", "center_crop", &sized(45, 30));
    let border = crate::constants::parse_literal("[1, 2, 5, 3]").unwrap();
    check("pad", "pad", &[lit(border)]);
    check("random_crop", "random_crop", &sized(20, 30));
    check("random_crop_padding", "random_crop", &[&sized(37, 60)[..], &[lit(4)]].concat());
    check("random_resized_crop", "random_resized_crop", &[&sized(32, 64)[..], &ranges, &[lit("nearest")]].concat());
    check("random_hflip", "random_hflip", &[]);
    check("random_vflip", "random_vflip", &[]);
    check("random_rotate", "random_rotate", &[lit(30.0)]);
}

#[test]
fn boxes_follow_a_crop_that_scales_first() {
    // The middle 2 x 2 of 10 x 10 becomes 4 x 4.
    let boxes = [vec![4.0, 4.0, 6.0, 6.0], vec![5.0, 4.5, 9.0, 5.0]];
    let (_, got) = sql("center_crop_boxes(a, 10, 10, 4, 4, 20)", vec![repeated("a", &boxes, 1)]).unwrap();
    assert_eq!(groups(&got)[0], [vec![0.0, 0.0, 4.0, 4.0], vec![2.0, 1.0, 4.0, 2.0]]);
}

#[test]
fn a_box_is_kept_while_enough_of_it_is_visible() {
    // The crop is the middle of 10 x 10: half of the first box is in it, all of the second, and a corner of the third.
    let boxes = [vec![0.0, 4.0, 6.0, 6.0], vec![4.0, 4.0, 6.0, 6.0], vec![0.0, 0.0, 4.0, 4.0]];
    let check = |min_visible: &str, expected: [[f32; 4]; 3]| {
        let call = format!("center_crop_boxes(a, 10, 10, 4, 4, 0, {min_visible})");
        let (_, got) = sql(&call, vec![repeated("a", &boxes, 1)]).unwrap();
        assert_eq!(groups(&got)[0], expected.map(Vec::from), "{min_visible}");
    };
    let (half, all, corner) = ([0.0, 1.0, 3.0, 3.0], [1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 1.0, 1.0]);
    check("0", [half, all, corner]);
    check("0.5", [half, all, [0.0; 4]]);
    check("0.51", [[0.0; 4], all, [0.0; 4]]);
    check("1.0", [[0.0; 4], all, [0.0; 4]]);
}

#[test]
fn boxes_that_are_none_become_empty() {
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let boxes = [
        vec![5.0, 5.0, 2.0, 9.0],
        vec![nan, 0.0, 5.0, 5.0],
        vec![20.0, 20.0, 30.0, 30.0],
        vec![-inf, -inf, inf, inf],
        vec![-5.0, 2.0, 5.0, 3.0],
    ];
    let (_, got) = sql("resize_boxes(a, 10, 10, 20, 10)", vec![repeated("a", &boxes, 1)]).unwrap();
    let empty = vec![0.0; 4];
    let expected = vec![empty.clone(), empty.clone(), empty, vec![0.0, 0.0, 10.0, 20.0], vec![0.0, 4.0, 5.0, 6.0]];
    assert_eq!(groups(&got)[0], expected);
    // An empty box stays empty, whatever follows.
    let (_, got) =
        sql("pad_boxes(resize_boxes(a, 10, 10, 20, 10), 20, 10, 3)", vec![repeated("a", &boxes, 1)]).unwrap();
    assert_eq!(groups(&got)[0][..3], vec![vec![0.0; 4]; 3]);
}

#[test]
fn points_with_a_visibility_lose_it_outside() {
    let points = [vec![1.0, 1.0, 2.0], vec![5.0, 5.0, 1.0], vec![5.0, 5.0, 0.0], vec![9.5, 5.0, 2.0]];
    let (_, got) = sql("center_crop_points(a, 10, 10, 4, 4)", vec![repeated("a", &points, 1)]).unwrap();
    assert_eq!(groups(&got)[0], [vec![0.0; 3], vec![2.0, 2.0, 1.0], vec![0.0; 3], vec![0.0; 3]]);
}

#[test]
fn labels_of_empty_boxes_go() {
    let boxes = [vec![0.0, 0.0, 4.0, 4.0], vec![0.0; 4], vec![0.0, 0.0, 4.0, 1.0]];
    let check = |min_size: &str, expected: &[i64]| {
        let call = format!("filter_by_boxes(make_array(7, 8, 9), a, {min_size})");
        let (_, got) = sql(&call, vec![repeated("a", &boxes, 1)]).unwrap();
        let got = got.as_list::<i32>().value(0);
        assert_eq!(got.as_primitive::<arrow::datatypes::Int64Type>().values(), expected);
    };
    check("0", &[7, 9]);
    check("1", &[7, 9]);
    check("1.5", &[7]);
    check("5", &[]);
    let problem = sql("filter_by_boxes(make_array(7, 8), a)", vec![repeated("a", &boxes, 1)]).unwrap_err();
    assert_eq!(problem, "filter_by_boxes: a row has 2 values for 3 boxes");
}

#[test]
fn formats_are_converted() {
    let boxes = [vec![10.0, 20.0, 13.0, 24.0]];
    let check = |from: &str, to: &str, given: [f32; 4], expected: [f32; 4]| {
        let call = format!("convert_boxes(a, '{from}', '{to}')");
        let (_, got) = sql(&call, vec![repeated("a", &[given.to_vec()], 1)]).unwrap();
        assert_eq!(groups(&got)[0][0], expected, "{call}");
    };
    let (xyxy, xywh, cxcywh) = ([10.0, 20.0, 13.0, 24.0], [10.0, 20.0, 3.0, 4.0], [11.5, 22.0, 3.0, 4.0]);
    for (from, given) in [("xyxy", xyxy), ("xywh", xywh), ("cxcywh", cxcywh)] {
        for (to, expected) in [("xyxy", xyxy), ("xywh", xywh), ("cxcywh", cxcywh)] {
            check(from, to, given, expected);
        }
    }
    let problem = sql("convert_boxes(a, 'voc')", vec![repeated("a", &boxes, 1)]).unwrap_err();
    assert_eq!(problem, "convert_boxes: \"from\" must be 'xyxy', 'xywh' or 'cxcywh', got \"voc\"");
}

#[test]
fn wrong_calls_are_refused() {
    let boxes = || vec![repeated("a", &[vec![0.0; 4]], 1)];
    let check = |call: &str, expected: &str| assert_eq!(sql(call, boxes()).unwrap_err(), expected);
    check(
        "random_hflip_boxes(a, 5, 5, '')",
        "random_hflip_boxes: \"key\" must be the key of the image's call, got \"\"",
    );
    check("resize_boxes(a, 0, 5, 4, 4)", "resize_boxes: no image has the size 0 x 5");
    check(
        "center_crop_boxes(a, 5, 5, 4, 4, 0, 1.5)",
        "center_crop_boxes: \"min_visible\" must be from 0 to 1, got 1.5",
    );
    check(
        "resize_points(a, 5, 5, 4, 4)",
        "resize_points: \"points\" must be a list of points, each a list of 2 numbers, or a fixed-size list of 2 or \
         3, got List(FixedSizeList(4 x Float32))",
    );
}
