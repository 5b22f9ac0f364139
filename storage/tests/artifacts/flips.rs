//! Flipped bits in manifests, digests, records, footers and data: never a wrong row.
//!
//! `FOREBAY_SEED` and `FOREBAY_FLIPS` set the seed and the number of flips. All of them:
//! `FOREBAY_FLIPS=10000 cargo test -p forebay-storage --test artifacts flip`

use forebay_storage::artifact::{Job, JobState};
use forebay_storage::{ErrorKind, Stores};

use super::support::{PARTS, at_once, copy, expected, lineage, number, open_and_read, run, write_part};

/// The next of a series of numbers.
fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

#[tokio::test]
async fn a_flipped_bit_gives_the_same_rows_or_an_error() {
    let (stores, root, url) = (Stores::new(), "memory:///root", "memory:///root/artifacts/a");
    run(&stores, root, url, "job1", "p").await.unwrap();
    let objects = stores.list(url).await.unwrap();
    let (seed, flips) = (number("FOREBAY_SEED", 1), number("FOREBAY_FLIPS", 2000));
    let mut random = seed;
    let (mut found, mut harmless) = (0, 0);
    for flip in 0..flips {
        // Each kind of object is as likely, whatever its size.
        let object = &objects[next(&mut random) as usize % objects.len()];
        let place = format!("{url}/{}", object.name);
        let bit = next(&mut random) % (object.bytes * 8);
        let whole = stores.get(&place).await.unwrap();
        let mut flipped = whole.to_vec();
        flipped[bit as usize / 8] ^= 1 << (bit % 8);
        stores.put(&place, flipped.into()).await.unwrap();
        match open_and_read(&stores, url).await {
            Ok(rows) => {
                assert_eq!(rows, expected(), "seed {seed}, flip {flip}: bit {bit} of {place}");
                harmless += 1;
            }
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::Data, "{error}");
                assert!(error.to_string().contains(&object.name), "{place}: {error}");
                found += 1;
            }
        }
        stores.put(&place, whole).await.unwrap();
    }
    assert_eq!(open_and_read(&stores, url).await.unwrap(), expected());
    // Readers need no claims and no records of parts.
    assert!(found > flips / 3 && harmless > flips / 10, "{found} {harmless}");
}

#[tokio::test]
async fn a_flipped_bit_in_a_record_does_not_come_into_a_manifest() {
    let (stores, url) = (Stores::new(), "memory:///a");
    let JobState::Open(job) = Job::open(&stores, url, "job1").await.unwrap() else { panic!("it is new") };
    job.claim("p", &at_once).await.unwrap().unwrap();
    for number in 0..PARTS {
        job.record(number, write_part(&job, number, "parquet").await.unwrap()).await.unwrap();
    }
    let manifest = job.manifest(&job.parts().await.unwrap(), lineage()).unwrap();
    let parts: Vec<_> = stores.list(url).await.unwrap().into_iter().filter(|it| it.name.contains("/parts/")).collect();
    let mut random = number("FOREBAY_SEED", 1);
    for _ in 0..500 {
        let object = &parts[next(&mut random) as usize % parts.len()];
        let place = format!("{url}/{}", object.name);
        let bit = next(&mut random) % (object.bytes * 8);
        let whole = stores.get(&place).await.unwrap();
        let mut flipped = whole.to_vec();
        flipped[bit as usize / 8] ^= 1 << (bit % 8);
        stores.put(&place, flipped.into()).await.unwrap();
        let error = job.parts().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Data && error.to_string().contains(&object.name), "{error}");
        stores.put(&place, whole).await.unwrap();
    }
    assert_eq!(job.manifest(&job.parts().await.unwrap(), lineage()).unwrap(), manifest);
}

/// The digests of one file beside another.
#[tokio::test]
async fn files_that_are_exchanged_are_found() {
    let (stores, url) = (Stores::new(), "memory:///root/artifacts/a");
    let artifact = run(&stores, "memory:///root", url, "job1", "p").await.unwrap();
    let [one, other] = [0, 1].map(|at| artifact.manifest().files[at].name.clone());
    for exchanged in [vec![""], vec!["_forebay/blocks/"], vec!["", "_forebay/blocks/"]] {
        copy(&stores, url, "memory:///b").await;
        for folder in exchanged {
            let (one, other) = (format!("memory:///b/{folder}{one}"), format!("memory:///b/{folder}{other}"));
            let (a, b) = (stores.get(&one).await.unwrap(), stores.get(&other).await.unwrap());
            stores.put(&one, b).await.unwrap();
            stores.put(&other, a).await.unwrap();
        }
        open_and_read(&stores, "memory:///b").await.unwrap_err();
    }
}
