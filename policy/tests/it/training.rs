//! A simulated training job, batch by batch and event by event.
//!
//! Stores are buckets that serve one request after the other. Batches that were read wait for a free core: of a worker,
//! or beside the trainer that will take them. Computed ones cross their trainer's wire, and its host receives them. A
//! host's cores are shared evenly by all that runs on it, the trainer's step too, so that what asks for too much slows
//! all of it. Trainers step together. Epochs follow each other without a pause; the first fills the cache.
//!
//! Nothing here is shared with the planner: it sees rates, this sees queues.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use forebay_policy::{Configuration, Job, Place, Store};

use crate::random::Random;

/// Epochs that are simulated: one that fills, one in which queues settle, and one that is measured.
const EPOCHS: usize = 3;

/// A job to simulate, with how its batches and steps vary.
pub(crate) struct Training<'a> {
    pub(crate) job: &'a Job,
    steps: usize,
    /// By batch of an epoch, 1 in the mean.
    batch_noise: Vec<f64>,
    /// By batch of an epoch: of its trainer's step. The slowest of each step is 1 in the mean.
    step_noise: Vec<f64>,
}

/// Seconds of the first epoch, and of each later one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) first: f64,
    pub(crate) later: f64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Read,
    /// A worker computed it.
    Computed,
    /// It is in the cache; whether a worker computed it.
    Written(bool),
    Arrived,
}

#[derive(Clone, Copy, PartialEq)]
enum Task {
    Local,
    Receive,
    Step,
}

/// The cores of one trainer's host. Everything that runs has the same slowdown, so one clock of its own serves all.
struct Host {
    cores: f64,
    wanted: f64,
    clock: f64,
    now: f64,
    tasks: Vec<(f64, f64, Task, usize)>,
}

impl Host {
    fn speed(&self) -> f64 {
        if self.wanted > self.cores { self.cores / self.wanted } else { 1.0 }
    }

    fn advance(&mut self, now: f64) {
        self.clock += (now - self.now) * self.speed();
        self.now = now;
    }

    fn start(&mut self, now: f64, seconds: f64, cores: f64, task: Task, batch: usize) {
        self.advance(now);
        self.tasks.push((self.clock + seconds, cores, task, batch));
        self.wanted += cores;
    }

    fn next(&self) -> f64 {
        let first = self.tasks.iter().map(|task| task.0).fold(f64::INFINITY, f64::min);
        self.now + (first - self.clock).max(0.0) / self.speed()
    }

    fn finish(&mut self, now: f64) -> Option<(Task, usize)> {
        self.advance(now);
        let first = (0..self.tasks.len()).min_by(|a, b| self.tasks[*a].0.total_cmp(&self.tasks[*b].0))?;
        let (_, cores, task, batch) = self.tasks.swap_remove(first);
        self.wanted = if self.tasks.is_empty() { 0.0 } else { self.wanted - cores };
        Some((task, batch))
    }
}

struct Simulation<'a> {
    training: &'a Training<'a>,
    trainers: usize,
    events: BinaryHeap<Reverse<(u64, Event, usize)>>,
    hosts: Vec<Host>,
    waiting: Vec<BinaryHeap<Reverse<usize>>>,
    free_workers: usize,
    free_local: Vec<usize>,
    source_free: f64,
    cache_free: f64,
    wire_free: Vec<f64>,
    delivered: VecDeque<usize>,
    steps_done: usize,
    running: usize,
    next_read: usize,
    ahead: usize,
    ends: Vec<f64>,
    costs: Costs,
    draws: Random,
}

/// What one batch takes.
struct Costs {
    /// Samples of a batch.
    samples: f64,
    whole: f64,
    saved: f64,
    share: f64,
    is_last: bool,
    kept_bytes: f64,
    source_bytes: f64,
    /// Bytes of a sample of the whole query.
    out_bytes: f64,
    place: Place,
    step_seconds: f64,
}

impl<'a> Training<'a> {
    pub(crate) fn new(job: &'a Job, seed: u64, variation: f64) -> Self {
        let trainers = job.workload.trainers as usize;
        let steps = (job.workload.samples / job.samples_per_step).round() as usize;
        let mut random = Random::new(seed);
        let mut batch_noise: Vec<f64> = (0..steps * trainers).map(|_| random.noise(variation)).collect();
        let mut step_noise: Vec<f64> = (0..steps * trainers).map(|_| random.noise(variation / 4.0)).collect();
        let mean = batch_noise.iter().sum::<f64>() / batch_noise.len() as f64;
        batch_noise.iter_mut().for_each(|noise| *noise /= mean);
        let slowest: f64 = step_noise.chunks(trainers).map(|step| step.iter().copied().fold(0.0, f64::max)).sum();
        step_noise.iter_mut().for_each(|noise| *noise /= slowest / steps as f64);
        Self { job, steps, batch_noise, step_noise }
    }

