//! The number of workers in simulated clusters, against the best number found by trying.

use forebay_policy::{Decision, FeedSeen, Observation, Why, WorkerGoal, WorkerPolicy, WorkerSeen, WorkerSettings};

use crate::random::Random;
use crate::simulation::{FeedSetup, Setup, Simulation, oracle, wait_with};

/// Seconds between observations.
const INTERVAL: f64 = 10.0;

pub(crate) struct Run {
    pub(crate) simulation: Simulation,
    pub(crate) policy: WorkerPolicy,
    pub(crate) decisions: Vec<(Observation, Decision)>,
    seed: u64,
    random: Random,
}

impl Run {
    pub(crate) fn new(setup: &Setup, settings: WorkerSettings) -> Self {
        let policy = WorkerPolicy::new(settings).expect("valid settings");
        Self {
            simulation: Simulation::new(setup),
            policy,
            decisions: Vec::new(),
            seed: setup.seed,
            random: Random::new(setup.seed),
        }
    }

    pub(crate) fn go_on(&mut self, seconds: f64) {
        let end = self.simulation.now + seconds;
        while self.simulation.now < end {
            let seen = self.simulation.observe();
            self.decide(seen);
            // No clock of an operating system is exact.
            let interval = INTERVAL * self.random.between(0.9, 1.1);
            self.simulation.run_until(end.min(self.simulation.now + interval));
        }
    }

    fn decide(&mut self, seen: Observation) {
        let decision = self.policy.observe(&seen);
        self.simulation.act(&decision);
        self.decisions.push((seen, decision));
    }

    fn workers(&self) -> u32 {
        self.decisions.last().expect("a decision").1.workers
    }

    /// Every change of the number, with its time and reason.
    fn changes(&self) -> Vec<String> {
        let changed = self.decisions.windows(2).filter(|pair| pair[0].1.workers != pair[1].1.workers);
        changed.map(|pair| format!("{} s: {}", pair[1].0.seconds, pair[1].1.reason)).collect()
    }

    fn history(&self) -> String {
        let last = &self.decisions.last().expect("a decision").1.reason;
        format!("seed {}, changes: {:#?}, last: {last}", self.seed, self.changes())
    }
}

fn settings(min: u32, max: u32) -> WorkerSettings {
    WorkerSettings { min, max, ..WorkerSettings::default() }
}

#[test]
fn cold_starts_settle_in_at_most_three_decisions() {
    // Cachew's demo is a stage of 400 ms and a step of 200 ms.
    for (window, workers) in [(0.4, 2), (3.2, 16), (101.0, 500)] {
        let setup = Setup::new(1, vec![FeedSetup::new(0.2, window)]);
        let mut run = Run::new(&setup, settings(1, 1000));
        run.go_on(f64::max(1500.0, 20.0 * window));
        assert!(run.workers().abs_diff(workers) <= workers / 100, "{workers}: {}", run.history());
        assert!((1..=3).contains(&run.changes().len()), "{workers}: {}", run.history());
        let (_, first) = run.decisions.iter().find(|(_, decision)| decision.workers > 1).expect("a step up");
        assert!(first.workers >= workers * 9 / 10, "one jump, not many steps: {}", run.history());
    }
}

/// A cluster with noise, losses and windows that take several times as long as others.
fn random_setup(seed: u64) -> Setup {
    let mut random = Random::new(seed);
    let step = random.between(0.1, 1.0);
    let window = step * random.between(1.5, 24.0);
    let feed = FeedSetup { noise: random.between(0.05, 0.3), ..FeedSetup::new(step, window) };
    Setup {
        lifetime: random.between(20_000.0, 80_000.0),
        stragglers: (random.between(0.0, 0.03), random.between(1.5, 3.0)),
        slots: if random.unit() < 0.5 { 1 } else { 2 },
        windows_ahead: 2.0,
        ..Setup::new(seed, vec![feed])
    }
}

