//! Window operators: `mixup`, `cutmix`, `drop_near_duplicates`, `repeat_rows`, `pair_rows`, `sample_negatives`; and
//! rows whose calls draw by keys.

use std::collections::{BTreeMap, BTreeSet};

use arrow::array::{Array, AsArray};
use arrow::datatypes::{DataType, Float32Type, UInt8Type};
use forebay_engine::{FeedOptions, ReadOptions};

use crate::rows::{integers, is_a_feed, open, read, session};
use crate::support::{Folder, repository};

const PHOTOS: usize = 24;

/// Writes a folder of photographs and a pipeline `train`. In its SQL `ROWS` stands for a subquery of random crops.
fn photos(sql: &str) -> (Folder, String) {
    let folder = Folder::new();
    let mut files: Vec<_> = ["cat", "rocket"]
        .iter()
        .flat_map(|class| std::fs::read_dir(repository().join("examples/photos").join(class)).expect("photographs"))
        .map(|file| file.expect("a file").path())
        .collect();
    files.sort();
    for (index, file) in files.iter().step_by(files.len() / PHOTOS).take(PHOTOS).enumerate() {
        folder.write(&format!("photos/{index:03}.jpg"), std::fs::read(file).expect("a photograph"));
    }
    let rows = "(SELECT random_resized_crop(decode_image(bytes), height => 12, width => 16) AS image,
                     CAST(substr(path, 1, 3) AS BIGINT) AS label, label AS class, path FROM photos)";
    let script = folder.script(&format!(
        "CREATE EXTERNAL TABLE photos STORED AS MEDIA LOCATION 'photos';
         CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 10, epochs = 2, batch_size = 3) AS {}",
        sql.replace("ROWS", rows)
    ));
    (folder, script)
}

/// Returns each epoch's images by label, from a pipeline that mixes nothing.
async fn plain() -> [BTreeMap<i64, Vec<u8>>; 2] {
    let (folder, script) = photos("SELECT image, label FROM ROWS AS photos;");
    let mut plain = [BTreeMap::new(), BTreeMap::new()];
    for batch in read(&open(&folder, &script, &FeedOptions::default()).await, &ReadOptions::default()).await {
        for (row, label) in integers(&batch.records, "label").into_iter().enumerate() {
            let image = batch.records["image"].as_fixed_size_list().value(row);
            plain[batch.epoch as usize].insert(label, image.as_primitive::<UInt8Type>().values().to_vec());
        }
    }
    plain
}

#[tokio::test]
async fn rows_are_mixed_with_another_of_their_window_as_it_is_in_that_epoch() {
    let plain = plain().await;
    for operator in ["mixup", "cutmix"] {
        let (folder, script) =
            photos(&format!("SELECT image, label, path FROM {operator}(ROWS, num_classes => {PHOTOS}, alpha => 0.8);"));
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        assert_eq!(feed.samples_per_epoch(), Some(PHOTOS as u64));
        let (mut partners, mut pairs) = ([BTreeSet::new(), BTreeSet::new()], [BTreeSet::new(), BTreeSet::new()]);
        let mut mixed_rows = 0;
        for batch in read(&feed, &ReadOptions::default()).await {
            let (images, labels) =
                (batch.records["image"].as_fixed_size_list(), batch.records["label"].as_fixed_size_list());
            assert_eq!(labels.value_type(), DataType::Float32);
            let paths = batch.records["path"].as_string::<i32>();
            for row in 0..images.len() {
                let own: i64 = paths.value(row)[..3].parse().expect("a number");
                let weights = labels.value(row).as_primitive::<Float32Type>().values().to_vec();
                let others = weights.iter().enumerate().filter(|(at, weight)| **weight > 0.0 && *at as i64 != own);
                let others: Vec<(usize, f32)> = others.map(|(at, weight)| (at, *weight)).collect();
                let share = weights[own as usize];
                assert!(others.len() <= 1 && (weights.iter().sum::<f32>() - 1.0).abs() < 1e-5, "{weights:?}");
                let image = images.value(row).as_primitive::<UInt8Type>().values().to_vec();
                let plain = &plain[batch.epoch as usize];
                let Some(&(partner, _)) = others.first() else {
                    assert_eq!(image, plain[&own], "a row that is not mixed does not change");
                    continue;
                };
                mixed_rows += 1;
                let partner = partner as i64;
                partners[batch.epoch as usize].insert(partner);
                pairs[batch.epoch as usize].insert((own, partner));
                let mut pasted = 0;
                for ((mixed, own), partner) in image.iter().zip(&plain[&own]).zip(&plain[&partner]) {
                    if operator == "mixup" {
                        let expected = f32::from(*own) * share + f32::from(*partner) * (1.0 - share);
                        assert!((f32::from(*mixed) - expected).abs() < 0.501, "{mixed} is not {expected}");
                    } else {
                        assert!(mixed == own || mixed == partner);
                        pasted += usize::from(mixed != own);
                    }
                }
                if operator == "cutmix" {
                    // Where both images are equal, the pasted box is invisible.
                    let at_most = (1.0 - share) * image.len() as f32;
                    assert!(pasted as f32 <= at_most + 0.5, "{pasted} values of {at_most} were pasted");
                }
            }
        }
        assert!(mixed_rows > PHOTOS, "{mixed_rows} rows were mixed");
        let count: usize = pairs.iter().map(BTreeSet::len).sum();
        assert_eq!(partners.iter().map(BTreeSet::len).sum::<usize>(), count, "each row is a partner once");
        assert_ne!(pairs[0], pairs[1]);
        is_a_feed(&folder, &script).await;
    }
}

