//! A map that one process keeps and another follows, by messages that hold only the changes.
//!
//! The keeper numbers its changes. The follower says up to which number it knows them, and each message begins there.
//! So a lost or duplicated message loses nothing, and a message is as large as what is new. A follower that knows
//! nothing, or that followed another keeper meanwhile, is told the whole map: a new *pass*, in parts of bounded size.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::rules::{Rule, holds};

/// The most changes in a message.
#[cfg(not(test))]
pub(crate) const CHANGES_MAX: usize = 2_048;
/// Few, so that the simulation sends maps in parts.
#[cfg(test)]
pub(crate) const CHANGES_MAX: usize = 8;
/// The most bytes of texts in a message, unless its first text is longer.
#[cfg(not(test))]
const TEXT_BYTES_MAX: usize = 192 << 10;
#[cfg(test)]
const TEXT_BYTES_MAX: usize = 64;

/// A value of a map, in a message.
pub(crate) trait Told {
    /// Returns the bytes that its texts take in a message. The rest of it is small.
    fn text_bytes(&self) -> usize {
        0
    }
}

/// The changes that a follower knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Known {
    /// The pass in which it was told the whole map.
    pub pass: u64,
    /// The number of the last change.
    pub upto: u64,
}

/// Changes of a map, or a part of the whole map.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Changes<K, V> {
    /// The changes that the follower must know; those that it knows then.
    pub known: (Known, Known),
    /// Whether there are no later changes.
    pub is_all: bool,
    /// Keys with their new values, or `None` for keys that were removed.
    pub changed: Vec<(K, Option<V>)>,
}

/// A map that another process follows.
#[derive(Clone, Debug)]
pub(crate) struct Kept<K, V> {
    /// Values with the number of their last change. Removed keys stay until the follower knows.
    values: BTreeMap<K, (u64, Option<V>)>,
    by_number: BTreeMap<u64, K>,
    newest: u64,
    pass: u64,
    /// The changes of this pass that a follower has known. Another follower may lack removals among them.
    followed: u64,
}

impl<K: Clone + Ord, V: Clone + PartialEq + Told> Kept<K, V> {
    /// Creates an empty map whose passes have numbers greater than `first`, which no other keeper's passes have.
    pub(crate) fn new(first: u64) -> Self {
        Self { values: BTreeMap::new(), by_number: BTreeMap::new(), newest: 0, pass: first + 1, followed: 0 }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.values.get(key)?.1.as_ref()
    }

    /// Returns the value, unless it changed after `known`.
    pub(crate) fn get_known(&self, key: &K, known: Known) -> Option<&V> {
        let (number, value) = self.values.get(key)?;
        value.as_ref().filter(|_| known.pass == self.pass && *number <= known.upto)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.values.iter().filter_map(|(key, (_, value))| Some((key, value.as_ref()?)))
    }

    /// Sets or removes a value. Returns whether that changes the map.
    pub(crate) fn set(&mut self, key: K, value: Option<V>) -> bool {
        if self.get(&key) == value.as_ref() {
            return false;
        }
        self.newest += 1;
        self.by_number.insert(self.newest, key.clone());
        if let Some((before, _)) = self.values.insert(key, (self.newest, value)) {
            self.by_number.remove(&before);
        }
        true
    }

    /// Replaces the map. Returns whether that changes it.
    pub(crate) fn replace(&mut self, values: BTreeMap<K, V>) -> bool {
        let gone: Vec<K> = self.iter().map(|(key, _)| key).filter(|key| !values.contains_key(key)).cloned().collect();
        let mut is_change = !gone.is_empty();
        gone.into_iter().for_each(|key| _ = self.set(key, None));
        for (key, value) in values {
            is_change |= self.set(key, Some(value));
        }
        is_change
    }

