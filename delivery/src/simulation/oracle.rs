//! The expected batches, computed from the plan alone, with other arithmetic than the code under test.

use std::collections::BTreeMap;
use std::ops::Range;

use super::content::{BUILD, content};
use super::faults::Fault;
use super::world::{ROW_BYTES, SimulatedPlan, SimulatedRows, World};
use crate::{AssembledBatch, Plan, ReadSettings, Token, WindowId};

/// One epoch of the log.
struct Epoch {
    /// First offset of each window.
    firsts: Vec<u64>,
    samples: u64,
}

fn epochs(plan: SimulatedPlan, epochs: u64) -> Vec<Epoch> {
    let epoch = |epoch| {
        let mut samples = 0;
        let firsts = (0..plan.windows(epoch)).map(|index| {
            let first = samples;
            samples += plan.rows(WindowId { epoch, index });
            first
        });
        Epoch { firsts: firsts.collect(), samples }
    };
    (0..epochs).map(epoch).collect()
}

/// Returns what is wrong if the rows of a batch are not those at `offsets`.
fn wrong_rows(
    plan: SimulatedPlan,
    epochs: &[Epoch],
    feed: usize,
    delivery: &AssembledBatch<SimulatedRows>,
    offsets: &Range<u64>,
) -> Option<String> {
    let mut at = offsets.start;
    for records in &delivery.records {
        let first = epochs[delivery.epoch as usize].firsts.get(records.window.index as usize).copied();
        let is_next = records.feed == feed
            && records.window.epoch == delivery.epoch
            && first.is_some_and(|first| first + records.rows.start == at)
            && records.rows.end <= plan.rows(records.window);
        if !is_next {
            return Some(format!("{records:?} instead of offset {at}: {delivery:?}"));
        }
        let rows = records.rows.clone();
        let good = rows.filter_map(|row| Some((row, content(&plan, records.window, row, BUILD)?)));
        if !good.eq(records.contents.iter().copied()) {
            return Some(format!("other rows than the files have: {records:?}"));
        }
        at += records.rows.end - records.rows.start;
    }
    (at != offsets.end).then(|| format!("{delivery:?}, which lacks the rows after {at}"))
}

/// The batch that a rank should get next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Expected {
    pub(super) epoch: u64,
    pub(super) step_at: u64,
    offsets: Range<u64>,
}

/// Checks one job with ordered delivery.
pub(super) struct Oracle {
    plan: SimulatedPlan,
    epochs: Vec<Epoch>,
    settings: ReadSettings,
    /// The position at which the job first began.
    start: (u64, u64),
    /// Each rank's epoch, and the offset of its next step.
    ranks: Vec<(u64, u64)>,
    /// Tokens of the steps that some rank has not completed, or that were not saved.
    tokens: BTreeMap<(u64, u64), Token>,
    /// The batches delivered since the last checkpoint.
    since: Vec<(u64, Range<u64>)>,
    /// How often each sample of each epoch was delivered in the history that survives.
    times: Vec<Vec<u8>>,
    /// The most samples that an epoch may lack at its end.
    lacks_max: u64,
    pub(super) batches: u64,
}

impl Oracle {
    pub(super) fn new(plan: SimulatedPlan, settings: ReadSettings, start: (u64, u64)) -> Self {
        let epochs = epochs(plan, settings.epochs);
        let lacks_max = if settings.drop_last { settings.batch_size * settings.world_size - 1 } else { 0 };
        let times = epochs.iter().map(|epoch| vec![0; epoch.samples as usize]).collect();
        let ranks = vec![start; settings.world_size as usize];
        Self {
            plan,
            epochs,
            settings,
            start,
            ranks,
            tokens: BTreeMap::new(),
            since: Vec::new(),
            times,
            lacks_max,
            batches: 0,
        }
    }

    /// Records that the job resumes from `at`, perhaps with another number of ranks.
    pub(super) fn resume(&mut self, settings: ReadSettings, at: (u64, u64)) {
        self.settings = settings;
        self.ranks = vec![at; settings.world_size as usize];
        self.tokens.clear();
        self.since.clear();
        if settings.drop_last {
            self.lacks_max = self.lacks_max.max(self.global() - 1);
        }
    }

    fn global(&self) -> u64 {
        self.settings.batch_size * self.settings.world_size
    }

    pub(super) fn samples(&self, epoch: u64) -> u64 {
        self.epochs.get(epoch as usize).map_or(0, |epoch| epoch.samples)
    }

