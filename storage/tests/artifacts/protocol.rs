//! Two committers, one or two collectors of garbage, and readers on one folder of a store that fails, loses answers,
//! and carries writes and deletions out late or twice. Real code over a model of the store, in one thread: a seed is a
//! run.
//!
//! `FOREBAY_SEED` is the first seed, and `FOREBAY_SEEDS` their number. `FOREBAY_PLANTED` is the number of seeds that
//! must find a planted bug. The full run: `FOREBAY_SEEDS=10000 cargo test -p forebay-storage --test artifacts protocol`

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::Schema;
use bytes::Bytes;
use forebay_storage::artifact::{Artifact, Catalog, Job, JobState, Lineage, Part, gc};
use forebay_storage::faults::{FaultRates, Faults};
use forebay_storage::{Error, ErrorKind, Stores};
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::Value;

use super::support::{FINGERPRINT, at_once, no_orphans, number};

const ROOT: &str = "memory:///root";
const URL: &str = "memory:///root/artifacts/a";
const PARTS: u64 = 2;
const RATES: FaultRates = FaultRates { failed: 20, lost: 20, late: 40, repeated: 40, delay_max: 4 };

/// What the actors do wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Planted {
    Nothing,
    /// A committer deletes its files when it does not know whether it has committed.
    CleansUpOnUnknown,
    /// The collector notes that it gave a job up under a name of its own.
    AbortsElsewhere,
    /// The collector deletes files of unfinished jobs that are old.
    CollectsByAge,
}

/// What happened in a run.
#[derive(Debug, Default)]
struct Seen {
    committed: u64,
    given_up: u64,
    unknown: u64,
    removed: u64,
    read: u64,
    requests: u64,
    fired: [u64; 4],
}

impl Seen {
    fn add(&mut self, other: &Self) {
        self.committed += other.committed;
        self.given_up += other.given_up;
        self.unknown += other.unknown;
        self.removed += other.removed;
        self.read += other.read;
        self.requests += other.requests;
        self.fired.iter_mut().zip(other.fired).for_each(|(sum, fired)| *sum += fired);
    }
}

/// The actors' view of a run.
struct World {
    stores: Stores,
    faults: Arc<Faults>,
    planted: Planted,
}

fn content(job: &str, part: u64) -> String {
    format!("part {part} of {job}")
}

fn lineage() -> Lineage {
    let schema = Arc::new(Schema::empty());
    let (folders, sources) = (Schema::empty().into(), BTreeMap::new());
    Lineage { fingerprint: FINGERPRINT.to_owned(), schema, folders, sources, costs: Value::Null }
}

impl World {
    /// Lets others run for a while, now and then for long.
    async fn pause(&self) {
        let times = if self.faults.random(4) == 0 { self.faults.random(40) } else { 0 };
        for _ in 0..times {
            self.faults.pause().await;
        }
    }

