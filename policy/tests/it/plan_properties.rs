//! What holds for every plan.

use forebay_policy::{
    Configuration, Finish, Job, Measured, Plan, Prices, Sureness, TrainerHost, Weights, Wire, WorkerLimits, Workload,
    advise, plan,
};

use crate::given::store;
use crate::plan::{computing, random_job};
use crate::random::Random;
use crate::rivals;

/// Every number of workers and of local cores, by the plan's own estimates.
#[test]
fn no_configuration_is_estimated_cheaper() {
    for seed in 0..20 {
        let (mut job, prices) = random_job(seed);
        job.workers.most = 30;
        let plan = plan(&job, Some(&prices)).expect("a valid job");
        let money = plan.chosen.money.expect("prices");
        for one in rivals::all(&job, &[1.0, 0.5, 0.3]) {
            let least = u32::from(one.local_cores == 0);
            for workers in (least..=30).step_by(2) {
                for first_workers in (least..=30).step_by(3) {
                    let one = Configuration { workers, first_workers, ..one.clone() };
                    let other = job.estimate(&one, Some(&prices)).expect("valid").money.expect("prices");
                    assert!(money <= other * (1.0 + 2e-3), "seed {seed}: {money} for {plan:#?}, {other} for {one:?}");
                }
            }
        }
    }
}

#[test]
fn faster_trainers_never_want_fewer_workers() {
    for seed in 0..60 {
        let (mut job, _) = random_job(seed);
        job.workers.most = 400;
        job.limit_bytes = 0.0;
        // Where anything else limits it, no workers help.
        job.source = store(1e12);
        job.wire = Wire { bytes_per_second: 1e12, sending_seconds_per_byte: 0.0, receiving_seconds_per_byte: 0.0 };
        let mut before = 0.0;
        for step in 1..20 {
            job.workload.trainers_samples_per_second *= 1.0 + 0.03 * f64::from(step);
            let plan = plan(&job, None).expect("a valid job");
            let workers = plan.chosen.worker_seconds / plan.chosen.total_seconds;
            if plan.chosen.waited > job.wait_at_most * 1.001 {
                break;
            }
            assert!(workers >= before * 0.97 - 1e-9, "seed {seed}, step {step}: {workers} after {before}: {plan:#?}");
            before = workers;
        }
    }
}

#[test]
fn dearer_workers_are_never_more() {
    for seed in 0..20 {
        let (job, mut prices) = random_job(seed);
        let mut before = f64::INFINITY;
        for _ in 0..12 {
            let plan = plan(&job, Some(&prices)).expect("a valid job");
            let seconds = plan.chosen.worker_seconds;
            // The grid of shares is as fine as this.
            assert!(seconds <= before * 1.005 + 1e-6, "seed {seed}: {seconds} after {before}: {plan:#?}");
            before = seconds;
            prices.worker_per_second = prices.worker_per_second.map(|price| price * 1.5);
        }
    }
}

#[test]
fn plans_are_deterministic_and_survive_json() {
    for seed in 0..30 {
        let (job, prices) = random_job(seed);
        for prices in [None, Some(&prices)] {
            let (first, second) = (plan(&job, prices).expect("a valid job"), plan(&job, prices).expect("a valid job"));
            assert_eq!(first, second, "seed {seed}");
            // JSON keeps all but the last digit of a number.
            let json = serde_json::to_string(&job).expect("a job as JSON");
            let third = plan(&serde_json::from_str(&json).expect("JSON as a job"), prices).expect("a valid job");
            let (seconds, again) = (first.chosen.total_seconds, third.chosen.total_seconds);
            assert!((again / seconds - 1.0).abs() < 1e-6, "seed {seed}: {again} for {seconds}");
            let json = serde_json::to_string(&first).expect("a plan as JSON");
            let read: Plan = serde_json::from_str(&json).expect("JSON as a plan");
            assert_eq!(read.to_string(), first.to_string(), "seed {seed}");
        }
    }
}

