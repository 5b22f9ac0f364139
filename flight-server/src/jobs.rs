//! Jobs that write a pipeline's samples to files: clients ask for them, workers write the files, and the dispatcher's
//! process claims and commits them.
//!
//! A job continues while a client asks for it. Its whole state is in its target, so a job that was asked for at another
//! dispatcher, or earlier, continues where it was.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use forebay_delivery::{Plan, WindowId, WritingProgress};
use forebay_engine::{Error, ErrorKind, FilePlan, JobEstimate, JobProgress, Result, Session, WindowPlan};
use forebay_flight_client::wire::{JobAnswer, JobCall, JobResult};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use crate::dispatcher::DispatcherService;

/// How long a call waits for the end of its job.
const POLL: Duration = Duration::from_millis(500);
/// A job that no client has asked for since stops.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// The most jobs at a time.
const JOBS_MAX: usize = 64;

/// The plan of what a dispatcher leases: the windows of a feed, or the files of a job.
pub(crate) enum LeasedPlan {
    Windows(WindowPlan),
    Files(FilePlan),
}

impl Plan for LeasedPlan {
    fn windows(&self, epoch: u64) -> u32 {
        match self {
            Self::Windows(plan) => plan.windows(epoch),
            Self::Files(plan) => plan.windows(epoch),
        }
    }

    fn bytes(&self, window: WindowId) -> u64 {
        match self {
            Self::Windows(plan) => plan.bytes(window),
            Self::Files(plan) => plan.bytes(window),
        }
    }
}

/// The jobs of a dispatcher.
pub(crate) struct Jobs {
    session: Arc<Session>,
    /// The folders and URLs below which the jobs of clients may write.
    writable: Vec<String>,
    all: Mutex<HashMap<String, Arc<JobRun>>>,
    tasks: Mutex<JoinSet<()>>,
}

/// A job that was begun.
struct JobRun {
    state: Mutex<RunState>,
    progress: JobProgress,
    ended: Notify,
    asked: Mutex<Instant>,
    task: Mutex<Option<AbortHandle>>,
}

impl JobRun {
    /// Whether its task has ended without a result. Call this with the state locked.
    fn has_panicked(&self, state: &RunState) -> bool {
        !matches!(state, RunState::Ended(_)) && self.task.lock().as_ref().is_some_and(AbortHandle::is_finished)
    }
}

enum RunState {
    Waiting,
    Writing(WritingProgress),
    Ended(Result<JobResult>),
}

impl Jobs {
    /// Jobs that may write below these folders and URLs.
    pub(crate) fn new(session: Arc<Session>, writable: &[String]) -> Result<Self> {
        let writable = writable.iter().map(|url| session.absolute(url)).collect::<Result<_>>()?;
        Ok(Self { session, writable, all: Mutex::default(), tasks: Mutex::default() })
    }

    /// Begins the job, unless it is under way, and waits for its end for a moment.
    pub(crate) async fn ask(&self, dispatcher: &Arc<DispatcherService>, call: JobCall) -> Result<JobAnswer> {
        let key = serde_json::to_string(&JobCall { begins: false, ..call.clone() }).expect("plain data becomes JSON");
        // Links may lead elsewhere by now.
        self.check_target(&call.to)?;
        let run = self.begin(dispatcher, &key, call)?;
        *run.asked.lock() = Instant::now();
        let until = Instant::now() + POLL;
        loop {
            let ended = run.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let answer = match &*run.state.lock() {
                state if run.has_panicked(state) => {
                    self.all.lock().retain(|_, it| !Arc::ptr_eq(it, &run));
                    return Err(Error::new(ErrorKind::Internal, "the task of the job panicked"));
                }
                RunState::Waiting => JobAnswer::Waiting { for_another: run.progress.waits() },
                RunState::Writing(progress) => JobAnswer::Writing(progress.clone()),
                RunState::Ended(result) => {
                    // The next call begins it again, and finds what is there.
                    self.all.lock().retain(|_, it| !Arc::ptr_eq(it, &run));
                    return Ok(match result {
                        Ok(done) => JobAnswer::Done(done.clone()),
                        Err(error) => JobAnswer::Failed(error.report()),
                    });
                }
            };
            tokio::select! {
                () = ended => {}
                () = sleep_until(until) => return Ok(answer),
            }
        }
    }

