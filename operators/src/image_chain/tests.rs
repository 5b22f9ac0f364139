//! Tests that a chain gives the same results and errors as its calls one after the other.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, RecordBatch};
use arrow::datatypes::{Schema, UInt8Type};
use datafusion::common::DFSchema;
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{ColumnarValue, Expr, lit};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::prelude::col;

use super::fuse;
use crate::call_cost::CallCosts;
use crate::keyed::Draws;
use crate::measured::measured;
use crate::testing::{Column, column, decoded, file, fixed, keyed_at, keys, noise, udf};

const FILES: [&str; 14] = [
    "colour.jpg",
    "colour444.jpg",
    "progressive.jpg",
    "restart.jpg",
    "grey.jpg",
    "cmyk.jpg",
    "tilted2.jpg",
    "tilted5.jpg",
    "tilted6.jpg",
    "tilted8.jpg",
    "palette.png",
    "tilted5.png",
    "lossy.webp",
    "photo.jpg",
];

/// Draws any operator that is a step on images, with constants that suit small images.
fn step(draws: &mut Draws, image: Expr) -> Expr {
    let side = |draws: &mut Draws| lit(1 + draws.below(24) as i64);
    let site = draws.below(1 << 40);
    let keyed = |name: &str, args: Vec<Expr>| keyed_at(site, name, args);
    match draws.below(12) {
        0 => {
            let interpolation = ["nearest", "bilinear", "bicubic", "area", "lanczos"][draws.below(5) as usize];
            let antialias = lit(draws.below(2) == 0);
            udf("resize").call(vec![image, side(draws), side(draws), lit(interpolation), antialias])
        }
        1 => udf("center_crop").call(vec![image, side(draws), side(draws)]),
        2 => keyed("random_crop", vec![image, side(draws), side(draws), lit(draws.below(3) as i64)]),
        3 => {
            let [low, high] = [0.1, 1.0].map(lit);
            keyed(
                "random_resized_crop",
                vec![image, side(draws), side(draws), low, high, lit(0.5), lit(2.0), lit("area"), lit(true)],
            )
        }
        4 => keyed("random_hflip", vec![image, lit(0.5)]),
        5 => keyed("random_vflip", vec![image, lit(0.5)]),
        6 => keyed("random_grayscale", vec![image, lit(0.5)]),
        7 => udf("posterize").call(vec![image, lit(3i64)]),
        8 => udf("solarize").call(vec![image, lit([0.0, 100.0][draws.below(2) as usize])]),
        9 => udf("equalize").call(vec![image]),
        10 => {
            keyed("color_jitter", vec![image, lit(0.4), lit([0.0, 0.4][draws.below(2) as usize]), lit(0.4), lit(0.1)])
        }
        _ => udf("auto_contrast").call(vec![image]),
    }
}

struct Plan {
    batch: RecordBatch,
    schema: DFSchema,
}

impl Plan {
    fn new(columns: Vec<Column>) -> Self {
        let (fields, arrays): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
        let schema = Arc::new(Schema::new(fields));
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays).unwrap();
        Self { batch, schema: DFSchema::try_from(schema).unwrap() }
    }

    fn physical(&self, expr: &Expr) -> Arc<dyn PhysicalExpr> {
        let context = PhysicalPlanningContext::default();
        create_physical_expr(expr, &self.schema, &ExecutionProps::new(), &context).unwrap()
    }

    fn fused(&self, expr: &Expr) -> Arc<dyn PhysicalExpr> {
        fuse(self.physical(expr), self.batch.schema_ref()).unwrap()
    }

    fn run(&self, expr: &Arc<dyn PhysicalExpr>) -> Result<ArrayRef, String> {
        match expr.evaluate(&self.batch) {
            Ok(ColumnarValue::Array(array)) => Ok(array),
            Ok(ColumnarValue::Scalar(_)) => unreachable!("the rows differ"),
            Err(error) => Err(error.strip_backtrace()),
        }
    }
}

fn files(names: &[&str]) -> Column {
    column("bytes", BinaryArray::from_iter(names.iter().map(|name| Some(file(name))).chain([None])))
}