/// Numbers of any size, so that nothing is near anything else.
#[test]
fn plans_of_wild_jobs_are_finite_and_within_their_limits() {
    for seed in 0..300 {
        let mut random = Random::new(seed);
        let (mut job, prices) = random_job(seed);
        let mut any = |least: f64| match random.unit() {
            unit if unit < 0.1 => least,
            _ => least + 10_f64.powf(random.between(-6.0, 9.0)),
        };
        job.workload.samples = any(1.0);
        job.workload.trainers_samples_per_second = any(1e-6);
        job.workload.cores_per_worker = any(1e-3);
        job.workload.epochs_to_come = any(0.0) as u32 % 100;
        job.samples_per_step = any(1e-6);
        job.limit_bytes = any(0.0);
        job.host = TrainerHost { host_cores: 8.0, trainer_cores: any(0.0).min(8.0) };
        job.wire = Wire {
            bytes_per_second: any(1.0),
            sending_seconds_per_byte: any(0.0),
            receiving_seconds_per_byte: any(0.0),
        };
        job.source.bytes_per_second = any(1.0);
        job.cache.seconds_per_request = any(0.0);
        job.workers = WorkerLimits { least: seed as u32 % 3, most: 2 + any(0.0) as u32 % 1000 };
        let (bytes_before, bytes_after) = (any(0.0), any(0.0));
        job.finish = job.finish.map(|finish| Finish { bytes_before, bytes_after, ..finish });
        for prices in [None, Some(&prices)] {
            let plan = plan(&job, prices).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            let text = plan.to_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "seed {seed}: {text}");
            for choice in [Some(&plan.chosen), plan.runner_up.as_ref()].into_iter().flatten() {
                let numbers = [
                    choice.seconds_per_step,
                    choice.waited,
                    choice.local_share,
                    choice.worker_cpu_seconds,
                    choice.host_cpu_seconds,
                    choice.source_bytes,
                    choice.cache_bytes,
                    choice.wire_bytes,
                    choice.first_epoch_seconds,
                    choice.epoch_seconds,
                    choice.total_seconds,
                    choice.worker_seconds,
                    choice.money.unwrap_or_default(),
                ];
                let fine = numbers.iter().all(|number| number.is_finite() && *number >= 0.0);
                assert!(fine, "seed {seed}: {choice:#?}");
                let Configuration { share, local_cores, first_workers, workers, .. } = choice.configuration;
                assert!((0.0..=1.0).contains(&share) && local_cores <= 8, "seed {seed}: {choice:#?}");
                assert!(choice.kept_bytes <= job.limit_bytes * 1.000_001, "seed {seed}: {choice:#?}");
                let limits = job.workers.least..=job.workers.most;
                assert!(limits.contains(&workers) && limits.contains(&first_workers), "seed {seed}: {choice:#?}");
            }
        }
    }
}

#[test]
fn what_would_change_a_plan_does() {
    for seed in 0..40 {
        let mut random = Random::new(seed);
        let (cores, demand) = (random.between(5.0, 200.0), random.between(100.0, 5e4));
        let host = TrainerHost { host_cores: 16.0, trainer_cores: 12.0 };
        let mut job = computing(demand, cores / demand, 4.0, host);
        job.wire = Wire { bytes_per_second: 1e12, sending_seconds_per_byte: 0.0, receiving_seconds_per_byte: 0.0 };
        job.sureness = Some(Sureness { samples: 500.0, error: 0.1 });
        let found = plan(&job, None).expect("a valid job");
        let workers = found.chosen.configuration.workers;
        let is_enough = |workers: u32, seconds: f64| {
            let mut job = job.clone();
            job.workload.trainers_samples_per_second = job.samples_per_step / seconds;
            let one = Configuration { workers, first_workers: workers, ..found.chosen.configuration.clone() };
            job.estimate(&one, None).expect("valid").waited <= job.wait_at_most
        };
        let more = found.changes.more_workers_below_step_seconds.expect("more workers are allowed");
        assert!(is_enough(workers, more * 1.001) && !is_enough(workers, more * 0.999), "seed {seed}: {found:#?}");
        if workers > 0 {
            let fewer = found.changes.fewer_workers_above_step_seconds.expect("fewer would do");
            let is_enough = |seconds: f64| is_enough(workers - 1, seconds);
            assert!(!is_enough(fewer * 0.999) && is_enough(fewer * 1.001), "seed {seed}: {found:#?}");
        }
        let (low, high) = found.workers_range.expect("an error is given");
        assert!(low <= workers && workers <= high && low < high, "seed {seed}: {found:#?}");
        // A tenth more or less of the work that local cores leave.
        let spread = f64::from(high - low) * 4.0 / cores;
        assert!((0.2 - 8.0 / cores..0.2 + 8.0 / cores).contains(&spread), "seed {seed}: {spread}: {found:#?}");
    }
}