#[test]
fn nineteen_of_twenty_seeded_runs_settle_within_one_worker_of_the_oracle() {
    let mut wrong = Vec::new();
    for seed in 0..20 {
        let setup = random_setup(seed);
        let mut run = Run::new(&setup, WorkerSettings { windows_ahead: 2.0, ..settings(1, 200) });
        run.go_on(4_000.0);
        let best = oracle(&setup, 0.01, 8_000.0);
        if run.workers().abs_diff(best) > 1 {
            wrong.push(format!("{best} are best: {}", run.history()));
        }
    }
    assert!(wrong.len() <= 1, "{}: {}", wrong.len(), wrong.join("\n"));
}

#[test]
fn the_number_does_not_oscillate() {
    for seed in 100..120 {
        let goal = match seed % 2 {
            0 => WorkerGoal::default(),
            _ => WorkerGoal::Money { prices: "worker=0.31/h,trainer=4/h".parse().expect("prices") },
        };
        let settings = WorkerSettings { goal, windows_ahead: 2.0, ..settings(1, 200) };
        let mut run = Run::new(&random_setup(seed), settings);
        run.go_on(1_000.0 * INTERVAL);
        assert!(run.changes().len() <= 8, "{}", run.history());
        let late = run.decisions.split_off(500);
        let changes = late.windows(2).filter(|pair| pair[0].1.workers != pair[1].1.workers).count();
        assert!(changes <= 3, "seed {seed}: {changes} changes in the last 500 observations");
    }
}

#[test]
fn an_autoscaler_of_cpu_use_stays_at_one_worker_where_the_stage_waits_for_a_store() {
    let setup = Setup { cpu: 0.1, ..Setup::new(5, vec![FeedSetup::new(0.2, 1.0)]) };
    // The Kubernetes HPA: the number times the used share of CPU by the wanted share, rounded up.
    let mut theirs = Simulation::new(&setup);
    let mut ours = Run::new(&setup, settings(1, 100));
    let mut before = theirs.observe();
    for _ in 0..400 {
        theirs.run_until(theirs.now + INTERVAL);
        let wanted = (theirs.live() as f64 * theirs.cpu(&before) / 0.8).ceil().max(1.0);
        assert_eq!(wanted, 1.0);
        before = theirs.observe();
        ours.go_on(INTERVAL);
    }
    let ratio = ours.simulation.taken() as f64 / theirs.taken() as f64;
    assert!(ratio >= 4.0, "{ratio} times as many windows: {}", ours.history());
}

#[test]
fn several_feeds_need_the_sum_of_their_workers() {
    let feeds = vec![FeedSetup::new(0.2, 0.8), FeedSetup { readers: 4, ..FeedSetup::new(1.0, 3.0) }];
    let setup = Setup::new(6, feeds);
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(2_000.0);
    assert_eq!(run.workers(), 7, "{}", run.history());
    assert!(run.changes().len() <= 3, "{}", run.history());
}

