//! What stands in a reader's way: kept with the time since when, and forgotten when it passes.
//!
//! A reader retries whatever may pass by itself. Only trouble that lasts for longer than a reader's patience is an
//! error.

use crate::clock::Millis;
use crate::error::ErrorKind;
use crate::messages::Report;

/// Ranks that are named in a message.
const NAMED_MAX: usize = 16;

/// Trouble that may pass.
#[derive(Clone, Debug, Default)]
pub struct Trouble(Option<(Millis, Report)>);

impl Trouble {
    /// There is trouble at `now`, the first or still.
    pub fn lasts(&mut self, report: Report, now: Millis) {
        let (since, before) = self.0.take().map_or((now, None), |(since, before)| (since, Some(before)));
        // What a worker refuses says more than that there are none elsewhere.
        let is_vague = report.kind == ErrorKind::Unavailable;
        let kept = before.filter(|before| is_vague && before.kind != ErrorKind::Unavailable);
        self.0 = Some((since, kept.unwrap_or(report)));
    }

    /// There is none any more.
    pub fn passes(&mut self) {
        self.0 = None;
    }

    /// Since when there is trouble, and what it is now.
    pub fn latest(&self) -> Option<&(Millis, Report)> {
        self.0.as_ref()
    }
}

/// The trouble of a dispatcher that has no worker for a feed.
pub fn no_workers(dispatcher: &str) -> Report {
    Report {
        kind: ErrorKind::Unavailable,
        message: format!("the dispatcher at {dispatcher} knows no worker"),
        hint: Some(format!("start one with `forebay worker --dispatcher {dispatcher}`")),
        retry: true,
    }
}

/// The trouble of a rank with dynamic delivery that waits for `ranks`.
pub(crate) fn awaited(ranks: &[u64]) -> Report {
    let mut names: Vec<_> = ranks.iter().take(NAMED_MAX).map(u64::to_string).collect();
    names.extend((ranks.len() > NAMED_MAX).then(|| format!("and {} others", ranks.len() - NAMED_MAX)));
    let hint =
        "with dynamic delivery every rank must say what it holds: start them all, with one name for the option \"job\"";
    Report {
        kind: ErrorKind::Unavailable,
        message: format!("nothing is handed out before rank {} is there", names.join(", ")),
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
    fn trouble_counts_from_its_beginning_and_keeps_what_says_most() {
        let mut trouble = Trouble::default();
        let mut after = |kind, message, now| {
            trouble.lasts(report(kind, message), now);
            trouble.latest().map(|(since, report)| (*since, report.message.clone()))
        };
        let is = |since, message: &str| Some((since, message.to_owned()));
        assert_eq!(after(ErrorKind::Unavailable, "gone", 5), is(5, "gone"));
        assert_eq!(after(ErrorKind::Invalid, "refused", 7), is(5, "refused"));
        assert_eq!(after(ErrorKind::Unavailable, "none here", 8), is(5, "refused"));
        assert_eq!(after(ErrorKind::Exhausted, "full", 9), is(5, "full"));
        trouble.passes();
        assert!(trouble.latest().is_none());
    }

    #[test]
    fn many_ranks_are_not_all_named() {
        let message = |count| awaited(&(0..count).collect::<Vec<_>>()).message;
        assert_eq!(message(2), "nothing is handed out before rank 0, 1 is there");
        assert!(message(20).ends_with("14, 15, and 4 others is there"), "{}", message(20));
    }
}
