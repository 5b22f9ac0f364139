//! A rank's claims in dynamic delivery: those it holds, those it has delivered, and their part in the checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::claim::{Claim, CompletedPrefix, Granted};
use crate::claim_messages::{ClaimAnswer, ClaimMessage, ClaimReply, ClaimSync};
use crate::clock::Millis;
use crate::error::Error;
use crate::position::{ClaimMarks, EndedRank, RankMarks, Token};
use crate::rules::{Rule, holds};
use crate::sessions;
use crate::settings::ReadSettings;

/// Batches in a claim: few, so that ranks end together, but enough to be worth a message.
const BATCHES_PER_CLAIM: u64 = 4;
/// A rank that waits for others leaves a dispatcher at multiples of this on that dispatcher's clock, and its home at
/// larger multiples.
const TURN_MS: Millis = 3_000;
/// The least time that a rank stays at a dispatcher.
const STAY_MS: Millis = 3_000;

/// The claims of one rank.
#[derive(Debug)]
pub struct Claimer {
    feed: Arc<str>,
    job: String,
    session: u64,
    settings: ReadSettings,
    origin: u64,
    base: CompletedPrefix,
    /// The claims that the rank has done. The claims that it holds are in `held`.
    marks: RankMarks,
    /// The claims that the rank holds, each with its first offset that is not delivered.
    held: BTreeMap<Claim, (Granted, u64)>,
    /// The claims that are being read.
    taken: BTreeSet<Claim>,
    sessions: BTreeMap<u64, u64>,
    /// The sessions when all ranks had last reported their claims, or those of the token.
    met: BTreeMap<u64, u64>,
    /// Other ranks that have ended.
    ended: BTreeMap<u64, EndedRank>,
    /// Whether the rank takes no more claims.
    is_leaving: bool,
    seq: u64,
    /// The first message to the current dispatcher.
    since: u64,
    answered: u64,
    known: u64,
    latest: Option<ClaimReply>,
    /// The clock of the current dispatcher at its last answer, if it waits for other ranks.
    awaits_at: Option<Millis>,
    /// The time on that clock at which the rank turns to the next dispatcher.
    turn_at: Option<Millis>,
}

impl Claimer {
    /// Returns the number of offsets in a claim.
    pub fn claim_rows(settings: &ReadSettings) -> u64 {
        settings.batch_size * BATCHES_PER_CLAIM
    }

    /// Creates a rank of `job` that resumes from `marks`, or begins at `begin`.
    ///
    /// `session` must be greater than the sessions of the rank's earlier processes. Use the time, followed by 16 random
    /// bits.
    ///
    /// # Errors
    /// Returns an error if `marks` are neither this rank's nor those of all ranks of another job.
    pub fn new(
        feed: Arc<str>,
        job: String,
        session: u64,
        settings: ReadSettings,
        begin: Claim,
        marks: Option<&ClaimMarks>,
    ) -> Result<Self, Error> {
        let (base, (mut own, origin)) = match marks {
            Some(marks) => (marks.base.clone(), marks.of(settings.rank, settings.world_size)?),
            // Any number that depends only on where the job begins.
            None => (
                CompletedPrefix { begin, ..CompletedPrefix::default() },
                (RankMarks::default(), begin.epoch << 48 ^ begin.run),
            ),
        };
        let held = std::mem::take(&mut own.held);
        let mut runs = held.iter().map(|(granted, _)| granted.claim.run).chain([base.begin.run]);
        let ends = |run: u64| run.checked_add(1)?.checked_mul(Self::claim_rows(&settings));
        if runs.any(|run| ends(run).is_none()) {
            return Err(Error::new("the resume token has claims that lie beyond every epoch"));
        }
        let known = marks.filter(|marks| marks.world_size == settings.world_size);
        let known = known.filter(|_| holds(Rule::TokensNameTheNewestProcesses));
        let mut sessions = known.map(|marks| marks.sessions.clone()).unwrap_or_default();
        let mut met = sessions.clone();
        met.remove(&settings.rank);
        let mut ended = known.map(|marks| marks.ended.clone()).unwrap_or_default();
        ended.remove(&settings.rank);
        // The clock of the earlier process's machine may have been ahead of this one's.
        let after = |before: u64| ((before >> 16) + 1) << 16 | session & 0xffff;
        let session = sessions.get(&settings.rank).map_or(session, |&before| session.max(after(before)));
        sessions.insert(settings.rank, session);
        Ok(Self {
            feed,
            job,
            session,
            settings,
            origin,
            base,
            marks: own,
            held: held.into_iter().map(|(granted, from)| (granted.claim, (granted, from))).collect(),
            taken: BTreeSet::new(),
            sessions,
            met,
            ended,
            is_leaving: false,
            seq: 0,
            since: 1,
            answered: 0,
            known: 0,
            latest: None,
            awaits_at: None,
            turn_at: None,
        })
    }

