//! Runs the stages of a pipeline that need whole tables, and shows their progress.

use std::time::Duration;

use forebay_engine::{RunningStage, Session};
use indicatif::{HumanCount, ProgressBar, ProgressStyle};

use crate::output;

/// Time between two updates of the progress.
const TICK: Duration = Duration::from_millis(100);
/// A stage that takes longer is announced where there is no terminal.
const ANNOUNCED_AFTER: f64 = 1.0;

/// Runs the stages of a pipeline whose rows are not kept, so that it can be opened.
pub(crate) async fn prepare(session: &Session, pipeline: &str) -> forebay_engine::Result<()> {
    match session.has_stages(pipeline)? {
        true => shown(session, session.prepare(pipeline)).await,
        false => Ok(()),
    }
}

/// Shows the progress of the stages that `running` runs.
pub(crate) async fn shown<T>(
    session: &Session,
    running: impl Future<Output = forebay_engine::Result<T>>,
) -> forebay_engine::Result<T> {
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("a fixed template that is known to parse");
    let bar = ProgressBar::new_spinner().with_style(style);
    let mut announced = String::new();
    let mut running = std::pin::pin!(running);
    loop {
        tokio::select! {
            biased;
            done = &mut running => {
                bar.finish_and_clear();
                return done;
            }
            () = tokio::time::sleep(TICK) => {
                let Some(stage) = session.running_stage() else { continue };
                bar.set_message(line(&stage));
                bar.tick();
                if bar.is_hidden() && stage.seconds > ANNOUNCED_AFTER {
                    let doing = if stage.waits { "waiting for another process that runs" } else { "running" };
                    let note = format!("{doing} {} of pipeline {}", stage.stage, stage.pipeline);
                    if announced != note {
                        output::note(&note);
                        announced = note;
                    }
                }
            }
        }
    }
}

fn line(RunningStage { pipeline, stage, rows, waits, seconds }: &RunningStage) -> String {
    match waits {
        true => format!("{stage} of {pipeline}: another process runs it; waiting for it"),
        false => format!("{stage} of {pipeline}: {} rows, {seconds:.0} s", HumanCount(*rows)),
    }
}