    /// Returns whether `offset` lies inside a window.
    pub(super) fn is_inside(&self, epoch: u64, offset: u64) -> bool {
        offset < self.samples(epoch) && !self.epochs[epoch as usize].firsts.contains(&offset)
    }

    /// Returns the batch that `rank` should get next.
    pub(super) fn expected(&self, rank: usize) -> Option<Expected> {
        let (mut epoch, mut step_at) = self.ranks[rank];
        loop {
            if epoch >= self.settings.epochs {
                return None;
            }
            let samples = self.samples(epoch);
            let start = step_at + rank as u64 * self.settings.batch_size;
            let is_over = start >= samples || (self.settings.drop_last && step_at + self.global() > samples);
            if is_over {
                (epoch, step_at) = (epoch + 1, 0);
                continue;
            }
            return Some(Expected { epoch, step_at, offsets: start..samples.min(start + self.settings.batch_size) });
        }
    }

    /// Returns the step of `rank`, to compare with the other ranks'.
    pub(super) fn step(&self, rank: usize) -> (u64, u64) {
        self.expected(rank).map_or((u64::MAX, 0), |expected| (expected.epoch, expected.step_at))
    }

    /// Returns the step of the slowest rank.
    pub(super) fn slowest(&self) -> (u64, u64) {
        (0..self.ranks.len()).map(|rank| self.step(rank)).min().expect("a rank")
    }

    fn window_of(&self, epoch: u64, offset: u64) -> u32 {
        let firsts = &self.epochs[epoch as usize].firsts;
        // An empty window begins at the offset of the next one.
        (firsts.partition_point(|&first| first <= offset) - 1) as u32
    }

    /// Checks a batch that was delivered to `rank`.
    pub(super) fn delivered(
        &mut self,
        world: &mut World,
        rank: usize,
        feed: usize,
        delivery: &AssembledBatch<SimulatedRows>,
    ) {
        let Some(expected) = self.expected(rank) else {
            return world.violated(|| format!("rank {rank} got {delivery:?} after its end"));
        };
        let Expected { epoch, step_at, offsets } = expected;
        if (delivery.epoch, &delivery.offsets) != (epoch, &offsets) {
            return world.violated(|| format!("rank {rank} got {delivery:?} instead of {offsets:?} of epoch {epoch}"));
        }
        if let Some(wrong) = wrong_rows(self.plan, &self.epochs, feed, delivery, &offsets) {
            return world.violated(|| format!("rank {rank} got {wrong}"));
        }
        let window = self.window_of(epoch, step_at);
        let window_offset = self.epochs[epoch as usize].firsts[window as usize];
        let token = Token {
            feed: world.feeds[feed].clone(),
            epoch,
            offset: step_at + self.global(),
            window,
            window_offset,
            claims: None,
        };
        if delivery.token != token || *self.tokens.entry((epoch, step_at)).or_insert_with(|| token.clone()) != token {
            return world.violated(|| format!("rank {rank} got {delivery:?}, and its token should be {token:?}"));
        }
        world.note(&[rank as u64, epoch, offsets.start]);
        self.batches += 1;
        self.since.push((epoch, offsets));
        self.ranks[rank] = (epoch, step_at + self.global());
        let after = self.expected(rank);
        if after.as_ref().is_some_and(|after| after.epoch > epoch) {
            world.faults.fired(Fault::NextEpoch);
        }
        if self.settings.drop_last
            && after.is_none_or(|after| after.epoch > epoch)
            && step_at + self.global() < self.samples(epoch)
        {
            world.faults.fired(Fault::LastDropped);
        }
    }

    /// Returns the newest token whose step all ranks have completed, if there are at least `steps` of those.
    pub(super) fn checkpoint(&mut self, world: &mut World, steps: usize) -> Option<Token> {
        let slowest = self.slowest();
        if self.tokens.range(..slowest).count() < steps.max(1) {
            return None;
        }
        let later = self.tokens.split_off(&slowest);
        let (_, token) = std::mem::replace(&mut self.tokens, later).pop_last()?;
        self.commit(world, (token.epoch, token.offset));
        Some(token)
    }

    /// Adds the batches delivered before `until` to the history.
    fn commit(&mut self, world: &mut World, until: (u64, u64)) {
        let (before, later) = std::mem::take(&mut self.since)
            .into_iter()
            .partition(|(epoch, offsets): &(u64, Range<u64>)| (*epoch, offsets.start) < until);
        self.since = later;
        let before: Vec<(u64, Range<u64>)> = before;
        for (epoch, offsets) in before {
            for offset in offsets {
                let times = &mut self.times[epoch as usize][offset as usize];
                *times += 1;
                if *times > 1 {
                    return world.violated(|| format!("offset {offset} of epoch {epoch} was delivered twice"));
                }
            }
        }
    }

