//! How many tasks compute at a time.
//!
//! A runtime has a fixed number of threads. Where fewer of them should be busy for a while, tasks take turns: a task
//! that finds no turn free sleeps until one ends. A turn lasts for one call of `poll`, so a task that waits for another
//! holds none, and however few turns there are, all tasks go on.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// The turns of an executor. By default there is no limit.
#[derive(Debug)]
pub(crate) struct Turns {
    limit: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Tasks that found none free.
    waiting: Vec<Waker>,
}

/// A turn of a task, until it is dropped.
struct Turn<'a>(&'a Turns);

impl Default for Turns {
    fn default() -> Self {
        Self { limit: AtomicUsize::new(usize::MAX), state: Mutex::default() }
    }
}

impl Turns {
    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// Sets how many tasks compute at a time, one at least.
    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit.max(1), Ordering::Relaxed);
        self.state.lock().waiting.drain(..).for_each(Waker::wake);
    }

    /// The task, taking turns with the others.
    pub(crate) fn of<T, F>(self: &Arc<Self>, task: F) -> impl Future<Output = T> + Send + use<T, F>
    where
        F: Future<Output = T> + Send,
    {
        let (turns, mut task) = (Arc::clone(self), Box::pin(task));
        poll_fn(move |context| turns.poll(task.as_mut(), context))
    }

    fn poll<T>(&self, task: Pin<&mut impl Future<Output = T>>, context: &mut Context<'_>) -> Poll<T> {
        if self.limit() == usize::MAX {
            return task.poll(context);
        }
        match self.take(context) {
            Some(_turn) => task.poll(context),
            None => Poll::Pending,
        }
    }

    fn take(&self, context: &Context<'_>) -> Option<Turn<'_>> {
        let mut state = self.state.lock();
        // Read under the lock, so that a limit that is set now wakes this task.
        if state.taken >= self.limit() {
            state.waiting.push(context.waker().clone());
            return None;
        }
        state.taken += 1;
        Some(Turn(self))
    }
}

impl Drop for Turn<'_> {
    /// Wakes all that wait: the first of them may be gone. They are few, as many as tasks.
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.taken -= 1;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::JoinSet;

    use super::*;

    /// Runs tasks that compute in several polls, on eight threads, and returns the most that did at a time.
    fn most_at_a_time(turns: &Arc<Turns>, tasks: usize) -> usize {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(8).enable_all().build().unwrap();
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let computing = || {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                for _ in 0..5 {
                    let computing = now.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(computing, Ordering::SeqCst);
                    (0..1_000).for_each(|_| std::thread::yield_now());
                    now.fetch_sub(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                }
            }
        };
        runtime.block_on(async {
            let mut all = JoinSet::new();
            (0..tasks).for_each(|_| _ = all.spawn(turns.of(computing())));
            all.join_all().await;
        });
        most.load(Ordering::SeqCst)
    }

    #[test]
    fn no_more_tasks_compute_at_a_time_than_the_limit() {
        let turns = Arc::<Turns>::default();
        for limit in [1, 3] {
            turns.set_limit(limit);
            assert!((1..=limit).contains(&most_at_a_time(&turns, 24)), "{limit}");
        }
    }

    #[tokio::test]
    async fn tasks_that_wait_for_each_other_or_are_gone_hold_no_turn() {
        let turns = Arc::<Turns>::default();
        turns.set_limit(0);
        assert_eq!(turns.limit(), 1);
        let (say, said) = tokio::sync::oneshot::channel();
        let mut waits = JoinSet::new();
        waits.spawn(turns.of(said));
        let mut gone = JoinSet::new();
        (0..100).for_each(|_| _ = gone.spawn(turns.of(std::future::pending::<()>())));
        tokio::task::yield_now().await;
        drop(gone);
        turns.of(async move { say.send(()) }).await.unwrap();
        waits.join_all().await;
    }

    #[test]
    fn a_task_that_panics_gives_its_turn_back() {
        let turns = Arc::<Turns>::default();
        turns.set_limit(1);
        let mut panics = Box::pin(turns.of(async { panic!("on purpose") }));
        let mut context = Context::from_waker(Waker::noop());
        let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _: Poll<()> = panics.as_mut().poll(&mut context);
        }));
        assert!(polled.is_err() && turns.take(&context).is_some());
    }
}