    /// Returns the next message to the dispatcher.
    pub fn sync(&mut self) -> ClaimMessage {
        self.seq += 1;
        self.is_leaving |= self.is_finished() && holds(Rule::EndsAreAcknowledged);
        let ReadSettings { batch_size, epochs, drop_last, rank, world_size } = self.settings;
        ClaimMessage {
            feed: Arc::clone(&self.feed),
            session: self.session,
            seq: self.seq,
            since: self.since,
            rank,
            world_size,
            until_epoch: epochs,
            known: self.known,
            claims: ClaimSync {
                job: self.job.clone(),
                origin: self.origin,
                claim_rows: Self::claim_rows(&self.settings),
                unit: if drop_last { batch_size } else { 1 },
                base: self.base.clone(),
                before: self.marks.before,
                done: self.marks.done.clone(),
                held: self.held.values().map(|(granted, _)| *granted).collect(),
                furthest: self.marks.furthest,
                sessions: self.sessions.clone(),
                met: self.met.clone(),
                ended: self.ended.clone(),
                is_leaving: self.is_leaving,
            },
        }
    }

    /// Returns a first message for every dispatcher except the one that the rank asks next. It tells them that this
    /// process is newer than any earlier process of the rank, which may ask any of them. Of its answer only the newest
    /// processes count.
    pub fn announce(&mut self) -> ClaimMessage {
        let message = self.sync();
        self.turn();
        message
    }

    /// Returns the last message to the dispatcher.
    pub fn leave(&mut self) -> ClaimMessage {
        self.is_leaving = true;
        self.sync()
    }

    /// Turns to another dispatcher, or to one that may have restarted. Later answers of the last dispatcher are
    /// ignored.
    pub fn turn(&mut self) {
        self.known = 0;
        self.since = self.seq + 1;
        (self.awaits_at, self.turn_at) = (None, None);
    }

    /// Returns whether to turn to the next dispatcher now, because the awaited ranks may be there.
    ///
    /// All ranks at a dispatcher leave it at the same moments of its clock, so ranks that met mostly stay together.
    /// They stay longer at their home ([`Meeting`](crate::Meeting)), so all ranks that can reach it are there at the
    /// same time.
    pub fn should_turn(&mut self, is_home: bool, dispatchers: usize) -> bool {
        let Some(clock) = self.awaits_at else {
            self.turn_at = None;
            return false;
        };
        // A rank must be back from the other dispatchers before the ranks at the home leave it again.
        let every = match dispatchers as Millis {
            _ if !is_home => TURN_MS,
            0..=2 => 3 * TURN_MS,
            more => 3 * TURN_MS * (more - 1) + STAY_MS,
        };
        clock >= *self.turn_at.get_or_insert((clock + STAY_MS).next_multiple_of(every))
    }

    /// Takes the dispatcher's answer. Ignores an answer that is older than the newest. Of an answer from a dispatcher
    /// that the rank has left, only the newest processes count.
    pub fn reply(&mut self, answer: ClaimAnswer) {
        let ClaimAnswer { version, seq, clock_ms, reply } = answer;
        if !self.is_heard(seq) {
            self.hear_of(&reply.sessions);
            return;
        }
        if (seq, version) < (self.answered, self.known) {
            return;
        }
        (self.answered, self.known) = (seq, version);
        sessions::join(&mut self.sessions, &reply.sessions);
        self.base.join(&reply.base);
        self.marks.pass(self.base.begin);
        let own = self.settings.rank;
        self.ended.extend(reply.ended.iter().filter(|(rank, _)| **rank != own).map(|(&rank, it)| (rank, it.clone())));
        self.forget_old_ends();
        self.ended.values_mut().for_each(|it| it.pass(self.base.begin));
        if reply.awaited.is_empty() && reply.failed.is_none() {
            // Of a process that only another dispatcher knows, no claims were reported here.
            self.met.clone_from(&reply.sessions);
        }
        // The dispatcher takes claims back that a leaving rank does not name.
        for granted in reply.granted.iter().filter(|_| !self.is_leaving) {
            // The dispatcher may not have known yet that this claim is done.
            let is_done = granted.claim < self.base.begin || self.marks.done.contains(&granted.claim);
            if !is_done || !holds(Rule::DoneClaimsStayDone) {
                let first = granted.claim.run * Self::claim_rows(&self.settings);
                self.held.entry(granted.claim).or_insert((*granted, first));
                self.marks.furthest = self.marks.furthest.max(Some(*granted));
            }
        }
        self.awaits_at = (!reply.awaited.is_empty()).then_some(clock_ms);
        self.latest = Some(reply);
    }

