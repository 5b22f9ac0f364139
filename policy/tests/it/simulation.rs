//! A discrete simulation of trainers and workers: what a cluster does between two observations.
//!
//! Trainers read windows in order, step by step. Free slots take the next window of the feed that will need one first,
//! as long as no more are under way or ready than the slots and the windows ahead allow. Workers take time to start,
//! are lost with their windows, and some are slower than others.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use forebay_policy::{Decision, FeedSeen, Observation, WorkerSeen};

use crate::random::{Random, mix};

#[derive(Clone, Copy, Debug)]
pub(crate) struct FeedSetup {
    /// Seconds of a trainer's step over one window.
    pub(crate) step: f64,
    /// Seconds that a slot of a usual worker needs for one window.
    pub(crate) window: f64,
    /// Coefficient of variation of both.
    pub(crate) noise: f64,
    pub(crate) readers: u32,
    /// Pauses of the trainers: from, until.
    pub(crate) pause: (f64, f64),
    /// Seconds that the trainers' network needs for a window.
    pub(crate) link: f64,
    /// When the trainers' steps become another number of times as long.
    pub(crate) changes: (f64, f64),
}

impl FeedSetup {
    pub(crate) fn new(step: f64, window: f64) -> Self {
        Self {
            step,
            window,
            noise: 0.0,
            readers: 1,
            pause: (f64::INFINITY, f64::INFINITY),
            link: 0.0,
            changes: (f64::INFINITY, 1.0),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) seed: u64,
    pub(crate) feeds: Vec<FeedSetup>,
    pub(crate) first_workers: u32,
    /// How many of these come and go by themselves.
    pub(crate) others: u32,
    /// Slots of each worker.
    pub(crate) slots: u32,
    pub(crate) windows_ahead: f64,
    /// Seconds from asking for a worker to its first window.
    pub(crate) start_up: f64,
    /// Mean seconds until a worker is lost.
    pub(crate) lifetime: f64,
    /// The share of workers that are slow, and how many times slower.
    pub(crate) slow: (f64, f64),
    /// The share of windows that take longer, and how many times as long.
    pub(crate) stragglers: (f64, f64),
    /// The most workers that the machine gives.
    pub(crate) most: usize,
    /// The part of its busy time in which a slot uses its core.
    pub(crate) cpu: f64,
}

impl Setup {
    pub(crate) fn new(seed: u64, feeds: Vec<FeedSetup>) -> Self {
        Self {
            seed,
            feeds,
            first_workers: 1,
            others: 0,
            slots: 1,
            windows_ahead: 1.0,
            start_up: 20.0,
            lifetime: f64::INFINITY,
            slow: (0.0, 1.0),
            stragglers: (0.0, 1.0),
            most: usize::MAX,
            cpu: 1.0,
        }
    }
}

pub(crate) const SAMPLES: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A trainer ends its step.
    Stepped(usize),
    /// A trainer's pause ends.
    Resumed(usize),
    /// The next window has come over the network, if it was ready.
    Arrived,
    /// A worker finishes a window of a feed.
    Finished {
        worker: u64,
        feed: usize,
        window: u64,
    },
    Started(u64),
    Lost(u64),
}

#[derive(Default)]
struct Feed {
    next: u64,
    again: BTreeSet<u64>,
    leased: u64,
    ready: BTreeSet<u64>,
    /// The window that the trainer reads next.
    position: u64,
    is_stepping: bool,
    waits_since: Option<f64>,
    waited: f64,
    /// When the network has room for the next window.
    arrives: f64,
}

struct Worker {
    free: u32,
    draining: bool,
    speed: f64,
    /// Seconds of each window that it computes.
    under_way: BTreeMap<(usize, u64), f64>,
    computed: BTreeMap<String, u64>,
    busy: BTreeMap<String, f64>,
}

pub(crate) struct Simulation {
    setup: Setup,
    random: Random,
    pub(crate) now: f64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
    feeds: Vec<Feed>,
    workers: BTreeMap<u64, Worker>,
    starting: BTreeSet<u64>,
    workers_ever: u64,
    /// Slots that have no window.
    free: BTreeSet<u64>,
}

impl Simulation {
    pub(crate) fn new(setup: &Setup) -> Self {
        let mut simulation = Self {
            random: Random::new(setup.seed),
            now: 0.0,
            events: BinaryHeap::new(),
            feeds: setup.feeds.iter().map(|_| Feed::default()).collect(),
            workers: BTreeMap::new(),
            starting: BTreeSet::new(),
            workers_ever: 0,
            free: BTreeSet::new(),
            setup: setup.clone(),
        };
        for _ in 0..setup.first_workers {
            simulation.start(0.0);
        }
        simulation
    }

    fn at(&mut self, time: f64, event: Event) {
        // The bits of positive numbers are ordered as they are.
        self.events.push(Reverse((time.to_bits(), event)));
    }

    fn start(&mut self, delay: f64) {
        let id = self.workers_ever;
        self.workers_ever += 1;
        self.starting.insert(id);
        self.at(self.now + delay, Event::Started(id));
    }

