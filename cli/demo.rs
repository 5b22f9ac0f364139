//! `forebay demo`: runs a whole feed on the sample photographs, and checks it.
//!
//! The demo starts real processes: a server, two trainers that read over Flight, and two more that resume. It compares
//! the samples that they deliver with the photographs on disk.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Args;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::output::{self, Format};

static PHOTOS: Dir = include_dir!("$CARGO_MANIFEST_DIR/examples/photos");
const SCRIPT: &str = include_str!("../examples/photos.sql");
const RANKS: u64 = 2;
const EPOCHS: u64 = 2;

#[derive(Args)]
pub(crate) struct Arguments {
    /// Output format.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    output: Format,
}

/// The results of the demo.
#[derive(Debug, Serialize)]
struct Report {
    samples_per_epoch: u64,
    epochs: u64,
    ranks: u64,
    delivered: u64,
    duplicates: u64,
    missing: u64,
    resume_identical: bool,
    samples_per_second: f64,
    seconds: f64,
}

/// A batch line of `forebay run --output json`.
#[derive(Clone, Debug, Deserialize)]
struct BatchLine {
    epoch: u64,
    step: u64,
    offset: u64,
    rows: u64,
    digest: String,
    token: String,
    ids: Vec<String>,
}

pub(crate) async fn execute(arguments: Arguments) -> Result<()> {
    let say = |text: &str| if arguments.output == Format::Text { output::line(text) } else { Ok(()) };
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let script = folder.path().join("photos.sql");
    std::fs::create_dir(folder.path().join("photos"))?;
    PHOTOS.extract(folder.path().join("photos")).context("cannot unpack the sample photographs")?;
    std::fs::write(&script, SCRIPT)?;
    let expected = photographs(&folder.path().join("photos"))?;

    say(&format!("1  {} photographs in {} folders, and a pipeline in SQL:\n", expected.len(), labels(&expected)))?;
    SCRIPT.lines().filter(|line| !line.starts_with("--")).try_for_each(|line| say(&format!("     {line}")))?;
    let mut server = Server::start(&script).await?;
    say(&format!(
        "\n2  a server computes it: {}\n\n3  {RANKS} trainers read {EPOCHS} epochs over Arrow Flight:\n",
        server.uri
    ))?;

    let started = Instant::now();
    let mut trainers = Vec::new();
    for rank in 0..RANKS {
        trainers.push(Trainer::start(&server.uri, rank, &["--epochs", &EPOCHS.to_string()])?);
    }
    let mut batches: Vec<Vec<BatchLine>> = vec![Vec::new(); trainers.len()];
    // The trainers run concurrently. Each round prints the next step of every rank.
    loop {
        let mut any = false;
        for (rank, trainer) in trainers.iter_mut().enumerate() {
            let Some(batch) = trainer.next().await? else { continue };
            any = true;
            say(&show(rank, &batch))?;
            batches[rank].push(batch);
        }
        if !any {
            break;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let (delivered, duplicates, missing) = compare(&expected, &batches);
    let resume_identical = resume(&server.uri, &batches, &say).await?;
    server.stop().await?;

    let report = Report {
        samples_per_epoch: expected.len() as u64,
        epochs: EPOCHS,
        ranks: RANKS,
        delivered,
        duplicates,
        missing,
        resume_identical,
        samples_per_second: delivered as f64 / seconds,
        seconds,
    };
    match arguments.output {
        Format::Json => output::json(&report)?,
        Format::Text => conclude(&report)?,
    }
    if duplicates > 0 || missing > 0 || !resume_identical {
        bail!("the demo did not deliver each sample exactly once, or did not resume exactly");
    }
    Ok(())
}

/// Returns the photographs' paths, relative to their folder. Each epoch must deliver all of them.
fn photographs(folder: &Path) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for label in std::fs::read_dir(folder)? {
        let label = label?;
        if label.file_type()?.is_dir() {
            for photo in std::fs::read_dir(label.path())? {
                paths.push(format!("{}/{}", label.file_name().display(), photo?.file_name().display()));
            }
        }
    }
    Ok(paths)
}

fn label(path: &str) -> &str {
    path.split('/').next().unwrap_or(path)
}

fn labels(paths: &[String]) -> usize {
    paths.iter().map(|path| label(path)).collect::<std::collections::BTreeSet<_>>().len()
}

fn show(rank: usize, batch: &BatchLine) -> String {
    let mut counts = BTreeMap::new();
    for path in &batch.ids {
        *counts.entry(label(path)).or_insert(0) += 1;
    }
    let counts: Vec<_> = counts.iter().map(|(label, count)| format!("{count} {label}")).collect();
    format!(
        "     rank {rank}  epoch {}  step {}  offsets {:>3}..{:<3}  digest {}  {}",
        batch.epoch,
        batch.step,
        batch.offset,
        batch.offset + batch.rows,
        &batch.digest[..8],
        counts.join(", ")
    )
}

/// Counts samples that were delivered, delivered more than once in an epoch, and not delivered.
fn compare(expected: &[String], batches: &[Vec<BatchLine>]) -> (u64, u64, u64) {
    let (mut delivered, mut duplicates, mut missing) = (0, 0, 0);
    for epoch in 0..EPOCHS {
        let mut seen: BTreeMap<&str, u64> = expected.iter().map(|path| (path.as_str(), 0)).collect();
        for path in batches.iter().flatten().filter(|batch| batch.epoch == epoch).flat_map(|batch| &batch.ids) {
            delivered += 1;
            *seen.entry(path).or_insert(0) += 1;
        }
        duplicates += seen.values().map(|&times| times.saturating_sub(1)).sum::<u64>();
        missing += seen.values().filter(|&&times| times == 0).count() as u64;
    }
    (delivered, duplicates, missing)
}

/// Runs the second epoch's first step again, from the token that came with the first epoch's last step.
async fn resume(uri: &str, batches: &[Vec<BatchLine>], say: &impl Fn(&str) -> Result<()>) -> Result<bool> {
    let token = &batches[0].iter().rfind(|batch| batch.epoch == 0).context("rank 0 delivered nothing")?.token;
    say(&format!("\n4  new trainers resume from the token of epoch 0's last step:\n     {token}\n"))?;
    let mut identical = true;
    for (rank, delivered) in (0..).zip(batches) {
        let epochs = EPOCHS.to_string();
        let mut trainer = Trainer::start(uri, rank, &["--epochs", &epochs, "--from", token, "--steps", "1"])?;
        let again = trainer.next().await?.context("a resumed trainer delivered nothing")?;
        while trainer.next().await?.is_some() {}
        let before = delivered.iter().find(|batch| batch.epoch == 1).context("there was no second epoch")?;
        let same = (again.epoch, again.step, again.offset, &again.digest) == (1, 0, before.offset, &before.digest);
        say(&format!(
            "     rank {rank}  epoch {}  step {}  digest {}  {}",
            again.epoch,
            again.step,
            &again.digest[..8],
            if same { "identical" } else { "DIFFERENT" }
        ))?;
        identical &= same;
    }
    Ok(identical)
}

fn conclude(report: &Report) -> Result<()> {
    let verdict = |good: bool| if good { "ok  " } else { "FAIL" };
    output::line(&format!(
        "\n5  {} of {} samples delivered in {:.1} s: {:.0} samples/s",
        report.delivered,
        report.samples_per_epoch * report.epochs,
        report.seconds,
        report.samples_per_second
    ))?;
    output::line(&format!("     {} duplicates {}", verdict(report.duplicates == 0), report.duplicates))?;
    output::line(&format!("     {} missing {}", verdict(report.missing == 0), report.missing))?;
    output::line(&format!("     {} the resumed step is the same, bit for bit", verdict(report.resume_identical)))?;
    output::line("\nNext, in the repository: forebay preview examples/photos.sql --html preview.html")
}

fn forebay(arguments: &[&str]) -> Result<Child> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program's file")?);
    // A surrounding job may set variables. The demo sets its own ranks, server and options.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["RANK", "WORLD_SIZE"].contains(&&*name) || (name.starts_with("FOREBAY_") && name != "FOREBAY_LOG") {
            command.env_remove(&variable);
        }
    }
    command
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .context("cannot start a process")
}

