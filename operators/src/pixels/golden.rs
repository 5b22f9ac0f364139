//! Tests of the augmentations against torchvision, with the draws of the rows' keys: see golden/augment.py.

use datafusion::logical_expr::{Expr, lit};
use datafusion::prelude::col;

use crate::testing::{Column, decoded, fixed, image, keyed, keys, noise, select};

/// Returns the difference in levels of each value of each row.
fn differences(case: &str, operator: &str, constants: &[Expr]) -> Vec<u8> {
    let mut all = vec![];
    for (name, source, rows) in [("noise", noise(), 48), ("colour", decoded(&["colour.jpg.png"]), 3)] {
        let (height, width, pixels) = image(&source, 0).unwrap();
        let images: Column = fixed(height, width, pixels.repeat(rows));
        let mut arguments = vec![col("image")];
        arguments.extend_from_slice(constants);
        let got = select(keyed(operator, arguments), vec![images, keys(rows as u64)]).unwrap();
        let got: Vec<u8> = (0..rows).flat_map(|row| image(&got, row).unwrap().2).collect();
        let (_, _, expect) = image(&decoded(&[&format!("../golden/images/{name}_{case}.png")]), 0).unwrap();
        assert_eq!(got.len(), expect.len());
        let differences: Vec<u8> = got.iter().zip(&expect).map(|(a, b)| a.abs_diff(*b)).collect();
        all.extend(differences);
    }
    all
}

fn check(case: &str, operator: &str, constants: &[Expr], tolerance: u8) {
    let differences = differences(case, operator, constants);
    let worse = differences.iter().filter(|d| **d > tolerance).count();
    let worst = differences.iter().max().unwrap();
    assert!(worse == 0, "{case}: {worse} of {} values differ by up to {worst}", differences.len());
}

#[test]
fn jitters_are_torchvisions() {
    let one = |at: usize, range: f64| [0, 1, 2, 3].map(|i| lit(if i == at { range } else { 0.0 }));
    check("brightness", "color_jitter", &one(0, 0.9), 0);
    check("contrast", "color_jitter", &one(1, 0.9), 1);
    check("saturation", "color_jitter", &one(2, 0.9), 1);
    check("hue", "color_jitter", &one(3, 0.5), 1);
    // Later changes may turn a difference of one level in an early change into several.
    check("jitter", "color_jitter", &[0.4, 0.4, 0.4, 0.1].map(lit), 3);
}

#[test]
fn blurs_are_torchvisions() {
    check("blur", "gaussian_blur", &[lit(7), lit(0.1), lit(3.0)], 1);
}

#[test]
fn erased_parts_are_torchvisions() {
    let value = crate::constants::parse_literal("[7, 8, 9]").unwrap();
    check("erasing", "random_erasing", &[lit(0.8), lit(0.02), lit(0.33), lit(0.3), lit(3.3), lit(value)], 0);
}

#[test]
fn rotations_are_torchvisions() {
    let black = lit(crate::constants::parse_literal("[0, 0, 0]").unwrap());
    check("rotate", "random_rotate", &[lit(180), lit("nearest"), black.clone()], 0);
    check("rotate_bilinear", "random_rotate", &[lit(180), lit("bilinear"), black], 1);
}

#[test]
fn policies_are_torchvisions() {
    check("rand1", "rand_augment", &[lit(1), lit(21), lit(31)], 1);
    check("trivial", "trivial_augment", &[lit(31)], 1);
    // A histogram may move a difference of one level in the first operation to any value.
    let differences = differences("rand2", "rand_augment", &[lit(2), lit(9), lit(31)]);
    let worse = differences.iter().filter(|d| **d > 1).count();
    assert!(worse * 50 < differences.len(), "{worse} of {} values differ by more than 1", differences.len());
}
