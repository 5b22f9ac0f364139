//! A window that ends every worker that computes it, until the faults end.

use super::faults::{Fault, Rates};
use super::world::World;
use crate::messages::Report;
use crate::{Millis, WindowId, WindowKey};

/// How long such a seed's faults last: long enough to lose workers and to notice each loss.
const UNTIL_MS: Millis = 25_000;
/// The fewest workers that may be lost before a window is given up: three beside others, and two alone.
const DEATHS_MIN: u32 = 5;
/// More workers than may be lost before the window is given up. Readers that begin, each process of a rank once, begin
/// the count again.
const DEATHS_MAX: u32 = 60;

/// A window that ends its workers.
#[derive(Debug)]
pub(super) struct Poison {
    key: WindowKey,
    /// Workers that it has ended.
    deaths: u32,
    /// Those of them when it was last given up.
    given_up_after: u32,
}

impl World {
    /// Poisons a window of some seeds. Such a seed has no other fault that ends workers or makes them silent.
    pub(super) fn poison(&mut self) {
        if !self.random.chance(60) {
            return;
        }
        let feed = self.random.below(self.read_feeds()) as usize;
        // A window of a job that writes files may end its workers as well.
        let feed = self.target.as_ref().and_then(|target| target.poisoned).unwrap_or(feed);
        let windows = self.plans[feed].windows_max;
        let window = WindowId { epoch: 0, index: self.random.below(windows) as u32 };
        self.faults.rates = Rates { slow: self.faults.rates.slow, ..Rates::default() };
        self.faults.blows.clear();
        self.faults.until = UNTIL_MS;
        self.dispatchers = 1;
        self.was_poisoned = true;
        self.poison = Some(Poison { key: (self.feeds[feed].clone(), window), deaths: 0, given_up_after: 0 });
    }

    /// Returns whether computing this window ends the worker.
    pub(super) fn is_poisoned(&mut self, key: &WindowKey) -> bool {
        let Some(poison) = self.poison.as_mut().filter(|poison| poison.key == *key) else { return false };
        poison.deaths += 1;
        let deaths = poison.deaths - poison.given_up_after;
        self.faults.fired(Fault::Poisoned);
        if deaths > DEATHS_MAX {
            self.violated(|| format!("{key:?} has ended {deaths} workers, and is not given up"));
        }
        true
    }

    /// Checks that only the poisoned window is given up, after workers that computed it alone were lost. Without one, a
    /// window may be given up by coincidence, but not before as many workers were out of contact.
    pub(super) fn judge_given_up(&mut self, report: &Report) {
        if !report.message.contains("was given up") {
            return;
        }
        let losses = self.workers_out_of_contact;
        if !self.was_poisoned && losses < DEATHS_MIN {
            self.violated(|| format!("after {losses} losses of workers: {}", report.message));
        }
        let Some(poison) = &mut self.poison else { return };
        let WindowId { epoch, index } = poison.key.1;
        let deaths = poison.deaths;
        poison.given_up_after = deaths;
        let names = [format!("window {index} of epoch {epoch} "), format!("file {index} ")];
        if !names.iter().any(|name| report.message.starts_with(name)) || deaths < DEATHS_MIN {
            self.violated(|| format!("after {deaths} deaths over another window: {}", report.message));
        } else {
            self.faults.fired(Fault::GivenUp);
        }
    }
}
