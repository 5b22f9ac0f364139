//! The relaxed order of calls on images, if a feed asks for it (decision 69).
//!
//! Calls get their call sites before they move, so each draws what it draws in the written order. Only calls that stand
//! in one another move: nothing moves into a subquery, across a table operator, or across
//! [`KEEP_POSITION`].

use datafusion::common::DFSchema;
use datafusion::common::tree_node::{Transformed, TransformedResult, TreeNode, TreeNodeRecursion};
use datafusion::error::Result;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::{Expr, ExprSchemable};
use forebay_operators::KEEP_POSITION;
use forebay_operators::image_chain::{MovedCall, described, relaxed, sizing};

/// Reorders the calls of `expr`, over rows of `schema`, and describes each move.
pub(super) fn reordered(expr: Expr, schema: &DFSchema, moves: &mut Vec<String>) -> Result<Expr> {
    let reorder = |expr: Expr| {
        let (mut calls, mut sizings) = (Vec::new(), Vec::new());
        let mut input = expr.clone();
        while let Expr::ScalarFunction(call) = &input
            && let Some(sizing) = sizing(call)?
        {
            let Some(image) = call.args.first().cloned() else { break };
            sizings.push(sizing);
            calls.push(call.clone());
            input = image;
        }
        if calls.is_empty() {
            return Ok(Transformed::no(expr));
        }
        calls.reverse();
        sizings.reverse();
        let (_, field) = input.to_field(schema)?;
        let (order, moved) = relaxed(&sizings, &field);
        for text in moved.iter().map(|moved| explained(moved, &calls)) {
            // A query may have the same call for a row and for its partner.
            if !moves.contains(&text) {
                moves.push(text);
            }
        }
        let mut image = reordered(input, schema, moves)?;
        for at in order {
            let ScalarFunction { func, args } = &calls[at];
            let args = std::iter::once(image).chain(args.iter().skip(1).cloned()).collect();
            image = Expr::ScalarFunction(ScalarFunction::new_udf(func.clone(), args));
        }
        Ok(Transformed::new(image, true, TreeNodeRecursion::Jump))
    };
    expr.transform_down(reorder).data()
}

fn explained(moved: &MovedCall, calls: &[ScalarFunction]) -> String {
    let (first, last) = moved.frames;
    let frames = match first == last {
        true => described(&calls[first]),
        false => format!("{} to {}", described(&calls[first]), described(&calls[last])),
    };
    let (call, way) = (described(&calls[moved.call]), if moved.is_later { "before" } else { "after" });
    let pixels = moved.to.height * moved.to.width;
    match moved.from {
        Some(from) => {
            let times = (from.height * from.width) as f64 / pixels as f64;
            format!("{frames} moved {way} {call}, which then has {times:.1} times fewer pixels")
        }
        None => format!("{frames} moved {way} {call}, which then has {pixels} pixels"),
    }
}

/// Takes the calls of [`KEEP_POSITION`] out of an expression.
pub(super) fn without_marks(expr: Expr) -> Result<Expr> {
    let unmarked = expr.transform_up(|expr| match expr {
        Expr::ScalarFunction(mut call) if call.name() == KEEP_POSITION && call.args.len() == 1 => {
            Ok(Transformed::yes(call.args.remove(0)))
        }
        other => Ok(Transformed::no(other)),
    });
    unmarked.data()
}

#[cfg(test)]
mod tests {
    use datafusion::common::ScalarValue;
    use forebay_protocol::CallOrder;

    use crate::{Feed, FeedOptions, ReadOptions, Session, Start};

    async fn session(queries: &[(&str, &str)]) -> Session {
        let photos = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples");
        let session = Session::builder().threads(2).base(photos).build().unwrap();
        let table = "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos'";
        let pipelines = queries.iter().map(|(name, columns)| {
            format!("; CREATE PIPELINE {name} AS SELECT {columns} FROM (SELECT * FROM photos LIMIT 12)")
        });
        session.execute("test", &[table.to_owned()].into_iter().chain(pipelines).collect::<String>()).await.unwrap();
        session
    }

    fn relaxed() -> FeedOptions {
        FeedOptions { order: Some(CallOrder::Relaxed), ..FeedOptions::default() }
    }

    async fn samples(session: &Session, name: &str, options: &FeedOptions) -> Vec<ScalarValue> {
        let mut reader = session.open(name, options).unwrap().read(&ReadOptions::default()).unwrap();
        let mut samples = Vec::new();
        while let Some(batch) = reader.next().await {
            let records = batch.unwrap().records;
            let images = records.column(0);
            samples.extend((0..images.len()).map(|row| ScalarValue::try_from_array(images, row).unwrap()));
        }
        assert_eq!(samples.len(), 12);
        samples
    }

    const JITTER: &str = "brightness => 0.4, contrast => 0.4";

