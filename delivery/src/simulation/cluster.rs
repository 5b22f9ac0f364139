//! All nodes of one seed, the faults injected into them, and the end of the run.

use super::dispatcher::DispatcherNode;
use super::faults::{Blow, Fault};
use super::job::DynamicJob;
use super::liar::Liar;
use super::reader::{OrderedJob, ResumeChange};
use super::worker::WorkerNode;
use super::world::{
    DISPATCHERS, NodeId, Process, RANKS, READERS, Role, Timer, WORKERS, World, WorldEvent, role, trainer_node,
    worker_node,
};
use super::writer::Writer;
use crate::Millis;

/// The time after the last fault within which all jobs must finish.
const FINISH_MS: Millis = 180_000;
/// More events than any correct run has.
const EVENTS_MAX: u64 = 400_000;
/// Workers that are started by default. The others come to the addresses of these.
const WORKERS_USUAL: usize = 5;

/// The result of a seed.
pub(super) struct SeedResult {
    pub(super) hash: u64,
    pub(super) events: u64,
    /// The time from the last fault to the end.
    pub(super) recovery_ms: Millis,
    pub(super) batches: u64,
    pub(super) fired: Vec<u64>,
    pub(super) violation: Option<String>,
    pub(super) trace: Vec<String>,
}

struct SimulatedCluster {
    world: World,
    dispatchers: Vec<DispatcherNode>,
    workers: Vec<WorkerNode>,
    /// The number of workers that should be up.
    workers_wanted: usize,
    readers: Vec<OrderedJob>,
    /// Jobs with dynamic delivery. Their nodes come after those of the ordered jobs.
    jobs: Vec<DynamicJob>,
    liar: Option<Liar>,
    writer: Option<Writer>,
}

/// Runs a seed to its end.
pub(super) fn run(seed: u64, traced: bool) -> SeedResult {
    let mut cluster = SimulatedCluster::new(seed, traced);
    let mut events = 0;
    while !cluster.is_done() && cluster.world.violation().is_none() {
        let Some(event) = cluster.world.next() else {
            cluster.world.violated(|| "stuck: no event is left".to_owned());
            break;
        };
        events += 1;
        cluster.handle(event);
        let bound = cluster.world.faults.until + FINISH_MS;
        if cluster.world.now > bound || events > EVENTS_MAX {
            cluster.world.violated(|| format!("stuck: not finished after {events} events"));
        }
    }
    for dispatcher in &mut cluster.dispatchers {
        dispatcher.count(&mut cluster.world);
    }
    SeedResult {
        hash: cluster.world.hash(),
        events,
        recovery_ms: cluster.world.now.saturating_sub(cluster.world.faults.until),
        batches: cluster.readers.iter().map(|reader| reader.oracle.batches).sum::<u64>()
            + cluster.jobs.iter().map(|job| job.ledger.batches).sum::<u64>(),
        fired: cluster.world.faults.counts().to_vec(),
        violation: cluster.world.violation().map(str::to_owned),
        trace: cluster.world.trace(),
    }
}

