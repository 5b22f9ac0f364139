//! `forebay gc`: removes stored samples under a root that nothing names.

use anyhow::Result;
use clap::Args;
use forebay_engine::{Garbage, SessionOptions};
use indicatif::HumanBytes;

use crate::options::Flags;
use crate::output::{self, Format};
use crate::script;

#[derive(Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    session: Flags<SessionOptions>,
    /// Show what would be removed, and remove nothing.
    #[arg(long)]
    dry_run: bool,
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let session = script::session(&arguments.session.0, std::path::Path::new(""))?;
    let garbage = session.collect_garbage(arguments.dry_run).await?;
    match arguments.output {
        Format::Json => output::json(&garbage),
        Format::Text => show(&garbage, session.root(), arguments.dry_run),
    }
}

fn show(garbage: &Garbage, root: &str, dry_run: bool) -> Result<()> {
    for (what, urls) in [
        ("artifact without an entry in the catalog", &garbage.artifacts),
        ("unfinished job that no process works on", &garbage.jobs),
        ("entry of an artifact that is gone", &garbage.entries),
        ("object of a measurement that was not finished", &garbage.trials),
        ("kept, since it cannot be judged", &garbage.problems),
    ] {
        for url in urls {
            output::line(&format!("{what}: {url}"))?;
        }
    }
    let verb = if dry_run { "would remove" } else { "removed" };
    let (objects, bytes, kept) = (garbage.objects, HumanBytes(garbage.bytes), garbage.kept);
    output::line(&format!("{verb} {objects} files, {bytes}, under \"{root}\"; {kept} artifacts and jobs stay"))
}
