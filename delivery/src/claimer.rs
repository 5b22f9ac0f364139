//! Dynamic delivery, a rank's side: what it holds, what it has handed out, and what of that goes into its checkpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::claim::{Claim, CompletedPrefix, Granted};
use crate::claim_messages::{ClaimAnswer, ClaimMessage, ClaimReply, ClaimSync};
use crate::clock::Millis;
use crate::error::Error;
use crate::position::{ClaimMarks, RankMarks, Token};
use crate::rules::{Rule, holds};
use crate::sessions;
use crate::settings::ReadSettings;

/// Batches in a claim: few, so that ranks end together; several, so that a claim is worth a message.
const BATCHES_PER_CLAIM: u64 = 4;
/// A rank that waits for others leaves a dispatcher when its clock shows a multiple of this; the first seldom.
const TURN_MS: Millis = 3_000;
/// But not so soon after it came.
const STAY_MS: Millis = 3_000;

/// A rank that takes batches as they come.
#[derive(Debug)]
pub struct Claimer {
    feed: Arc<str>,
    job: String,
    session: u64,
    settings: ReadSettings,
    origin: u64,
    base: CompletedPrefix,
    /// What it has done; what it holds lies in `held`.
    marks: RankMarks,
    /// What it holds, and the first offset of each that it has not handed out.
    held: BTreeMap<Claim, (Granted, u64)>,
    /// Claims that are being read.
    taken: BTreeSet<Claim>,
    sessions: BTreeMap<u64, u64>,
    seq: u64,
    /// The first message to the dispatcher that it asks now.
    since: u64,
    answered: u64,
    known: u64,
    latest: Option<ClaimReply>,
    /// What the clock of its dispatcher said last, if others are awaited there.
    awaits_at: Option<Millis>,
    /// When it goes on to the next, by that clock.
    turn_at: Option<Millis>,
}

impl Claimer {
    /// Offsets in a claim.
    pub fn claim_rows(settings: &ReadSettings) -> u64 {
        settings.batch_size * BATCHES_PER_CLAIM
    }

