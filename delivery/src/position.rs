//! Positions of readers, and the token that a trainer keeps in its checkpoint.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::claim::{Claim, CompletedPrefix, Granted};
use crate::error::Error;
use crate::rules::{Rule, holds};
use crate::runs::ClaimSet;
use crate::sessions;
use crate::window::WindowId;

/// A position at which to begin to read. As text, and so in JSON: `OFFSET`, `EPOCH:OFFSET` or a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Start {
    /// At an offset of an epoch, shared by all ranks.
    Offset {
        /// Epoch, from 0.
        epoch: u64,
        /// Offset in the epoch, from 0.
        offset: u64,
    },
    /// After the global step of a token.
    Token(Token),
}

impl Default for Start {
    fn default() -> Self {
        Self::Offset { epoch: 0, offset: 0 }
    }
}

impl FromStr for Start {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let number = |text: &str| text.parse::<u64>().ok();
        let parsed = match text.split_once(':') {
            _ if text.starts_with(Token::PREFIX) => return tokens(text).map(Self::Token),
            Some((epoch, offset)) => number(epoch).zip(number(offset)),
            None => number(text).map(|offset| (0, offset)),
        };
        let (epoch, offset) = parsed.ok_or_else(|| {
            Error::new(format!("\"from\" must be OFFSET, EPOCH:OFFSET or a resume token, got \"{text}\""))
        })?;
        Ok(Self::Offset { epoch, offset })
    }
}

/// Parses a token, or the tokens of all ranks with dynamic delivery, separated by commas.
fn tokens(text: &str) -> Result<Token, Error> {
    let mut tokens = text.split(',').map(str::parse::<Token>);
    let mut token = tokens.next().unwrap_or_else(|| text.parse())?;
    for other in tokens {
        let other = other?;
        let is_joined = match (&mut token.claims, &other.claims) {
            (Some(claims), Some(others)) => token.feed == other.feed && Arc::make_mut(claims).join(others),
            _ => false,
        };
        if !is_joined {
            return Err(Error::new("only tokens of dynamic delivery of one job, each of another rank, can be joined")
                .with_hint("with ordered delivery all ranks have the same token: pass one"));
        }
    }
    Ok(token)
}

impl fmt::Display for Start {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offset { epoch, offset } => write!(f, "{epoch}:{offset}"),
            Self::Token(token) => token.fmt(f),
        }
    }
}

impl Serialize for Start {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Start {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

/// Deserializes a value from text or from a bare number.
fn from_text<'de, D: serde::Deserializer<'de>, T: FromStr<Err = Error>>(deserializer: D) -> Result<T, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Text {
        Text(String),
        Number(u64),
    }
    let text = match Text::deserialize(deserializer)? {
        Text::Text(text) => text,
        Text::Number(number) => number.to_string(),
    };
    text.parse().map_err(|error: Error| serde::de::Error::custom(error.message))
}

/// A position in a feed, to keep in a checkpoint. All ranks have the same token after the same global step.
///
/// The window lies at or before the offset. With the window's first offset, a reader resumes without counting the
/// windows before it, whose rows a filter may change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    /// The feed's id.
    pub feed: Arc<str>,
    /// Epoch, from 0.
    pub epoch: u64,
    /// The next global step's first offset.
    pub offset: u64,
    /// The window in which the last global step began.
    pub window: u32,
    /// The window's first offset.
    pub window_offset: u64,
    /// With dynamic delivery, the claims that this rank has taken. The other fields then say only about where these
    /// are.
    pub claims: Option<Arc<ClaimMarks>>,
}

/// The claims that ranks have taken with dynamic delivery: of one rank in its own token, of all ranks in joined tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimMarks {
    /// Samples per batch.
    pub batch_size: u64,
    /// The number of ranks.
    pub world_size: u64,
    /// Identifies the position at which the job began.
    pub origin: u64,
    /// The claims that all ranks have done.
    pub base: CompletedPrefix,
    /// The newest process that was known of each rank. Older processes are refused.
    pub sessions: BTreeMap<u64, u64>,
    /// The claims of each rank since.
    pub ranks: BTreeMap<u64, RankMarks>,
    /// The claims of other ranks that have ended, which no other rank may remember.
    pub ended: BTreeMap<u64, EndedRank>,
}

/// The claims of a rank that has ended: it holds none, and takes no more.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedRank {
    /// The process that ended.
    pub session: u64,
    /// The sum of the marks of the rank's claims before the base.
    pub before: u64,
    /// The claims that the rank has delivered since.
    pub done: ClaimSet,
}