#[test]
fn a_chain_gives_what_its_calls_give() {
    let mut draws = Draws::new(29, 0);
    let from_files = Plan::new(vec![files(&FILES), keys(FILES.len() as u64 + 1)]);
    let variable = Plan::new(vec![decoded(&["colour.jpg", "palette.png", "tilted6.jpg"]), keys(3)]);
    let fixed = Plan::new(vec![noise(), keys(1)]);
    for round in 0..150 {
        let (plan, mut expr) = match round % 3 {
            0 => (&from_files, udf("decode_image").call(vec![col("bytes")])),
            1 => (&variable, step(&mut draws, col("image"))),
            _ => (&fixed, step(&mut draws, col("image"))),
        };
        for _ in 0..1 + draws.below(4) {
            expr = step(&mut draws, expr);
        }
        if draws.below(2) == 0 {
            expr = udf("normalize").call(vec![expr]);
        }
        let fused = plan.fused(&expr);
        assert!(fused.to_string().starts_with("image_chain["), "seed 29, round {round}: {fused}");
        let (got, expect) = (plan.run(&fused).unwrap(), plan.run(&plan.physical(&expr)).unwrap());
        assert_eq!(fused.data_type(plan.batch.schema_ref()).unwrap(), *got.data_type());
        assert!(got.as_ref() == expect.as_ref(), "seed 29, round {round}: {fused}");
    }
}

/// Draws an operator, mostly one whose pixels follow from a region of its input, with constants for images of some 30
/// pixels.
fn narrow_step(draws: &mut Draws, image: Expr) -> Expr {
    let side = |draws: &mut Draws| lit(8 + draws.below(40) as i64);
    let interpolation = lit(["nearest", "bilinear", "bicubic", "area", "lanczos"][draws.below(5) as usize]);
    let antialias = lit(draws.below(2) == 0);
    let site = draws.below(1 << 40);
    let keyed = |name: &str, args: Vec<Expr>| keyed_at(site, name, args);
    match draws.below(10) {
        0 => udf("resize").call(vec![image, side(draws), side(draws), interpolation, antialias]),
        1 => {
            let range = [0.2, 1.0, 0.5, 2.0].map(lit);
            keyed(
                "random_resized_crop",
                [&[image, side(draws), side(draws)][..], &range, &[interpolation, antialias]].concat(),
            )
        }
        2 => {
            let interpolation = lit(["nearest", "bilinear", "lanczos"][draws.below(3) as usize]);
            let shorter = lit(16 + draws.below(40) as i64);
            udf("center_crop").call(vec![image, lit(16i64), lit(12i64), shorter, interpolation, antialias])
        }
        3 => keyed("random_hflip", vec![image, lit(0.5)]),
        4 => keyed("random_vflip", vec![image, lit(0.5)]),
        5 => keyed("random_grayscale", vec![image, lit(0.5)]),
        6 => udf("solarize").call(vec![image, lit(0.0)]),
        7 => keyed("color_jitter", vec![image, lit(0.4), lit(0.0), lit(0.4), lit(0.1)]),
        8 => udf("equalize").call(vec![image]),
        _ => udf("center_crop").call(vec![image, side(draws), side(draws)]),
    }
}

#[test]
fn a_late_crop_gives_what_its_calls_give() {
    let mut draws = Draws::new(53, 0);
    let pixels: Vec<u8> = (0..37 * 41 * 3).map(|at: u64| Draws::new(at, 1).below(256) as u8).collect();
    let fixed = Plan::new(vec![fixed(37, 41, pixels), keys(1)]);
    let from_files = Plan::new(vec![files(&FILES), keys(FILES.len() as u64 + 1)]);
    for round in 0..300 {
        let (plan, mut expr) = match round % 2 {
            0 => (&from_files, udf("decode_image").call(vec![col("bytes")])),
            _ => (&fixed, narrow_step(&mut draws, col("image"))),
        };
        for _ in 0..1 + draws.below(5) {
            expr = narrow_step(&mut draws, expr);
        }
        let side = |draws: &mut Draws| lit(1 + draws.below(12) as i64);
        let (height, width) = (side(&mut draws), side(&mut draws));
        // With padding, a crop may lie beside the image.
        let padding = lit([0, 0, 20, 50][draws.below(4) as usize] as i64);
        expr = keyed_at(draws.below(1 << 40), "random_crop", vec![expr, height, width, padding]);
        let fused = plan.fused(&expr);
        assert!(fused.to_string().starts_with("image_chain["), "seed 53, round {round}: {fused}");
        let (got, expect) = (plan.run(&fused).unwrap(), plan.run(&plan.physical(&expr)).unwrap());
        assert!(got.as_ref() == expect.as_ref(), "seed 53, round {round}: {fused}");
    }
}

