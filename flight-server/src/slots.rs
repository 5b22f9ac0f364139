//! Bounds on the number of connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use nix::sys::resource::{Resource, getrlimit};
use parking_lot::Mutex;

/// The least number of connections, however few files the process may open.
const CONNECTIONS_MIN: usize = 16;
/// The most connections. Each may have [`STREAMS_MAX`](crate::server) streams.
const CONNECTIONS_MAX: usize = 1 << 16;

/// The connections that a server accepts at a time.
#[derive(Clone, Debug)]
pub(crate) struct Slots {
    taken: Arc<Mutex<Taken>>,
    most: usize,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    /// Peers with connections. Connections over a local socket have no address and count only towards all.
    by_peer: HashMap<IpAddr, usize>,
}

/// The place of one connection, free again when dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    taken: Arc<Mutex<Taken>>,
    peer: Option<IpAddr>,
}

impl Slots {
    /// Three quarters of the files that this process may open: the others are for data, and for logs.
    pub(crate) fn of_process() -> Self {
        let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(1024, |(soft, _)| soft);
        let most = usize::try_from(files / 4 * 3).unwrap_or(CONNECTIONS_MAX);
        Self::new(most.clamp(CONNECTIONS_MIN, CONNECTIONS_MAX))
    }

    pub(crate) fn new(most: usize) -> Self {
        Self { taken: Arc::default(), most }
    }

    /// Takes a place for a connection of `peer`, unless all are taken, or the peer has half of them.
    pub(crate) fn take(&self, peer: Option<IpAddr>) -> Option<Slot> {
        let mut taken = self.taken.lock();
        let of_peer = peer.and_then(|peer| taken.by_peer.get(&peer)).copied().unwrap_or(0);
        if taken.all >= self.most || of_peer >= self.most.div_ceil(2) {
            return None;
        }
        taken.all += 1;
        if let Some(peer) = peer {
            taken.by_peer.insert(peer, of_peer + 1);
        }
        Some(Slot { taken: Arc::clone(&self.taken), peer })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all -= 1;
        if let Some(peer) = self.peer
            && let Some(of_peer) = taken.by_peer.get_mut(&peer)
        {
            *of_peer -= 1;
            if *of_peer == 0 {
                taken.by_peer.remove(&peer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_peer_leaves_room_for_others() {
        let slots = Slots::new(4);
        let (one, other) = (Some([10, 0, 0, 1].into()), Some([10, 0, 0, 2].into()));
        let mut held: Vec<Slot> = (0..2).map(|_| slots.take(one).unwrap()).collect();
        assert!(slots.take(one).is_none());
        held.push(slots.take(other).unwrap());
        held.push(slots.take(None).unwrap());
        assert!(slots.take(other).is_none() && slots.take(None).is_none());
        held.clear();
        assert!(slots.take(one).is_some());
        assert_eq!(slots.taken.lock().all, 0);
        assert!(slots.taken.lock().by_peer.is_empty());
    }
}
