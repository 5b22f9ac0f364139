//! The rules on which delivery rests. The simulation breaks them one at a time, to prove that it finds each broken
//! rule.

/// A rule of delivery.
#[cfg_attr(not(test), expect(dead_code, reason = "the simulation's own nodes break some of the rules"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A trainer accepts only the next row of a window.
    OnlyTheNextRow,
    /// An answer to an older message changes nothing.
    OnlyTheNewestAnswer,
    /// A trainer reports that it has passed a window only when it has received all of it.
    PositionIsReceived,
    /// A trainer receives the rows that its loop waits for even if its buffer is full.
    AwaitedComesOverTheLimit,
    /// A token names the window in which its step began.
    TokensNameTheStepsWindow,
    /// With `drop_last`, a trainer delivers a batch only when its global step is known to be complete.
    DropsIncompleteSteps,
    /// The windows of a lost worker are leased to others.
    LostIsLeasedAgain,
    /// A window is kept until every reader has passed it.
    KeptForEveryReader,
    /// A lost worker counts only against the windows that it was computing.
    OnlyWindowsAtWorkAreBlamed,
    /// The loss of a worker counts against some window.
    LossesAreCounted,
    /// A window is given up only when workers that computed nothing else were lost.
    BlameIsConfirmedAlone,
    /// A worker that computes a window alone computes nothing of other feeds either.
    AloneIsAmongAllFeeds,
    /// Changes of a map are taken only if none before them is missing.
    ChangesHaveNoGaps,
    /// A part of a map says nothing of the other parts.
    PartsRevokeNothing,
    /// A message holds a bounded number of changes.
    MessagesAreBounded,
    /// A dispatcher revokes no lease before the worker has named all its windows.
    UnnamedWindowsAreNotRevoked,
    /// A failed window is retried.
    FailedIsTriedAgain,
    /// A rank that reads its next claim does not begin the count of lost workers again.
    LossesOutlastClaims,
    /// A window whose worker a reader cannot reach is leased a second time.
    UnreachableIsLeasedAgain,
    /// A reader's current window is leased whatever the memory limit.
    CurrentIsLeasedOverTheLimit,
    /// A checkpoint counts the delivered batches, not the received ones.
    PositionIsHandedOut,
    /// A resumed reader knows the first offset of its window.
    WindowOffsetIsKept,
    /// A resumed reader begins a global step at the token's offset.
    StepsBeginAtTheOffset,
    /// A broken stream resumes at the next row.
    StreamsGoOnAtTheNextRow,
    /// Of two processes of a rank of a named job, the later reads on, and ranks whose parts do not fit are refused.
    OrderedRanksAreFenced,
    /// A dispatcher remembers how new the silent processes were that a restart of their job replaced.
    ReplacedRanksAreRemembered,
    /// No claim is granted before every rank has reported its claims.
    ClaimsWaitForAllRanks,
    /// Claims that a resumed rank does not name are granted to others.
    UnnamedClaimsGoBack,
    /// A late answer does not bring back a claim that is done.
    DoneClaimsStayDone,
    /// A partly delivered claim resumes at its next offset.
    ClaimsGoOnInTheMiddle,
    /// An answer of a dispatcher that a rank has left changes nothing.
    LeftDispatchersAreNotHeard,
    /// A rank that left a dispatcher asks the next after a pause.
    PausesEnd,
    /// A message that stays unanswered makes room for the next.
    UnansweredIsGivenUp,
    /// With dynamic delivery, an answer counts for the message that it answers, not for the newest that the dispatcher
    /// has heard.
    AnswersCountForTheirMessage,
    /// A rank that waits for others looks for them at the next dispatcher.
    AwaitedRanksAreLookedFor,
    /// With dynamic delivery, a batch's token counts that batch.
    TokensCountTheBatch,
    /// All claims of a rank share one buffer.
    ClaimsShareTheBuffer,
    /// A rank reads few claims at a time, however many it holds.
    FewClaimsAreRead,
    /// A stream that the loop waits for, and that brings nothing for too long, is closed and asked for again.
    SilentStreamsAreClosed,
    /// A connection's window has room for the windows of all streams of a rank.
    ConnectionsFitAllStreams,
    /// A claim is reduced to a sum only when it and all claims before it are done.
    OnlyDoneClaimsArePassed,
    /// A rank that resumes from before the claims that others remember is granted nothing.
    ReturnsAreWhole,
    /// When a rank returns from another dispatcher, all other ranks must report again.
    AVisitBeginsAnEra,
    /// Only the newest process of a rank is heard.
    OldProcessesAreNotHeard,
    /// When a job resumes with another number of ranks, each claim goes to one rank.
    SharesAreDisjoint,
    /// A rank hears of the newest process of each rank from any dispatcher, also from one that it does not ask next.
    AnyDispatcherNamesTheNewest,
    /// A token names the newest process of each rank.
    TokensNameTheNewestProcesses,
    /// A rank that has ended is not awaited when another rank resumes.
    EndedRanksAreNotAwaited,
    /// A rank ends when a dispatcher knows that it takes no more claims.
    EndsAreAcknowledged,
    /// All ranks stay longest at the same dispatcher, whatever the order of their lists.
    RanksAgreeOnAHome,
    /// A reader's message counts only with the secret from which its session follows.
    SessionsFollowFromSecrets,
    /// A late message does not bring back a reader that has left.
    LeftReadersStayAway,
    /// A reader's position lies in the feed.
    PositionsFitTheFeed,
    /// The numbers in a rank's message fit the feed, and are small enough to compute with.
    ClaimsFitTheFeed,
    /// A call is read to its end, after its answer.
    CallsAreReadToTheirEnd,
    /// A call that stays unanswered makes room for another.
    LostCallsMakeRoom,
    /// A row is bad only because of its data: a worker that runs short of a resource leaves no row out.
    ShortagesAreNoBadRows,
    /// A stream that ends because its worker ran short is asked for again.
    ShortagesPass,
    /// A worker whose build computes other bytes is refused.
    OtherBuildsAreRefused,
    /// A stored window outlives the worker that stored it.
    StoredOutlivesItsWorker,
    /// A stored window is not leased again.
    StoredIsNotLeasedAgain,
    /// A new dispatcher takes what is stored from the target.
    JobsResumeFromTheTarget,
    /// A job that writes files is done when all are stored.
    JobsEndWhole,
    /// A job that writes files stops when nobody asks for it.
    ForgottenJobsStop,
    /// Tokens that lack a claim or name one twice are not of one checkpoint.
    TokensAreOfOneHistory,
}