    /// Hears the newest process of each rank from a dispatcher that this rank does not ask now, and returns whether one
    /// is news. A process may have reached only that dispatcher, and another one may still trust the end of an older.
    pub(crate) fn hear_of(&mut self, sessions: &BTreeMap<u64, u64>) -> bool {
        if !holds(Rule::AnyDispatcherNamesTheNewest) {
            return false;
        }
        let before = self.sessions.clone();
        sessions::join(&mut self.sessions, sessions);
        self.forget_old_ends();
        self.sessions != before
    }

    /// Forgets the ends of processes that newer ones have replaced.
    fn forget_old_ends(&mut self) {
        self.ended.retain(|rank, it| self.sessions.get(rank).is_none_or(|&newest| newest <= it.session));
    }

    /// Returns whether message `seq` went to the current dispatcher. Answers of other dispatchers are ignored.
    pub(crate) fn is_heard(&self, seq: u64) -> bool {
        seq >= self.since || !holds(Rule::LeftDispatchersAreNotHeard)
    }

    /// Returns a claim to begin to read, and the offset at which to begin.
    pub fn take(&mut self) -> Option<(Granted, u64)> {
        let (&claim, &taken) = self.held.iter().find(|(claim, _)| !self.taken.contains(claim))?;
        self.taken.insert(claim);
        Some(taken)
    }

    /// Records that every sample of `claim` before `offset` was delivered to the loop.
    pub fn delivered(&mut self, claim: Claim, offset: u64) {
        let Some((granted, from)) = self.held.get_mut(&claim) else { return };
        *from = offset.max(*from);
        if *from >= granted.end {
            self.held.remove(&claim);
            self.taken.remove(&claim);
            self.marks.done.insert(claim);
        }
    }

    /// Returns whether the rank holds no claim, and the dispatcher has none left for it.
    pub fn is_finished(&self) -> bool {
        let is_over = |reply: &ClaimReply| reply.is_exhausted && reply.granted.is_empty();
        self.held.is_empty() && self.latest.as_ref().is_some_and(is_over)
    }

    /// Returns whether the dispatcher knows that the rank takes no more claims, and has heard of all that it has done.
    pub fn has_ended(&self) -> bool {
        let ended = self.latest.as_ref().and_then(|reply| reply.ended.get(&self.settings.rank));
        self.held.is_empty() && ended.is_some_and(|ended| ended.session == self.session)
    }

    /// Returns the job's name.
    pub(crate) fn job(&self) -> &str {
        &self.job
    }

    /// Returns the feed's id.
    pub(crate) fn feed(&self) -> &Arc<str> {
        &self.feed
    }

    /// Returns how the rank reads the feed.
    pub(crate) fn settings(&self) -> &ReadSettings {
        &self.settings
    }

    /// Returns the number of this process of the rank.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// Returns the dispatcher's latest answer.
    pub fn latest(&self) -> Option<&ClaimReply> {
        self.latest.as_ref()
    }

    /// Returns the position after the batches delivered so far.
    pub fn token(&self) -> Token {
        let first = self.held.keys().next().copied().unwrap_or(self.base.begin);
        let ReadSettings { batch_size, rank, world_size, .. } = self.settings;
        let held = self.held.values().filter(|(granted, from)| self.is_begun(granted, *from)).copied().collect();
        let own = RankMarks { held, ..self.marks.clone() };
        let marks = ClaimMarks {
            batch_size,
            world_size,
            origin: self.origin,
            base: self.base.clone(),
            sessions: self.sessions.clone(),
            ranks: [(rank, own)].into(),
            ended: self.ended.clone(),
        };
        Token {
            feed: Arc::clone(&self.feed),
            epoch: first.epoch,
            offset: first.run * Self::claim_rows(&self.settings),
            window: 0,
            window_offset: 0,
            claims: Some(Arc::new(marks)),
        }
    }