    /// Checks the history when all ranks have ended.
    pub(super) fn finished(&mut self, world: &mut World) {
        self.commit(world, (u64::MAX, 0));
        for (epoch, times) in self.times.iter().enumerate() {
            let from = match (epoch as u64).cmp(&self.start.0) {
                std::cmp::Ordering::Less => u64::MAX,
                std::cmp::Ordering::Equal => self.start.1,
                std::cmp::Ordering::Greater => 0,
            };
            let from = from.min(times.len() as u64) as usize;
            let got = times.iter().filter(|&&times| times > 0).count();
            let whole = times[from..].iter().take_while(|&&times| times == 1).count();
            let lost = times.len() - from - whole;
            if got != whole || lost as u64 > self.lacks_max {
                return world.violated(|| {
                    format!("of {} samples of epoch {epoch}, {whole} were delivered", times.len() - from)
                });
            }
        }
    }

    /// Returns the most bytes that a trainer may buffer: its limit and a fragment beyond, and the rows that its batch
    /// needs beyond, which fragments bring.
    pub(super) fn buffer_max(&self, limit: u64, fragment_max: u64) -> u64 {
        limit + fragment_max + 3 * self.settings.batch_size * ROW_BYTES
    }
}

/// The epoch and offsets of a batch that a rank took.
pub(super) type Taken = (u64, Range<u64>);

/// Checks a job with dynamic delivery: each sample must occur once in the history that survives.
pub(super) struct Ledger {
    plan: SimulatedPlan,
    epochs: Vec<Epoch>,
    settings: ReadSettings,
    start: (u64, u64),
    /// How often each sample of each epoch occurs in that history.
    times: Vec<Vec<u8>>,
    pub(super) batches: u64,
}

impl Ledger {
    pub(super) fn new(plan: SimulatedPlan, settings: ReadSettings, start: (u64, u64)) -> Self {
        let epochs = epochs(plan, settings.epochs);
        let times = epochs.iter().map(|epoch| vec![0; epoch.samples as usize]).collect();
        Self { plan, epochs, settings, start, times, batches: 0 }
    }

    /// Returns the samples of an epoch to deliver: from where the job began, without those that `drop_last` leaves out.
    fn wanted(&self, epoch: usize) -> Range<usize> {
        let samples = self.epochs[epoch].samples;
        let unit = if self.settings.drop_last { self.settings.batch_size } else { 1 };
        let end = samples - samples % unit;
        let start = match (epoch as u64).cmp(&self.start.0) {
            std::cmp::Ordering::Less => end,
            std::cmp::Ordering::Equal => self.start.1.min(end),
            std::cmp::Ordering::Greater => 0,
        };
        start as usize..end as usize
    }

    /// Checks a batch that was delivered to a rank.
    pub(super) fn delivered(&mut self, world: &mut World, feed: usize, delivery: &AssembledBatch<SimulatedRows>) {
        let AssembledBatch { epoch, offsets, .. } = delivery;
        let wanted = self.wanted(*epoch as usize);
        let (start, end) = (offsets.start, (offsets.start + self.settings.batch_size).min(wanted.end as u64));
        let is_batch = start.is_multiple_of(self.settings.batch_size) && start < end && offsets.end == end;
        if !is_batch || start < wanted.start as u64 {
            return world.violated(|| format!("{delivery:?} is not a batch of the offsets {wanted:?}"));
        }
        if let Some(wrong) = wrong_rows(self.plan, &self.epochs, feed, delivery, offsets) {
            return world.violated(|| format!("a rank got {wrong}"));
        }
        for offset in offsets.clone() {
            let times = &mut self.times[*epoch as usize][offset as usize];
            *times += 1;
            if *times > 1 {
                return world.violated(|| format!("offset {offset} of epoch {epoch} was delivered twice"));
            }
        }
        world.note(&[*epoch, offsets.start]);
        self.batches += 1;
    }

    /// Removes batches from the history.
    pub(super) fn undo(&mut self, taken: &[Taken]) {
        for (epoch, offsets) in taken {
            offsets.clone().for_each(|offset| self.times[*epoch as usize][offset as usize] -= 1);
        }
    }

    /// Returns the number of samples that were not delivered.
    pub(super) fn missing(&self) -> u64 {
        let missing =
            |(epoch, times): (usize, &Vec<u8>)| times[self.wanted(epoch)].iter().filter(|&&it| it == 0).count();
        self.times.iter().enumerate().map(missing).sum::<usize>() as u64
    }
}