    fn wait(&self) -> impl Fn(Duration) -> BoxFuture<'static, ()> + Send + Sync + use<> {
        let faults = Arc::clone(&self.faults);
        move |_| {
            let faults = Arc::clone(&faults);
            async move {
                for _ in 0..30 {
                    faults.pause().await;
                }
            }
            .boxed()
        }
    }

    /// Runs a job a few times, as long as it fails. Returns its artifacts, and how often it was given up and unknown.
    async fn commits(&self, id: &str, holder: &str) -> (Vec<Artifact>, Seen) {
        let (mut artifacts, mut seen) = (Vec::new(), Seen::default());
        for run in 0..6 {
            self.pause().await;
            match self.commit(id, &format!("{holder}{run}"), &mut seen).await {
                Ok(artifact) => {
                    seen.committed += 1;
                    artifacts.push(artifact);
                    if self.faults.random(2) == 0 {
                        break;
                    }
                }
                Err(error) if error.to_string().contains("was given up") => seen.given_up += 1,
                Err(error) => assert_ne!(error.kind(), ErrorKind::Data, "{error}"),
            }
        }
        (artifacts, seen)
    }

    async fn commit(&self, id: &str, holder: &str, seen: &mut Seen) -> Result<Artifact, Error> {
        let catalog = Catalog::new(&self.stores, ROOT)?;
        let job = match Job::open(&self.stores, URL, id).await? {
            JobState::Committed(artifact) => {
                // Somebody may have removed it.
                catalog.record(FINGERPRINT, URL).await?;
                return Ok(artifact);
            }
            JobState::Open(job) => job,
        };
        // Single flight is not what keeps results right.
        let mut claim = job.claim(holder, &self.wait()).await?;
        let mut parts = job.parts().await?;
        for number in 0..PARTS {
            if parts.contains_key(&number) {
                continue;
            }
            self.pause().await;
            parts.insert(number, write(&job, id, number).await?);
            if let Some(claim) = &mut claim {
                claim.beat().await?;
            }
        }
        catalog.record(FINGERPRINT, URL).await?;
        self.pause().await;
        let committed = job.commit(job.manifest(&parts, lineage())?, index(&parts)).await;
        if let Err(error) = &committed
            && error.kind() == ErrorKind::Unavailable
        {
            seen.unknown += 1;
            if self.planted == Planted::CleansUpOnUnknown {
                for file in parts.values().flat_map(|part| &part.files) {
                    self.stores.delete(&format!("{URL}/{}", file.name)).await?;
                }
            }
        }
        if let (Some(claim), 0) = (claim, self.faults.random(2)) {
            // Others see that it is over, or wait for it in vain.
            let _ = claim.release().await;
        }
        committed
    }

    /// Removes the artifact's entry now and then, so that the artifact is collected.
    async fn removes(&self) -> Result<(), Error> {
        let catalog = Catalog::new(&self.stores, ROOT)?;
        for entry in catalog.entries().await? {
            catalog.remove(&entry).await?;
        }
        Ok(())
    }

    async fn collects(&self, removes: bool) {
        let mut ages = BTreeMap::new();
        for _ in 0..3 {
            self.pause().await;
            if removes && self.faults.random(2) == 0 {
                let _ = self.removes().await;
            }
            // A collector that fails is run again some time.
            let _ = match self.planted {
                Planted::AbortsElsewhere => self.collect_noting_elsewhere().await,
                Planted::CollectsByAge => self.collect_by_age(&mut ages).await,
                _ => gc(&self.stores, ROOT, false, &self.wait()).await.map(|_| ()),
            };
        }
    }

    /// The names of an unfinished job's objects.
    async fn unfinished(&self) -> Result<BTreeSet<String>, Error> {
        let names: BTreeSet<String> = self.stores.list(URL).await?.into_iter().map(|object| object.name).collect();
        let is_committed = names.iter().any(|name| name.contains("/generations/"));
        Ok(if is_committed { BTreeSet::new() } else { names })
    }

    async fn collect_noting_elsewhere(&self) -> Result<(), Error> {
        let first = self.unfinished().await?;
        self.wait()(Duration::ZERO).await;
        if first.is_empty() || self.unfinished().await? != first {
            return Ok(());
        }
        self.stores.put_new(&format!("{ROOT}/aborted"), "{}".into()).await?;
        // A job that is committed by now is none to give up.
        for name in if self.unfinished().await?.is_empty() { BTreeSet::new() } else { first } {
            self.stores.delete(&format!("{URL}/{name}")).await?;
        }
        Ok(())
    }

    async fn collect_by_age(&self, ages: &mut BTreeMap<String, u64>) -> Result<(), Error> {
        for name in self.unfinished().await? {
            let seen = *ages.entry(name.clone()).or_insert(self.faults.requests());
            if self.faults.requests() - seen > 20 {
                self.stores.delete(&format!("{URL}/{name}")).await?;
            }
        }
        Ok(())
    }

    async fn reads(&self) -> Result<u64, String> {
        let mut read = 0;
        for _ in 0..6 {
            self.pause().await;
            let Ok(Some(artifact)) = Artifact::find(&self.stores, URL).await else { continue };
            match whole(&self.stores, &artifact).await {
                Ok(()) => read += 1,
                Err(why) => {
                    // It may have been removed meanwhile, and then has a later generation.
                    let is_latest = Artifact::find(&self.stores, URL).await;
                    let is_removed = !matches!(is_latest, Ok(Some(now)) if now.generation() == artifact.generation());
                    if !is_removed && !why.contains("store") {
                        return Err(format!("a reader found: {why}"));
                    }
                }
            }
        }
        Ok(read)
    }
}

