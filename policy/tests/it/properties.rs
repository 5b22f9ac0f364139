//! What holds whatever is observed.

use forebay_policy::{
    Cut, FeedSeen, Measured, Observation, Store, Weights, WorkerGoal, WorkerPolicy, WorkerSeen, WorkerSettings,
    Workload, advise,
};

use crate::random::Random;

/// Observations of trainers with a steady demand, and of one worker with a steady rate.
fn steady(demand: f64, rate: f64, workers: u32) -> impl Iterator<Item = Observation> {
    (0..40_u32).map(move |at| {
        let seconds = f64::from(at) * 10.0;
        let taken = f64::min(demand, rate * f64::from(workers)) * seconds;
        let feed = FeedSeen {
            feed: "feed".to_owned(),
            readers: 1,
            samples_taken: taken as u64,
            waited_seconds: seconds - taken / demand,
            reading_seconds: seconds,
            samples_per_window: 100.0,
        };
        let worker = |number: u32| WorkerSeen {
            worker: format!("w{number}"),
            draining: false,
            managed: true,
            slots: 1,
            computed_samples: [("feed".to_owned(), (taken / f64::from(workers)) as u64)].into(),
            busy_seconds: [("feed".to_owned(), taken / f64::from(workers) / rate)].into(),
        };
        Observation { seconds, feeds: vec![feed], workers: (0..workers).map(worker).collect(), files_left: 0 }
    })
}

fn first_change(settings: WorkerSettings, seen: impl Iterator<Item = Observation>) -> u32 {
    let mut policy = WorkerPolicy::new(settings).expect("valid settings");
    let decisions: Vec<u32> = seen.map(|seen| policy.observe(&seen).workers).collect();
    let first = decisions[0];
    decisions.into_iter().find(|workers| *workers != first).unwrap_or(first)
}

#[test]
fn more_demand_never_wants_fewer_workers() {
    for seed in 0..60 {
        let mut random = Random::new(seed);
        let rate = random.between(500.0, 5_000.0);
        let price = random.between(0.01, 1.0);
        let money = WorkerGoal::Money { prices: format!("worker={price}/h,trainer=1/h").parse().expect("prices") };
        let workers = random.between(1.0, 6.0) as u32;
        for goal in [WorkerGoal::default(), money] {
            let settings = WorkerSettings { goal, min: 1, max: 1_000, ..WorkerSettings::default() };
            let mut before = 0;
            for step in 1..30 {
                let demand = rate * f64::from(step) * 0.7;
                let wanted = first_change(settings, steady(demand, rate, workers));
                assert!(wanted >= before, "seed {seed}, {goal:?}: {wanted} after {before} for {demand} by {rate}");
                before = wanted;
            }
            assert!(before > 1, "seed {seed}");
        }
    }
}

/// Observations that no cluster makes: counters run back, numbers are huge or none, names come and go.
fn wild(random: &mut Random) -> Observation {
    let number = |random: &mut Random| match random.unit() {
        unit if unit < 0.05 => f64::NAN,
        unit if unit < 0.1 => f64::INFINITY,
        unit if unit < 0.15 => -1e18,
        unit if unit < 0.5 => random.between(0.0, 1e3),
        _ => random.between(0.0, 1e9),
    };
    let count = |random: &mut Random| if random.unit() < 0.1 { u64::MAX } else { random.between(0.0, 1e7) as u64 };
    let feeds = (0..3).map(|feed| FeedSeen {
        feed: format!("feed-{feed}"),
        readers: if random.unit() < 0.1 { u32::MAX } else { random.between(0.0, 9.0) as u32 },
        samples_taken: count(random),
        waited_seconds: number(random),
        reading_seconds: number(random),
        samples_per_window: number(random),
    });
    let feeds = feeds.collect();
    let workers = (0..random.between(0.0, 9.0) as u32).map(|worker| WorkerSeen {
        worker: format!("w{worker}"),
        draining: random.unit() < 0.2,
        managed: random.unit() < 0.8,
        slots: if random.unit() < 0.1 { u32::MAX } else { random.between(0.0, 9.0) as u32 },
        computed_samples: [("feed-0".to_owned(), count(random)), ("feed-7".to_owned(), count(random))].into(),
        busy_seconds: [("feed-0".to_owned(), number(random)), ("feed-1".to_owned(), number(random))].into(),
    });
    let workers = workers.collect();
    Observation { seconds: number(random), feeds, workers, files_left: 0 }
}

