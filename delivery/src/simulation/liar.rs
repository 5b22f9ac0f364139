//! A client that lies: it may read the feed, knows the sessions of other readers, and sends what no reader would send.
//!
//! It lies until all jobs have finished. No rank may notice.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::faults::Fault;
use super::world::{LIAR, NodeMessage, Process, Timer, World};
use crate::messages::{BrokenLease, ReaderSync, Route};
use crate::{
    Claim, ClaimMarks, ClaimMessage, ClaimSet, Claimer, CompletedPrefix, EndedRank, Granted, Millis, RankMarks,
    ReadSettings, Start, Token, WindowId, session_of,
};

/// Numbers at which arithmetic may fail.
const ABSURD: [u64; 12] =
    [0, 1, 3, 40, 1 << 20, (1 << 28) - 1, (1 << 32) - 1, 1 << 32, 1 << 34, 1 << 61, u64::MAX - 1, u64::MAX];

/// Messages of readers, as a client may learn of them.
#[derive(Default)]
pub(super) struct Overheard {
    pub(super) reader: Option<ReaderSync>,
    pub(super) rank: Option<ClaimMessage>,
}

pub(super) struct Liar {
    pub(super) process: Process,
    secret: Arc<str>,
    /// Its own session, with which it also says what a reader might say.
    session: u64,
    seq: u64,
    /// The dispatcher that it asks.
    dispatcher: usize,
    pace: Millis,
    routes: Vec<Route>,
}

impl Liar {
    pub(super) fn draw(world: &mut World) -> Self {
        let secret = world.secret();
        let liar = Self {
            process: Process { node: LIAR, generation: 1 },
            session: session_of(&secret),
            secret,
            seq: 0,
            dispatcher: world.random.below(world.dispatchers as u64) as usize,
            pace: world.random.pick(&[20, 100, 700]),
            routes: Vec::new(),
        };
        world.timer(0, liar.process, Timer::Pump);
        liar
    }

    pub(super) fn handle(&mut self, message: NodeMessage) {
        if let NodeMessage::ReaderReply { reply, .. } = message {
            self.routes = reply.routes;
        }
    }

    /// Tells one lie, and sets the timer of the next.
    pub(super) fn lie(&mut self, world: &mut World) {
        let wait = world.random.between(1, 2 * self.pace);
        world.timer(world.now + wait, self.process, Timer::Pump);
        if world.random.chance(50) {
            self.dispatcher = world.random.below(world.dispatchers as u64) as usize;
        }
        self.seq += 1;
        let said = match world.random.below(6) {
            0 => self.claim(world),
            1 => self.resume(world),
            _ => self.read(world),
        };
        if let Some(message) = said {
            world.faults.fired(Fault::Lie);
            world.send(self.process, self.dispatcher, None, message);
        }
    }

    /// Returns a message about its own session or another's.
    fn read(&self, world: &mut World) -> Option<NodeMessage> {
        let victim = world.overheard.reader.clone()?;
        let own = ReaderSync {
            session: self.session,
            seq: self.seq,
            known: 0,
            leaving: false,
            member: None,
            ..victim.clone()
        };
        let absurd = |world: &mut World| world.random.pick(&ABSURD);
        let sync = match world.random.below(5) {
            0 => ReaderSync { leaving: true, seq: victim.seq + 1, ..victim },
            1 => ReaderSync { seq: 1 << 63, ..victim },
            2 => ReaderSync {
                at: WindowId { epoch: absurd(world), index: absurd(world) as u32 },
                until_epoch: absurd(world),
                world_size: absurd(world),
                rank: absurd(world),
                ..own
            },
            3 => ReaderSync { waiting: Some((own.at, u64::MAX)), samples: u64::MAX, bytes: u64::MAX, ..own },
            _ => {
                let broken = self.routes.iter().map(|route| BrokenLease {
                    window: route.window,
                    lease: route.lease,
                    worker: route.worker,
                    missing: self.seq.is_multiple_of(2),
                });
                ReaderSync { broken: broken.collect(), ..own }
            }
        };
        Some(NodeMessage::ReaderSync { secret: Arc::clone(&self.secret), sync: Box::new(sync) })
    }