fn index(parts: &BTreeMap<u64, Part>) -> Vec<(String, Bytes)> {
    let names = parts.values().flat_map(|part| &part.files).map(|file| file.name.as_str());
    vec![("index.json".to_owned(), names.collect::<Vec<_>>().join(" ").into())]
}

/// Fails unless the index of an artifact is there, and is its own.
async fn index_is_there(stores: &Stores, artifact: &Artifact) -> Result<(), String> {
    let names: Vec<&str> = artifact.manifest().files.iter().map(|file| file.name.as_str()).collect();
    match stores.get(&format!("{URL}/index.json")).await {
        Ok(index) if index == names.join(" ") => Ok(()),
        other => Err(format!("the index is {other:?}")),
    }
}

async fn write(job: &Job, id: &str, number: u64) -> Result<Part, Error> {
    let mut file = job.create(&format!("part-{number:06}"), "txt")?;
    file.write(content(id, number).into()).await?;
    let (files, bad_reasons) = (vec![job.complete(number, file, 1).await?], BTreeMap::new());
    let part = Part { files, rows_in: 1, bad_rows: 0, bad_reasons, costs: Value::Null, facts: Value::Null };
    job.record(number, part).await
}

/// Fails unless all files of an artifact are there, and hold what its job wrote.
async fn whole(stores: &Stores, artifact: &Artifact) -> Result<(), String> {
    let manifest = artifact.manifest();
    if manifest.files.len() as u64 != PARTS {
        return Err(format!("{} files", manifest.files.len()));
    }
    for (number, file) in manifest.files.iter().enumerate() {
        let bytes = stores.get(&format!("{URL}/{}", file.name)).await.map_err(|error| error.to_string())?;
        if bytes != content(&manifest.job, number as u64) {
            return Err(format!("\"{}\" holds {bytes:?}", file.name));
        }
        let blocks = format!("{URL}/_forebay/blocks/{}", file.name);
        stores.get(&blocks).await.map_err(|error| error.to_string())?;
    }
    Ok(())
}