impl EndedRank {
    /// Replaces the claims before `begin` by their sum.
    pub(crate) fn pass(&mut self, begin: Claim) {
        self.before = self.before.wrapping_add(self.done.before(begin).marks());
        self.done = self.done.from(begin);
    }
}

/// The claims that one rank has taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RankMarks {
    /// The sum of the marks of the rank's claims before the base.
    pub before: u64,
    /// The claims that the rank has delivered since.
    pub done: ClaimSet,
    /// The claims that the rank has partly delivered, each with its first offset that is not delivered.
    pub held: Vec<(Granted, u64)>,
    /// The rank's furthest claim, from which a dispatcher learns where the windows are.
    pub furthest: Option<Granted>,
}

impl RankMarks {
    /// Replaces the claims before `begin` by their sum.
    pub(crate) fn pass(&mut self, begin: Claim) {
        self.before = self.before.wrapping_add(self.done.before(begin).marks());
        self.done = self.done.from(begin);
    }
}

impl ClaimMarks {
    /// Writes the claims as text without dots: `BATCH-WORLD-ORIGIN-EPOCH-RUN-PASSED_EPOCH-CLAIMS…_SESSIONS`, and for
    /// each rank `_RANK-BEFORE_EPOCH-FIRST-LAST…_EPOCH-RUN-END-WINDOW-OFFSET-FROM…_EPOCH-RUN-END-WINDOW-OFFSET`.
    ///
    /// The parts of a rank are its runs of done claims, its partly delivered claims, and its furthest claim. Plus signs
    /// separate the items of a list. The sessions (see [`sessions`]) are omitted if there are none. A rank that has
    /// ended is written as `_RANK-BEFORE-SESSION_EPOCH-FIRST-LAST…__`.
    fn body(&self) -> String {
        fn list(items: impl Iterator<Item = String>) -> String {
            items.collect::<Vec<_>>().join("+")
        }
        fn granted(granted: &Granted) -> String {
            let Granted { claim, end, window, window_offset } = granted;
            format!("{}-{}-{end}-{}-{window_offset}", claim.epoch, claim.run, window.index)
        }
        let runs = |done: &ClaimSet| list(done.runs().map(|(epoch, first, last)| format!("{epoch}-{first}-{last}")));
        let Self { batch_size, world_size, origin, base, sessions, ranks, ended } = self;
        let CompletedPrefix { begin, passed, ends } = base;
        let mut text = format!("{batch_size}-{world_size}-{origin}-{}-{}-{passed}_", begin.epoch, begin.run);
        text.push_str(&list(ends.iter().map(|(epoch, claims)| format!("{epoch}-{claims}"))));
        if !sessions.is_empty() {
            text.push('_');
            text.push_str(&sessions::body(sessions));
        }
        for (rank, RankMarks { before, done, held, furthest }) in ranks {
            let held = list(held.iter().map(|(it, from)| format!("{}-{from}", granted(it))));
            let furthest = list(furthest.iter().map(granted));
            text.push_str(&format!("_{rank}-{before}_{}_{held}_{furthest}", runs(done)));
        }
        for (rank, EndedRank { session, before, done }) in ended {
            text.push_str(&format!("_{rank}-{before}-{session}_{}__", runs(done)));
        }
        text
    }

    fn parse(text: &str) -> Option<Self> {
        fn numbers<const N: usize>(text: &str) -> Option<[u64; N]> {
            let numbers: Option<Vec<u64>> = text.split('-').map(|number| number.parse().ok()).collect();
            numbers?.try_into().ok()
        }
        fn list<const N: usize>(text: &str) -> Option<Vec<[u64; N]>> {
            text.split('+').filter(|item| !item.is_empty()).map(numbers).collect()
        }
        fn granted([epoch, run, end, index, window_offset]: [u64; 5]) -> Option<Granted> {
            let window = WindowId { epoch, index: index.try_into().ok()? };
            Some(Granted { claim: Claim { epoch, run }, end, window, window_offset })
        }
        let groups: Vec<&str> = text.split('_').collect();
        let has_sessions = groups.len() % 4 == 3;
        let (head, ranks) = groups.split_at_checked(if has_sessions { 3 } else { 2 })?;
        let [batch_size, world_size, origin, epoch, run, passed] = numbers(head[0])?;
        let ends = list(head[1])?.into_iter().map(|[epoch, claims]| (epoch, claims)).collect();
        let base = CompletedPrefix { begin: Claim { epoch, run }, passed, ends };
        let sessions = if has_sessions { sessions::parse(head[2])? } else { BTreeMap::new() };
        let (ended, all) = (BTreeMap::new(), BTreeMap::new());
        let mut marks = Self { batch_size, world_size, origin, base, sessions, ranks: all, ended };
        for group in ranks.chunks(4) {
            let [head, runs, held, furthest] = group.try_into().ok()?;
            let done = ClaimSet::of_runs(list(runs)?.into_iter().map(|[epoch, first, last]| (epoch, first, last)))?;
            if let Some([rank, before, session]) = numbers(head) {
                marks.ended.insert(rank, EndedRank { session, before, done });
                continue;
            }
            let [rank, before] = numbers(head)?;
            let mut its = RankMarks { before, done, ..RankMarks::default() };
            for [epoch, run, end, index, window_offset, from] in list(held)? {
                its.held.push((granted([epoch, run, end, index, window_offset])?, from));
            }
            its.furthest = match list(furthest)?[..] {
                [it] => Some(granted(it)?),
                _ => None,
            };
            marks.ranks.insert(rank, its);
        }
        Some(marks)
    }

