//! A training job with dynamic delivery, whose ranks fail alone or together and resume from their tokens.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::faults::Fault;
use super::member::{Done, Member};
use super::oracle::{Ledger, Taken};
use super::tokens::{OldToken, Saved, joined, marks};
use super::world::{NodeMessage, Process, SimulatedRows, Timer, World, WorldEvent, trainer_node};
use crate::rules::{Rule, holds};
use crate::{AssembledBatch, Claim, Claimer, ErrorKind, Millis, ReadSettings, Start, session_of};

/// A rank, across its processes.
#[derive(Default)]
struct JobRank {
    member: Option<Member>,
    /// The batches that it took in the history that survives.
    taken: Vec<Taken>,
    saved: Vec<Saved>,
    /// The token of its last batch.
    latest: Option<Saved>,
    step_ms: Millis,
    save_steps: usize,
    has_ended: Option<End>,
    /// Whether it began after another rank had ended.
    is_late: bool,
}

/// The end of a rank, which is final: only a restart of all ranks begins it again.
#[derive(Clone, Copy)]
struct End {
    session: u64,
    /// Whether a dispatcher has acknowledged it.
    is_known: bool,
    /// How often dispatchers had been started when it was first said.
    dispatchers_started: u64,
}

/// An old process that does not know that it was replaced.
struct Zombie {
    member: Member,
    until: Millis,
    /// The batches that it took, in its own history.
    taken: Vec<Taken>,
    latest: Option<Saved>,
}

pub(super) struct DynamicJob {
    index: usize,
    feed: usize,
    settings: ReadSettings,
    /// The position from which every rank begins: an offset, or the tokens of all ranks at a checkpoint.
    start: String,
    places: Vec<JobRank>,
    /// The tokens of all ranks at the last common checkpoint.
    checkpoint: Option<Vec<Saved>>,
    checkpoint_steps: u64,
    steps: u64,
    zombie: Option<Zombie>,
    old: Option<OldToken>,
    /// Whether no rank has resumed alone since all began.
    is_clean: bool,
    /// Processes that came to their rank's end and were replaced all the same, with their ranks. Until its rank is
    /// back, the others may continue as if it had all the claims of that process.
    old_ends: BTreeMap<u64, u64>,
    /// The most claims that a rank may hold.
    held_max: u64,
    generation: u32,
    buffer_limit: u64,
    pub(super) ledger: Ledger,
    pub(super) is_done: bool,
}

impl DynamicJob {
    pub(super) fn draw(world: &mut World, index: usize) -> Self {
        let feed = world.random.below(world.read_feeds()) as usize;
        let plan = world.plans[feed];
        let epochs = world.random.pick(&[1, 1, 2, 2, 3, 5]);
        let samples = plan.windows_max * plan.rows_max * epochs;
        let batch_size = match world.has_many_streams {
            // Each claim spans some windows.
            true => plan.rows_max.div_ceil(2),
            false => world.random.pick(&[1, 1, 2, 2, 3, 4, 8]),
        };
        let settings = ReadSettings {
            // Many small batches would take long to simulate.
            batch_size: if samples / batch_size > 250 { samples / 200 } else { batch_size },
            epochs,
            drop_last: world.random.chance(400),
            rank: 0,
            world_size: world.random.pick(&[1, 2, 2, 3, 3, 4]),
        };
        let start = match world.random.chance(200) {
            true => (world.random.below(settings.epochs), world.random.below(4) * Claimer::claim_rows(&settings)),
            false => (0, 0),
        };
        let mut job = Self {
            index,
            feed,
            settings,
            start: format!("{}:{}", start.0, start.1),
            places: Vec::new(),
            checkpoint: None,
            checkpoint_steps: world.random.between(1, 6),
            steps: 0,
            zombie: None,
            old: None,
            is_clean: true,
            old_ends: BTreeMap::new(),
            held_max: 2,
            generation: 0,
            buffer_limit: world.random.pick(if world.has_many_streams {
                &[20, 60, 100, 100, 200]
            } else {
                &[1, 100, 200, 1_000, 1 << 30]
            }),
            ledger: Ledger::new(plan, settings, start),
            is_done: false,
        };
        job.set_up(world);
        job
    }

