//! Plans against simulated training.

use std::collections::BTreeSet;
use std::ops::Range;
use std::thread;

use forebay_policy::{
    Configuration, Cut, Finish, Job, Order, Plan, Prices, Store, Sureness, TrainerHost, Wire, WorkerLimits, Workload,
    plan,
};

use crate::given::{cut, store};
use crate::random::Random;
use crate::rivals::{self, Lab};
use crate::training::Training;

const SAMPLES_PER_BATCH: f64 = 32.0;
/// What the simulation does is known, so that no tie is near.
const EXACT: Option<Sureness> = Some(Sureness { samples: 1e6, error: 0.0 });

/// A job whose needs lie around what its machines have, some well below and some above.
pub(crate) fn random_job(seed: u64) -> (Job, Prices) {
    let mut random = Random::new(seed);
    let trainers = 1 + u32::from(random.unit() < 0.4);
    let samples_per_step = SAMPLES_PER_BATCH * f64::from(trainers);
    let demand = samples_per_step / random.between(0.05, 1.0);
    // In cores that would be busy with it at that demand.
    let cores_needed = random.between(0.5, 10.0);
    let whole = cores_needed / demand;
    let bytes = random.between(2e4, 4e5);
    let mut cuts = vec![cut("source", 0.0, bytes, false)];
    let (decode, crop) = (random.between(0.3, 0.7), random.between(0.75, 0.9));
    cuts.push(cut("decode", decode * whole, bytes * random.between(0.5, 6.0), false));
    let cropped = bytes * random.between(0.3, 2.0);
    cuts.push(cut("crop", crop * whole, cropped, random.unit() < 0.4));
    let grown = random.between(1.5, 4.0);
    let never_kept = cuts[2].never_kept || random.unit() < 0.3;
    cuts.push(cut("normalise", whole, cropped * grown, never_kept));
    let finish = (random.unit() < 0.5).then(|| Finish {
        seconds_per_sample: whole * (1.0 - crop) * random.between(0.3, 1.0),
        bytes_before: cropped,
        bytes_after: cropped * grown,
    });
    let mut orders = vec![Order { name: "exact".to_owned(), cuts: cuts.clone() }];
    if random.unit() < 0.3 {
        let cheaper = random.between(0.6, 1.1);
        for cut in &mut cuts[1..3] {
            cut.compute_seconds_per_sample *= cheaper;
            cut.bytes_per_sample *= cheaper;
        }
        let saved = (crop - crop * cheaper) * whole;
        cuts[3].compute_seconds_per_sample -= saved;
        orders.push(Order { name: "crop first".to_owned(), cuts });
    }
    let source = Store {
        seconds_per_request: random.between(0.0, 0.1) * 1e6 / (demand * bytes),
        ..store(demand * bytes * random.between(0.7, 3.0))
    };
    let cache = Store {
        written_bytes_per_second: demand * bytes * random.between(0.5, 3.0),
        ..store(demand * bytes * random.between(0.7, 4.0))
    };
    let per_trainer = demand / f64::from(trainers);
    let wire_share = random.between(0.1, 1.2);
    let cpu = random.between(0.0, 0.1) * whole / cropped;
    let host_cores = random.between(2.0, 9.0).floor();
    let job = Job {
        orders,
        source,
        cache,
        workload: Workload {
            samples: samples_per_step * 400.0,
            epochs_to_come: 2 + (random.unit() * 20.0) as u32,
            other_jobs: u32::from(random.unit() < 0.2),
            trainers_samples_per_second: demand,
            trainers,
            cores: 0.0,
            cores_per_worker: 1.0 + f64::from(u32::from(random.unit() < 0.5)),
        },
        samples_per_step,
        limit_bytes: samples_per_step * 400.0 * bytes * random.between(0.0, 4.0),
        host: TrainerHost { host_cores, trainer_cores: (host_cores * random.between(0.2, 1.0)).max(0.5) },
        wire: Wire {
            bytes_per_second: per_trainer * cropped * grown / wire_share,
            sending_seconds_per_byte: cpu,
            receiving_seconds_per_byte: cpu,
        },
        finish,
        workers: WorkerLimits { least: 0, most: 14 },
        wait_at_most: 0.01,
        sureness: EXACT,
    };
    // Storage is dear enough to matter: bytes here are few.
    let kept_price = random.between(0.0, 0.5) * 8.0 / (job.limit_bytes.max(1e6) / 1e9) * 720.0;
    let worker = random.between(0.2, 2.0);
    let prices = format!("worker={worker}/h,trainer=8/h,storage={kept_price}/GB-month");
    (job, prices.parse().expect("prices"))
}