/// Returns whether the rule holds. Outside of tests it always does.
#[cfg(not(test))]
pub(crate) const fn holds(_: Rule) -> bool {
    true
}

#[cfg(test)]
pub(crate) use broken::{ALL, RARE, break_rule, holds};

#[cfg(test)]
mod broken {
    use std::cell::Cell;

    use super::Rule;

    thread_local! {
        static BROKEN: Cell<Option<Rule>> = const { Cell::new(None) };
    }

    pub(crate) fn holds(rule: Rule) -> bool {
        BROKEN.get() != Some(rule)
    }

    /// Breaks a rule in this thread until the next call; `None` breaks none.
    pub(crate) fn break_rule(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    /// Rules that the simulation finds broken within a few hundred seeds.
    pub(crate) const ALL: [Rule; 46] = [
        Rule::OnlyTheNextRow,
        Rule::OnlyTheNewestAnswer,
        Rule::PositionIsReceived,
        Rule::AwaitedComesOverTheLimit,
        Rule::TokensNameTheStepsWindow,
        Rule::DropsIncompleteSteps,
        Rule::LostIsLeasedAgain,
        Rule::KeptForEveryReader,
        Rule::FailedIsTriedAgain,
        Rule::BlameIsConfirmedAlone,
        Rule::LossesAreCounted,
        Rule::ChangesHaveNoGaps,
        Rule::MessagesAreBounded,
        Rule::UnreachableIsLeasedAgain,
        Rule::CurrentIsLeasedOverTheLimit,
        Rule::PositionIsHandedOut,
        Rule::WindowOffsetIsKept,
        Rule::StepsBeginAtTheOffset,
        Rule::StreamsGoOnAtTheNextRow,
        Rule::OrderedRanksAreFenced,
        Rule::ClaimsWaitForAllRanks,
        Rule::DoneClaimsStayDone,
        Rule::ClaimsGoOnInTheMiddle,
        Rule::PausesEnd,
        Rule::UnansweredIsGivenUp,
        Rule::AnswersCountForTheirMessage,
        Rule::AwaitedRanksAreLookedFor,
        Rule::TokensCountTheBatch,
        Rule::ConnectionsFitAllStreams,
        Rule::SilentStreamsAreClosed,
        Rule::OnlyDoneClaimsArePassed,
        Rule::SharesAreDisjoint,
        Rule::OldProcessesAreNotHeard,
        Rule::SessionsFollowFromSecrets,
        Rule::LeftReadersStayAway,
        Rule::PositionsFitTheFeed,
        Rule::ClaimsFitTheFeed,
        Rule::CallsAreReadToTheirEnd,
        Rule::LostCallsMakeRoom,
        Rule::ShortagesAreNoBadRows,
        Rule::ShortagesPass,
        Rule::OtherBuildsAreRefused,
        Rule::StoredOutlivesItsWorker,
        Rule::StoredIsNotLeasedAgain,
        Rule::JobsResumeFromTheTarget,
        Rule::JobsEndWhole,
    ];

    /// Rules that the simulation finds broken within some thousand seeds, because finding them needs two dispatchers,
    /// or two processes of a rank, at the wrong time.
    ///
    /// Unit tests break `OnlyWindowsAtWorkAreBlamed`, `AloneIsAmongAllFeeds`, `UnnamedWindowsAreNotRevoked`,
    /// `PartsRevokeNothing`, `TokensNameTheNewestProcesses`, `LeftDispatchersAreNotHeard`, `EndsAreAcknowledged`,
    /// `FewClaimsAreRead`, `RanksAgreeOnAHome`, `AnyDispatcherNamesTheNewest`, `LossesOutlastClaims`,
    /// `ForgottenJobsStop` and `ReplacedRanksAreRemembered`, which random seeds are too unlikely to reveal.
    pub(crate) const RARE: [Rule; 6] = [
        Rule::ReturnsAreWhole,
        Rule::AVisitBeginsAnEra,
        Rule::TokensAreOfOneHistory,
        Rule::ClaimsShareTheBuffer,
        Rule::EndedRanksAreNotAwaited,
        Rule::UnnamedClaimsGoBack,
    ];
}