    /// Creates the ranks.
    fn set_up(&mut self, world: &mut World) {
        let (step_ms, save_steps) = (world.random.pick(&[5, 20, 60, 100, 200]), world.random.pick(&[1, 1, 2, 3, 5]));
        let place = |_| JobRank {
            step_ms: (step_ms * world.random.pick(&[1, 1, 1, 8])).min(400),
            save_steps,
            ..JobRank::default()
        };
        self.places = (0..self.settings.world_size).map(place).collect();
        self.checkpoint = None;
    }

    /// Starts the processes, each after its own delay.
    pub(super) fn begin(&self, world: &mut World) {
        for rank in 0..self.places.len() {
            let at = world.now + world.random.between(0, 500);
            world.schedule(at, WorldEvent::Start(trainer_node(self.index, rank)));
        }
    }

    fn process(&mut self, rank: usize) -> Process {
        self.generation += 1;
        Process { node: trainer_node(self.index, rank), generation: self.generation }
    }

    /// Starts a rank's process, from its last token or from the job's start.
    pub(super) fn start(&mut self, world: &mut World, rank: usize) {
        let Some(place) = self.places.get(rank) else { return };
        if place.member.is_some() || place.has_ended.is_some() || self.is_done {
            return;
        }
        let text = place.saved.last().map_or(&self.start, |(token, _)| token).clone();
        world.say(|| format!("job {} rank {rank} begins at {text} with {:?}", self.index, self.settings));
        let settings = ReadSettings { rank: rank as u64, ..self.settings };
        let rows = Claimer::claim_rows(&settings);
        let start: Start = text.parse().expect("its own text");
        let (begin, marks) = match &start {
            Start::Offset { epoch, offset } => (Claim { epoch: *epoch, run: offset / rows }, None),
            Start::Token(token) => (Claim::default(), token.claims.as_deref()),
        };
        // A session begins with the time.
        let session = (world.now << 16) + world.id();
        let feed = Arc::clone(&world.feeds[self.feed]);
        let job = format!("job {}", self.index);
        let claimer = Claimer::new(feed, job, session, settings, begin, marks).expect("its own tokens");
        if let Some(marks) = marks.filter(|marks| marks.world_size == settings.world_size) {
            world.named.insert(claimer.session(), marks.sessions.clone());
        }
        let process = self.process(rank);
        let mut member = Member::new(world, rank, process, claimer, self.settings.batch_size, self.buffer_limit);
        member.announce(world);
        self.places[rank].is_late = self.places.iter().any(|place| place.has_ended.is_some());
        self.places[rank].member = Some(member);
        world.timer(world.now, process, Timer::Pump);
    }

    /// Kills all processes, with or without another number of ranks.
    pub(super) fn blow(&mut self, world: &mut World, changes_world: bool) {
        if !self.is_done && self.is_worth_it(world) {
            self.resume_all(world, changes_world);
        }
    }

    /// Usually, a fault is injected only after the ranks have made progress since the last.
    fn is_worth_it(&self, world: &mut World) -> bool {
        let is_under_way = |place: &JobRank| place.member.is_some() && place.saved.len() > 1;
        self.places.iter().any(is_under_way) || world.random.chance(200)
    }

    /// Kills one process.
    pub(super) fn blow_rank(&mut self, world: &mut World) {
        if !self.is_done && self.is_worth_it(world) {
            let rank = world.random.below(self.settings.world_size) as usize;
            self.kill(world, rank);
        }
    }