impl SimulatedCluster {
    fn new(seed: u64, traced: bool) -> Self {
        let mut world = World::new(seed, traced);
        world.write(seed);
        world.poison();
        let workers_wanted =
            world.random.pick(if world.has_many_streams { &[1, 2] } else { &[1, 1, 2, 2, 3, 4, WORKERS_USUAL] });
        let readers = match world.random.below(10) {
            0 => READERS,
            1..4 => 2,
            _ => 1,
        };
        // Half of the seeds have jobs with dynamic delivery, some with an ordered job beside them.
        let (readers, jobs) = match world.random.chance(500) {
            true => (world.random.pick(&[0, 0, 0, 1]), world.random.pick(&[1, 1, 1, 2])),
            false => (readers, 0),
        };
        let readers: Vec<_> = (0..readers).map(|index| OrderedJob::draw(&mut world, index)).collect();
        let jobs: Vec<_> =
            (readers.len()..readers.len() + jobs).map(|index| DynamicJob::draw(&mut world, index)).collect();
        if !jobs.is_empty() && world.poison.is_none() && world.random.chance(500) {
            world.dispatchers = world.random.pick(&[2, DISPATCHERS]);
        }
        let dispatchers = (0..DISPATCHERS).map(DispatcherNode::new).collect();
        let workers = (0..WORKERS).map(|worker| WorkerNode::new(worker_node(worker), worker % WORKERS_USUAL)).collect();
        for node in 0..world.dispatchers {
            world.schedule(0, WorldEvent::Start(node));
        }
        for worker in 0..workers_wanted {
            let at = world.random.between(0, 100);
            world.schedule(at, WorldEvent::Start(worker_node(worker)));
        }
        for reader in 0..readers.len() {
            let at = world.random.between(0, 300);
            world.schedule(at, WorldEvent::Start(trainer_node(reader, 0)));
        }
        for job in &jobs {
            job.begin(&mut world);
        }
        if !jobs.is_empty() && world.poison.is_none() && world.random.chance(500) {
            world.faults.blows.extend([Blow::KillRank, Blow::KillRank, Blow::KillRank, Blow::ChangeWorld]);
            world.faults.pace = world.faults.pace.min(400);
            world.faults.until = world.faults.until.max(5_000);
        }
        let until = world.faults.until;
        if !world.faults.blows.is_empty() && world.faults.pace < until {
            let at = world.faults.pace;
            world.schedule(at, WorldEvent::Blow);
        }
        world.schedule(until, WorldEvent::Heal);
        let liar = world.random.chance(200).then(|| Liar::draw(&mut world));
        let writer = world.target.is_some().then(|| Writer::draw(&mut world));
        Self { world, dispatchers, workers, workers_wanted, readers, jobs, liar, writer }
    }

    fn handle(&mut self, event: WorldEvent) {
        let world = &mut self.world;
        match event {
            WorldEvent::NodeMessage { from, to, generation, message } => match role(to) {
                Role::Dispatcher(index) => self.dispatchers[index].handle(world, from, message),
                Role::Worker(index) => {
                    let worker = &mut self.workers[index];
                    if generation.is_none_or(|generation| generation == worker.process.generation) {
                        worker.handle(world, from, message);
                        self.revive(index);
                    }
                }
                Role::Liar => self.liar.iter_mut().for_each(|liar| liar.handle(message.clone())),
                Role::Writer => self.writer.iter_mut().for_each(|it| it.handle(world, from, &message)),
                Role::Trainer(reader, _) => {
                    let process = Process { node: to, generation: generation.unwrap_or(0) };
                    if let Some(it) = self.readers.get_mut(reader) {
                        it.handle(world, process, from, message);
                    } else if let Some(job) = self.jobs.get_mut(reader - self.readers.len()) {
                        job.handle(world, process, from, message);
                    }
                }
            },
            WorldEvent::Timer { process, timer } => match role(process.node) {
                Role::Dispatcher(index) => {
                    if self.dispatchers[index].process == process {
                        self.dispatchers[index].poll(world);
                    }
                }
                Role::Worker(index) => {
                    let worker = &mut self.workers[index];
                    if worker.process == process {
                        match timer {
                            Timer::Unanswered(seq) => worker.unanswered(world, seq),
                            Timer::Computed { key, task } => worker.computed(world, key, task),
                            _ => {}
                        }
                        self.revive(index);
                    }
                }
                Role::Liar => self.liar.iter_mut().for_each(|liar| liar.lie(world)),
                Role::Writer => self.writer.iter_mut().for_each(|it| it.timer(world, &timer)),
                Role::Trainer(reader, _) => match self.readers.get_mut(reader) {
                    Some(reader) => reader.timer(world, process, timer),
                    None => self.jobs[reader - self.readers.len()].timer(world, process, timer),
                },
            },
            WorldEvent::Start(node) => self.start(node),
            WorldEvent::Blow => {
                self.blow();
                let pace = self.world.faults.pace;
                let at = self.world.now + self.world.random.between(1, 2 * pace);
                if at < self.world.faults.until {
                    self.world.schedule(at, WorldEvent::Blow);
                }
            }
            WorldEvent::Heal => self.heal(),
        }
    }

    fn start(&mut self, node: NodeId) {
        let world = &mut self.world;
        match role(node) {
            Role::Dispatcher(index) => {
                if !self.dispatchers[index].is_up() {
                    self.dispatchers[index].start(world);
                }
            }
            Role::Worker(index) => {
                if !self.workers[index].is_up() {
                    self.start_worker(index, index > 0);
                }
            }
            Role::Liar | Role::Writer => {}
            Role::Trainer(reader, rank) => match self.readers.get_mut(reader) {
                Some(reader) => reader.start(world),
                None => self.jobs[reader - self.readers.len()].start(world, rank),
            },
        }
    }