#[test]
fn fast_decoding_of_a_region_is_that_of_the_picture() {
    let plan = Plan::new(vec![files(&["photo.jpg"]), keys(2)]);
    let resized = |call: &dyn Fn(Expr) -> Expr| call(udf("decode_image").call(vec![col("bytes"), lit(true)]));
    let mut draws = Draws::new(59, 0);
    for round in 0..40 {
        let side = lit([30, 60, 75][draws.below(3) as usize] as i64);
        let interpolation = lit(["bilinear", "bicubic", "lanczos"][draws.below(3) as usize]);
        let resize =
            |image| udf("resize").call(vec![image, side.clone(), side.clone(), interpolation.clone(), lit(true)]);
        let site = draws.below(1 << 40);
        let crop = |image| keyed_at(site, "random_crop", vec![image, lit(7i64), lit(9i64), lit(0i64)]);
        let narrow = resized(&|image| crop(resize(image)));
        // `posterize` keeps all bits, and makes it a chain of the whole picture.
        let whole = plan.fused(&resized(&|image| udf("posterize").call(vec![resize(image), lit(8i64)])));
        let field = whole.return_field(plan.batch.schema_ref()).unwrap();
        let picture = (field.as_ref().clone().with_name("image"), plan.run(&whole).unwrap());
        let cropped = Plan::new(vec![picture, keys(2)]);
        let expect = cropped.run(&cropped.physical(&crop(col("image")))).unwrap();
        assert!(plan.run(&plan.fused(&narrow)).unwrap().as_ref() == expect.as_ref(), "seed 59, round {round}");
    }
}

#[test]
fn each_call_of_a_chain_counts_what_it_costs() {
    let plan = Plan::new(vec![files(&["photo.jpg", "colour.jpg"]), keys(3)]);
    let mut expr = udf("decode_image").call(vec![col("bytes")]);
    expr = udf("equalize").call(vec![udf("resize").call(vec![expr, lit(12), lit(10)])]);
    expr = udf("normalize").call(vec![udf("center_crop").call(vec![expr, lit(4), lit(6)])]);
    let expr = udf("to_chw").call(vec![expr]);
    let mut costs = Vec::new();
    let measured = measured(plan.fused(&expr), plan.batch.schema_ref(), &mut costs).unwrap();
    for _ in 0..2 {
        assert!(plan.run(&measured).unwrap().as_ref() == plan.run(&plan.physical(&expr)).unwrap().as_ref());
    }
    let costs: Vec<CallCosts> = costs.iter().map(|cost| cost.costs()).collect();
    let names: Vec<&str> = costs.iter().map(|cost| cost.name.as_str()).collect();
    assert_eq!(names, ["decode_image", "resize", "equalize", "center_crop", "normalize", "to_chw"]);
    let file_bytes: usize = ["photo.jpg", "colour.jpg"].iter().map(|name| file(name).len()).sum();
    assert_eq!(costs[0].bytes_in, 2 * file_bytes as u64);
    assert_eq!(costs[0].bytes_out, costs[1].bytes_in);
    let small = [(1, 360), (2, 360), (3, 72), (4, 288)];
    // Two pictures, twice. The null picture is only seen by the function after the chain.
    small.iter().for_each(|&(at, bytes)| assert_eq!((costs[at].rows, costs[at].bytes_out), (4, 4 * bytes)));
    assert_eq!((costs[5].rows, costs[5].call.as_str()), (6, "to_chw()"));
    assert!(costs.iter().all(|cost| cost.seconds > 0.0), "{costs:?}");
    assert!(costs[1].call.starts_with("resize(12, 10"), "{costs:?}");
}