    /// Kills a rank's process, and restarts it after a while.
    fn kill(&mut self, world: &mut World, rank: usize) {
        let place = &mut self.places[rank];
        let Some(member) = place.member.take() else { return };
        world.faults.fired(Fault::RankKilled);
        self.is_clean = false;
        if place.saved.len() > 1 && world.is_faulty() && world.random.chance(300) {
            let kept = world.random.between(1, place.saved.len() as u64 - 1) as usize;
            place.saved.truncate(kept);
            world.faults.fired(Fault::ResumedFurtherBack);
        }
        let kept = place.saved.last().map_or(0, |(_, taken)| *taken);
        let (taken, latest) = (place.taken.clone(), place.latest.clone());
        let undone = place.taken.split_off(kept);
        self.ledger.undo(&undone);
        // The checkpoint names batches that the rank no longer has.
        self.checkpoint.take_if(|checkpoint| checkpoint[rank].1 > kept);
        place.latest = place.saved.last().cloned();
        let marks = place.latest.as_ref().and_then(|(token, _)| marks(token));
        if marks.as_ref().is_some_and(|marks| marks.ranks.get(&(rank as u64)).is_some_and(|it| !it.held.is_empty())) {
            world.faults.fired(Fault::ResumedMidClaim);
        }
        world.say(|| format!("job {} rank {rank} is killed, and loses {} batches", self.index, undone.len()));
        // A dispatcher that knows neither may meet only the new process of one rank and an old process of another. So
        // the old process may run beside a new one only if the new one's token names its newer process.
        let is_known = |old: &Zombie| {
            let newest = marks.as_ref().and_then(|marks| marks.sessions.get(&(old.member.rank as u64)));
            old.member.rank == rank || newest.is_some_and(|&newest| newest > old.member.trainer.claimer().session())
        };
        // Two halves of a job that never meet both continue. So no old process of this rank, nor its end, may be left
        // if the token trusts the end of an old process of another rank.
        let trusted = marks.iter().flat_map(|marks| &marks.sessions).filter(|(other, _)| **other != rank as u64);
        let trusts_an_old_end = trusted.map(|(_, session)| session).any(|session| self.old_ends.contains_key(session));
        if let Some(old) = self.zombie.take_if(|old| trusts_an_old_end || !is_known(old)) {
            self.bury(world, old);
        }
        let others = self.places.iter().enumerate().all(|(other, it)| other == rank || it.member.is_some());
        if self.zombie.is_none() && others && !trusts_an_old_end && world.random.chance(800) {
            world.faults.fired(Fault::Zombie);
            let until = world.now + world.random.between(100, 15_000);
            self.zombie = Some(Zombie { member, until, taken, latest });
        } else {
            self.close(world, member);
        }
        if trusts_an_old_end && self.old_ends.values().any(|&of| of == rank as u64) {
            return self.resume_all(world, false);
        }
        let after = world.random.pick(&[10, 10, 100, 500, 3_000]);
        world.schedule(world.now + after, WorldEvent::Start(trainer_node(self.index, rank)));
    }

    /// Kills all processes, and resumes the job from its last common checkpoint, perhaps as another number of ranks.
    fn resume_all(&mut self, world: &mut World, changes_world: bool) {
        let saved = self.checkpoint.take();
        let members: Vec<Member> = self.places.iter_mut().filter_map(|place| place.member.take()).collect();
        members.into_iter().chain(self.zombie.take().map(|it| it.member)).for_each(|member| self.close(world, member));
        self.old = None;
        for (rank, place) in self.places.iter_mut().enumerate() {
            self.old_ends.extend(place.has_ended.take().map(|end| (end.session, rank as u64)));
            place.is_late = false;
            let token = saved.as_ref().map(|saved| &saved[rank]);
            let undone = place.taken.split_off(token.map_or(0, |(_, taken)| *taken));
            self.ledger.undo(&undone);
            place.saved = token.cloned().into_iter().collect();
            place.latest = token.cloned();
        }
        self.is_clean = true;
        world.faults.fired(Fault::JobResumed);
        if let Some(saved) = saved {
            let joined = joined(&saved);
            let sizes: Vec<u64> = (1..=4).filter(|&size| size != self.settings.world_size).collect();
            if changes_world {
                let before = self.settings.world_size;
                self.settings.world_size = world.random.pick(&sizes);
                // Fewer ranks resume with the claims that more ranks held.
                self.held_max *= before.div_ceil(self.settings.world_size);
                // Either the joined tokens, or the same text after parsing and writing, as in a request.
                let start: Start = joined.parse().expect("checked when it was saved");
                self.start = if world.random.chance(500) { joined } else { start.to_string() };
                self.set_up(world);
                world.faults.fired(Fault::JobResized);
            } else if world.random.chance(500) {
                self.places.iter_mut().for_each(|place| place.saved[0].0.clone_from(&joined));
                self.checkpoint = None;
            } else {
                self.checkpoint = Some(saved);
            }
        }
        world.say(|| format!("job {} is killed, and restarts at {}", self.index, self.start));
        self.begin(world);
    }

