//! Trouble that may pass, with the time at which it began.
//!
//! A reader retries after trouble that may pass by itself. Trouble that lasts for longer than the reader's patience is
//! an error.

use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::Report;

/// The most ranks that a message names.
const NAMED_MAX: usize = 16;
/// The most awaited ranks that an answer lists: those that a message names, and one that stands for the others. Every
/// rank of a job is sent this list.
pub(crate) const AWAITED_MAX: usize = NAMED_MAX + 1;

/// Trouble that may pass.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Option<(Millis, Report)>);

impl Trouble {
    /// Records that there is trouble at `now`, new or lasting.
    pub fn lasts(&mut self, report: Report, now: Millis) {
        let (since, before) = self.0.take().map_or((now, None), |(since, before)| (since, Some(before)));
        // A worker's refusal says more than a report that workers are unavailable.
        let is_vague = report.kind == ErrorKind::Unavailable;
        let kept = before.filter(|before| is_vague && before.kind != ErrorKind::Unavailable);
        self.0 = Some((since, kept.unwrap_or(report)));
    }

    /// Records that the trouble has passed.
    pub fn passes(&mut self) {
        self.0 = None;
    }

    /// Returns when the trouble began, and its latest report.
    pub fn latest(&self) -> Option<&(Millis, Report)> {
        self.0.as_ref()
    }
}

/// Returns the report of a dispatcher that has no worker for a feed.
pub fn no_workers(dispatcher: &str) -> Report {
    Report {
        kind: ErrorKind::Unavailable,
        message: format!("the dispatcher at {dispatcher} has no workers"),
        hint: Some(format!("start a worker with `forebay worker --dispatcher {dispatcher}`")),
        retry: true,
    }
}

/// Returns the report of a process that a newer process of its rank replaced.
pub(crate) fn replaced(rank: u64, job: &str) -> Report {
    let hint = "run one process for each rank, and give each loader of a process its own job; if this process is the \
                newer one, the clock of the other's machine is ahead";
    Report {
        kind: ErrorKind::Conflict,
        message: format!("a newer process reads as rank {rank} of job \"{job}\""),
        hint: Some(hint.to_owned()),
        retry: false,
    }
}

/// Returns the report of a rank with dynamic delivery that waits for `ranks` of `job`.
pub(crate) fn awaited(job: &str, ranks: &[u64]) -> Report {
    let mut names: Vec<_> = ranks.iter().take(NAMED_MAX).map(u64::to_string).collect();
    names.extend((ranks.len() > NAMED_MAX).then(|| "and others".to_owned()));
    let who = match ranks {
        [rank] => format!("rank {rank} joins"),
        _ => format!("ranks {} join", names.join(", ")),
    };
    let hint = "start all ranks of the job, with the same name for the option \"job\"";
    Report {
        kind: ErrorKind::Unavailable,
        message: format!("the dispatcher assigns no batches of job \"{job}\" until {who}"),
        hint: Some(hint.to_owned()),
        retry: true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(kind: ErrorKind, message: &str) -> Report {
        Report { kind, message: message.to_owned(), hint: None, retry: true }
    }

    #[test]
    fn trouble_counts_from_its_beginning_and_keeps_the_most_specific_report() {
        let mut trouble = Trouble::default();
        let mut after = |kind, message, now| {
            trouble.lasts(report(kind, message), now);
            trouble.latest().map(|(since, report)| (*since, report.message.clone()))
        };
        let is = |since, message: &str| Some((since, message.to_owned()));
        assert_eq!(after(ErrorKind::Unavailable, "gone", 5), is(5, "gone"));
        assert_eq!(after(ErrorKind::Invalid, "refused", 7), is(5, "refused"));
        assert_eq!(after(ErrorKind::Unavailable, "no workers", 8), is(5, "refused"));
        assert_eq!(after(ErrorKind::Exhausted, "full", 9), is(5, "full"));
        trouble.passes();
        assert!(trouble.latest().is_none());
    }

    #[test]
    fn a_message_names_at_most_16_ranks() {
        let message = |count: usize| awaited("j", &(0..count as u64).collect::<Vec<_>>()).message;
        assert_eq!(message(1), "the dispatcher assigns no batches of job \"j\" until rank 0 joins");
        assert_eq!(message(2), "the dispatcher assigns no batches of job \"j\" until ranks 0, 1 join");
        assert!(message(16).ends_with("14, 15 join"), "{}", message(16));
        assert!(message(AWAITED_MAX).ends_with("14, 15, and others join"), "{}", message(AWAITED_MAX));
    }
}