#[test]
fn no_observation_leads_out_of_the_range() {
    for seed in 0..200 {
        let mut random = Random::new(seed);
        let settings = WorkerSettings { min: 2, max: 40, patience_seconds: 20.0, ..WorkerSettings::default() };
        let mut policy = WorkerPolicy::new(settings).expect("valid settings");
        let mut seconds = 0.0;
        for step in 0..60 {
            seconds += 10.0;
            let mut seen = wild(&mut random);
            if random.unit() < 0.8 {
                seen.seconds = seconds;
            }
            let decision = policy.observe(&seen);
            assert!((2..=40).contains(&decision.workers), "seed {seed}, step {step}: {decision:?}");
            let text = decision.reason.to_string();
            assert!(!text.contains("NaN") && !text.contains("inf"), "seed {seed}, step {step}: {text}");
            let leaving = decision.drain.iter().all(|name| seen.workers.iter().any(|worker| worker.worker == *name));
            assert!(leaving, "seed {seed}, step {step}: {decision:?}");
        }
    }
}

#[test]
fn estimates_of_caches_are_finite_and_not_negative() {
    for seed in 0..500 {
        let mut random = Random::new(seed);
        let mut any =
            |least: f64| if random.unit() < 0.1 { least } else { least + 10_f64.powf(random.between(-6.0, 12.0)) };
        let store = |any: &mut dyn FnMut(f64) -> f64| Store {
            bytes_per_second: any(1.0),
            written_bytes_per_second: any(1.0),
            seconds_per_request: any(0.0),
            bytes_per_request: any(1.0),
        };
        let (source, cache) = (store(&mut any), store(&mut any));
        let mut compute = 0.0;
        let mut cuts = Vec::new();
        for step in 0..4 {
            compute += any(0.0);
            let (name, never_kept) = (format!("step {step}"), step == 3);
            cuts.push(Cut { name, compute_seconds_per_sample: compute, bytes_per_sample: any(0.0), never_kept });
        }
        let workload = Workload {
            samples: any(1.0),
            epochs_to_come: (any(0.0) as u32) % 100,
            other_jobs: (any(0.0) as u32) % 10,
            trainers_samples_per_second: any(1e-6),
            trainers: 3,
            cores: any(1e-3),
            cores_per_worker: any(1e-3),
        };
        let prices = "worker=0.31/h,trainer=8/h,storage=0.02/GB-month".parse().expect("prices");
        let limit = any(0.0);
        let measured = Measured { cuts, source, cache, workload, limit_bytes: limit };
        let advice = advise(&measured, Some(&prices), &Weights::default());
        let advice = advice.expect("valid measurements");
        assert_eq!(advice.estimates.len(), 5);
        for estimate in &advice.estimates {
            let numbers = [
                estimate.share,
                estimate.kept_bytes,
                estimate.first_epoch_seconds,
                estimate.epoch_seconds,
                estimate.total_seconds,
                estimate.samples_per_second,
                estimate.cpu_seconds,
                estimate.read_bytes,
                estimate.fill_seconds,
                estimate.money.expect("all prices"),
                estimate.score,
            ];
            let fine = numbers.iter().all(|number| number.is_finite() && *number >= 0.0);
            assert!(fine, "seed {seed}: {estimate:?}");
            assert!(estimate.kept_bytes <= limit * 1.000_001 + 1.0, "seed {seed}: {estimate:?}");
        }
        assert!(!advice.choice().never_kept, "seed {seed}");
    }
}