#[tokio::test]
async fn what_is_not_asked_for_is_not_made_and_columns_keep_their_names() {
    let (folder, script) = photos("SELECT m.label, class FROM mixup(ROWS, num_classes => 99, p => 0.5) AS m;");
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let names: Vec<_> = feed.schema().fields().iter().map(|field| field.name().clone()).collect();
    assert_eq!(names, ["label", "class"]);
    let mut whole = 0;
    for batch in read(&feed, &ReadOptions::default()).await {
        let labels = batch.records["label"].as_fixed_size_list();
        for row in 0..labels.len() {
            whole += labels.value(row).as_primitive::<Float32Type>().values().contains(&1.0) as usize;
        }
    }
    assert!((PHOTOS / 2..PHOTOS * 3 / 2).contains(&whole), "half of {} rows are not mixed: {whole}", 2 * PHOTOS);
}

/// Writes texts of 40 words. Each third row has a near copy, with one word changed, 7 rows later.
fn texts(rows: i64) -> Folder {
    let folder = Folder::new();
    for start in (0..rows).step_by(30) {
        let mut lines = String::new();
        for id in start..start + 30 {
            let (of, first) = if is_copy(id) { (id - 7, "copy") } else { (id, "word") };
            let words: String = (1..40).map(|at| format!(" {}", ((of + 1) * (7919 + at)) % 1000)).collect();
            lines += &format!("{{\"id\": {id}, \"text\": \"{first}{words}\"}}\n");
        }
        folder.write(&format!("texts/{start:04}.jsonl"), lines);
    }
    folder
}

#[tokio::test]
async fn of_near_duplicates_in_a_window_the_first_stays() {
    let folder = texts(150);
    let script = folder.script(
        "CREATE EXTERNAL TABLE texts STORED AS JSONL LOCATION 'texts';
         CREATE PIPELINE train WITH (shuffle = true, seed = 5, window_rows = 60, epochs = 2, batch_size = 11) AS
         SELECT id FROM drop_near_duplicates((
             SELECT id, minhash_signature(text, ngram => 1) AS signature FROM texts WHERE id <> 3), threshold => 0.7);",
    );
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    for epoch in 0..2 {
        let batches = read(&feed, &ReadOptions::default()).await;
        let of_epoch = batches.iter().filter(|batch| batch.epoch == epoch);
        let mut ids: Vec<i64> = of_epoch.flat_map(|batch| integers(&batch.records, "id")).collect();
        let shuffled = ids.clone();
        ids.sort_unstable();
        assert_ne!(ids, shuffled);
        // Row 10 is the copy of row 3, which was filtered out.
        let expected: Vec<i64> = (0..150).filter(|&id| id != 3 && (!is_copy(id) || id == 10)).collect();
        assert_eq!(ids, expected);
    }
    is_a_feed(&folder, &script).await;
}

/// Whether row `id` is a near copy of the row seven places before it.
fn is_copy(id: i64) -> bool {
    id % 3 == 1 && id % 30 >= 7
}

#[tokio::test]
async fn signatures_are_kept_as_columns_and_rows_without_one_stay() {
    let folder = texts(60);
    let script = folder.script(
        "CREATE EXTERNAL TABLE texts STORED AS JSONL LOCATION 'texts';
         CREATE PIPELINE train WITH (batch_size = 11) AS
         SELECT * FROM drop_near_duplicates((SELECT id, CASE WHEN id >= 30 THEN NULL ELSE
             minhash_signature(text, ngram => 1) END AS signature FROM texts), threshold => 0.7);",
    );
    let batches = read(&open(&folder, &script, &FeedOptions::default()).await, &ReadOptions::default()).await;
    let ids: Vec<i64> = batches.iter().flat_map(|batch| integers(&batch.records, "id")).collect();
    assert_eq!(ids, (0..60).filter(|&id| id >= 30 || !is_copy(id)).collect::<Vec<_>>());
    assert!(batches.iter().all(|batch| batch.records["signature"].as_fixed_size_list().value_length() == 128));
}

#[tokio::test]
async fn mixing_is_another_in_each_epoch_wherever_it_is_computed() {
    // Nothing else is random, so a worker could mistake the windows of all epochs for equal ones.
    for operator in ["mixup", "cutmix"] {
        let (folder, script) = photos(&format!(
            "SELECT image, label FROM {operator}((SELECT resize(decode_image(bytes), 12, 16) AS image,
                 CAST(substr(path, 1, 3) AS BIGINT) AS label FROM photos), num_classes => {PHOTOS});"
        ));
        let script_text =
            std::fs::read_to_string(&script).expect("the script").replace("shuffle = true", "shuffle = false");
        let script = folder.script(&script_text.replace("epochs = 2", "epochs = 8"));
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        assert_eq!(feed.uncacheable_calls(), [operator]);
        is_a_feed(&folder, &script).await;
    }
}