    /// Returns the changes after those that the follower knows, or the first part of them: at most `most`, of bounded
    /// size. Forgets the removals that it knows.
    pub(crate) fn since(&mut self, known: Known, most: usize) -> Changes<K, V> {
        let follows = known.pass == self.pass && (self.followed..=self.newest).contains(&known.upto);
        let before = match follows {
            true => known,
            false => {
                self.pass += 1;
                self.followed = 0;
                Known { pass: self.pass, upto: 0 }
            }
        };
        self.followed = before.upto;
        // The whole map has no removed keys.
        self.forget(if follows { known.upto } else { self.newest });
        let mut rest = self.by_number.range(before.upto + 1..).peekable();
        let (mut part, mut text_bytes) = (Vec::new(), 0);
        while let Some((_, key)) = rest.peek() {
            text_bytes += self.values[*key].1.as_ref().map_or(0, V::text_bytes);
            let is_full = part.len() >= most || (text_bytes > TEXT_BYTES_MAX && !part.is_empty());
            if is_full && holds(Rule::MessagesAreBounded) {
                break;
            }
            part.extend(rest.next());
        }
        let is_all = rest.peek().is_none();
        let upto = part.last().map_or(before.upto, |(number, _)| **number);
        let upto = if is_all { self.newest } else { upto };
        let changed = part.into_iter().map(|(_, key)| (key.clone(), self.values[key].1.clone())).collect();
        Changes { known: (before, Known { pass: self.pass, upto }), is_all, changed }
    }

    /// Forgets keys that were removed up to this change.
    fn forget(&mut self, upto: u64) {
        let is_removed = |key: &K| self.values[key].1.is_none();
        let removed = self.by_number.range(..=upto).filter(|(_, key)| is_removed(key));
        let removed: Vec<u64> = removed.map(|(&number, _)| number).collect();
        for number in removed {
            if let Some(key) = self.by_number.remove(&number) {
                self.values.remove(&key);
            }
        }
    }
}

/// A copy of a map that another process keeps.
#[derive(Clone, Debug)]
pub(crate) struct Followed<K, V> {
    values: BTreeMap<K, V>,
    /// The parts of the whole map that are known, until all are.
    parts: Option<BTreeMap<K, V>>,
    known: Known,
}

impl<K: Clone + Ord, V: Clone> Followed<K, V> {
    pub(crate) fn new() -> Self {
        Self { values: BTreeMap::new(), parts: Some(BTreeMap::new()), known: Known::default() }
    }

    /// Returns the changes that are known.
    pub(crate) fn known(&self) -> Known {
        self.known
    }

    /// Returns whether all parts of the whole map are known.
    pub(crate) fn is_whole(&self) -> bool {
        self.parts.is_none()
    }

    /// Returns the map. During a pass, it is the map before the pass.
    pub(crate) fn values(&self) -> &BTreeMap<K, V> {
        &self.values
    }