    /// Adds the claims that other ranks of the same job had at the same checkpoint. Returns `false` if `other` is of
    /// another job or has a rank twice.
    fn join(&mut self, other: &Self) -> bool {
        let job = |marks: &Self| (marks.batch_size, marks.world_size, marks.origin);
        if job(self) != job(other) || other.ranks.keys().any(|rank| self.ranks.contains_key(rank)) {
            return false;
        }
        self.ranks.extend(other.ranks.clone());
        for (&rank, its) in &other.ended {
            let known = self.ended.entry(rank).or_insert_with(|| its.clone());
            if known.session < its.session {
                known.clone_from(its);
            }
        }
        // A rank's own token says more.
        self.ended.retain(|rank, _| !self.ranks.contains_key(rank));
        sessions::join(&mut self.sessions, &other.sessions);
        self.base.join(&other.base);
        let begin = self.base.begin;
        self.ranks.values_mut().for_each(|rank| rank.pass(begin));
        self.ended.values_mut().for_each(|rank| rank.pass(begin));
        true
    }

    /// Returns the claims from which `rank` of a job of `world_size` resumes, and the job's origin. These are the
    /// rank's own claims, or its share of the claims of a job with another number of ranks.
    ///
    /// # Errors
    /// Returns an error if the claims are missing, or the tokens are not of one checkpoint.
    pub fn of(&self, rank: u64, world_size: u64) -> Result<(RankMarks, u64), Error> {
        let (others, of) = (self.ranks.keys().next().copied().unwrap_or(0), self.world_size);
        if world_size == of {
            return match self.ranks.get(&rank) {
                Some(own) => Ok((own.clone(), self.origin)),
                None => Err(Error::new(format!("the resume token belongs to rank {others}, but this is rank {rank}"))
                    .with_hint(
                        "pass each rank its own token, or pass all ranks the tokens of all ranks, joined by commas",
                    )),
            };
        }
        let hint =
            "pass all ranks the tokens that the ranks of the earlier job had at one checkpoint, joined by commas";
        let there = self.ranks.len() + self.ended.len();
        if there as u64 != of {
            let message = format!(
                "this job of {world_size} ranks resumes one of {of}: it needs the tokens of all {of} ranks, got {there}"
            );
            return Err(Error::new(message).with_hint(hint));
        }
        let done = || self.ranks.values().map(|it| &it.done).chain(self.ended.values().map(|it| &it.done));
        let held = || self.ranks.values().flat_map(|it| it.held.iter().map(|(it, _)| it.claim));
        let before = self.ranks.values().map(|it| it.before).chain(self.ended.values().map(|it| it.before));
        let before = before.fold(0, u64::wrapping_add);
        let mut different: ClaimSet = held().collect();
        done().for_each(|done| different.extend(done));
        let all = done().map(ClaimSet::len).fold(held().count() as u64, u64::saturating_add);
        let is_one = before == self.base.passed
            && different.len() == all
            // A claim before the base is done, so no rank holds it.
            && different.first().is_none_or(|first| first >= self.base.begin);
        if !is_one && holds(Rule::TokensAreOfOneHistory) {
            return Err(Error::new("these resume tokens are not of one checkpoint").with_hint(hint));
        }
        let mut share = RankMarks::default();
        let is_mine = |other: u64| other % world_size == rank || !holds(Rule::SharesAreDisjoint);
        for (_, its) in self.ranks.iter().filter(|(other, _)| is_mine(**other)) {
            share.before = share.before.wrapping_add(its.before);
            share.done.extend(&its.done);
            share.held.extend(&its.held);
            share.furthest = share.furthest.max(its.furthest);
        }
        for (_, its) in self.ended.iter().filter(|(other, _)| is_mine(**other)) {
            share.before = share.before.wrapping_add(its.before);
            share.done.extend(&its.done);
        }
        let hash = blake3::hash(self.body().as_bytes());
        let origin = hash.as_bytes().first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)));
        Ok((share, origin))
    }
}