/// Fails if the folder's artifact, if there is one, is not whole.
async fn committed_is_whole(stores: &Stores) -> Result<(), String> {
    match Artifact::find(stores, URL).await {
        Ok(Some(artifact)) => whole(stores, &artifact).await,
        Ok(None) => Ok(()),
        Err(error) if [ErrorKind::Invalid, ErrorKind::NotFound].contains(&error.kind()) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

async fn simulate(seed: u64, planted: Planted) -> Result<Seen, String> {
    let clean = Stores::new();
    let (stores, faults) = Faults::over(&clean, RATES, seed);
    let world = World { stores, faults, planted };
    let other = if seed.is_multiple_of(3) { "job2" } else { "job1" };
    let removes = seed % 4 == 1;
    let collecting = async {
        // In some runs there are two collectors.
        let another = async {
            if seed.is_multiple_of(5) {
                world.collects(false).await;
            }
        };
        futures::join!(world.collects(removes), another);
    };
    let (first, second, (), read) =
        futures::join!(world.commits("job1", "a"), world.commits(other, "b"), collecting, world.reads());
    let mut seen =
        Seen { read: read?, requests: world.faults.requests(), fired: world.faults.fired(), ..Seen::default() };
    seen.add(&first.1);
    seen.add(&second.1);
    let fault = |error: Error| error.to_string();
    // What is on its way arrives before or after another collection.
    if seed.is_multiple_of(2) && planted == Planted::Nothing {
        gc(&clean, ROOT, false, &at_once).await.map_err(fault)?;
    }
    world.faults.settle().await;
    committed_is_whole(&clean).await?;
    // A commit that was reported stays, unless it was removed in due form.
    for artifact in first.0.iter().chain(&second.0) {
        match Artifact::find(&clean, URL).await {
            Ok(Some(now)) if now.generation() == artifact.generation() => {
                if now.manifest() != artifact.manifest() {
                    return Err("a commit that was reported is another one now".to_owned());
                }
            }
            Ok(Some(now)) if removes && now.generation() > artifact.generation() + 1 => seen.removed += 1,
            Err(error) if removes && [ErrorKind::NotFound, ErrorKind::Invalid].contains(&error.kind()) => {
                seen.removed += 1;
            }
            other => return Err(format!("a commit that was reported is gone: {other:?}")),
        }
    }
    // Whoever comes next finishes the job, and finds nothing to collect but what is over.
    let calm = World { stores: clean.clone(), faults: Faults::over(&clean, FaultRates::NONE, seed).1, planted };
    let mut nobody = Seen::default();
    let artifact = match calm.commit("job1", "c", &mut nobody).await {
        Ok(artifact) => artifact,
        // The other job is there, or left behind.
        Err(_) if other == "job2" => match calm.commit("job2", "c", &mut nobody).await {
            Ok(artifact) => artifact,
            Err(_) => {
                gc(&clean, ROOT, false, &at_once).await.map_err(fault)?;
                calm.commit("job1", "c", &mut nobody).await.map_err(fault)?
            }
        },
        Err(error) => return Err(fault(error)),
    };
    whole(&clean, &artifact).await?;
    index_is_there(&clean, &artifact).await?;
    gc(&clean, ROOT, false, &at_once).await.map_err(fault)?;
    committed_is_whole(&clean).await?;
    no_orphans(&clean, URL).await?;
    Ok(seen)
}

#[tokio::test]
#[allow(clippy::print_stdout)]
async fn the_protocol_holds() {
    let (first, seeds) = (number("FOREBAY_SEED", 0), number("FOREBAY_SEEDS", 500));
    let mut all = Seen::default();
    let mut failing = Vec::new();
    let began = std::time::Instant::now();
    for seed in first..first + seeds {
        match simulate(seed, Planted::Nothing).await {
            Ok(seen) => all.add(&seen),
            Err(why) => failing.push(format!("FOREBAY_SEED={seed} FOREBAY_SEEDS=1: {why}")),
        }
    }
    println!("{seeds} seeds in {:?}: {all:?}", began.elapsed());
    assert!(failing.is_empty(), "{} seeds fail:\n{}", failing.len(), failing[..failing.len().min(10)].join("\n"));
    // A run of nothing but failures proves nothing.
    if seeds >= 500 {
        let rarely = seeds / 40;
        assert!(all.committed > seeds && all.read > seeds / 4, "{all:?}");
        assert!(all.given_up > rarely && all.unknown > rarely && all.removed > rarely, "{all:?}");
        assert!(all.fired.iter().all(|fired| *fired > seeds / 4), "{all:?}");
    }
}

#[tokio::test]
#[allow(clippy::print_stdout)]
async fn the_protocol_simulation_finds_planted_bugs() {
    let most = number("FOREBAY_PLANTED", 400);
    for planted in [Planted::CleansUpOnUnknown, Planted::AbortsElsewhere, Planted::CollectsByAge] {
        let mut found = None;
        for seed in 0..most {
            if let Err(why) = simulate(seed, planted).await {
                found = Some((seed + 1, why));
                break;
            }
        }
        let (seeds, why) = found.unwrap_or_else(|| panic!("{planted:?} is not found"));
        println!("{planted:?}: {seeds}: {why}");
    }
}
