//! The rules that delivery rests on. The simulation breaks them one at a time: whoever tests the tests must find it
//! out.

/// A rule, as kept.
#[cfg_attr(not(test), expect(dead_code, reason = "some are broken by the simulation's own nodes"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// Of a window only the row that comes next is accepted.
    OnlyTheNextRow,
    /// An answer to an older message changes nothing.
    OnlyTheNewestAnswer,
    /// A trainer says that it is past a window when it has all of it.
    PositionIsReceived,
    /// What the loop waits for is received however full the buffer is.
    AwaitedComesOverTheLimit,
    /// A token names the window in which its step began.
    TokensNameTheStepsWindow,
    /// With `drop_last`, a batch is handed out when its global step is known to be whole.
    DropsIncompleteSteps,
    /// The windows of a worker that is lost are leased to others.
    LostIsLeasedAgain,
    /// A window is kept until every reader has passed it.
    KeptForEveryReader,
    /// A window that failed is tried again.
    FailedIsTriedAgain,
    /// A window whose worker a reader cannot reach is leased a second time.
    UnreachableIsLeasedAgain,
    /// A reader's current window is leased whatever the limit says.
    CurrentIsLeasedOverTheLimit,
    /// A checkpoint is what was handed to the loop, not what was received.
    PositionIsHandedOut,
    /// Who resumes knows where the window began.
    WindowOffsetIsKept,
    /// Who resumes begins a global step where the token says.
    StepsBeginAtTheOffset,
    /// A stream that broke goes on with the row that comes next.
    StreamsGoOnAtTheNextRow,
    /// Nothing is granted before every rank has said what it holds.
    ClaimsWaitForAllRanks,
    /// What a rank that comes back does not name, others may have.
    UnnamedClaimsGoBack,
    /// A late answer does not bring back a claim that is done.
    DoneClaimsStayDone,
    /// A claim that was handed out in part goes on where it stopped.
    ClaimsGoOnInTheMiddle,
    /// An answer of a dispatcher that a rank has left changes nothing.
    LeftDispatchersAreNotHeard,
    /// A rank that left a dispatcher asks the next after a pause.
    PausesEnd,
    /// A message that is not answered makes room for the next.
    UnansweredIsGivenUp,
    /// A rank that waits for others looks for them at the next dispatcher.
    AwaitedRanksAreLookedFor,
    /// With dynamic delivery, a token counts the batch that it comes with.
    TokensCountTheBatch,
    /// All claims of a rank have one buffer.
    ClaimsShareTheBuffer,
    /// Claims are forgotten when they, and all before them, are done.
    OnlyDoneClaimsArePassed,
    /// A rank that comes back from before what the others have forgotten is not dealt with.
    ReturnsAreWhole,
    /// A rank that was elsewhere has all others asked again.
    AVisitBeginsAnEra,
    /// Of a rank, only the newest process is heard.
    OldProcessesAreNotHeard,
    /// Ranks of a job of another size share what was held.
    SharesAreDisjoint,
    /// A token names the newest process of each rank.
    TokensNameTheNewestProcesses,
    /// Tokens in which something is twice, or missing, are not of one checkpoint.
    TokensAreOfOneHistory,
}

/// Whether the rule holds: always, outside of tests.
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

    /// Breaks a rule in this thread from now on, or none.
    pub(crate) fn break_rule(rule: Option<Rule>) {
        BROKEN.set(rule);
    }

    /// Those that the simulation finds broken.
    pub(crate) const ALL: [Rule; 27] = [
        Rule::OnlyTheNextRow,
        Rule::OnlyTheNewestAnswer,
        Rule::PositionIsReceived,
        Rule::AwaitedComesOverTheLimit,
        Rule::TokensNameTheStepsWindow,
        Rule::DropsIncompleteSteps,
        Rule::LostIsLeasedAgain,
        Rule::KeptForEveryReader,
        Rule::FailedIsTriedAgain,
        Rule::UnreachableIsLeasedAgain,
        Rule::CurrentIsLeasedOverTheLimit,
        Rule::PositionIsHandedOut,
        Rule::WindowOffsetIsKept,
        Rule::StepsBeginAtTheOffset,
        Rule::StreamsGoOnAtTheNextRow,
        Rule::ClaimsWaitForAllRanks,
        Rule::UnnamedClaimsGoBack,
        Rule::DoneClaimsStayDone,
        Rule::ClaimsGoOnInTheMiddle,
        Rule::PausesEnd,
        Rule::UnansweredIsGivenUp,
        Rule::AwaitedRanksAreLookedFor,
        Rule::TokensCountTheBatch,
        Rule::ClaimsShareTheBuffer,
        Rule::OnlyDoneClaimsArePassed,
        Rule::SharesAreDisjoint,
        Rule::OldProcessesAreNotHeard,
    ];

    /// The same, but it takes two dispatchers, or two processes of a rank, at the wrong time.
    /// That tokens name the newest processes, and that a dispatcher that was left is not heard, take more than chance
    /// does in so few seeds: unit tests break these.
    pub(crate) const RARE: [Rule; 3] = [Rule::ReturnsAreWhole, Rule::AVisitBeginsAnEra, Rule::TokensAreOfOneHistory];
}