struct Outcome {
    seed: u64,
    /// The plan's simulated money, relative to that of the best of all configurations, and of the best rival.
    of_best: f64,
    of_rival: f64,
    /// Simulated seconds of a later epoch, relative to those that were estimated.
    of_estimate: f64,
    story: String,
}

fn outcome(seed: u64, sureness: Option<Sureness>, shares: &[f64]) -> Outcome {
    let (mut job, prices) = random_job(seed);
    job.sureness = sureness;
    let plan = plan(&job, Some(&prices)).expect("a valid job");
    let chosen = &plan.chosen.configuration;
    let mut lab = Lab::new(Training::new(&job, seed, 0.1), prices);
    let money = lab.money(chosen);
    let (best, by) = lab.cheapest(shares);
    let rivals = [lab.workers_only(), lab.cachew(), lab.pecan()].map(|rival| (lab.money(&rival), rival));
    let rival = rivals.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("three");
    let later = lab.run(chosen, chosen.workers).later;
    Outcome {
        seed,
        of_best: money / best,
        of_rival: money / rival.0,
        of_estimate: later / plan.chosen.epoch_seconds,
        story: format!("seed {seed}: {money} for {plan:#?}\n{best} for {by:?}\nrivals {rivals:?}\n{job:?}"),
    }
}

fn outcomes(seeds: Range<u64>, sureness: Option<Sureness>, shares: &[f64]) -> Vec<Outcome> {
    let some = |from: u64| {
        let seeds = seeds.clone().skip(from as usize).step_by(2);
        seeds.map(|seed| outcome(seed, sureness, shares)).collect::<Vec<_>>()
    };
    let (even, odd) = thread::scope(|scope| {
        let even = scope.spawn(|| some(0));
        let odd = some(1);
        (even.join().expect("no panic"), odd)
    });
    even.into_iter().chain(odd).collect()
}

/// Shows a figure to those who run the tests with `--nocapture`.
#[expect(clippy::print_stdout, reason = "the figures of a claim")]
fn report(figures: &str) {
    println!("{figures}");
}

/// Reports what is worst, and asserts that no plan costs more than these of the best and of the best rival.
fn check(outcomes: &[Outcome], of_best: f64, of_rival: f64) {
    let most = |of: fn(&Outcome) -> f64| outcomes.iter().max_by(|a, b| of(a).total_cmp(&of(b))).expect("outcomes");
    let (best, rival) = (most(|one| one.of_best), most(|one| one.of_rival));
    let mean = |of: fn(&Outcome) -> f64| outcomes.iter().map(of).sum::<f64>() / outcomes.len() as f64;
    report(&format!(
        "of the best: {:.4} in the mean, {:.4} at most; of the best rival: {:.4} in the mean, {:.4} at most, {} of {} \
         above 1.001; of the estimate: {:.4} at most",
        mean(|one| one.of_best),
        best.of_best,
        mean(|one| one.of_rival),
        rival.of_rival,
        outcomes.iter().filter(|one| one.of_rival > 1.001).count(),
        outcomes.len(),
        most(|one| one.of_estimate).of_estimate,
    ));
    assert!(best.of_best <= of_best, "seed {}: {}\n{}", best.seed, best.of_best, best.story);
    assert!(rival.of_rival <= of_rival, "seed {}: {}\n{}", rival.seed, rival.of_rival, rival.story);
}