    /// Finds a process: its rank, or `None` for the old process, and the index of the claim that it reads.
    fn find(&self, process: Process) -> Option<(Option<usize>, Option<usize>)> {
        let places = self.places.iter().enumerate();
        let living = places.filter_map(|(rank, place)| Some((Some(rank), place.member.as_ref()?)));
        living.chain(self.zombie.iter().map(|zombie| (None, &zombie.member))).find_map(|(rank, member)| {
            let reading = member.reading.iter().position(|(_, reader)| reader.process == process);
            (reading.is_some() || member.process == process).then_some((rank, reading))
        })
    }

    fn member(&mut self, place: Option<usize>) -> Option<&mut Member> {
        match place {
            Some(rank) => self.places[rank].member.as_mut(),
            None => self.zombie.as_mut().map(|zombie| &mut zombie.member),
        }
    }

    pub(super) fn handle(&mut self, world: &mut World, to: Process, from: Process, message: NodeMessage) {
        let Some((place, reading)) = self.find(to) else {
            if let NodeMessage::Rows { stream, .. } = message {
                world.stream(to, from, &mut 0, NodeMessage::Close { stream });
            }
            return;
        };
        if matches!(message, NodeMessage::Superseded) {
            world.faults.fired(Fault::Superseded);
            return self.superseded(world, place);
        }
        let Some(member) = self.member(place) else { return };
        match reading {
            Some(reading) => member.handle_claim(world, reading, from, message),
            None => member.handle(world, from, message),
        }
        self.pump(world, place);
    }

    /// Ends a process that was told that a newer one replaced it, or an old process that came to its end.
    fn superseded(&mut self, world: &mut World, place: Option<usize>) {
        match place {
            Some(rank) => {
                world.violated(|| format!("job {} rank {rank}: the newest process is refused", self.index));
            }
            None => {
                if let Some(zombie) = self.zombie.take() {
                    self.bury(world, zombie);
                }
            }
        }
    }

    /// Ends an old process, and keeps its last token.
    fn bury(&mut self, world: &mut World, zombie: Zombie) {
        let Zombie { member, taken, latest, .. } = zombie;
        self.old = latest.map(|(token, _)| OldToken { rank: member.rank, taken, token });
        self.close(world, member);
    }

    /// Closes the connections of a process that is gone.
    fn close(&mut self, world: &mut World, member: Member) {
        if member.leaving_since.is_some() {
            self.old_ends.insert(member.trainer.claimer().session(), member.rank as u64);
        }
        member.close(world);
    }

    pub(super) fn timer(&mut self, world: &mut World, process: Process, timer: Timer) {
        let Some((place, reading)) = self.find(process) else { return };
        let Some(member) = self.member(place) else { return };
        match (reading, timer) {
            (Some(reading), timer) => member.timer_of_claim(world, reading, &timer),
            (None, timer) => member.timer(world, &timer),
        }
        self.pump(world, place);
    }