#[test]
fn workers_of_speeds_ten_times_apart_count_with_their_own() {
    let setup = Setup { slow: (0.3, 10.0), ..Setup::new(7, vec![FeedSetup::new(0.2, 1.0)]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(6_000.0);
    let best = oracle(&setup, 0.01, 6_000.0);
    assert!(run.workers() <= best + 1, "{best} are best: {}", run.history());
    let before = run.simulation.waited();
    run.go_on(2_000.0);
    assert!(run.simulation.waited() - before <= 0.02 * 2_000.0, "{}", run.history());
    assert!(run.changes().len() <= 8, "{}", run.history());
}

#[test]
fn a_trainer_that_stops_for_an_hour_keeps_its_workers_for_a_while_and_finds_them_at_once() {
    let feed = FeedSetup { pause: (1_000.0, 4_600.0), ..FeedSetup::new(0.2, 0.8) };
    let mut run = Run::new(&Setup::new(8, vec![feed]), settings(0, 100));
    let mut numbers = Vec::new();
    for until in [1_000.0, 1_500.0, 1_700.0, 4_600.0, 4_640.0, 6_000.0] {
        run.go_on(until - run.simulation.now);
        numbers.push(run.workers());
    }
    assert_eq!(numbers, [4, 4, 0, 0, 4, 4], "{}", run.history());
}

#[test]
fn clocks_that_jump_change_nothing() {
    let setup = Setup::new(9, vec![FeedSetup::new(0.2, 0.8)]);
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(1_000.0);
    for jump in [-5_000.0, 3_600.0, f64::NAN, 0.0] {
        let mut seen = run.simulation.observe();
        seen.seconds += jump;
        run.decide(seen);
        run.go_on(200.0);
    }
    assert_eq!(run.workers(), 4, "{}", run.history());
    assert_eq!(run.changes().len(), 1, "{}", run.history());
}

#[test]
fn fewer_workers_than_asked_for_are_said_and_lived_with() {
    let feed = FeedSetup { changes: (3_000.0, 5.0), ..FeedSetup::new(0.2, 1.6) };
    let setup = Setup { most: 5, ..Setup::new(10, vec![feed]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(3_000.0);
    let (_, last) = run.decisions.last().expect("a decision");
    assert_eq!(last.workers, 8, "{}", run.history());
    assert!(last.reason.to_string().contains("asked for 8 workers, 5 came"), "{}", last.reason);
    assert_eq!(run.changes().len(), 1, "{}", run.history());
    // The trainers' steps become five times as long.
    run.go_on(2_000.0);
    assert_eq!(run.workers(), 2, "{}", run.history());
}

#[test]
fn a_trainer_that_changes_its_pace_gets_another_number() {
    for (times, workers) in [(0.25, 16), (2.5, 2)] {
        let feed = FeedSetup { changes: (1_000.0, times), ..FeedSetup::new(0.2, 0.8) };
        let mut run = Run::new(&Setup::new(18, vec![feed]), settings(1, 100));
        run.go_on(1_500.0);
        assert_eq!(run.workers(), workers, "{}", run.history());
        assert!(run.changes().len() <= 3, "{}", run.history());
    }
}

/// Observations of four workers of 100 samples/s, and of a trainer whose demand is only known to be this, give or take
/// a quarter.
fn uncertain(demand: f64) -> impl Iterator<Item = Observation> {
    let (mut taken, mut reading) = (0.0, 0.0);
    (0..120_u32).map(move |at| {
        (taken, reading) = (taken + demand * 8.0, reading + if at % 2 == 0 { 6.0 } else { 10.0 });
        let feed = FeedSeen {
            feed: "feed".to_owned(),
            readers: 1,
            samples_taken: taken as u64,
            waited_seconds: 0.0,
            reading_seconds: reading,
            samples_per_window: 3_300.0,
        };
        let worker = |number: u32| WorkerSeen {
            worker: format!("w{number}"),
            draining: false,
            managed: true,
            slots: 1,
            computed_samples: [("feed".to_owned(), (taken / 4.0) as u64)].into(),
            busy_seconds: [("feed".to_owned(), taken / 400.0)].into(),
        };
        Observation {
            seconds: f64::from(at) * 10.0,
            feeds: vec![feed],
            workers: (0..4).map(worker).collect(),
            files_left: 0,
        }
    })
}

#[test]
fn what_others_compute_is_not_asked_for_and_replaced_when_they_leave() {
    // Eight slots are busy. Five others come first, then there is one's own.
    let feed = FeedSetup { noise: 0.1, ..FeedSetup::new(0.2, 1.5) };
    let setup = Setup { first_workers: 6, others: 5, ..Setup::new(19, vec![feed]) };
    let mut run = Run::new(&setup, settings(0, 100));
    run.go_on(1_500.0);
    assert!((3..=4).contains(&run.workers()), "{}", run.history());
    let last = run.decisions.last().expect("a decision").1.reason.to_string();
    assert!(last.contains(" beside 5 that others run: trainers take"), "{last}");
    assert!(run.decisions.iter().flat_map(|(_, decision)| &decision.drain).all(|name| name[1..] >= *"5"));
    for id in 0..5 {
        run.simulation.drain(&format!("w{id}"));
    }
    run.go_on(1_500.0);
    assert!((8..=9).contains(&run.workers()), "{}", run.history());
    assert!(run.changes().len() <= 5, "{}", run.history());
}

#[test]
fn none_are_wanted_beside_others_that_do_all_the_work() {
    let setup = Setup { first_workers: 4, others: 2, ..Setup::new(20, vec![FeedSetup::new(0.2, 0.2)]) };
    let mut run = Run::new(&setup, settings(0, 100));
    run.go_on(1_500.0);
    assert_eq!(run.workers(), 0, "{}", run.history());
    // One that leaves leaves none: rates are measured where something is computed.
    run.simulation.drain("w0");
    run.simulation.drain("w1");
    run.go_on(300.0);
    assert!((1..=2).contains(&run.workers()), "{}", run.history());
}

#[test]
fn nothing_changes_before_the_rates_are_sure() {
    let settings = WorkerSettings { windows_ahead: 10.0, ..settings(1, 100) };
    // The likely number is five, and three.
    for (demand, observations) in [(465.0, 11), (285.0, 120)] {
        let mut policy = WorkerPolicy::new(settings).expect("valid settings");
        for seen in uncertain(demand).take(observations) {
            let decision = policy.observe(&seen);
            assert_eq!(decision.workers, 4, "{} s: {}", seen.seconds, decision.reason);
        }
    }
    // Cold starts with noise: the first jump waits until it is about right.
    for seed in 0..20 {
        let feed = FeedSetup { noise: 0.6, ..FeedSetup::new(0.8, 8.0) };
        let mut run = Run::new(&Setup::new(seed, vec![feed]), WorkerSettings { max: 100, ..settings });
        run.go_on(2_000.0);
        let first = run.decisions.iter().map(|(_, decision)| decision.workers).find(|workers| *workers > 1);
        assert!((6..=14).contains(&first.expect("a jump")), "{}", run.history());
    }
}

#[test]
fn nothing_is_decided_while_workers_start() {
    let setup = Setup { start_up: 90.0, ..Setup::new(11, vec![FeedSetup::new(0.2, 1.6)]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(1_000.0);
    assert_eq!(run.changes().len(), 1, "{}", run.history());
    let changed = run.decisions.iter().position(|(_, decision)| decision.workers == 8).expect("a change");
    let whys: Vec<Why> = run.decisions[changed + 1..].iter().map(|(_, decision)| decision.reason.why).collect();
    let starting = whys.iter().position(|why| *why != Why::Starting).expect("an end of starting");
    let settling = whys[starting..].iter().position(|why| *why != Why::Settling).expect("an end of settling");
    assert!((8..=11).contains(&starting) && (2..=5).contains(&settling), "{starting} {settling}");
}

#[test]
fn notices_of_spot_machines_and_losses_do_not_move_the_number() {
    let setup = Setup { lifetime: 1_500.0, ..Setup::new(12, vec![FeedSetup::new(0.2, 1.6)]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(1_000.0);
    for _ in 0..20 {
        let seen = run.simulation.observe();
        if let Some(worker) = seen.workers.iter().find(|worker| !worker.draining) {
            run.simulation.drain(&worker.worker);
        }
        run.go_on(200.0);
    }
    assert!((8..=9).contains(&run.workers()), "{}", run.history());
    assert!(run.changes().len() <= 3, "{}", run.history());
}

#[test]
fn workers_are_not_added_for_ever_where_they_do_not_help() {
    // The network brings a window in 250 ms, so trainers wait for 20 % of their time whatever is computed.
    let setup = Setup::new(15, vec![FeedSetup { link: 0.25, ..FeedSetup::new(0.2, 0.8) }]);
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(5_000.0);
    let most = run.decisions.iter().map(|(_, decision)| decision.workers).max();
    assert!((5..=8).contains(&most.expect("a decision")), "{}", run.history());
    assert_eq!(run.workers(), 4, "{}", run.history());
    assert!(run.changes().len() <= 4, "{}", run.history());
}

#[test]
fn waits_that_the_rates_do_not_explain_raise_the_number() {
    // A tenth of the windows takes four times as long, and trainers read in order.
    let feed = FeedSetup { noise: 0.1, ..FeedSetup::new(0.2, 1.0) };
    let setup = Setup { stragglers: (0.1, 4.0), ..Setup::new(16, vec![feed]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(10_000.0);
    assert!(run.decisions.iter().any(|(_, decision)| decision.reason.why == Why::Waits), "{}", run.history());
    let best = oracle(&setup, 0.01, 8_000.0);
    assert!(run.workers().abs_diff(best) <= 2, "{best} are best: {}", run.history());
}

#[test]
fn a_policy_that_starts_beside_running_workers_keeps_them() {
    let setup = Setup { first_workers: 8, ..Setup::new(17, vec![FeedSetup::new(0.2, 1.6)]) };
    let mut run = Run::new(&setup, settings(0, 100));
    run.go_on(500.0);
    run.policy = WorkerPolicy::new(settings(0, 100)).expect("valid settings");
    // At first it sees nobody, as after a restart of the dispatcher.
    let before = run.decisions.len();
    let decision = run.policy.observe(&Observation { seconds: 500.0, ..Observation::default() });
    assert_eq!(decision.workers, 0);
    run.go_on(500.0);
    let later = &run.decisions[before..];
    assert!(later.iter().all(|(_, decision)| decision.workers == 8 && decision.drain.is_empty()), "{}", run.history());
}

#[test]
fn the_slowest_workers_are_drained_first() {
    let setup = Setup { first_workers: 10, slow: (0.3, 3.0), ..Setup::new(13, vec![FeedSetup::new(0.2, 0.6)]) };
    let mut run = Run::new(&setup, settings(1, 100));
    run.go_on(1_000.0);
    assert!((3..=4).contains(&run.workers()), "{}", run.history());
    let (seen, first) = run.decisions.iter().find(|(_, decision)| !decision.drain.is_empty()).expect("a drain");
    let pace = |name: &String| {
        let worker = seen.workers.iter().find(|worker| worker.worker == *name).expect("a drained worker is there");
        worker.busy_seconds.values().sum::<f64>() / worker.computed_samples.values().sum::<u64>() as f64
    };
    let kept = seen.workers.iter().map(|worker| &worker.worker).filter(|name| !first.drain.contains(name));
    let slowest_kept = kept.map(pace).fold(0.0, f64::max);
    assert!(first.drain.iter().all(|name| pace(name) > 0.9 * slowest_kept), "{:?}", first.drain);
    assert!(first.drain.iter().any(|name| pace(name) > 2.0 * slowest_kept), "{:?}", first.drain);
}

#[test]
fn money_settles_where_an_epoch_is_cheapest() {
    let feed = FeedSetup { noise: 0.3, ..FeedSetup::new(0.2, 2.0) };
    for (prices, worker, trainer) in [("worker=0.31/h,trainer=8/h", 0.31, 8.0), ("worker=4/h,trainer=8/h", 4.0, 8.0)] {
        let setup = Setup::new(14, vec![feed]);
        let goal = WorkerGoal::Money { prices: prices.parse().expect("prices") };
        let mut run = Run::new(&setup, WorkerSettings { goal, ..settings(1, 100) });
        run.go_on(3_000.0);
        let cost = |n: u32| (trainer + worker * f64::from(n)) / (1.0 - wait_with(&setup, n, 4_000.0));
        let best = (1..20).map(cost).fold(f64::INFINITY, f64::min);
        assert!(cost(run.workers()) <= 1.05 * best, "{prices}: {best}: {}", run.history());
    }
}

#[test]
fn trainers_that_take_in_bursts_and_never_wait_need_no_more_workers() {
    // A worker computes four times what the trainer takes, which is 28 windows in one second and 12 in the next.
    let mut policy = WorkerPolicy::new(settings(0, 8)).expect("valid settings");
    let mut wanted = Vec::new();
    for second in 0..300_u32 {
        let seconds = f64::from(second);
        let feed = FeedSeen {
            feed: "bursts".to_owned(),
            readers: 1,
            samples_taken: u64::from(second) * 200 + u64::from(second % 2) * 80,
            waited_seconds: 0.0,
            reading_seconds: seconds,
            samples_per_window: 10.0,
        };
        let worker = WorkerSeen {
            worker: "w".to_owned(),
            slots: 1,
            computed_samples: [("bursts".to_owned(), feed.samples_taken)].into(),
            busy_seconds: [("bursts".to_owned(), feed.samples_taken as f64 / 800.0)].into(),
            ..WorkerSeen::default()
        };
        let seen = Observation { seconds, feeds: vec![feed], workers: vec![worker], files_left: 0 };
        wanted.push(policy.observe(&seen).workers);
    }
    assert_eq!(wanted.iter().max(), Some(&1), "{wanted:?}");
}