/// The runner-up and the chosen one cost the same at the price and at the number of epochs that the plan names.
#[test]
fn runners_up_win_where_plans_say() {
    let mut named = (0, 0);
    for seed in 0..40 {
        let (job, prices) = random_job(seed);
        let found = plan(&job, Some(&prices)).expect("a valid job");
        let Some(other) = &found.runner_up else { continue };
        let money = |job: &Job, prices: &Prices, configuration: &Configuration| {
            job.estimate(configuration, Some(prices)).expect("valid").money.expect("prices")
        };
        let check = |job: &Job, prices: &Prices, tolerance: f64| {
            let ours = money(job, prices, &found.chosen.configuration);
            let theirs = money(job, prices, &other.configuration);
            assert!((ours / theirs - 1.0).abs() < tolerance, "seed {seed}: {ours} and {theirs}: {found:#?}");
        };
        if let Some(price) = found.changes.runner_up_at_worker_price {
            named.0 += 1;
            check(&job, &Prices { worker_per_second: Some(price), ..prices }, 1e-6);
        }
        if let Some(epochs) = found.changes.runner_up_at_epochs.filter(|epochs| *epochs >= 2.0) {
            named.1 += 1;
            // Epochs are whole.
            let mut job = job.clone();
            job.workload.epochs_to_come = epochs.round() as u32;
            check(&job, &prices, 0.5 / epochs);
        }
    }
    assert!(named.0 > 5 && named.1 > 1, "{named:?}");
}

/// Where workers are given and nothing else computes, what a plan estimates of a cut is what [`advise`] does.
#[test]
fn plans_and_advice_agree_where_only_the_cache_is_open() {
    for seed in 0..60 {
        let (mut job, prices) = random_job(seed);
        job.finish = None;
        job.wire = Wire { bytes_per_second: 1e12, sending_seconds_per_byte: 0.0, receiving_seconds_per_byte: 0.0 };
        // The first step begins at once.
        job.samples_per_step = 1e-6;
        let workers = 1 + seed as u32 % 5;
        let workload = Workload { cores: f64::from(workers) * job.workload.cores_per_worker, ..job.workload };
        let cuts = job.orders[0].cuts.clone();
        let Job { source, cache, limit_bytes, .. } = job;
        let measured = Measured { cuts, source, cache, workload, limit_bytes };
        for advised in advise(&measured, Some(&prices), &Weights::default()).expect("valid").estimates {
            let (cut, share) = (advised.cut.clone(), advised.share);
            let one = Configuration { cut, share, first_workers: workers, workers, ..rivals::plain(&job) };
            let planned = job.estimate(&one, Some(&prices)).expect("valid");
            for (ours, theirs) in [
                (planned.first_epoch_seconds, advised.first_epoch_seconds),
                (planned.epoch_seconds, advised.epoch_seconds),
                (planned.total_seconds, advised.total_seconds),
                (planned.worker_cpu_seconds, advised.cpu_seconds),
                (planned.source_bytes + planned.cache_bytes, advised.read_bytes),
                (planned.kept_bytes, advised.kept_bytes),
            ] {
                let near = (ours - theirs).abs() <= 1e-6 * theirs.abs();
                assert!(near, "seed {seed}: {ours} for {theirs}: {planned:#?} {advised:#?}");
            }
        }
    }
}