    fn pump(&mut self, world: &mut World, place: Option<usize>) {
        if let Some(zombie) = self.zombie.take_if(|zombie| zombie.until <= world.now) {
            self.bury(world, zombie);
            if place.is_none() {
                return;
            }
        }
        loop {
            let Some(rank) = self.member(place).map(|member| member.rank) else { return };
            loop {
                let secret = world.secret();
                let begun = self.member(place).and_then(|it| it.trainer.begin(|| session_of(&secret)));
                let Some(claim) = begun else { break };
                let process = self.process(rank);
                if let Some(member) = self.member(place) {
                    member.read(world, process, claim, secret);
                }
            }
            let step_ms = place.map_or(20, |rank| self.places[rank].step_ms);
            let Some(member) = self.member(place) else { return };
            let (handed, done) = member.step(world, step_ms);
            if let Some(batch) = handed {
                match (place, &mut self.zombie) {
                    (Some(rank), _) => self.took(world, rank, &batch),
                    (None, Some(zombie)) => {
                        zombie.taken.push((batch.epoch, batch.offsets));
                        zombie.latest = Some((batch.token.to_string(), zombie.taken.len()));
                    }
                    (None, None) => {}
                }
            }
            if world.violation().is_some() {
                return;
            }
            match done {
                None => break,
                Some(Done::Nothing) => {}
                Some(Done::Ended) => return self.ended(world, place),
                Some(Done::Failed(report)) => {
                    world.say(|| format!("job {} rank {rank} fails: {report:?}", self.index));
                    match place {
                        Some(_) if report.kind == ErrorKind::Conflict => {
                            world.faults.fired(Fault::RankBehind);
                            if self.is_clean {
                                world.violated(|| format!("no rank resumed alone: {report:?}"));
                            }
                            self.resume_all(world, false);
                        }
                        Some(rank) if self.awaits_ended(rank) => self.resume_forgotten(world, rank),
                        Some(rank) => self.kill(world, rank),
                        None => self.superseded(world, None),
                    }
                    return;
                }
            }
        }
    }

    /// Records a batch that was delivered to a rank.
    fn took(&mut self, world: &mut World, rank: usize, batch: &AssembledBatch<SimulatedRows>) {
        let token = batch.token.to_string();
        world.say(|| format!("job {} rank {rank} gets {}:{:?}", self.index, batch.epoch, batch.offsets));
        self.ledger.delivered(world, self.feed, batch);
        let place = &mut self.places[rank];
        place.taken.push((batch.epoch, batch.offsets.clone()));
        let saved = (token.clone(), place.taken.len());
        place.latest = Some(saved.clone());
        if place.taken.len().is_multiple_of(place.save_steps) {
            world.say(|| format!("job {} rank {rank} saves {token}", self.index));
            place.saved.push(saved);
        }
        self.steps += 1;
        if self.steps.is_multiple_of(self.checkpoint_steps) {
            self.save(world);
        }
    }

    /// Saves the tokens of all ranks at the same time, if every rank is up or has ended, and has a token.
    fn save(&mut self, world: &mut World) {
        let is_there = |place: &JobRank| place.member.is_some() || place.has_ended.is_some();
        let latest = self.places.iter().map(|place| place.latest.clone().filter(|_| is_there(place)));
        let Some(saved) = latest.collect::<Option<Vec<_>>>() else { return };
        let joined = joined(&saved);
        // Until its first batch, a rank that resumed from the joined tokens has those of all ranks.
        if joined.matches("fb1.").count() > self.places.len() {
            return;
        }
        let Ok(Start::Token(token)) = joined.parse() else {
            return world.violated(|| format!("{joined} cannot be joined"));
        };
        let others = self.settings.world_size % 4 + 1;
        match token.claims.expect("of dynamic delivery").of(0, others) {
            Ok(_) => {
                world.say(|| format!("job {} saves {joined}", self.index));
                for (place, saved) in self.places.iter_mut().zip(&saved) {
                    if place.saved.last().is_none_or(|last| last.1 < saved.1) {
                        place.saved.push(saved.clone());
                    }
                }
                self.checkpoint = Some(saved.clone());
            }
            Err(error) if self.is_clean && self.old_ends.is_empty() => world.violated(|| format!("{joined}: {error}")),
            Err(_) => world.faults.fired(Fault::NotJoined),
        }
        if let Some(old) = &self.old {
            old.join(world, &saved, self.places.iter().map(|place| place.taken.as_slice()));
        }
        let Some(base) =
            self.places.iter().filter_map(|place| place.member.as_ref()?.trainer.claimer().latest()).next()
        else {
            return;
        };
        if base.base.passed > 0 {
            world.faults.fired(Fault::BaseMoved);
        }
    }