    /// What the job would write.
    pub(crate) async fn estimate(&self, call: &JobCall) -> Result<JobEstimate> {
        let JobCall { request, to, options, .. } = call;
        self.check_target(to)?;
        self.session.job(&request.pipeline, &request.feed_options(), to, options).await?.estimate().await
    }

    /// Refuses a target that is not below a folder that jobs may write to, where links lead now.
    fn check_target(&self, to: &str) -> Result<()> {
        let target = self.session.absolute(to)?;
        let place = without_links(&target);
        let is_below = |folder: &String| {
            let folder = without_links(folder);
            let folder = folder.trim_end_matches('/');
            place.strip_prefix(folder).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        if self.writable.iter().any(is_below) {
            return Ok(());
        }
        let hint = match &self.writable[..] {
            [] => "its operator can permit it: `forebay serve --allow-write URL`".to_owned(),
            several => format!("it may write below {}", several.join(", ")),
        };
        Err(Error::new(ErrorKind::Denied, format!("this server does not write to \"{target}\"")).with_hint(hint))
    }

    /// Begins the job, whose target was checked, unless it is under way.
    fn begin(&self, dispatcher: &Arc<DispatcherService>, key: &str, call: JobCall) -> Result<Arc<JobRun>> {
        let mut all = self.all.lock();
        if let Some(run) = all.get(key) {
            return Ok(Arc::clone(run));
        }
        if all.len() >= JOBS_MAX {
            let message = format!("{JOBS_MAX} jobs are under way here");
            return Err(Error::new(ErrorKind::Exhausted, message).with_hint("wait until one has ended"));
        }
        let run = Arc::new(JobRun {
            state: Mutex::new(RunState::Waiting),
            progress: JobProgress::default(),
            ended: Notify::new(),
            asked: Mutex::new(Instant::now()),
            task: Mutex::default(),
        });
        all.insert(key.to_owned(), Arc::clone(&run));
        drop(all);
        let (session, dispatcher, running) = (Arc::clone(&self.session), Arc::clone(dispatcher), Arc::clone(&run));
        let mut tasks = self.tasks.lock();
        while tasks.try_join_next().is_some() {}
        let task = tasks.spawn(async move {
            let result = work(&session, &dispatcher, &running, &call).await;
            *running.state.lock() = RunState::Ended(result);
            running.ended.notify_waiters();
        });
        *run.task.lock() = Some(task);
        Ok(run)
    }

    /// Stops the jobs that no client asks for. Call this from time to time.
    pub(crate) fn stop_forgotten(&self) {
        self.all.lock().retain(|_, run| {
            let is_asked_for = run.asked.lock().elapsed() < FORGOTTEN;
            if !is_asked_for {
                run.task.lock().take().inspect(|task| task.abort());
            }
            is_asked_for
        });
    }
}

/// Opens a job, has its files written, and commits it.
async fn work(
    session: &Session,
    dispatcher: &Arc<DispatcherService>,
    run: &JobRun,
    call: &JobCall,
) -> Result<JobResult> {
    let JobCall { request, to, options, begins } = call;
    let job = session.job(&request.pipeline, &request.feed_options(), to, options).await?;
    let done = job
        .run_elsewhere(&run.progress, |spec, stored| async {
            let open = dispatcher.open_job(&job, spec, stored, *begins);
            loop {
                let progress = open.ask()?;
                if let Some(failed) = &progress.failed {
                    return Err(Error::from(failed));
                }
                let is_whole = progress.is_whole();
                *run.state.lock() = RunState::Writing(progress);
                if is_whole {
                    return Ok(());
                }
                let _ = timeout(POLL / 2, open.changed()).await;
            }
        })
        .await?;
    Ok(done.result())
}

/// The path to which links lead, of a local path whose end may not exist yet. Leaves URLs as they are.
fn without_links(path: &str) -> String {
    if path.contains("://") {
        return path.to_owned();
    }
    let real = Path::new(path).ancestors().find_map(|there| {
        let rest = Path::new(path).strip_prefix(there).ok()?;
        there.canonicalize().ok()?.join(rest).into_os_string().into_string().ok()
    });
    real.unwrap_or_else(|| path.to_owned())
}