#[tokio::test]
async fn rows_are_mixed_again_with_others() {
    let (folder, script) = photos(&format!(
        "SELECT image, label FROM cutmix((SELECT * FROM mixup(ROWS, num_classes => {PHOTOS})), alpha => 0.5);"
    ));
    let feed = open(&folder, &script, &FeedOptions::default()).await;
    let mut parts = 0;
    for batch in read(&feed, &ReadOptions::default()).await {
        let labels = batch.records["label"].as_fixed_size_list();
        for row in 0..labels.len() {
            let weights = labels.value(row).as_primitive::<Float32Type>().values().to_vec();
            parts = parts.max(weights.iter().filter(|weight| **weight > 0.0).count());
        }
    }
    assert_eq!(parts, 4, "two rows that were each two");
}

#[tokio::test]
async fn what_is_decoded_fast_does_not_depend_on_the_columns_asked_for() {
    let (folder, script) = photos(
        "SELECT resize(decode_image(bytes, fast => true), 32, 32) AS a,
             resize(decode_image(bytes, fast => true), 24, 24) AS b,
             resize(image, 20, 20) AS c, image
         FROM (SELECT bytes, decode_image(bytes, fast => true) AS image FROM photos);",
    );
    let session = session(&folder, &script).await;
    let whole = session.open("train", &FeedOptions::default()).expect("a feed");
    let whole = read(&whole, &ReadOptions::default()).await;
    for column in ["a", "b", "c"] {
        let one = session.open_columns("train", &FeedOptions::default(), &[column.to_owned()]).expect("a feed");
        for (one, whole) in read(&one, &ReadOptions::default()).await.iter().zip(&whole) {
            assert_eq!(&one.records[column], &whole.records[column], "{column}");
        }
    }
}

/// Queries whose rows depend on draws, each from one row of a window or from several.
const DRAWN: [(&str, &str); 10] = [
    (
        "repeat_rows",
        "SELECT image, label FROM repeat_rows(
             (SELECT *, CASE WHEN label % 3 = 0 THEN 2.5 ELSE 0.7 END AS times FROM ROWS), times => 'times');",
    ),
    (
        "pair_rows",
        "SELECT image, label, partner_image, partner_label
         FROM pair_rows((SELECT *, label % 4 AS kind FROM ROWS), same => 'kind');",
    ),
    ("sample_negatives", "SELECT label, negatives FROM sample_negatives(ROWS, column => 'label', count => 4);"),
    (
        "random_crop_boxes",
        "SELECT random_hflip(random_crop(decode_image(bytes), 64, 48, key => 'view'), key => 'view') AS image,
             random_hflip_boxes(random_crop_boxes([[0, 0, 90, 80], [40, 50, 260, 240], [100, 9, 120, 290]],
                 image_height(bytes), image_width(bytes), 64, 48, key => 'view'), 64, 48, key => 'view') AS boxes
         FROM photos;",
    ),
    (
        "mask_tokens",
        "SELECT label, mask_tokens([label, 7 * label, 11, 12, 13, 14, 15, 16], mask_id => 3, vocab_size => 99,
             special_ids => [0], p => 0.5) AS masked FROM ROWS;",
    ),
    (
        "corrupt_spans",
        "SELECT label, corrupt_spans([label, 7 * label, 11, 12, 13, 14, 15, 16], first_sentinel => 99,
             p => 0.4, mean_length => 2) AS spans FROM ROWS;",
    ),
    (
        "random_hflip_points",
        "SELECT random_hflip(random_resized_crop(decode_image(bytes), 24, 20, key => 'view'), key => 'view') AS image,
             random_hflip_points(random_resized_crop_points([[5, 6], [200, 100], [90, 80]],
                 image_height(bytes), image_width(bytes), 24, 20, key => 'view'), 24, 20, key => 'view') AS points
         FROM photos;",
    ),
    (
        "random_normal",
        "SELECT label, random_uniform() AS a, random_int(1000) AS b, random_normal(std => 2) AS c,
             random_choice([label, 2 * label, 3 * label]) AS d, random_int(9, key => 'k') AS e,
             random_int(9, key => 'k') AS f FROM ROWS;",
    ),
    (
        "random_pick",
        "SELECT label, random_pick(image, random_hflip(image), weights => [0.3, 0.7]) AS image,
             random_pick(class, '', weights => [0.9, 0.1]) AS class FROM ROWS;",
    ),
    ("random_uniform", "SELECT image, label, random_int(1000) AS n FROM ROWS WHERE random_uniform() < 0.7;"),
];

#[tokio::test]
async fn rows_that_depend_on_draws_are_feeds() {
    for (operator, sql) in DRAWN {
        let (folder, script) = photos(sql);
        let feed = open(&folder, &script, &FeedOptions::default()).await;
        assert!(feed.uncacheable_calls().iter().any(|call| call == operator), "{operator} draws in each epoch");
        is_a_feed(&folder, &script).await;
    }
}