    #[tokio::test]
    async fn a_relaxed_feed_is_the_query_written_in_that_order() {
        let early = format!("color_jitter(resize(decode_image(bytes), 64, 64), {JITTER})");
        let decoded = format!("random_hflip(color_jitter(decode_image(bytes, fast => true), {JITTER}))");
        let session = session(&[
            ("written", &format!("normalize(random_crop({early}, 32, 32)) AS image")),
            (
                "by_hand",
                &format!(
                    "normalize(color_jitter(random_crop(resize(decode_image(bytes), 64, 64), 32, 32), {JITTER}))
                          AS image"
                ),
            ),
            ("fast", &format!("resize({decoded}, 32, 32) AS image")),
            (
                "fast_by_hand",
                &format!(
                    "random_hflip(color_jitter(resize(decode_image(bytes, fast => true), 32, 32), {JITTER}))
                          AS image"
                ),
            ),
            ("kept", &format!("random_crop(keep_position({early}), 32, 32) AS image")),
        ])
        .await;
        let exact = FeedOptions::default();
        for (written, by_hand) in [("written", "by_hand"), ("fast", "fast_by_hand")] {
            let [relaxed, by_hand] =
                [samples(&session, written, &relaxed()).await, samples(&session, by_hand, &exact).await];
            assert!(relaxed == by_hand, "{written}");
            assert!(relaxed != samples(&session, written, &exact).await, "{written}");
        }
        assert!(samples(&session, "kept", &relaxed()).await == samples(&session, "kept", &exact).await);
    }

    #[tokio::test]
    async fn a_relaxed_feed_is_another_feed() {
        let session = session(&[(
            "p",
            &format!("random_crop(color_jitter(resize(decode_image(bytes), 64, 64), {JITTER}), 32, 32) AS image"),
        )])
        .await;
        let exact = session.open("p", &FeedOptions::default()).unwrap();
        let feed = session.open("p", &relaxed()).unwrap();
        assert_ne!(exact.id(), feed.id());
        let explicit = FeedOptions { order: Some(CallOrder::Exact), ..FeedOptions::default() };
        assert_eq!(session.open("p", &explicit).unwrap().id(), exact.id());
        let token = exact.read(&ReadOptions::default()).unwrap().next().await.unwrap().unwrap().token;
        let resumed = ReadOptions { from: Start::Token(token), ..ReadOptions::default() };
        let refused = feed.read(&resumed).err().expect("the token is of another feed");
        assert!(refused.message().contains("token"), "{refused}");
        // A process that has only the spec opens the same feed.
        let spec = feed.spec();
        assert_eq!(spec.settings.order, CallOrder::Relaxed);
        assert!(!serde_json::to_string(&exact.spec().settings).unwrap().contains("order"));
        let elsewhere = Session::builder().threads(1).build().unwrap();
        let opened = elsewhere.open_spec(&spec, &feed).await.unwrap();
        assert_eq!(opened.id(), feed.id());
        let first = |feed: Feed| async move {
            feed.read(&ReadOptions::default()).unwrap().next().await.unwrap().unwrap().records
        };
        let same = first(feed).await;
        assert!(first(opened).await == same);
        assert!(first(exact).await != same);
    }

    #[tokio::test]
    async fn moves_are_explained() {
        let of = |columns: &'static str| async move {
            let session = session(&[("p", columns)]).await;
            session.open("p", &relaxed()).unwrap().shown_stage().moves().to_vec()
        };
        let check = async |columns: &'static str, expect: &[&str]| assert_eq!(of(columns).await, expect, "{columns}");
        check(
            "center_crop(posterize(resize(decode_image(bytes), 64, 64)), 32, 16) AS image",
            &["center_crop(32, 16) moved before posterize(), which then has 8.0 times fewer pixels"],
        )
        .await;
        check(
            "center_crop(resize(random_hflip(decode_image(bytes), p => 0.2), 64, 64), 32, 32) AS image",
            &["resize(64, 64) to center_crop(32, 32) moved before random_hflip(0.2), which then has 1024 pixels"],
        )
        .await;
        check(
            "solarize(resize(center_crop(decode_image(bytes), 32, 32), 64, 64), 100) AS image",
            &["resize(64, 64) moved after solarize(100), which then has 4.0 times fewer pixels"],
        )
        .await;
        check("resize(keep_position(posterize(decode_image(bytes))), 32, 32) AS image", &[]).await;
        check("resize(random_hflip(decode_image(bytes), key => 'a'), 32, 32) AS image", &[]).await;
        check("resize(pad(posterize(decode_image(bytes)), 4), 32, 32) AS image", &[]).await;
        check("posterize(resize(decode_image(bytes), 32, 32)) AS image", &[]).await;
        // Within the call that is kept from moving, calls move.
        check(
            "keep_position(resize(posterize(decode_image(bytes)), 32, 32)) AS image",
            &["resize(32, 32) moved before posterize(), which then has 1024 pixels"],
        )
        .await;
    }
}