    /// Takes changes. Returns whether they follow what is known. If not, others are missing: the
    /// map stays as it is until a pass.
    pub(crate) fn take(&mut self, changes: &Changes<K, V>) -> bool {
        let (before, after) = changes.known;
        if before.upto == 0 {
            self.parts = Some(BTreeMap::new());
        } else if (before.pass != self.known.pass || before.upto > self.known.upto) && holds(Rule::ChangesHaveNoGaps) {
            // A pass that was under way is not continued without its first parts.
            (self.parts, self.known) = (Some(BTreeMap::new()), Known::default());
            return false;
        }
        let values = self.parts.as_mut().unwrap_or(&mut self.values);
        for (key, value) in &changes.changed {
            match value {
                Some(value) => _ = values.insert(key.clone(), value.clone()),
                None => _ = values.remove(key),
            }
        }
        self.known = after;
        if (changes.is_all || !holds(Rule::PartsRevokeNothing))
            && let Some(parts) = self.parts.take()
        {
            self.values = parts;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::random::SeededRandom;

    impl Told for u64 {}

    /// Such a message was sent before the keeper forgot the follower, and arrives late.
    #[test]
    fn a_late_message_does_not_take_the_first_part_of_a_pass() {
        let mut before: Kept<u64, u64> = Kept::new(0);
        before.set(0, Some(0));
        let pass = before.since(Known::default(), CHANGES_MAX).known.1;
        before.set(0, Some(1));
        let late = before.since(pass, CHANGES_MAX);
        let mut kept: Kept<u64, u64> = Kept::new(1 << 32);
        (0..2 * CHANGES_MAX as u64).for_each(|key| _ = kept.set(key, Some(key)));
        let mut follower = Followed::new();
        assert!(follower.take(&kept.since(follower.known(), CHANGES_MAX)));
        assert!(!follower.take(&late));
        for _ in 0..2 {
            assert!(follower.take(&kept.since(follower.known(), CHANGES_MAX)));
        }
        assert!(follower.is_whole());
        assert!(follower.values().iter().eq(kept.iter()));
    }

    #[test]
    fn a_follower_knows_the_map_however_messages_are_lost() {
        for seed in 0..200 {
            let mut random = SeededRandom::new(seed);
            let mut kept: Kept<u64, u64> = Kept::new(1 << 32);
            // Two followers take turns, and forget all from time to time.
            let mut followers = [Followed::new(), Followed::new()];
            let mut turn = 0;
            for _ in 0..300 {
                let value = random.chance(600).then(|| random.below(4));
                kept.set(random.below(30), value);
                if random.chance(30) {
                    turn = 1 - turn;
                }
                if random.chance(30) {
                    followers[turn] = Followed::new();
                }
                let changes = kept.since(followers[turn].known(), CHANGES_MAX);
                assert!(changes.changed.len() <= CHANGES_MAX);
                if random.chance(700) {
                    assert!(followers[turn].take(&changes), "seed {seed}");
                }
            }
            for follower in &mut followers {
                for _ in 0..10 {
                    assert!(follower.take(&kept.since(follower.known(), CHANGES_MAX)));
                }
                assert!(follower.is_whole());
                let values: Vec<_> = follower.values().iter().collect();
                assert_eq!(values, kept.iter().collect::<Vec<_>>(), "seed {seed}");
            }
        }
    }

    #[test]
    fn a_message_holds_what_is_new() {
        let mut kept: Kept<u64, u64> = Kept::new(7);
        let mut follower = Followed::new();
        (0..27).for_each(|key| _ = kept.set(key, Some(0)));
        let sizes: Vec<usize> = (0..5)
            .map(|_| {
                let changes = kept.since(follower.known(), CHANGES_MAX);
                follower.take(&changes);
                changes.changed.len()
            })
            .collect();
        assert_eq!(sizes, [8, 8, 8, 3, 0]);
        assert!(!kept.set(4, Some(0)) && kept.set(4, None) && kept.set(5, Some(1)));
        let changes = kept.since(follower.known(), CHANGES_MAX);
        assert_eq!(changes.changed, [(4, None), (5, Some(1))]);
        assert!(follower.take(&changes) && kept.since(follower.known(), CHANGES_MAX).changed.is_empty());
        assert_eq!(kept.values.len(), 26, "a removal that is known is forgotten");
        // Changes of another keeper, or after others that were lost, are not taken.
        assert!(
            !follower.take(&Changes { known: (Known { pass: 99, upto: 1 }, Known { pass: 99, upto: 2 }), ..changes })
        );
    }

    #[test]
    fn long_texts_go_into_several_messages() {
        #[derive(Clone, Debug, PartialEq)]
        struct Text(usize);
        impl Told for Text {
            fn text_bytes(&self) -> usize {
                self.0
            }
        }
        let mut kept: Kept<u64, Text> = Kept::new(0);
        let mut follower = Followed::new();
        let texts = [TEXT_BYTES_MAX / 2, TEXT_BYTES_MAX / 2, 1, 4 * TEXT_BYTES_MAX, 0, 0, 0, 0];
        texts.into_iter().zip(0..).for_each(|(bytes, key)| _ = kept.set(key, Some(Text(bytes))));
        let mut sizes = Vec::new();
        while !follower.is_whole() {
            let changes = kept.since(follower.known(), 3);
            assert!(follower.take(&changes));
            sizes.push(changes.changed.len());
        }
        assert_eq!(sizes, [2, 1, 1, 3, 1]);
        assert!(follower.values().iter().eq(kept.iter()));
    }
}