    /// Returns a rank's message with some absurd parts, for a job of its own.
    fn claim(&self, world: &mut World) -> Option<NodeMessage> {
        let mut message = world.overheard.rank.clone()?;
        message.claims.job = format!("lies {}", world.random.below(3));
        (message.session, message.seq) = (self.session, self.seq);
        for _ in 0..world.random.between(1, 3) {
            let number = |world: &mut World| world.random.pick(&ABSURD);
            let (it, claims) = (number(world), &mut message.claims);
            match world.random.below(12) {
                0 => claims.claim_rows = it,
                1 => claims.unit = it,
                2 => claims.base = prefix(world),
                3 => claims.done = runs(world),
                4 => claims.held = (0..world.random.below(4)).map(|_| granted(world)).collect(),
                5 => claims.furthest = Some(granted(world)),
                6 => claims.sessions = [(it, number(world))].into(),
                7 => claims.met = [(it, number(world))].into(),
                8 => {
                    claims.ended =
                        [(it % 8, EndedRank { session: number(world), before: it, done: runs(world) })].into()
                }
                9 => (message.rank, message.world_size) = (number(world), it),
                10 => (message.since, message.known) = (number(world), it),
                _ => message.until_epoch = it,
            }
        }
        Some(NodeMessage::ClaimSync(Box::new(message)))
    }

    /// Returns the first message of a rank that resumes from a token that no rank was given.
    fn resume(&self, world: &mut World) -> Option<NodeMessage> {
        let overheard = world.overheard.rank.clone()?;
        let number = |world: &mut World| world.random.pick(&ABSURD);
        let ranks = |world: &mut World| -> BTreeMap<u64, RankMarks> {
            let held = |world: &mut World| (granted(world), number(world));
            let marks = |world: &mut World| RankMarks {
                before: number(world),
                done: runs(world),
                held: (0..world.random.below(3)).map(|_| held(world)).collect(),
                furthest: world.random.chance(500).then(|| granted(world)),
            };
            (0..world.random.below(4)).map(|rank| (rank, marks(world))).collect()
        };
        let ranks = ranks(world);
        let marks = ClaimMarks {
            batch_size: number(world),
            world_size: if world.random.chance(500) { ranks.len() as u64 } else { number(world) },
            origin: number(world),
            base: prefix(world),
            sessions: [(0, number(world))].into(),
            ranks,
            ended: BTreeMap::new(),
        };
        let token = Token {
            feed: overheard.feed,
            epoch: number(world),
            offset: number(world),
            window: number(world) as u32,
            window_offset: number(world),
            claims: Some(Arc::new(marks)),
        };
        // Text with too large indices is refused.
        let Ok(Start::Token(token)) = token.to_string().parse() else { return None };
        let settings = ReadSettings {
            batch_size: world.random.between(1, 8),
            epochs: world.random.between(1, 3),
            drop_last: false,
            rank: 0,
            world_size: world.random.between(1, 3),
        };
        let claimer =
            Claimer::new(token.feed, "lies".into(), self.session, settings, Claim::default(), token.claims.as_deref());
        claimer.ok().map(|mut claimer| NodeMessage::ClaimSync(Box::new(claimer.sync())))
    }
}

fn claim(world: &mut World) -> Claim {
    Claim { epoch: world.random.pick(&ABSURD), run: world.random.pick(&ABSURD) }
}

fn granted(world: &mut World) -> Granted {
    let (claim, end, offset) = (claim(world), world.random.pick(&ABSURD), world.random.pick(&ABSURD));
    Granted { claim, end, window: WindowId { epoch: claim.epoch, index: end as u32 }, window_offset: offset }
}

fn prefix(world: &mut World) -> CompletedPrefix {
    let ends = (0..world.random.below(3)).map(|_| (world.random.pick(&ABSURD), world.random.pick(&ABSURD)));
    let ends = ends.collect();
    CompletedPrefix { begin: claim(world), passed: world.random.pick(&ABSURD), ends }
}

/// Returns a set of claims that a message or token may hold.
fn runs(world: &mut World) -> ClaimSet {
    let runs: Vec<_> = (0..world.random.below(4))
        .map(|_| (world.random.pick(&ABSURD), world.random.pick(&ABSURD), world.random.pick(&ABSURD)))
        .collect();
    ClaimSet::of_runs(runs.into_iter()).unwrap_or_default()
}