impl Token {
    const PREFIX: &str = "fb1.";

    fn body(&self) -> String {
        let Self { feed, epoch, offset, window, window_offset, claims } = self;
        let body = format!("{}{feed}.{epoch}.{offset}.{window}.{window_offset}", Self::PREFIX);
        match claims {
            Some(claims) => format!("{body}.{}", claims.body()),
            None => body,
        }
    }
}

/// Returns the first digits of a hash, enough to notice a damaged token.
fn checksum(body: &str) -> String {
    blake3::hash(body.as_bytes()).to_hex()[..6].to_owned()
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let body = self.body();
        write!(f, "{body}.{}", checksum(&body))
    }
}

impl FromStr for Token {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let parse = || {
            let (body, sum) = text.rsplit_once('.')?;
            // Nothing of a damaged text is read.
            (checksum(body) == sum).then_some(())?;
            let mut parts = body.strip_prefix(Self::PREFIX)?.split('.');
            let token = Self {
                feed: parts.next()?.into(),
                epoch: parts.next()?.parse().ok()?,
                offset: parts.next()?.parse().ok()?,
                window: parts.next()?.parse().ok()?,
                window_offset: parts.next()?.parse().ok()?,
                claims: match parts.next() {
                    Some(claims) => Some(Arc::new(ClaimMarks::parse(claims)?)),
                    None => None,
                },
            };
            (parts.next().is_none() && token.body() == body).then_some(token)
        };
        parse().ok_or_else(|| {
            Error::new(format!("\"{text}\" is not a whole resume token"))
                .with_hint("copy the \"token\" of a batch as it was printed, or pass an offset")
        })
    }
}

impl Serialize for Token {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        from_text(deserializer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> Token {
        Token { feed: "0f3a".into(), epoch: 1, offset: 64, window: 2, window_offset: 50, claims: None }
    }

    #[test]
    fn tokens_survive_text_and_json() {
        let text = token().to_string();
        assert_eq!(text.parse::<Token>().expect("own text"), token());
        let start = Start::Token(token());
        for start in [start, Start::Offset { epoch: 2, offset: 7 }] {
            let json = serde_json::to_string(&start).expect("plain data");
            assert_eq!(serde_json::from_str::<Start>(&json).expect("own json"), start);
        }
        assert_eq!(serde_json::from_str::<Start>("9").expect("a number"), Start::Offset { epoch: 0, offset: 9 });
    }

    #[test]
    fn a_token_with_any_character_changed_is_refused() {
        let text = token().to_string();
        for at in 0..text.len() {
            for replacement in ["0", "9", "x", "."] {
                let mut changed = text.clone();
                changed.replace_range(at..=at, replacement);
                assert!(changed == text || changed.parse::<Token>().is_err(), "{changed}");
            }
        }
    }

    #[test]
    fn starts_are_read_from_text() {
        assert_eq!("12".parse::<Start>().expect("offset"), Start::Offset { epoch: 0, offset: 12 });
        assert_eq!("3:12".parse::<Start>().expect("epoch and offset"), Start::Offset { epoch: 3, offset: 12 });
        for wrong in ["", "-1", "1:", ":1", "1:2:3", "fb1.", "abc"] {
            assert!(wrong.parse::<Start>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_token_with_long_runs_takes_no_more_than_its_text() {
        let runs = format!("0-0-{0}+1-0-{0}", u32::MAX);
        let body = format!("fb1.f.0.0.0.0.1-2-0-0-0-0__0-0_{runs}___1-0_{runs}__");
        let token: Token = format!("{body}.{}", checksum(&body)).parse().expect("a whole token");
        let marks = token.claims.expect("dynamic");
        assert!(marks.ranks.values().all(|its| its.done.runs().count() == 2 && its.done.len() == 1 << 33));
        // Both ranks have all claims.
        assert_eq!(marks.of(0, 1).unwrap_err().message, "these resume tokens are not of one checkpoint");
        assert!(format!("{body}.000000").parse::<Token>().is_err());
        let body = body.replace("4294967295", "18446744073709551615");
        assert!(format!("{body}.{}", checksum(&body)).parse::<Token>().is_err(), "an index is too large");
    }
}
