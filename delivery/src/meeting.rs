//! Where ranks with dynamic delivery meet that wait for each other.

use std::collections::BTreeSet;

use crate::rules::{Rule, holds};

/// The dispatchers that a rank may turn to.
///
/// Ranks that wait for others stay longest at their *home*, the dispatcher with the least address. The ranks of a job
/// must agree on it, although each may list the dispatchers in another order. A dispatcher without workers is no home,
/// because ranks do not stay there.
#[derive(Debug)]
pub struct Meeting {
    dispatchers: Vec<String>,
    /// Those that had no workers when they last answered.
    idle: BTreeSet<String>,
}

impl Meeting {
    /// Creates the dispatchers of a rank's list, in its order.
    pub fn new(dispatchers: Vec<String>) -> Self {
        Self { dispatchers, idle: BTreeSet::new() }
    }

    /// Records whether a dispatcher that answered has workers.
    pub fn heard(&mut self, dispatcher: &str, has_workers: bool) {
        if has_workers {
            self.idle.remove(dispatcher);
        } else {
            self.idle.insert(dispatcher.to_owned());
        }
    }

    /// Returns whether ranks that wait for others stay longest at this dispatcher.
    pub fn is_home(&self, dispatcher: &str) -> bool {
        let busy = self.dispatchers.iter().filter(|name| !self.idle.contains(*name));
        let any =
            if busy.clone().next().is_some() { busy.collect() } else { self.dispatchers.iter().collect::<Vec<_>>() };
        let home = if holds(Rule::RanksAgreeOnAHome) { any.into_iter().min() } else { any.into_iter().next() };
        home.is_some_and(|home| home == dispatcher)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::break_rule;

    fn lists() -> [Meeting; 2] {
        [["b:1", "a:1", "c:1"], ["c:1", "b:1", "a:1"]].map(|names| Meeting::new(names.map(str::to_owned).into()))
    }

    #[test]
    fn ranks_agree_on_a_home_with_workers() {
        let mut lists = lists();
        let homes =
            |lists: &[Meeting; 2]| lists.each_ref().map(|it| ["a:1", "b:1", "c:1"].map(|name| it.is_home(name)));
        assert_eq!(homes(&lists), [[true, false, false]; 2]);
        lists.iter_mut().for_each(|it| it.heard("a:1", false));
        assert_eq!(homes(&lists), [[false, true, false]; 2]);
        lists.iter_mut().for_each(|it| ["b:1", "c:1"].iter().for_each(|name| it.heard(name, false)));
        assert_eq!(homes(&lists), [[true, false, false]; 2]);
        lists.iter_mut().for_each(|it| it.heard("c:1", true));
        assert_eq!(homes(&lists), [[false, false, true]; 2]);
    }

    #[test]
    fn the_broken_rule_is_found() {
        let homes = || lists().map(|it| it.is_home("a:1"));
        assert_eq!(homes(), [true; 2]);
        break_rule(Some(Rule::RanksAgreeOnAHome));
        let broken = homes();
        break_rule(None);
        assert_ne!(broken, [true; 2]);
    }
}