    /// Returns whether part of the claim was delivered. Other ranks may take a claim that is not begun after a resume.
    fn is_begun(&self, granted: &Granted, from: u64) -> bool {
        from > granted.claim.run * Self::claim_rows(&self.settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::WindowId;

    fn settings() -> ReadSettings {
        ReadSettings { batch_size: 2, epochs: 1, drop_last: false, rank: 1, world_size: 2 }
    }

    fn granted(run: u64) -> Granted {
        let window = WindowId { epoch: 0, index: 0 };
        Granted { claim: Claim { epoch: 0, run }, end: 8 * run + 8, window, window_offset: 0 }
    }

    fn answer(seq: u64, granted: Vec<Granted>) -> ClaimAnswer {
        let reply = ClaimReply {
            granted,
            base: CompletedPrefix::default(),
            is_exhausted: false,
            awaited: Vec::new(),
            sessions: BTreeMap::new(),
            ended: BTreeMap::new(),
            workers: 1,
            failed: None,
        };
        ClaimAnswer { version: 10 * seq, seq, clock_ms: 0, reply }
    }

    #[test]
    fn a_resumed_process_is_newer_than_those_that_its_token_names() {
        let token = |session| {
            let begin = Claim::default();
            let mut claimer = Claimer::new("f".into(), "j".into(), session, settings(), begin, None).expect("new");
            claimer.sync();
            let mut answer = answer(1, vec![granted(0)]);
            answer.reply.sessions = [(0, 50 << 16), (1, session)].into();
            claimer.reply(answer);
            claimer.delivered(granted(0).claim, 2);
            claimer.token().to_string().parse::<Token>().expect("own text")
        };
        let marks = |token: &Token| token.claims.as_deref().expect("dynamic").clone();
        let before = token(9 << 16);
        assert_eq!(marks(&before).sessions, [(0, 50 << 16), (1, 9 << 16)].into());
        for (clock, session) in [(3 << 16 | 5, 10 << 16 | 5), (20 << 16 | 5, 20 << 16 | 5)] {
            let resumed =
                Claimer::new("f".into(), "j".into(), clock, settings(), Claim::default(), Some(&marks(&before)));
            let message = resumed.expect("its own token").sync();
            assert_eq!((message.session, message.claims.sessions[&0]), (session, 50 << 16));
        }
        // A job of another size has other ranks, so their sessions do not apply.
        let alone = ReadSettings { rank: 0, world_size: 1, ..settings() };
        let other = marks(&Token {
            claims: Some(
                ClaimMarks { ranks: [0, 1].map(|rank| (rank, RankMarks::default())).into(), ..marks(&before) }.into(),
            ),
            ..before
        });
        let resumed = Claimer::new("f".into(), "j".into(), 3, alone, Claim::default(), Some(&other));
        assert_eq!(resumed.expect("tokens of all ranks").sync().claims.sessions, [(0, 3)].into());
    }

    fn claimer(settings: ReadSettings, token: Option<&Token>) -> Result<Claimer, Error> {
        let marks = token.and_then(|token| token.claims.as_deref());
        Claimer::new("f".into(), "j".into(), 1, settings, Claim::default(), marks)
    }

    #[test]
    fn a_token_resumes_in_the_middle_of_a_claim() {
        let mut claimer = self::claimer(settings(), None).expect("from the beginning");
        claimer.sync();
        claimer.reply(answer(1, vec![granted(0), granted(3)]));
        assert_eq!(claimer.take(), Some((granted(0), 0)));
        assert_eq!(claimer.take(), Some((granted(3), 24)));
        assert_eq!(claimer.take(), None);
        claimer.delivered(granted(0).claim, 8);
        claimer.delivered(granted(3).claim, 26);
        let token: Token = claimer.token().to_string().parse().expect("own text");
        assert_eq!(token, claimer.token());
        let mut resumed = self::claimer(settings(), Some(&token)).expect("its own token");
        assert_eq!(resumed.sync().claims.done, [granted(0).claim].into_iter().collect());
        assert_eq!(resumed.take(), Some((granted(3), 26)));
        // A late answer does not bring back a claim that is done.
        resumed.reply(answer(1, vec![granted(0), granted(3)]));
        assert_eq!(resumed.take(), None);
    }

    #[test]
    fn a_claimer_ignores_answers_of_a_dispatcher_that_it_left() {
        let mut claimer = self::claimer(settings(), None).expect("from the beginning");
        assert_eq!((claimer.sync().since, claimer.sync().since), (1, 1));
        claimer.reply(answer(1, Vec::new()));
        claimer.turn();
        let message = claimer.sync();
        assert_eq!((message.since, message.known), (3, 0));
        claimer.reply(answer(2, vec![granted(0)]));
        assert_eq!(claimer.take(), None);
        claimer.reply(answer(3, vec![granted(0)]));
        assert_eq!(claimer.take(), Some((granted(0), 0)));
    }

    /// Returns the tokens of two ranks: rank 0 has done claims 0 and 1, rank 1 claim 2 and one batch of claim 3.
    fn tokens() -> [String; 2] {
        [(0, [0, 1], 16), (1, [2, 3], 26)].map(|(rank, runs, handed)| {
            let mut claimer = self::claimer(ReadSettings { rank, ..settings() }, None).expect("from the beginning");
            claimer.sync();
            claimer.reply(answer(1, runs.map(granted).into()));
            claimer.delivered(granted(runs[0]).claim, 100);
            claimer.delivered(granted(runs[1]).claim, handed);
            claimer.token().to_string()
        })
    }

    #[test]
    fn a_job_with_another_number_of_ranks_shares_the_claims() {
        let [first, second] = tokens();
        let text = format!("{second},{first}");
        let Ok(crate::Start::Token(token)) = text.parse() else { panic!("two tokens of one job") };
        assert_eq!(token.to_string().parse(), Ok(token.clone()), "the joined tokens are a token");
        let of = |rank, world_size| {
            let settings = ReadSettings { rank, world_size, ..settings() };
            let mut claimer = self::claimer(settings, Some(&token)).expect("tokens of all ranks");
            let message = claimer.sync().claims;
            let done: Vec<_> = message.done.runs().flat_map(|(_, first, last)| first..=last).collect();
            (done, claimer.take().map(|(granted, from)| (granted.claim.run, from)), message.origin)
        };
        let alone = of(0, 1);
        assert_eq!((&alone.0[..], alone.1), (&[0, 1, 2][..], Some((3, 26))));
        let three = [0, 1, 2].map(|rank| of(rank, 3));
        assert_eq!(three[0].0, [0, 1]);
        assert_eq!((&three[1].0[..], three[1].1), (&[2][..], Some((3, 26))));
        assert_eq!((&three[2].0[..], three[2].1), (&[][..], None));
        assert!(three.iter().all(|(.., origin)| *origin == alone.2 && *origin != 0));
        // Ranks of the same job resume from the joined tokens as from their own.
        assert_eq!(of(1, 2), (vec![2], Some((3, 26)), 0));
    }

    #[test]
    fn tokens_of_different_checkpoints_are_refused() {
        let [first, second] = tokens();
        let wrong = |text: &str, rank, world_size| {
            let Ok(crate::Start::Token(token)) = text.parse() else { return "not joined".to_owned() };
            let settings = ReadSettings { rank, world_size, ..settings() };
            self::claimer(settings, Some(&token)).map_or_else(|error| error.message, |_| "right".to_owned())
        };
        assert_eq!(wrong(&format!("{first},{first}"), 0, 2), "not joined");
        assert_eq!(wrong(&first, 0, 2), "right");
        assert_eq!(wrong(&first, 1, 2), "the resume token belongs to rank 0, but this is rank 1");
        assert_eq!(
            wrong(&first, 0, 3),
            "this job of 3 ranks resumes one of 2: it needs the tokens of all 2 ranks, got 1"
        );
        let mut claimer = self::claimer(ReadSettings { rank: 0, ..settings() }, None).expect("from the beginning");
        claimer.sync();
        claimer.reply(answer(1, vec![granted(2)]));
        claimer.delivered(granted(2).claim, 100);
        // Rank 0's earlier process had done claim 2, which rank 1 took later.
        assert_eq!(
            wrong(&format!("{},{second}", claimer.token()), 0, 3),
            "these resume tokens are not of one checkpoint"
        );
    }
}