    pub(crate) fn run_until(&mut self, end: f64) {
        self.go();
        while let Some(Reverse((bits, event))) = self.events.peek().copied() {
            let time = f64::from_bits(bits);
            if time > end {
                break;
            }
            self.events.pop();
            self.now = time;
            self.happen(event);
            self.go();
        }
        self.now = end;
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Stepped(feed) | Event::Resumed(feed) => self.feeds[feed].is_stepping = false,
            Event::Arrived => {}
            Event::Finished { worker: id, feed, window } => {
                let Some(worker) = self.workers.get_mut(&id) else { return };
                let Some(seconds) = worker.under_way.remove(&(feed, window)) else { return };
                worker.free += 1;
                *worker.busy.entry(name(feed)).or_default() += seconds;
                *worker.computed.entry(name(feed)).or_default() += SAMPLES;
                self.feeds[feed].leased -= 1;
                self.feeds[feed].ready.insert(window);
                if worker.draining && worker.under_way.is_empty() {
                    self.workers.remove(&id);
                } else if !worker.draining {
                    self.free.insert(id);
                }
            }
            Event::Started(id) => {
                self.starting.remove(&id);
                // A worker's speed follows from the seed and its number alone, so that fleets can be compared.
                let mut own = Random::new(mix(self.setup.seed) ^ id);
                let (share, times) = self.setup.slow;
                let speed = if own.unit() < share { 1.0 / times } else { 1.0 };
                let (free, draining) = (self.setup.slots, false);
                let (computed, busy, under_way) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                self.workers.insert(id, Worker { free, draining, speed, under_way, computed, busy });
                self.free.insert(id);
                if self.setup.lifetime.is_finite() {
                    let life = -self.setup.lifetime * (1.0 - own.unit()).ln();
                    self.at(self.now + life, Event::Lost(id));
                }
            }
            Event::Lost(id) => {
                self.free.remove(&id);
                for (feed, window) in
                    self.workers.remove(&id).into_iter().flat_map(|worker| worker.under_way.into_keys())
                {
                    self.feeds[feed].leased -= 1;
                    self.feeds[feed].again.insert(window);
                }
            }
        }
    }

    /// Lets trainers and workers begin what they can.
    fn go(&mut self) {
        for feed in 0..self.feeds.len() {
            self.step(feed);
        }
        while let Some(id) = self.free.first().copied() {
            let Some(feed) = self.neediest() else { return };
            self.lease(id, feed);
        }
    }

    fn step(&mut self, number: usize) {
        let (setup, now) = (self.setup.feeds[number], self.now);
        let feed = &mut self.feeds[number];
        if feed.is_stepping {
            return;
        }
        if now >= setup.pause.0 && now < setup.pause.1 {
            feed.is_stepping = true;
            return self.at(setup.pause.1, Event::Resumed(number));
        }
        let position = feed.position;
        if now < feed.arrives || !feed.ready.remove(&position) {
            feed.waits_since.get_or_insert(now);
            return;
        }
        feed.waited += feed.waits_since.take().map_or(0.0, |since| now - since);
        feed.position += 1;
        feed.arrives = now + setup.link;
        feed.is_stepping = true;
        let times = if now >= setup.changes.0 { setup.changes.1 } else { 1.0 };
        let end = now + setup.step * times * self.random.noise(setup.noise);
        self.at(end, Event::Stepped(number));
        self.at(now + setup.link, Event::Arrived);
    }

    /// The feed that needs a window first, of those that may have another under way.
    fn neediest(&self) -> Option<usize> {
        let slots =
            self.workers.values().filter(|worker| !worker.draining).count() as f64 * f64::from(self.setup.slots);
        let outstanding = |feed: usize| self.feeds[feed].leased + self.feeds[feed].ready.len() as u64;
        let most = slots * (1.0 + self.setup.windows_ahead);
        let lead = |feed: usize| outstanding(feed) as f64 * self.setup.feeds[feed].step;
        let may = |feed: &usize| !self.feeds[*feed].again.is_empty() || (outstanding(*feed) as f64) < most.max(2.0);
        (0..self.feeds.len()).filter(may).min_by(|a, b| {
            let has_lost = |feed: usize| self.feeds[feed].again.is_empty();
            has_lost(*a).cmp(&has_lost(*b)).then(lead(*a).total_cmp(&lead(*b)))
        })
    }

    fn lease(&mut self, id: u64, number: usize) {
        let setup = self.setup.feeds[number];
        let feed = &mut self.feeds[number];
        let window = feed.again.pop_first().unwrap_or_else(|| {
            feed.next += 1;
            feed.next - 1
        });
        feed.leased += 1;
        let worker = self.workers.get_mut(&id).expect("a free worker");
        worker.free -= 1;
        if worker.free == 0 {
            self.free.remove(&id);
        }
        let (share, times) = self.setup.stragglers;
        let straggles = if self.random.unit() < share { times } else { 1.0 };
        let seconds = setup.window / worker.speed * straggles * self.random.noise(setup.noise);
        worker.under_way.insert((number, window), seconds);
        self.at(self.now + seconds, Event::Finished { worker: id, feed: number, window });
    }

    pub(crate) fn observe(&self) -> Observation {
        let feeds = self.feeds.iter().zip(&self.setup.feeds).enumerate().map(|(number, (feed, setup))| {
            let readers = f64::from(setup.readers);
            let waited = feed.waited + feed.waits_since.map_or(0.0, |since| self.now - since);
            FeedSeen {
                feed: name(number),
                readers: setup.readers,
                samples_taken: feed.position * SAMPLES,
                waited_seconds: waited * readers,
                reading_seconds: self.now * readers,
                samples_per_window: SAMPLES as f64,
            }
        });
        let workers = self.workers.iter().map(|(id, worker)| WorkerSeen {
            worker: format!("w{id}"),
            draining: worker.draining,
            managed: self.is_managed(*id),
            slots: self.setup.slots,
            computed_samples: worker.computed.clone(),
            busy_seconds: worker.busy.clone(),
        });
        Observation { seconds: self.now, feeds: feeds.collect(), workers: workers.collect(), files_left: 0 }
    }

    /// Does what a decision asks for, and replaces workers that were lost.
    pub(crate) fn act(&mut self, decision: &Decision) {
        for name in &decision.drain {
            self.drain(name);
        }
        let starting = |all: &Self| all.starting.iter().filter(|id| all.is_managed(**id)).count();
        while self.live() + starting(self) < (decision.workers as usize).min(self.setup.most) {
            self.start(self.setup.start_up);
        }
        while self.live() + starting(self) > decision.workers as usize && starting(self) > 0 {
            self.starting.pop_last();
        }
        self.events.retain(|Reverse((_, event))| match event {
            Event::Started(id) => self.starting.contains(id),
            _ => true,
        });
    }

    pub(crate) fn drain(&mut self, name: &str) {
        let id = name[1..].parse().expect("a worker's number");
        let Some(worker) = self.workers.get_mut(&id) else { return };
        worker.draining = true;
        self.free.remove(&id);
        if worker.under_way.is_empty() {
            self.workers.remove(&id);
        }
    }

    pub(crate) fn live(&self) -> usize {
        self.workers.iter().filter(|(id, worker)| self.is_managed(**id) && !worker.draining).count()
    }

    fn is_managed(&self, id: u64) -> bool {
        id >= u64::from(self.setup.others)
    }

    /// Windows that the trainers of all feeds have taken.
    pub(crate) fn taken(&self) -> u64 {
        self.feeds.iter().map(|feed| feed.position).sum()
    }

    /// Seconds that trainers have waited, the mean over feeds.
    pub(crate) fn waited(&self) -> f64 {
        let seen = self.observe();
        let waited = seen
            .feeds
            .iter()
            .zip(&self.setup.feeds)
            .map(|(feed, setup)| feed.waited_seconds / f64::from(setup.readers));
        waited.sum::<f64>() / self.feeds.len() as f64
    }

    /// The share of CPU that live workers use, if every slot is busy as often as between two observations.
    pub(crate) fn cpu(&self, before: &Observation) -> f64 {
        let busy =
            |seen: &Observation| -> f64 { seen.workers.iter().flat_map(|worker| worker.busy_seconds.values()).sum() };
        let seen = self.observe();
        let slots = self.live() as f64 * f64::from(self.setup.slots);
        (busy(&seen) - busy(before)) / (seen.seconds - before.seconds) / slots * self.setup.cpu
    }
}