    /// Starts a worker. It takes its address from any other worker there, which then seems lost before it knows.
    fn start_worker(&mut self, index: usize, may_refuse: bool) {
        let address = self.workers[index].address;
        if let Some(other) = self.workers.iter().find(|it| it.is_up() && it.address == address) {
            self.world.out_of_contact(other.process.node);
        }
        self.workers[index].start(&mut self.world, may_refuse);
    }

    /// Restarts a worker that ended by itself: at its own address, if another worker has the one that it had.
    fn revive(&mut self, index: usize) {
        let worker = &self.workers[index];
        if worker.is_up() {
            return;
        }
        if let Some(other) = self.workers.iter().find(|it| it.is_up() && it.address == worker.address) {
            self.world.serve(other.address, other.process.node);
            if index >= self.workers_wanted || other.address == index {
                return;
            }
            self.workers[index].address = index;
        }
        let after = self.world.random.between(50, 1_000);
        self.world.schedule(self.world.now + after, WorldEvent::Start(worker_node(index)));
    }

    fn any_worker(&mut self) -> Option<usize> {
        let up: Vec<_> = (0..WORKERS).filter(|&worker| self.workers[worker].is_up()).collect();
        (!up.is_empty()).then(|| self.world.random.pick(&up))
    }

    fn any_node(&mut self) -> NodeId {
        match self.world.random.below(3) {
            0 => self.world.random.below(self.world.dispatchers as u64) as NodeId,
            1 => worker_node(self.world.random.below(self.workers_wanted as u64) as usize),
            _ => {
                let reader = self.any_trainer();
                trainer_node(reader, self.world.random.below(2) as usize)
            }
        }
    }

    /// Returns the index of a job of either kind.
    fn any_trainer(&mut self) -> usize {
        self.world.random.below((self.readers.len() + self.jobs.len()) as u64) as usize
    }

    fn is_done(&self) -> bool {
        self.readers.iter().all(|reader| reader.is_done)
            && self.jobs.iter().all(|job| job.is_done)
            && self.writer.as_ref().is_none_or(|writer| writer.is_done)
    }

    /// Injects one of this seed's faults.
    fn blow(&mut self) {
        let blow = self.world.random.pick(&self.world.faults.blows.clone());
        self.world.say(|| format!("{blow:?}"));
        let now = self.world.now;
        match blow {
            Blow::KillWorker | Blow::VanishWorker => {
                let Some(worker) = self.any_worker() else { return };
                let noticed = blow == Blow::KillWorker;
                self.world.faults.fired(if noticed { Fault::WorkerKilled } else { Fault::WorkerVanished });
                self.workers[worker].kill(&mut self.world, noticed);
                self.revive(worker);
                let after = self.world.random.pick(&[10, 500, 3_000, 8_000]);
                self.world.schedule(now + after, WorldEvent::Start(worker_node(worker)));
            }
            Blow::KillDispatcher | Blow::StopDispatcher => self.kill_dispatcher(blow == Blow::StopDispatcher),
            Blow::KillTrainers | Blow::ChangeWorld => self.kill_trainers(blow == Blow::ChangeWorld),
            Blow::KillRank => {
                if !self.jobs.is_empty() {
                    let job = self.world.random.below(self.jobs.len() as u64) as usize;
                    self.jobs[job].blow_rank(&mut self.world);
                }
            }
            Blow::PauseDispatcher => {
                let index = self.world.random.below(self.world.dispatchers as u64) as usize;
                self.pause(index, Fault::DispatcherPaused);
            }
            Blow::PauseWorker => {
                if let Some(worker) = self.any_worker() {
                    self.pause(worker_node(worker), Fault::WorkerPaused);
                }
            }
            Blow::PauseTrainer => {
                let index = self.any_trainer();
                if self.readers.get(index).is_none_or(OrderedJob::is_up) {
                    let rank = self.world.random.below(2) as usize;
                    self.pause(trainer_node(index, rank), Fault::TrainerPaused);
                }
            }
            Blow::Drain => {
                if let Some(worker) = self.any_worker() {
                    self.world.faults.fired(Fault::Drained);
                    self.workers[worker].drain(&mut self.world);
                }
            }
            Blow::SameAddress => {
                let Some(worker) = self.any_worker() else { return };
                let Some(other) = (0..WORKERS).find(|&other| !self.workers[other].is_up()) else { return };
                self.world.faults.fired(Fault::SameAddress);
                self.workers[other].address = self.workers[worker].address;
                self.start_worker(other, false);
            }
            Blow::CutOff => {
                // At most once, and never the first worker, which never refuses a feed.
                if self.workers_wanted > 1 && !self.world.is_cut {
                    self.world.is_cut = true;
                    self.world.faults.fired(Fault::CutOff);
                    let worker = worker_node(self.world.random.between(1, self.workers_wanted as u64 - 1) as usize);
                    let reader = self.any_trainer();
                    for rank in 0..RANKS {
                        self.world.wall(worker, trainer_node(reader, rank), Millis::MAX, false);
                        self.world.wall(trainer_node(reader, rank), worker, Millis::MAX, false);
                    }
                }
            }
            Blow::Partition | Blow::PartitionOneWay => {
                let one_way = blow == Blow::PartitionOneWay;
                let (a, b) = (self.any_node(), self.any_node());
                let until = now + self.world.random.between(200, 8_000);
                self.world.wall(a, b, until, one_way);
                if !one_way {
                    self.world.wall(b, a, until, one_way);
                }
            }
        }
    }