    /// Runs a configuration with a constant number of workers.
    pub(crate) fn run(&self, configuration: &Configuration, workers: u32) -> Run {
        let job = self.job;
        let trainers = job.workload.trainers as usize;
        let cuts = &job.orders.iter().find(|order| order.name == configuration.order).expect("an order").cuts;
        let at = configuration.cut.as_ref().map(|name| cuts.iter().position(|cut| cut.name == *name).expect("a cut"));
        let cut = at.map(|at| &cuts[at]);
        let samples = job.samples_per_step / trainers as f64;
        let costs = Costs {
            samples,
            whole: cuts.last().expect("cuts").compute_seconds_per_sample,
            saved: cut.map_or(0.0, |cut| cut.compute_seconds_per_sample),
            share: cut.map_or(0.0, |_| configuration.share),
            is_last: at == Some(cuts.len() - 1),
            kept_bytes: cut.map_or(0.0, |cut| cut.bytes_per_sample * samples),
            source_bytes: cuts[0].bytes_per_sample * samples,
            out_bytes: cuts[cuts.len() - 1].bytes_per_sample,
            place: configuration.finish_at,
            step_seconds: job.samples_per_step / job.workload.trainers_samples_per_second,
        };
        let units = workers as usize * job.workload.cores_per_worker as usize;
        let local = configuration.local_cores as usize;
        let host = || Host { cores: job.host.host_cores, wanted: 0.0, clock: 0.0, now: 0.0, tasks: Vec::new() };
        let mut simulation = Simulation {
            training: self,
            trainers,
            events: BinaryHeap::new(),
            hosts: (0..trainers).map(|_| host()).collect(),
            waiting: (0..trainers).map(|_| BinaryHeap::new()).collect(),
            free_workers: units,
            free_local: vec![local; trainers],
            source_free: 0.0,
            cache_free: 0.0,
            wire_free: vec![0.0; trainers],
            delivered: VecDeque::new(),
            steps_done: 0,
            running: 0,
            next_read: 0,
            ahead: 2 * (units + local * trainers) + 12 * trainers,
            ends: Vec::new(),
            costs,
            draws: Random::new(7),
        };
        simulation.run();
        let ends = simulation.ends;
        Run { first: ends[0], later: ends[2] - ends[1] }
    }
}

