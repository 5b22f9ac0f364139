//! Plans against simulated training.

use std::thread;

use forebay_policy::{
    Cut, Finish, Job, Order, Plan, Prices, Store, Sureness, TrainerHost, Wire, WorkerLimits, Workload, plan,
};

use crate::random::Random;
use crate::rivals::Lab;
use crate::training::Training;

const SAMPLES_PER_BATCH: f64 = 32.0;

fn store(bytes_per_second: f64) -> Store {
    Store {
        bytes_per_second,
        written_bytes_per_second: bytes_per_second,
        seconds_per_request: 0.0,
        bytes_per_request: 1e6,
    }
}

fn cut(name: &str, compute_seconds_per_sample: f64, bytes_per_sample: f64, is_random: bool) -> Cut {
    Cut { name: name.to_owned(), compute_seconds_per_sample, bytes_per_sample, is_random }
}

/// A job whose needs lie around what its machines have, some well below and some above.
fn random_job(seed: u64) -> (Job, Prices) {
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
    let is_random = cuts[2].is_random || random.unit() < 0.3;
    cuts.push(cut("normalise", whole, cropped * grown, is_random));
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
        sureness: Some(Sureness { samples: 1e6, error: 0.0 }),
    };
    // Storage is dear enough to matter: bytes here are few.
    let kept_price = random.between(0.0, 0.5) * 8.0 / (job.limit_bytes.max(1e6) / 1e9) * 720.0;
    let worker = random.between(0.2, 2.0);
    let prices = format!("worker={worker}/h,trainer=8/h,storage={kept_price}/GB-month");
    (job, prices.parse().expect("prices"))
}

/// The plan's simulated money, relative to the best of all, and to the best of the three rivals.
fn ratios(seed: u64, near_tie: Option<Sureness>) -> (f64, f64, String) {
    let (mut job, prices) = random_job(seed);
    job.sureness = near_tie;
    let plan = plan(&job, Some(&prices)).expect("a valid job");
    let mut lab = Lab::new(Training::new(&job, seed, 0.1), prices);
    let chosen = lab.money(&plan.chosen.configuration);
    let (best, by) = lab.cheapest(&[1.0, 0.5]);
    let rivals = [lab.workers_only(), lab.cachew(), lab.pecan()];
    let rivals = rivals.map(|rival| (lab.money(&rival), rival));
    let rival = rivals.iter().min_by(|a, b| a.0.total_cmp(&b.0)).expect("three").clone();
    let c = &plan.chosen;
    let (f, l) = (
        lab.run(&c.configuration, c.configuration.first_workers).first,
        lab.run(&c.configuration, c.configuration.workers).later,
    );
    println!(
        "seed {seed} first {:.2} sim {f:.2}; later {:.2} sim {l:.2} ideal {:.2} host {:?} busyneed {:.2} local_share {:.2} trainers {} epochs {} step {:.3}",
        c.first_epoch_seconds,
        c.epoch_seconds,
        job.workload.samples / job.workload.trainers_samples_per_second,
        job.host,
        c.host_cpu_seconds / c.epoch_seconds / f64::from(job.workload.trainers),
        c.local_share,
        job.workload.trainers,
        job.workload.epochs_to_come,
        job.samples_per_step / job.workload.trainers_samples_per_second
    );
    let told = format!(
        "seed {seed}: {:.4} of the best, {:.4} of the best rival\n chosen {:?}\n  estimated {:?} simulated {chosen}, {:?}\n best {best} {by:?}\n rival {rival:?}\n {} runs",
        chosen / best,
        chosen / rival.0,
        plan.chosen.configuration,
        plan.chosen.money,
        plan.chosen.bottleneck,
        lab.simulated
    );
    (chosen / best, chosen / rival.0, told)
}

#[test]
fn plans_cost_no_more_than_the_best_configuration_and_the_best_rival() {
    let sure = Some(Sureness { samples: 1e6, error: 0.0 });
    let seeds = |from: u64| (from..40).step_by(2).map(move |seed| ratios(seed, sure)).collect::<Vec<_>>();
    let (even, odd) = thread::scope(|scope| {
        let even = scope.spawn(|| seeds(0));
        let odd = seeds(1);
        (even.join().expect("no panic"), odd)
    });
    let mut all: Vec<_> = even.into_iter().chain(odd).collect();
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    for (best, rival, told) in &all {
        println!("{told}");
        let _ = (best, rival);
    }
}

#[test]
fn debug_seed_3() {
    for (seed, c0) in [(387_u64, (1, 2)), (106, (4, 0)), (333, (2, 1))] {
        let (job, prices) = random_job(seed);
        println!("{job:?}");
        let p = plan(&job, Some(&prices)).unwrap();
        let mut lab = Lab::new(Training::new(&job, seed, 0.1), prices);
        let _ = c0;
        for l in 0..4 {
            for w in 0..6 {
                if l + w == 0 {
                    continue;
                }
                let c = forebay_policy::Configuration {
                    local_cores: l,
                    workers: w,
                    first_workers: w,
                    ..p.chosen.configuration.clone()
                };
                let e = job.estimate(&c, Some(&prices)).unwrap();
                let s = lab.run(&c, w);
                println!(
                    "l {l} w {w}: est {:.2} sim {:.2} ratio {:.4} {:?} host cpu {:.2} localshare {:.2}",
                    e.epoch_seconds,
                    s.later,
                    s.later / e.epoch_seconds,
                    e.bottleneck,
                    e.host_cpu_seconds / e.epoch_seconds,
                    e.local_share
                );
            }
        }
    }
}
