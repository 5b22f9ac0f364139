//! Injected faults. Each seed has its own few kinds of fault and its own rates (swarm testing): if all were always on,
//! most would hide the others.

use super::random::SeededRandom;

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
    /// A partition swallowed a message.
    Partitioned,
    /// A partition that lets the other direction through swallowed a message.
    PartitionedOneWay,
    /// A reader and a worker cannot reach each other until the end.
    CutOff,
    /// A worker was killed, and its peers noticed.
    WorkerKilled,
    /// A worker vanished, and its peers' connections hang.
    WorkerVanished,
    /// A dispatcher was killed and restarted empty.
    DispatcherKilled,
    /// A dispatcher was killed and stayed down.
    DispatcherDown,
    /// All processes of a job were killed, to resume from its last checkpoint.
    TrainersKilled,
    /// A job resumed with another world size and the same global batch.
    WorldChanged,
    /// A job resumed with another global batch.
    GlobalBatchChanged,
    /// A dispatcher was paused.
    DispatcherPaused,
    /// A worker was paused.
    WorkerPaused,
    /// A trainer was paused.
    TrainerPaused,
    /// A window ended the worker that computed it.
    Poisoned,
    /// The readers of that window were told that it was given up.
    GivenUp,
    /// A worker was told to stop.
    Drained,
    /// A second worker took the address of a first.
    SameAddress,
    /// A worker was sent away because another took its address.
    SentAway,
    /// A window took many times as long as usual.
    Slow,
    /// Computing a window failed, and might succeed elsewhere.
    Failed,
    /// Computing a window failed for good, until its readers restarted.
    FailedForGood,
    /// A worker could not compute a feed.
    Refused,
    /// A stream broke.
    StreamBroken,
    /// A stream skipped or repeated rows.
    StreamGarbled,
    /// A stream brought an error.
    StreamFailed,
    /// A worker ran short of a resource while it computed a row.
    Shortage,
    /// A client said what is not so.
    Lie,
    /// A worker of another build asked to join.
    OtherBuild,
    /// A worker was asked for a window that it did not hold.
    Missing,
    /// A trainer refused rows of a replaced stream.
    RowsLate,
    /// An answer to an older message named a newer one, which the dispatcher had heard meanwhile.
    AnsweredAsNewer,
    /// A client turned to the other dispatcher.
    FailedOver,
    /// A reader failed with an error, and restarted.
    ReaderFailed,
    /// A reader resumed from a token inside a window.
    ResumedMidWindow,
    /// A reader resumed from a token at an epoch's end.
    ResumedAtEpochEnd,
    /// A window had no rows.
    EmptyWindow,
    /// A reader entered its next epoch.
    NextEpoch,
    /// The incomplete last step of an epoch was left out.
    LastDropped,
    /// A reader began at an offset that is not the first of a step.
    OddStart,
    /// A window was computed again.
    Recomputed,
    /// A worker held windows that an earlier dispatcher had leased.
    Adopted,
    /// One rank of a job with dynamic delivery was killed, to resume from its own token.
    RankKilled,
    /// It resumed in the middle of a claim.
    ResumedMidClaim,
    /// It resumed from a token that was not its newest.
    ResumedFurtherBack,
    /// All ranks resumed from one checkpoint.
    JobResumed,
    /// All ranks resumed from one checkpoint, as another number of ranks.
    JobResized,
    /// A rank's old process kept running beside the new one.
    Zombie,
    /// A rank's old process was told that a newer one replaced it.
    Superseded,
    /// A process of a job with ordered delivery kept running beside the restarted job.
    OrderedZombie,
    /// It was told that a newer one replaced it.
    OrderedSuperseded,
    /// A restarted job waited for the silence of its old processes.
    MisfitWaited,
    /// The old process's token was refused together with the tokens of the other ranks.
    OldTokensRefused,
    /// A rank resumed from before the claims that others remembered.
    RankBehind,
    /// The tokens of all ranks were not of one checkpoint.
    NotJoined,
    /// A rank resumed after another had ended, and finished.
    ResumedAfterAnEnd,
    /// The claims of a rank that had ended were lost, so all ranks resumed.
    EndForgotten,
    /// Claims that were done long ago were reduced to a sum.
    BaseMoved,
    /// A job that writes files was committed.
    Committed,
    /// A dispatcher opened such a job when some of its files were stored.
    WritingResumed,
    /// Nobody asked for such a job for a while.
    WritingForgotten,
    /// The client of such a job was told that it failed, and asked again.
    WritingFailed,
}

/// Rates of faults, in thousandths of all occasions.
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
    pub(super) shortage: u64,
    pub(super) other_build: u64,
}

/// Faults that are injected into nodes from time to time.
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
    /// The average time between blows.
    pub(super) pace: u64,
    /// When the faults end.
    pub(super) until: u64,
    fired: Vec<u64>,
}

impl Faults {
    pub(super) fn draw(random: &mut SeededRandom) -> Self {
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
            shortage: rate(60),
            other_build: rate(500),
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