#[test]
fn plans_cost_what_the_best_configuration_costs_and_no_more_than_any_policy_alone() {
    let outcomes = outcomes(0..40, EXACT, &[1.0, 0.5]);
    check(&outcomes, 1.015, 1.005);
    let above = outcomes.iter().filter(|one| one.of_rival > 1.001).count();
    assert!(above <= 1, "{above} of 40 cost more than a policy alone");
    let far = outcomes.iter().find(|one| !(0.95..1.05).contains(&one.of_estimate));
    assert!(far.is_none(), "estimates: {}", far.map_or("", |one| &one.story));
}

/// Near ties may cost 3 %.
#[test]
fn simple_plans_cost_little_more() {
    check(&outcomes(40..60, None, &[1.0, 0.5]), 1.05, 1.035);
}

/// Many more seeds than the bounds above were looked at with.
#[test]
#[ignore = "takes a minute"]
fn plans_of_many_jobs_are_as_good() {
    check(&outcomes(100..400, EXACT, &[1.0, 0.75, 0.5, 0.25]), 1.05, 1.05);
}

#[test]
fn trainers_wait_no_longer_than_plans_say() {
    let mut held = 0;
    for seed in 0..60 {
        let (job, _) = random_job(seed);
        let plan = plan(&job, None).expect("a valid job");
        let training = Training::new(&job, seed, 0.1);
        let later = training.run(&plan.chosen.configuration, plan.chosen.configuration.workers).later;
        let waited = 1.0 - job.workload.samples / job.workload.trainers_samples_per_second / later;
        held += u32::from(plan.chosen.waited <= job.wait_at_most);
        assert!(waited <= plan.chosen.waited + 0.04, "seed {seed}: {waited} waited: {plan:#?}");
    }
    assert!(held > 40, "the bound can be held in {held} of 60 jobs");
}

/// A job whose workers are given, without local cores: only what is kept is to be decided.
fn kept_only(cuts: Vec<Cut>, [source, cache]: [Store; 2], workload: Workload, limit_bytes: f64) -> Job {
    Job {
        orders: vec![Order { name: "exact".to_owned(), cuts }],
        source,
        cache,
        workload,
        samples_per_step: 900.0,
        limit_bytes,
        host: TrainerHost { host_cores: 0.5, trainer_cores: 0.5 },
        wire: Wire { bytes_per_second: 1e12, sending_seconds_per_byte: 0.0, receiving_seconds_per_byte: 0.0 },
        finish: None,
        workers: WorkerLimits { least: 1, most: 1 },
        wait_at_most: 0.01,
        sureness: None,
    }
}

/// Asserts that the plan takes within 5 % of the least simulated time of all cuts and shares, and returns it with what
/// keeping whole cuts or nothing would take at best.
fn check_kept(job: &Job, what: &str) -> (Plan, f64, f64) {
    let plan = plan(job, None).expect("a valid job");
    let mut lab = Lab::new(Training::new(job, 1, 0.05), Prices::default());
    let chosen = lab.seconds(&plan.chosen.configuration);
    let with_workers = |one: Configuration| Configuration { first_workers: 1, workers: 1, ..one };
    let mut least = |shares: &[f64]| {
        let all = rivals::all(job, shares).into_iter().map(with_workers);
        let all = all.map(|one| (lab.seconds(&one), one));
        all.min_by(|a, b| a.0.total_cmp(&b.0)).expect("keeping nothing")
    };
    let whole = least(&[1.0]);
    let shares: Vec<f64> = (1..=20).map(|part| f64::from(part) / 20.0).collect();
    let best = least(&shares);
    assert!(chosen <= 1.05 * best.0, "{what}: {chosen} s, {} s with {:?}: {plan:#?}", best.0, best.1);
    (plan, chosen, whole.0)
}