#[test]
fn random_rows_are_never_kept() {
    for seed in 0..60 {
        let (mut job, prices) = random_job(seed);
        for cut in job.orders.iter_mut().flat_map(|order| &mut order.cuts[1..]) {
            cut.never_kept = true;
        }
        for prices in [None, Some(&prices)] {
            let cut = plan(&job, prices).expect("a valid job").chosen.configuration.cut;
            assert!(cut.as_deref().is_none_or(|cut| cut == "source"), "seed {seed}: {cut:?}");
        }
    }
}

#[test]
fn jobs_that_cannot_run_are_refused_with_what_to_give() {
    let check = |change: &dyn Fn(&mut Job), message: &str, hint: &str| {
        let (mut job, _) = random_job(1);
        change(&mut job);
        let error = plan(&job, None).expect_err(message);
        assert!(error.message.contains(message) && error.hint.contains(hint), "{message}: {error}");
    };
    check(&|job| job.orders.clear(), "there are no orders", "the order \"exact\"");
    check(&|job| job.orders.push(job.orders[0].clone()), "two orders have the name \"exact\"", "a name of its own");
    check(&|job| job.orders[0].cuts.clear(), "there are no cuts", "the source as the first");
    check(&|job| job.workload.trainers = 0, "there are no trainers", "\"trainers\" as the number");
    check(&|job| job.workers = WorkerLimits { least: 3, most: 2 }, "a range such as 0..8, got 3..2", "write 0..8");
    check(
        &|job| {
            job.workers = WorkerLimits { least: 0, most: 0 };
            job.host = TrainerHost { host_cores: 0.5, trainer_cores: 0.5 };
        },
        "no workers and no local cores",
        "allow workers with \"most\"",
    );
    check(
        &|job| job.host.trainer_cores = 99.0,
        "a trainer needs 99 cores, but its host has 5",
        "\"host_cores\" as all",
    );
    check(&|job| job.host.host_cores = f64::NAN, "\"host_cores\" must be a finite number", "as measured");
    check(
        &|job| job.limit_bytes = -1.0,
        "\"limit_bytes\" must be a finite number of at least 0, got -1",
        "as measured",
    );
    check(&|job| job.samples_per_step = 0.0, "\"samples_per_step\" must be a finite number", "as measured");
    check(&|job| job.wire.bytes_per_second = 0.0, "\"wire.bytes_per_second\"", "as measured");
    check(&|job| job.source.bytes_per_second = f64::INFINITY, "\"bytes_per_second\"", "as measured");
    check(&|job| job.wait_at_most = 1.0, "must lie between 0 and 1, got 1", "write 0.01");
    let finish = Finish { seconds_per_sample: 1e3, bytes_before: 1.0, bytes_after: 2.0 };
    check(
        &|job| job.finish = Some(finish),
        "finishing takes 1000 s, but the last cut of \"exact\" only",
        "a cut before",
    );
    let (job, _) = random_job(1);
    let prices = "worker=1/h,trainer=8/h".parse().expect("prices");
    let error = plan(&job, Some(&prices)).expect_err("a price is missing");
    assert!(error.to_string().contains("write storage=0.02/GB-month"), "{error}");
    let mut unknown = plan(&job, None).expect("a valid job").chosen.configuration;
    unknown.cut = Some("frobnicate".to_owned());
    let error = job.estimate(&unknown, None).expect_err("no such cut");
    assert_eq!(error.message, "unknown cut \"frobnicate\"");
    let nothing = Configuration { local_cores: 0, ..rivals::plain(&job) };
    assert!(job.estimate(&nothing, None).is_err(), "nothing computes");
}
