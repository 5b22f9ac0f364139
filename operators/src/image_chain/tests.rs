//! A chain gives what its calls give one after the other, errors included.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, BinaryArray, RecordBatch};
use arrow::datatypes::Schema;
use datafusion::common::DFSchema;
use datafusion::execution::context::ExecutionProps;
use datafusion::logical_expr::physical_planning_context::PhysicalPlanningContext;
use datafusion::logical_expr::{ColumnarValue, Expr, lit};
use datafusion::physical_expr::{PhysicalExpr, create_physical_expr};
use datafusion::prelude::col;

use super::fuse;
use crate::keyed::Draws;
use crate::testing::{Column, column, decoded, file, keys, noise, udf};

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

/// Every operator that is a step of an image, with constants that suit small images.
fn step(draws: &mut Draws, image: Expr) -> Expr {
    let side = |draws: &mut Draws| lit(1 + draws.below(24) as i64);
    let site = lit(draws.below(1 << 40));
    let keyed = |name: &str, mut args: Vec<Expr>| {
        args.extend([col("key"), site.clone()]);
        udf(name).call(args)
    };
    match draws.below(11) {
        0 => udf("resize").call(vec![image, side(draws), side(draws)]),
        1 => udf("center_crop").call(vec![image, side(draws), side(draws)]),
        2 => keyed("random_crop", vec![image, side(draws), side(draws), lit(draws.below(3) as i64)]),
        3 => {
            let [low, high] = [0.1, 1.0].map(lit);
            keyed("random_resized_crop", vec![image, side(draws), side(draws), low, high, lit(0.5), lit(2.0)])
        }
        4 => keyed("random_hflip", vec![image, lit(0.5)]),
        5 => keyed("random_vflip", vec![image, lit(0.5)]),
        6 => keyed("random_grayscale", vec![image, lit(0.5)]),
        7 => udf("posterize").call(vec![image, lit(3i64)]),
        8 => udf("solarize").call(vec![image, lit([0.0, 100.0][draws.below(2) as usize])]),
        9 => udf("equalize").call(vec![image]),
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
