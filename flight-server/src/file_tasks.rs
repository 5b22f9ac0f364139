//! The files of jobs that a worker writes.

use std::collections::HashMap;
use std::sync::Arc;

use forebay_delivery::WindowKey;
use forebay_delivery::messages::HeldState;
use forebay_engine::{Error, ErrorKind, Result, SharedJob};
use tokio::task::{AbortHandle, Id, JoinSet};

/// A task for each file that is leased to this worker. Dropping them ends all.
#[derive(Default)]
pub(crate) struct FileTasks {
    tasks: JoinSet<Result<(u64, u64)>>,
    /// The file of each task that was not cancelled.
    files: HashMap<Id, WindowKey>,
    running: HashMap<WindowKey, AbortHandle>,
}

impl FileTasks {
    /// Begins to write a file, which is a window of the job.
    pub(crate) fn start(&mut self, job: &Arc<SharedJob>, key: &WindowKey) {
        let (job, index) = (Arc::clone(job), key.1.index);
        let task = self.tasks.spawn(async move { job.write(index).await });
        self.files.insert(task.id(), key.clone());
        self.running.insert(key.clone(), task);
    }

    /// Gives up a file, if it is being written.
    pub(crate) fn cancel(&mut self, key: &WindowKey) {
        if let Some(task) = self.running.remove(key) {
            self.files.remove(&task.id());
            task.abort();
        }
    }

    /// The files that are being written.
    pub(crate) fn running(&self) -> impl Iterator<Item = &WindowKey> {
        self.running.keys()
    }

    /// Waits until a file is stored or has failed. `None` if none is being written.
    pub(crate) async fn next(&mut self) -> Option<(WindowKey, HeldState)> {
        loop {
            let (id, written) = match self.tasks.join_next_with_id().await? {
                Ok((id, written)) => (id, written),
                Err(ended) => {
                    let panicked = || Error::new(ErrorKind::Internal, "the task that wrote the file panicked");
                    (ended.id(), Err(panicked()))
                }
            };
            let Some(key) = self.files.remove(&id) else { continue };
            self.running.remove(&key);
            let state = match written {
                Ok((rows, bytes)) => HeldState::Stored { rows, bytes },
                Err(error) => HeldState::Failed(error.report()),
            };
            return Some((key, state));
        }
    }
}