    /// Kills a dispatcher, and restarts it soon or late.
    fn kill_dispatcher(&mut self, stays_down: bool) {
        let index = self.world.random.below(self.world.dispatchers as u64) as usize;
        if self.dispatchers[index].is_up() {
            let fault = if stays_down { Fault::DispatcherDown } else { Fault::DispatcherKilled };
            self.world.faults.fired(fault);
            self.dispatchers[index].count(&mut self.world);
            self.dispatchers[index].kill(&mut self.world);
            let after = match stays_down {
                true => self.world.random.between(3_000, 12_000),
                false => self.world.random.between(1, 500),
            };
            self.world.schedule(self.world.now + after, WorldEvent::Start(index));
        }
    }

    /// Kills all trainers of a job, which may resume with another number of ranks.
    fn kill_trainers(&mut self, changes_world: bool) {
        let index = self.any_trainer();
        let Some(reader) = self.readers.get_mut(index) else {
            let job = &mut self.jobs[index - self.readers.len()];
            return job.blow(&mut self.world, changes_world);
        };
        if reader.is_up() && !reader.is_done {
            self.world.faults.fired(Fault::TrainersKilled);
            let change = match (changes_world, self.world.random.chance(500)) {
                (false, _) => None,
                (true, true) => Some(ResumeChange::World),
                (true, false) => Some(ResumeChange::GlobalBatch),
            };
            reader.kill(&mut self.world, change);
        }
    }

    fn pause(&mut self, node: NodeId, fault: Fault) {
        self.world.faults.fired(fault);
        let until = self.world.now + self.world.random.pick(&[100, 1_000, 3_000, 12_000]);
        // Events wait until the pause ends, so it must not outlast the faults.
        self.world.pause(node, until.min(self.world.faults.until));
    }

    /// Ends the faults, and starts enough nodes to finish.
    fn heal(&mut self) {
        self.world.heal();
        // All dispatchers but one may stay down.
        let stays_down = self.world.dispatchers > 1 && self.world.random.chance(500);
        for node in 0..self.world.dispatchers {
            let others_up = self.dispatchers.iter().enumerate().any(|(other, it)| other != node && it.is_up());
            if !(stays_down && others_up) {
                self.world.schedule(self.world.now, WorldEvent::Start(node));
            }
        }
        // Each worker gets its own address back. Otherwise a worker that refuses a feed, or cannot be reached, might
        // replace the only one that computes it.
        for worker in 0..WORKERS {
            if self.workers[worker].address != worker {
                self.workers[worker].kill(&mut self.world, true);
                self.workers[worker].address = worker;
            }
            self.world.serve(worker % WORKERS_USUAL, worker_node(worker % WORKERS_USUAL));
        }
        for worker in 0..self.workers_wanted {
            // The first worker never refuses a feed.
            if worker == 0 || self.world.is_cut || self.world.random.chance(700) {
                self.world.schedule(self.world.now + 100, WorldEvent::Start(worker_node(worker)));
            }
        }
    }
}