fn name(feed: usize) -> String {
    format!("feed-{feed}")
}

/// The share of time that trainers wait with a fixed number of workers, after a warm-up.
pub(crate) fn wait_with(setup: &Setup, workers: u32, seconds: f64) -> f64 {
    let mut simulation = Simulation::new(&Setup { first_workers: workers, ..setup.clone() });
    let fixed = |simulation: &mut Simulation, until: f64| {
        while simulation.now < until {
            simulation.run_until(simulation.now + 10.0);
            let missing = (workers as usize).saturating_sub(simulation.live() + simulation.starting.len());
            (0..missing).for_each(|_| simulation.start(setup.start_up));
        }
        simulation.waited()
    };
    let warm = seconds / 4.0;
    let before = fixed(&mut simulation, warm);
    (fixed(&mut simulation, warm + seconds) - before) / seconds
}

/// The fewest workers with which trainers wait for at most this share, found by trying.
pub(crate) fn oracle(setup: &Setup, at_most: f64, seconds: f64) -> u32 {
    let (mut too_few, mut enough) = (0, 1);
    while wait_with(setup, enough, seconds) > at_most {
        (too_few, enough) = (enough, enough * 2);
        assert!(enough < 10_000, "seed {}: no number holds the bound", setup.seed);
    }
    while enough - too_few > 1 {
        let middle = u32::midpoint(too_few, enough);
        match wait_with(setup, middle, seconds) <= at_most {
            true => enough = middle,
            false => too_few = middle,
        }
    }
    enough
}