impl Simulation<'_> {
    fn run(&mut self) {
        self.read(0.0);
        while self.ends.len() < EPOCHS {
            let (host, next) = (0..self.trainers)
                .map(|host| (host, self.hosts[host].next()))
                .min_by(|a, b| a.1.total_cmp(&b.1))
                .expect("a trainer");
            let event = self.events.peek().map_or(f64::INFINITY, |Reverse((bits, _, _))| f64::from_bits(*bits));
            assert!(next.is_finite() || event.is_finite(), "the job stands still");
            match next < event {
                true => match self.hosts[host].finish(next).expect("a task") {
                    (Task::Local, batch) => {
                        self.free_local[host] += 1;
                        self.computed(next, batch, false);
                        self.dispatch(next);
                    }
                    (Task::Receive, batch) => self.deliver(next, batch),
                    (Task::Step, _) => self.stepped(next),
                },
                false => {
                    let Reverse((bits, event, batch)) = self.events.pop().expect("an event");
                    let now = f64::from_bits(bits);
                    match event {
                        Event::Read => {
                            self.waiting[batch % self.trainers].push(Reverse(batch));
                            self.dispatch(now);
                        }
                        Event::Computed => {
                            self.free_workers += 1;
                            self.computed(now, batch, true);
                            self.dispatch(now);
                        }
                        Event::Written(is_remote) => self.send(now, batch, is_remote),
                        Event::Arrived => self.arrive(now, batch, true),
                    }
                }
            }
        }
    }

    fn per_epoch(&self) -> usize {
        self.training.steps * self.trainers
    }

    /// The share of a batch that comes from the cache: batches are cut from windows that mix what is kept and what is
    /// not.
    fn cached(&self, batch: usize) -> f64 {
        if batch >= self.per_epoch() { self.costs.share } else { 0.0 }
    }

    fn read(&mut self, now: f64) {
        let job = self.training.job;
        let end = (self.steps_done * self.trainers + self.ahead).min(self.per_epoch() * EPOCHS);
        while self.next_read < end {
            let batch = self.next_read;
            let cached = self.cached(batch);
            let mut done = now;
            for (free, store, bytes) in [
                (&mut self.source_free, &job.source, (1.0 - cached) * self.costs.source_bytes),
                (&mut self.cache_free, &job.cache, cached * self.costs.kept_bytes),
            ] {
                if bytes > 0.0 {
                    *free = free.max(now) + request_seconds(store, bytes, store.bytes_per_second);
                    // The last byte is under way for as long as eight requests wait.
                    done = done.max(*free + 8.0 * store.seconds_per_request);
                }
            }
            self.at(done, Event::Read, batch);
            self.next_read += 1;
        }
    }

    fn at(&mut self, time: f64, event: Event, batch: usize) {
        self.events.push(Reverse((time.to_bits(), event, batch)));
    }

    /// The share of a batch that is finished at its trainer.
    fn finished_late(&self) -> f64 {
        match self.costs.place {
            Place::Worker => 0.0,
            Place::Trainer if self.costs.is_last => 1.0 - self.costs.share,
            Place::Trainer => 1.0,
        }
    }

    fn wire_bytes(&self) -> f64 {
        let late = self.finished_late();
        let bytes = match &self.training.job.finish {
            Some(finish) => late * finish.bytes_before + (1.0 - late) * finish.bytes_after,
            None => self.costs.out_bytes,
        };
        bytes * self.costs.samples
    }

    fn finish_seconds(&self) -> f64 {
        let finish = self.training.job.finish.as_ref();
        finish.map_or(0.0, |finish| self.finished_late() * finish.seconds_per_sample * self.costs.samples)
    }

    fn compute_seconds(&self, batch: usize) -> f64 {
        let noise = self.training.batch_noise[batch % self.per_epoch()];
        let seconds = self.costs.samples * (self.costs.whole - self.cached(batch) * self.costs.saved);
        (seconds - self.finish_seconds()).max(0.0) * noise
    }

    /// Gives waiting batches to free cores.
    fn dispatch(&mut self, now: f64) {
        loop {
            let local: usize =
                (0..self.trainers).filter(|at| !self.waiting[*at].is_empty()).map(|at| self.free_local[at]).sum();
            if local + self.free_workers == 0 {
                return;
            }
            let next = |at: &usize| self.waiting[*at].peek().map_or(usize::MAX, |Reverse(batch)| *batch);
            // Any of the free cores may be the first to ask.
            let is_local = local > 0 && self.draws.unit() * ((local + self.free_workers) as f64) < local as f64;
            let candidates = (0..self.trainers).filter(|at| !is_local || self.free_local[*at] > 0);
            let Some(at) = candidates.min_by_key(next) else { return };
            let Some(Reverse(batch)) = self.waiting[at].pop() else { return };
            let seconds = self.compute_seconds(batch);
            if is_local {
                self.free_local[at] -= 1;
                self.hosts[at].start(now, seconds, 1.0, Task::Local, batch);
            } else {
                self.free_workers -= 1;
                let sending = self.wire_bytes() * self.training.job.wire.sending_seconds_per_byte;
                self.at(now + seconds + sending, Event::Computed, batch);
            }
        }
    }

    fn computed(&mut self, now: f64, batch: usize, is_remote: bool) {
        if batch < self.per_epoch() && self.costs.share > 0.0 {
            let cache = &self.training.job.cache;
            let bytes = self.costs.share * self.costs.kept_bytes;
            let seconds = request_seconds(cache, bytes, cache.written_bytes_per_second);
            self.cache_free = self.cache_free.max(now) + seconds;
            self.at(self.cache_free, Event::Written(is_remote), batch);
        } else {
            self.send(now, batch, is_remote);
        }
    }

    fn send(&mut self, now: f64, batch: usize, is_remote: bool) {
        if !is_remote {
            return self.arrive(now, batch, false);
        }
        let seconds = self.wire_bytes() / self.training.job.wire.bytes_per_second;
        let free = &mut self.wire_free[batch % self.trainers];
        *free = free.max(now) + seconds;
        let done = *free;
        self.at(done, Event::Arrived, batch);
    }

    fn arrive(&mut self, now: f64, batch: usize, is_remote: bool) {
        let job = self.training.job;
        let received = if is_remote { self.wire_bytes() * job.wire.receiving_seconds_per_byte } else { 0.0 };
        match received + self.finish_seconds() {
            seconds if seconds > 0.0 => {
                self.hosts[batch % self.trainers].start(now, seconds, 1.0, Task::Receive, batch)
            }
            _ => self.deliver(now, batch),
        }
    }

    fn deliver(&mut self, now: f64, batch: usize) {
        let step = batch / self.trainers - self.steps_done;
        if self.delivered.len() <= step {
            self.delivered.resize(step + 1, 0);
        }
        self.delivered[step] += 1;
        self.step(now);
    }

    fn step(&mut self, now: f64) {
        if self.running > 0 || self.delivered.front().is_none_or(|batches| *batches < self.trainers) {
            return;
        }
        self.running = self.trainers;
        for at in 0..self.trainers {
            let batch = (self.steps_done * self.trainers + at) % self.per_epoch();
            let seconds = self.costs.step_seconds * self.training.step_noise[batch];
            self.hosts[at].start(now, seconds, self.training.job.host.trainer_cores, Task::Step, 0);
        }
    }

    fn stepped(&mut self, now: f64) {
        self.running -= 1;
        if self.running > 0 {
            return;
        }
        self.steps_done += 1;
        self.delivered.pop_front();
        if self.steps_done.is_multiple_of(self.training.steps) {
            self.ends.push(now);
        }
        self.read(now);
        self.step(now);
    }
}

fn request_seconds(store: &Store, bytes: f64, bytes_per_second: f64) -> f64 {
    bytes / bytes_per_second + bytes / store.bytes_per_request * store.seconds_per_request
}