    /// Ends a rank.
    fn ended(&mut self, world: &mut World, place: Option<usize>) {
        let Some(rank) = place else {
            return self.superseded(world, None);
        };
        world.say(|| format!("job {} rank {rank} ends", self.index));
        let Some(mut member) = self.places[rank].member.take() else { return };
        member.leave(world);
        let claimer = member.trainer.claimer();
        let dispatchers_started = member.leaving_since.unwrap_or(world.dispatchers_started);
        let end = End { session: claimer.session(), is_known: claimer.has_ended(), dispatchers_started };
        let place = &mut self.places[rank];
        place.has_ended = Some(end);
        if place.is_late {
            world.faults.fired(Fault::ResumedAfterAnEnd);
        }
        place.saved.extend(place.latest.clone());
        let others = self.places.iter().filter(|place| place.has_ended.is_none()).count() as u64;
        if others == 0 {
            self.is_done = true;
        }
        let missing = self.ledger.missing();
        let held_max = others * self.held_max * Claimer::claim_rows(&self.settings);
        if missing > if self.is_clean && self.old_ends.is_empty() { held_max } else { u64::MAX * others.min(1) } {
            world.violated(|| {
                format!("rank {rank} ended while {others} others have not and {missing} samples are missing")
            });
        }
    }

    /// Returns whether a rank waits for one that has ended.
    fn awaits_ended(&self, rank: usize) -> bool {
        let latest = self.places[rank].member.as_ref().and_then(|member| member.trainer.claimer().latest());
        let mut awaited = latest.into_iter().flat_map(|reply| &reply.awaited);
        awaited.any(|&awaited| self.places[awaited as usize].has_ended.is_some())
    }

    /// Restarts all ranks because one waits for a rank that has ended. This may only happen if no process can know its
    /// end: neither a dispatcher, nor a rank that resumed from an older token.
    fn resume_forgotten(&mut self, world: &mut World, rank: usize) {
        let latest = self.places[rank].member.as_ref().and_then(|member| member.trainer.claimer().latest());
        let awaited: Vec<u64> = latest.map_or(Vec::new(), |reply| reply.awaited.clone());
        let members = self.places.iter().filter_map(|place| place.member.as_ref());
        let tokens: Vec<_> =
            members.map(|member| world.named.get(&member.trainer.claimer().session()).cloned()).collect();
        let is_forgotten = |end: End, ended: u64| {
            let knows = |named: &BTreeMap<u64, u64>| named.get(&ended) == Some(&end.session);
            let is_older = tokens.iter().any(|named| !named.as_ref().is_some_and(knows));
            let is_lost = world.dispatchers > 1 || world.dispatchers_started > end.dispatchers_started;
            (!end.is_known && holds(Rule::EndsAreAcknowledged)) || is_lost || is_older
        };
        let mut ends = awaited.iter().filter_map(|&ended| Some((self.places[ended as usize].has_ended?, ended)));
        if !ends.any(|(end, ended)| is_forgotten(end, ended)) {
            return world.violated(|| format!("job {} rank {rank} waits for {awaited:?}, which ended", self.index));
        }
        world.faults.fired(Fault::EndForgotten);
        self.resume_all(world, false);
    }
}