fn lines(child: &mut Child) -> Lines<BufReader<ChildStdout>> {
    BufReader::new(child.stdout.take().expect("piped when spawned")).lines()
}

struct Server {
    process: Child,
    uri: String,
}

impl Server {
    async fn start(script: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Line {
            uri: String,
        }
        let script = script.to_str().context("the temporary folder's name is not UTF-8")?;
        let mut process = forebay(&["serve", script, "--port", "0", "--output", "json"])?;
        let line = lines(&mut process).next_line().await?.context("the server ended before it listened")?;
        Ok(Self { process, uri: serde_json::from_str::<Line>(&line)?.uri })
    }

    async fn stop(&mut self) -> Result<()> {
        self.process.kill().await.context("cannot stop the server")
    }
}

struct Trainer {
    process: Child,
    lines: Lines<BufReader<ChildStdout>>,
    done: bool,
}

impl Trainer {
    fn start(uri: &str, rank: u64, more: &[&str]) -> Result<Self> {
        let (rank, world) = (rank.to_string(), RANKS.to_string());
        let mut arguments =
            vec!["run", "--connect", uri, "--pipeline", "photos", "--rank", &rank, "--world-size", &world];
        arguments.extend(["--ids", "path", "--output", "json"]);
        arguments.extend(more);
        let mut process = forebay(&arguments)?;
        let lines = lines(&mut process);
        Ok(Self { process, lines, done: false })
    }

    /// Returns the next batch, or `None` after the trainer has ended without an error.
    async fn next(&mut self) -> Result<Option<BatchLine>> {
        if self.done {
            return Ok(None);
        }
        if let Some(line) = self.lines.next_line().await?
            && line.contains("\"digest\"")
        {
            return Ok(Some(serde_json::from_str(&line)?));
        }
        self.done = true;
        let status = self.process.wait().await?;
        if status.success() { Ok(None) } else { bail!("a trainer ended with {status}") }
    }
}