    /// A rank of `job` that goes on from `marks`, or begins at `begin`. Its `session` should be greater than those of
    /// the processes that were this rank before: it should begin with the time, and end in 16 random bits.
    ///
    /// # Errors
    /// If the marks are not this rank's, nor all of another job's.
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
            // As good a name as any for where it begins.
            None => (
                CompletedPrefix { begin, ..CompletedPrefix::default() },
                (RankMarks::default(), begin.epoch << 48 ^ begin.run),
            ),
        };
        let held = std::mem::take(&mut own.held);
        let known = marks.filter(|marks| marks.world_size == settings.world_size);
        let known = known.filter(|_| holds(Rule::TokensNameTheNewestProcesses));
        let mut sessions = known.map(|marks| marks.sessions.clone()).unwrap_or_default();
        // Another machine's clock may be ahead of this one's.
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
            seq: 0,
            since: 1,
            answered: 0,
            known: 0,
            latest: None,
            awaits_at: None,
            turn_at: None,
        })
    }

    /// The next message to the dispatcher.
    pub fn sync(&mut self) -> ClaimMessage {
        self.seq += 1;
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
                is_leaving: false,
            },
        }
    }

    /// A first message to every dispatcher but the one that it asks next: whichever an older process of this rank asks
    /// then knows that it is one. Its answer is nothing.
    pub fn announce(&mut self) -> ClaimMessage {
        let message = self.sync();
        self.turn();
        message
    }

    /// The last message to the dispatcher.
    pub fn leave(&mut self) -> ClaimMessage {
        let mut message = self.sync();
        message.claims.is_leaving = true;
        message
    }

    /// The next message goes to another dispatcher, or to one that may be another by now. What the last one may still
    /// answer is nothing any more.
    pub fn turn(&mut self) {
        self.known = 0;
        self.since = self.seq + 1;
        (self.awaits_at, self.turn_at) = (None, None);
    }

    /// Whether to go on to the next dispatcher now, because ranks that are awaited may be there. All ranks at a
    /// dispatcher leave at the same moments of its clock, seldom where the list of dispatchers begins (`is_first`); so
    /// those that met once mostly stay together, and all are at the first at the same time, if they can reach it.
    pub fn should_turn(&mut self, is_first: bool, dispatchers: usize) -> bool {
        let Some(clock) = self.awaits_at else {
            self.turn_at = None;
            return false;
        };
        // Whoever goes round the others must be back before the first is left again.
        let every = match dispatchers as Millis {
            _ if !is_first => TURN_MS,
            0..=2 => 3 * TURN_MS,
            more => 3 * TURN_MS * (more - 1) + STAY_MS,
        };
        clock >= *self.turn_at.get_or_insert((clock + STAY_MS).next_multiple_of(every))
    }

    /// Takes the dispatcher's answer. One to an older message than was answered before, or of a dispatcher that was
    /// left, changes nothing.
    pub fn reply(&mut self, answer: ClaimAnswer) {
        let ClaimAnswer { version, seq, clock_ms, reply } = answer;
        if !self.is_heard(seq) || (seq, version) < (self.answered, self.known) {
            return;
        }
        (self.answered, self.known) = (seq, version);
        sessions::join(&mut self.sessions, &reply.sessions);
        self.base.join(&reply.base);
        self.marks.pass(self.base.begin);
        for granted in &reply.granted {
            // It may not have been known yet that this is done.
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

    /// Whether message `seq` went to the dispatcher that is asked now: what another may still answer is nothing any
    /// more.
    pub(crate) fn is_heard(&self, seq: u64) -> bool {
        seq >= self.since || !holds(Rule::LeftDispatchersAreNotHeard)
    }

    /// A claim to begin to read, and the offset to begin at.
    pub fn take(&mut self) -> Option<(Granted, u64)> {
        let (&claim, &taken) = self.held.iter().find(|(claim, _)| !self.taken.contains(claim))?;
        self.taken.insert(claim);
        Some(taken)
    }

    /// Everything of `claim` before `offset` was handed to the loop.
    pub fn handed(&mut self, claim: Claim, offset: u64) {
        let Some((granted, from)) = self.held.get_mut(&claim) else { return };
        *from = offset.max(*from);
        if *from >= granted.end {
            self.held.remove(&claim);
            self.taken.remove(&claim);
            self.marks.done.insert(claim);
        }
    }

    /// Whether nothing is left: neither here, nor to be granted, nor granted and on its way.
    pub fn is_finished(&self) -> bool {
        let is_over = |reply: &ClaimReply| reply.is_exhausted && reply.granted.is_empty();
        self.held.is_empty() && self.latest.as_ref().is_some_and(is_over)
    }

    /// The feed's id.
    pub(crate) fn feed(&self) -> &Arc<str> {
        &self.feed
    }

    /// How it reads the feed.
    pub(crate) fn settings(&self) -> &ReadSettings {
        &self.settings
    }

    /// Names this process of the rank.
    pub fn session(&self) -> u64 {
        self.session
    }

    /// What the dispatcher last said.
    pub fn latest(&self) -> Option<&ClaimReply> {
        self.latest.as_ref()
    }

    /// Where to go on after what was handed out so far.
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

    /// A claim of which nothing was handed out may as well be taken by others after a resume.
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

    fn says(seq: u64, granted: Vec<Granted>) -> ClaimAnswer {
        let reply = ClaimReply {
            granted,
            base: CompletedPrefix::default(),
            is_exhausted: false,
            awaited: Vec::new(),
            sessions: BTreeMap::new(),
            workers: 1,
            failed: None,
        };
        ClaimAnswer { version: 10 * seq, seq, clock_ms: 0, reply }
    }

    #[test]
    fn a_token_knows_the_newest_processes_and_who_resumes_is_newer() {
        let token = |session| {
            let begin = Claim::default();
            let mut claimer = Claimer::new("f".into(), "j".into(), session, settings(), begin, None).expect("new");
            claimer.sync();
            let mut answer = says(1, vec![granted(0)]);
            answer.reply.sessions = [(0, 50 << 16), (1, session)].into();
            claimer.reply(answer);
            claimer.handed(granted(0).claim, 2);
            claimer.token().to_string().parse::<Token>().expect("own text")
        };
        let marks = |token: &Token| token.claims.as_deref().expect("dynamic").clone();
        let before = token(9 << 16);
        assert_eq!(marks(&before).sessions, [(0, 50 << 16), (1, 9 << 16)].into());
        for (clock, session) in [(3 << 16 | 5, 10 << 16 | 5), (20 << 16 | 5, 20 << 16 | 5)] {
            let resumed =
                Claimer::new("f".into(), "j".into(), clock, settings(), Claim::default(), Some(&marks(&before)));
            let message = resumed.expect("its own").sync();
            assert_eq!((message.session, message.claims.sessions[&0]), (session, 50 << 16));
        }
        // The ranks of a job of another size are others.
        let alone = ReadSettings { rank: 0, world_size: 1, ..settings() };
        let other = marks(&Token {
            claims: Some(
                ClaimMarks { ranks: [0, 1].map(|rank| (rank, RankMarks::default())).into(), ..marks(&before) }.into(),
            ),
            ..before
        });
        let resumed = Claimer::new("f".into(), "j".into(), 3, alone, Claim::default(), Some(&other));
        assert_eq!(resumed.expect("all are there").sync().claims.sessions, [(0, 3)].into());
    }

    fn claimer(settings: ReadSettings, token: Option<&Token>) -> Result<Claimer, Error> {
        let marks = token.and_then(|token| token.claims.as_deref());
        Claimer::new("f".into(), "j".into(), 1, settings, Claim::default(), marks)
    }

    #[test]
    fn a_token_goes_on_in_the_middle_of_a_claim() {
        let mut claimer = self::claimer(settings(), None).expect("from the beginning");
        claimer.sync();
        claimer.reply(says(1, vec![granted(0), granted(3)]));
        assert_eq!(claimer.take(), Some((granted(0), 0)));
        assert_eq!(claimer.take(), Some((granted(3), 24)));
        assert_eq!(claimer.take(), None);
        claimer.handed(granted(0).claim, 8);
        claimer.handed(granted(3).claim, 26);
        let token: Token = claimer.token().to_string().parse().expect("own text");
        assert_eq!(token, claimer.token());
        let mut resumed = self::claimer(settings(), Some(&token)).expect("its own");
        assert_eq!(resumed.sync().claims.done, [granted(0).claim].into());
        assert_eq!(resumed.take(), Some((granted(3), 26)));
        // A late answer brings nothing back.
        resumed.reply(says(1, vec![granted(0), granted(3)]));
        assert_eq!(resumed.take(), None);
    }

    #[test]
    fn answers_of_a_dispatcher_that_was_left_change_nothing() {
        let mut claimer = self::claimer(settings(), None).expect("from the beginning");
        assert_eq!((claimer.sync().since, claimer.sync().since), (1, 1));
        claimer.reply(says(1, Vec::new()));
        claimer.turn();
        let message = claimer.sync();
        assert_eq!((message.since, message.known), (3, 0));
        claimer.reply(says(2, vec![granted(0)]));
        assert_eq!(claimer.take(), None);
        claimer.reply(says(3, vec![granted(0)]));
        assert_eq!(claimer.take(), Some((granted(0), 0)));
    }

    /// Tokens of two ranks: rank 0 has done claims 0 and 1, rank 1 claim 2 and one batch of claim 3.
    fn tokens() -> [String; 2] {
        [(0, [0, 1], 16), (1, [2, 3], 26)].map(|(rank, runs, handed)| {
            let mut claimer = self::claimer(ReadSettings { rank, ..settings() }, None).expect("from the beginning");
            claimer.sync();
            claimer.reply(says(1, runs.map(granted).into()));
            claimer.handed(granted(runs[0]).claim, 100);
            claimer.handed(granted(runs[1]).claim, handed);
            claimer.token().to_string()
        })
    }

    #[test]
    fn ranks_of_a_job_of_another_size_share_what_was_taken() {
        let [first, second] = tokens();
        let text = format!("{second},{first}");
        let Ok(crate::Start::Token(token)) = text.parse() else { panic!("two tokens of one job") };
        assert_eq!(token.to_string().parse(), Ok(token.clone()), "joined, it is a token");
        let of = |rank, world_size| {
            let settings = ReadSettings { rank, world_size, ..settings() };
            let mut claimer = self::claimer(settings, Some(&token)).expect("all are there");
            let message = claimer.sync().claims;
            let done: Vec<_> = message.done.iter().map(|claim| claim.run).collect();
            (done, claimer.take().map(|(granted, from)| (granted.claim.run, from)), message.origin)
        };
        let alone = of(0, 1);
        assert_eq!((&alone.0[..], alone.1), (&[0, 1, 2][..], Some((3, 26))));
        let three = [0, 1, 2].map(|rank| of(rank, 3));
        assert_eq!(three[0].0, [0, 1]);
        assert_eq!((&three[1].0[..], three[1].1), (&[2][..], Some((3, 26))));
        assert_eq!((&three[2].0[..], three[2].1), (&[][..], None));
        assert!(three.iter().all(|(.., origin)| *origin == alone.2 && *origin != 0));
        // To the ranks of the same job they are as good as their own.
        assert_eq!(of(1, 2), (vec![2], Some((3, 26)), 0));
    }

    #[test]
    fn tokens_that_do_not_go_together_are_refused() {
        let [first, second] = tokens();
        let wrong = |text: &str, rank, world_size| {
            let Ok(crate::Start::Token(token)) = text.parse() else { return "not joined".to_owned() };
            let settings = ReadSettings { rank, world_size, ..settings() };
            self::claimer(settings, Some(&token)).map_or_else(|error| error.message, |_| "right".to_owned())
        };
        assert_eq!(wrong(&format!("{first},{first}"), 0, 2), "not joined");
        assert_eq!(wrong(&first, 0, 2), "right");
        assert_eq!(wrong(&first, 1, 2), "the resume token is of rank 0, and this is rank 1");
        assert_eq!(wrong(&first, 0, 3), "this job has 3 ranks; it needs the tokens of 2, and has 1");
        let mut claimer = self::claimer(ReadSettings { rank: 0, ..settings() }, None).expect("from the beginning");
        claimer.sync();
        claimer.reply(says(1, vec![granted(2)]));
        claimer.handed(granted(2).claim, 100);
        // Another had taken it back from rank 0 when rank 1 did this.
        assert_eq!(
            wrong(&format!("{},{second}", claimer.token()), 0, 3),
            "these resume tokens are not of one checkpoint"
        );
    }
}