/// Cachew's sweep, in which reading a batch of the source takes 350 ms, of the cache 160 ms, and 400 ms 2.5 times as
/// large. Workers compute a batch in so many ms.
fn cachew(compute_ms: f64, epochs: u32, trainers_ms: f64) -> Job {
    let bytes = 140e3;
    let cuts = vec![cut("source", 0.0, bytes, false), cut("inflate", compute_ms / 1e3 / 900.0, 2.5 * bytes, false)];
    let workload = Workload {
        samples: 400.0 * 900.0,
        epochs_to_come: epochs,
        other_jobs: 0,
        trainers_samples_per_second: 900.0 / (trainers_ms / 1e3),
        trainers: 1,
        cores: 0.0,
        cores_per_worker: 1.0,
    };
    kept_only(cuts, [store(bytes * 900.0 / 0.35), store(bytes * 900.0 / 0.16)], workload, 1e13)
}

/// Between 350 and 400 ms Cachew keeps nothing, as it keeps all or nothing. A share of it is up to 1.8 times as fast.
#[test]
fn cachews_sweep_has_three_regimes_and_shares_are_faster() {
    let mut regimes = BTreeSet::new();
    let mut fastest: f64 = 1.0;
    for trainers_ms in [9.0, 300.0, 355.0] {
        for compute_ms in (200..=550).step_by(25) {
            let what = format!("{compute_ms} ms, trainers {trainers_ms} ms");
            let (plan, chosen, whole) = check_kept(&cachew(f64::from(compute_ms), 10, trainers_ms), &what);
            regimes.insert(plan.chosen.configuration.cut);
            fastest = fastest.max(whole / chosen);
        }
    }
    assert!(regimes.iter().map(Option::as_deref).eq([None, Some("inflate"), Some("source")]), "{regimes:?}");
    report(&format!("shares are up to {fastest:.2} times as fast as all or nothing"));
    assert!(fastest > 1.7, "{fastest}");
    let last = plan(&cachew(500.0, 1, 9.0), None).expect("a valid job");
    assert_eq!(last.chosen.configuration.cut, None, "the last epoch keeps nothing");
}

#[test]
fn prestos_pipelines_are_cut_where_the_best_simulated_cut_is() {
    for (name, cuts, expected) in crate::cache::presto() {
        let workload = Workload {
            samples: 800.0 * 128.0,
            epochs_to_come: 20,
            other_jobs: 0,
            trainers_samples_per_second: 2e4,
            trainers: 1,
            cores: 0.0,
            cores_per_worker: 8.0,
        };
        let store = Store { seconds_per_request: 2e-4, ..store(300e6) };
        for limit_bytes in [1e13, 3e10, 3e9, 0.0] {
            let job = Job { samples_per_step: 128.0, ..kept_only(cuts.clone(), [store; 2], workload, limit_bytes) };
            let (plan, _, _) = check_kept(&job, &format!("{name}, {limit_bytes}"));
            if limit_bytes == 1e13 {
                assert_eq!(plan.chosen.configuration.cut.as_deref(), Some(expected), "{name}: {plan:#?}");
            }
        }
    }
}

/// A job without stores or wires that matter: workers of so many cores compute for trainers.
pub(crate) fn computing(
    samples_per_second: f64,
    seconds_per_sample: f64,
    cores_per_worker: f64,
    host: TrainerHost,
) -> Job {
    let cuts = vec![cut("source", 0.0, 110e3, false), cut("augment", seconds_per_sample, 150e3, true)];
    Job {
        orders: vec![Order { name: "exact".to_owned(), cuts }],
        source: store(1e11),
        cache: store(1e11),
        workload: Workload {
            samples: 128.0 * 600.0,
            epochs_to_come: 20,
            other_jobs: 0,
            trainers_samples_per_second: samples_per_second,
            trainers: 1,
            cores: 0.0,
            cores_per_worker,
        },
        samples_per_step: 128.0,
        limit_bytes: 0.0,
        host,
        wire: Wire { bytes_per_second: 2e9, sending_seconds_per_byte: 1e-10, receiving_seconds_per_byte: 1e-10 },
        finish: None,
        workers: WorkerLimits { least: 0, most: 600 },
        wait_at_most: 0.01,
        sureness: None,
    }
}

