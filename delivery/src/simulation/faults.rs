//! What goes wrong. Each seed has its own few kinds of fault and its own rates, as a swarm: with all of them always on,
//! most would hide the others.

use super::random::Random;

macro_rules! faults {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Every kind of fault, and of situation that should occur.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Fault {
            $($(#[$doc])* $name,)*
        }

        impl Fault {
            pub(super) const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

faults! {
    /// A message did not arrive.
    Lost,
    /// A message took seconds.
    Late,
    /// A message arrived twice.
    Duplicated,
    /// A message fell into a partition.
    Partitioned,
    /// A message fell into a partition that lets the other direction through.
    PartitionedOneWay,
    /// A reader and a worker cannot reach each other, and never will.
    CutOff,
    /// A worker was killed, and its peers noticed.
    WorkerKilled,
    /// A worker vanished, and its peers' connections with it hang.
    WorkerVanished,
    /// A dispatcher was killed and came back empty.
    DispatcherKilled,
    /// A dispatcher was killed and stayed down.
    DispatcherDown,
    /// A reader's processes were killed; it went on from its last checkpoint.
    TrainersKilled,
    /// A reader went on with another world size and the same global batch.
    WorldChanged,
    /// A reader went on with another global batch.
    GlobalBatchChanged,
    /// A node stood still.
    DispatcherPaused,
    /// The same, a worker.
    WorkerPaused,
    /// The same, a trainer.
    TrainerPaused,
    /// A worker was told to stop.
    Drained,
    /// A second worker came to the address of a first.
    SameAddress,
    /// A worker was sent away because another took its address.
    SentAway,
    /// A window took many times as long as usual.
    Slow,
    /// A window failed, and might not elsewhere.
    Failed,
    /// A window failed for good, until the readers came back.
    FailedForGood,
    /// A worker could not compute a feed.
    Refused,
    /// A stream broke.
    StreamBroken,
    /// A stream left rows out, or brought them twice.
    StreamGarbled,
    /// A stream brought an error.
    StreamFailed,
    /// A worker was asked for a window that it did not hold.
    Missing,
    /// Rows came that were no longer wanted.
    RowsLate,
    /// A client went on with the other dispatcher.
    FailedOver,
    /// A reader was told of an error, and started again.
    ReaderFailed,
    /// A reader went on from a token inside a window.
    ResumedMidWindow,
    /// A reader went on from a token behind an epoch's end.
    ResumedAtEpochEnd,
    /// A window had no rows.
    EmptyWindow,
    /// An epoch followed an epoch.
    NextEpoch,
    /// The rest of an epoch was left out.
    LastDropped,
    /// A reader began at an offset that no step begins at.
    OddStart,
    /// A window was computed although it had been before.
    Recomputed,
    /// A worker kept windows for a dispatcher that did not know them.
    Adopted,
    /// One rank of a job with dynamic delivery was killed, and went on from its own token.
    RankKilled,
    /// It went on in the middle of a claim.
    ResumedMidClaim,
    /// It went on from a token that was not its newest.
    ResumedFurtherBack,
    /// All ranks went on from one checkpoint.
    JobResumed,
    /// The same with another number of ranks.
    JobResized,
    /// A rank's old process went on talking.
    Zombie,
    /// It was told that it is one.
    Superseded,
    /// Its tokens were tried with those of the others, and refused.
    OldTokensRefused,
    /// A rank came back from before what the others remembered.
    RankBehind,
    /// The tokens of all ranks were not of one checkpoint.
    NotJoined,
    /// A rank that was at its end was needed again.
    EndedCameBack,
    /// All that is long done was forgotten.
    BaseMoved,
}

/// In thousandths of all occasions.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rates {
    pub(super) lost: u64,
    pub(super) late: u64,
    pub(super) duplicated: u64,
    pub(super) slow: u64,
    pub(super) failed: u64,
    pub(super) failed_for_good: u64,
    pub(super) refused: u64,
    pub(super) stream_broken: u64,
    pub(super) stream_garbled: u64,
    pub(super) stream_failed: u64,
}

/// What is done to nodes from time to time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blow {
    KillWorker,
    VanishWorker,
    KillDispatcher,
    StopDispatcher,
    KillTrainers,
    ChangeWorld,
    KillRank,
    PauseDispatcher,
    PauseWorker,
    PauseTrainer,
    Drain,
    SameAddress,
    Partition,
    PartitionOneWay,
    CutOff,
}

const BLOWS: [Blow; 15] = [
    Blow::KillWorker,
    Blow::VanishWorker,
    Blow::KillDispatcher,
    Blow::StopDispatcher,
    Blow::KillTrainers,
    Blow::ChangeWorld,
    Blow::KillRank,
    Blow::PauseDispatcher,
    Blow::PauseWorker,
    Blow::PauseTrainer,
    Blow::Drain,
    Blow::SameAddress,
    Blow::Partition,
    Blow::PartitionOneWay,
    Blow::CutOff,
];

/// The faults of one seed.
pub(super) struct Faults {
    pub(super) rates: Rates,
    pub(super) blows: Vec<Blow>,
    /// Milliseconds between blows, about.
    pub(super) pace: u64,
    /// When they end.
    pub(super) until: u64,
    fired: Vec<u64>,
}

impl Faults {
    pub(super) fn draw(random: &mut Random) -> Self {
        let mut rate = |high| match random.chance(300) {
            true => random.between(1, high),
            false => 0,
        };
        let rates = Rates {
            lost: rate(150),
            late: rate(150),
            duplicated: rate(200),
            slow: rate(200),
            failed: rate(150),
            failed_for_good: rate(30),
            refused: rate(300),
            stream_broken: rate(150),
            stream_garbled: rate(100),
            stream_failed: rate(8),
        };
        let blows = BLOWS.into_iter().filter(|_| random.chance(250)).collect();
        let until = match random.chance(50) {
            true => 0,
            false => random.between(500, 9_000),
        };
        Self { rates, blows, pace: random.between(100, 2_500), until, fired: vec![0; Fault::ALL.len()] }
    }

    pub(super) fn fired(&mut self, fault: Fault) {
        self.fired[fault as usize] += 1;
    }

    pub(super) fn counts(&self) -> &[u64] {
        &self.fired
    }
}
