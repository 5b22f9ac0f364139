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
    if !session.has_stages(pipeline)? {
        return Ok(());
    }
    let style = ProgressStyle::with_template("{spinner} {msg}").expect("a fixed template that is known to parse");
    let bar = ProgressBar::new_spinner().with_style(style);
    let mut announced = String::new();
    let mut preparing = std::pin::pin!(session.prepare(pipeline));
    loop {
        tokio::select! {
            biased;
            done = &mut preparing => {
                bar.finish_and_clear();
                return done;
            }
            () = tokio::time::sleep(TICK) => {
                let Some(running) = session.running_stage() else { continue };
                bar.set_message(shown(&running));
                bar.tick();
                if bar.is_hidden() && running.seconds > ANNOUNCED_AFTER && announced != running.stage {
                    output::note(&format!("running {} of pipeline {}", running.stage, running.pipeline));
                    announced = running.stage;
                }
            }
        }
    }
}

fn shown(RunningStage { pipeline, stage, rows, waits, seconds }: &RunningStage) -> String {
    match waits {
        true => format!("{stage} of {pipeline}: another process runs it; waiting for it"),
        false => format!("{stage} of {pipeline}: {} rows, {seconds:.0} s", HumanCount(*rows)),
    }
}
