//! Has the workers of a server write samples to files, and waits for the end.

use forebay_protocol::{Error, ErrorKind, JobEstimate, JobOptions, Result};
use tokio::time::{Duration, Instant, sleep};

use crate::client::Client;
use crate::wire::{JobAnswer, JobCall, JobResult, StreamRequest};

/// How long to retry while no server answers.
const PATIENCE: Duration = Duration::from_secs(30);
const RETRY_PAUSE: Duration = Duration::from_millis(500);
/// A server without workers is left for the next of several after this time: longer than workers stay at one that has
/// nothing for them.
const WITHOUT_WORKERS: Duration = Duration::from_secs(25);

impl Client {
    /// What [`materialize`](Self::materialize) would write, estimated by the server from a sample. Writes nothing.
    ///
    /// # Errors
    /// Those of [`materialize`](Self::materialize), before the job begins; `Unsupported` for a server of a version
    /// without estimates.
    pub async fn estimate_job(
        &mut self,
        request: StreamRequest,
        to: &str,
        options: &JobOptions,
    ) -> Result<JobEstimate> {
        let call = JobCall { request, to: to.to_owned(), options: options.clone(), begins: false };
        self.ask_for_estimate(&call).await
    }

    /// Has the server's workers write the samples of a pipeline to files below `to`, a folder or URL as the server sees
    /// it. Shows each answer to `on_answer`, every half a second at least. The job continues until this ends or is
    /// dropped.
    ///
    /// # Errors
    /// `Denied` without an operator's token, and for a target that the server does not write to; the job's errors;
    /// `Unavailable` if no server answers for 30 seconds. What is written stays, and the next call resumes from it.
    pub async fn materialize(
        &mut self,
        request: StreamRequest,
        to: &str,
        options: &JobOptions,
        mut on_answer: impl FnMut(&JobAnswer),
    ) -> Result<JobResult> {
        let mut call = JobCall { request, to: to.to_owned(), options: options.clone(), begins: true };
        let (mut answered, mut useful) = (Instant::now(), Instant::now());
        loop {
            let answer = match self.ask_for_job(&call).await {
                Ok(answer) => answer,
                Err(error) if error.kind() == ErrorKind::Unavailable && answered.elapsed() < PATIENCE => {
                    sleep(RETRY_PAUSE).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            answered = Instant::now();
            call.begins = false;
            on_answer(&answer);
            match answer {
                JobAnswer::Done(result) => return Ok(result),
                JobAnswer::Failed(why) => return Err(Error::from(&why)),
                JobAnswer::Writing(progress) if progress.workers == 0 => {
                    if useful.elapsed() >= WITHOUT_WORKERS {
                        useful = Instant::now();
                        // If no server answers now, the next call says so.
                        let _ = self.next_server().await;
                    }
                }
                JobAnswer::Waiting { .. } | JobAnswer::Writing(_) => useful = Instant::now(),
            }
        }
    }
}