/// Pecan's ResNet50 on a TPU v2-8: 19 workers of 8 cores at $0.42/h for a trainer at $4.96/h become 5, as cores of the
/// trainer's host were idle.
#[test]
fn idle_cores_of_the_trainers_host_replace_workers_as_in_pecan() {
    let demand = 2_000.0;
    let job = computing(demand, 149.0 / demand, 8.0, TrainerHost { host_cores: 120.0, trainer_cores: 6.0 });
    let alone = Job { host: TrainerHost { host_cores: 6.0, trainer_cores: 6.0 }, ..job.clone() };
    let (with_cores, alone) = (plan(&job, None).expect("valid"), plan(&alone, None).expect("valid"));
    let (with, without) = (&with_cores.chosen.configuration, &alone.chosen.configuration);
    assert!((18..=20).contains(&without.workers), "{alone:#?}");
    let prices: Prices = "worker=0.42/h,trainer=4.96/h,storage=0.02/GB-month".parse().expect("prices");
    let mut lab = Lab::new(Training::new(&job, 1, 0.1), prices);
    let (ours, theirs) = (lab.run(with, with.workers).later, lab.run(without, without.workers).later);
    report(&format!(
        "{} workers for {}, {:.4} of the time: {with_cores}",
        with.workers,
        without.workers,
        ours / theirs
    ));
    assert!(with.workers > 0 && f64::from(with.workers) <= 0.3 * f64::from(without.workers), "{with_cores:#?}");
    assert!(ours <= 1.03 * theirs, "{ours} s for {theirs} s: {with_cores:#?}");
    // With prices it may take longer, if that costs less.
    let cheapest = plan(&job, Some(&prices)).expect("valid");
    let (ours, theirs) = (lab.money(&cheapest.chosen.configuration), lab.money(with));
    report(&format!("{:.4} of the money: {cheapest}", ours / theirs));
    assert!(ours <= 1.001 * theirs, "{ours} for {theirs}: {cheapest:#?}");
}

#[test]
fn five_hundred_workers_are_found_at_once() {
    let mut job = computing(50_000.0, 0.1, 10.0, TrainerHost { host_cores: 8.0, trainer_cores: 8.0 });
    job.workload.trainers = 40;
    job.samples_per_step *= 40.0;
    job.workload.samples *= 40.0;
    job.wire = Wire { bytes_per_second: 1e11, sending_seconds_per_byte: 0.0, receiving_seconds_per_byte: 0.0 };
    let began = std::time::Instant::now();
    let found = plan(&job, None).expect("a valid job");
    let seconds = began.elapsed().as_secs_f64();
    report(&format!("{:.1} ms: {found}", seconds * 1e3));
    assert!((495..=500).contains(&found.chosen.configuration.workers), "{found:#?}");
    let training = Training::new(&job, 1, 0.1);
    let run = training.run(&found.chosen.configuration, found.chosen.configuration.workers);
    let ideal = job.workload.samples / job.workload.trainers_samples_per_second;
    report(&format!("simulated {:.4} of the trainers' own time", run.later / ideal));
    assert!(run.later <= 1.015 * ideal, "{} s for {ideal} s", run.later);
    assert!(seconds < 1.0, "{seconds} s");
    // A large host, many cuts and two orders.
    let (mut job, prices) = random_job(13);
    job.host.host_cores = 256.0;
    job.workers.most = 1_000;
    let began = std::time::Instant::now();
    let large = plan(&job, Some(&prices)).expect("a valid job");
    report(&format!("{:.0} ms for 256 local cores: {large}", began.elapsed().as_secs_f64() * 1e3));
}