#[test]
fn damaged_files_are_the_same_errors_whatever_part_is_looked_at() {
    let mut draws = Draws::new(31, 0);
    for name in FILES {
        let whole = file(name);
        for _ in 0..60 {
            let mut bytes = whole.clone();
            match draws.below(4) {
                0 => bytes.truncate(draws.below(bytes.len() as u64) as usize),
                _ => {
                    let at = draws.below(bytes.len() as u64) as usize;
                    bytes[at] = draws.below(256) as u8;
                }
            }
            let plan = Plan::new(vec![column("bytes", BinaryArray::from_iter_values([bytes])), keys(1)]);
            let decoded = udf("decode_image").call(vec![col("bytes")]);
            let crop = udf("center_crop").call(vec![decoded, lit(5), lit(7)]);
            assert_eq!(plan.run(&plan.fused(&crop)), plan.run(&plan.physical(&crop)), "seed 31, {name}");
        }
    }
}

#[test]
fn what_is_no_chain_stays_as_it_is() {
    let plan = Plan::new(vec![files(&["colour.jpg"]), keys(2)]);
    let decoded = || udf("decode_image").call(vec![col("bytes")]);
    let shown = |expr: Expr| plan.fused(&expr).to_string();
    assert!(shown(decoded()).starts_with("decode_image("), "one call");
    let normalized = udf("normalize").call(vec![udf("resize").call(vec![decoded(), lit(4), lit(5)])]);
    let expect = "image_chain[decode_image() > resize(4, 5) > normalize()](bytes@0)";
    assert_eq!(shown(normalized.clone()), expect);
    assert!(shown(udf("cast_tensor").call(vec![normalized, lit("float16")])).contains(expect), "within other calls");
}

/// Checks the bound that `decode_image`'s description states, over the sample photographs, at the smallest reductions
/// (a half or a quarter) and at the largest.
#[test]
fn fast_decoding_is_near_to_exact() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/photos");
    let classes = std::fs::read_dir(folder).unwrap().map(|class| class.unwrap().path());
    let photos = classes.filter(|path| path.is_dir()).flat_map(|class| std::fs::read_dir(class).unwrap());
    let mut photos: Vec<_> = photos.map(|photo| photo.unwrap().path()).collect();
    photos.sort();
    let bytes = photos.iter().step_by(6).map(|photo| std::fs::read(photo).unwrap());
    let plan = Plan::new(vec![column("bytes", BinaryArray::from_iter_values(bytes))]);
    let (mut worst_mean, mut worst) = (0.0_f64, 0);
    for side in [60, 58, 30, 15, 4] {
        for interpolation in ["bilinear", "bicubic", "lanczos"] {
            let resized = |fast: bool| {
                let decoded = udf("decode_image").call(vec![col("bytes"), lit(fast)]);
                let call = udf("resize").call(vec![decoded, lit(side), lit(side), lit(interpolation), lit(true)]);
                let images = plan.run(&plan.fused(&call)).unwrap();
                images.as_fixed_size_list().values().as_primitive::<UInt8Type>().values().to_vec()
            };
            let (fast, exact) = (resized(true), resized(false));
            assert_ne!(fast, exact, "a smaller picture was decoded");
            for (fast, exact) in
                fast.chunks(side as usize * side as usize * 3).zip(exact.chunks(side as usize * side as usize * 3))
            {
                let apart: Vec<u8> = fast.iter().zip(exact).map(|(fast, exact)| fast.abs_diff(*exact)).collect();
                let mean = apart.iter().map(|apart| f64::from(*apart)).sum::<f64>() / apart.len() as f64;
                worst_mean = worst_mean.max(mean);
                worst = worst.max(*apart.iter().max().unwrap());
            }
        }
    }
    assert!(worst_mean < 2.0 && worst <= 24, "{worst_mean} on average, {worst} at a value");
}

#[test]
fn fast_decoding_changes_nothing_where_little_is_shrunk() {
    let plan = Plan::new(vec![files(&FILES)]);
    let call = |fast: bool, last: &dyn Fn(Expr) -> Expr| {
        plan.run(&plan.fused(&last(udf("decode_image").call(vec![col("bytes"), lit(fast)])))).unwrap()
    };
    let side = |n: i64| lit(n);
    for last in [
        &(|image| udf("resize").call(vec![image, side(400), side(400)])) as &dyn Fn(Expr) -> Expr,
        &|image| udf("resize").call(vec![image, side(4), side(4), lit("bilinear"), lit(false)]),
        &|image| udf("resize").call(vec![image, side(4), side(4), lit("area")]),
        &|image| udf("center_crop").call(vec![image, side(4), side(4)]),
    ] {
        assert!(call(true, last).as_ref() == call(false, last).as_ref());
    }
}
