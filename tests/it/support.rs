//! Shared by the tests: the binary, folders with data, and parsers of a run's output.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use serde_json::Value;

/// Returns the repository's folder.
pub(crate) fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the path of the sample photographs' script.
pub(crate) fn photos_sql() -> PathBuf {
    repository().join("examples/photos.sql")
}

/// Returns a command of the binary with these arguments, in its own folder and without the caller's Forebay settings.
pub(crate) fn forebay<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forebay"));
    command.args(arguments).stdin(Stdio::null());
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if ["RANK", "WORLD_SIZE"].contains(&&*name) || name.starts_with("FOREBAY_") {
            command.env_remove(&variable);
        }
    }
    command
}

/// Timeout of every step: far more than a busy machine needs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// Runs a command to its end. A process that hangs is killed and fails the test.
fn output(command: &mut Command) -> Output {
    let process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
    end(process, &format!("{command:?}"))
}

/// Waits for the end of a process.
fn end(process: Child, what: &str) -> Output {
    let id = process.id();
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || sender.send(process.wait_with_output()));
    match receiver.recv_timeout(DEADLINE) {
        Ok(output) => output.expect("its output can be read"),
        Err(_) => {
            signal(id, "KILL");
            panic!("{what} was still running after {DEADLINE:?}")
        }
    }
}

/// Sends a process a signal, such as `TERM`.
pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(status.expect("a shell").success(), "no process {process} to signal");
}

/// Runs a command to its end and expects success.
pub(crate) fn succeed(command: &mut Command) -> String {
    let output = output(command);
    assert!(output.status.success(), "{command:?} failed:\n{}", transcript(&output));
    String::from_utf8(output.stdout).expect("output is UTF-8")
}

/// Runs a command to its end and expects an orderly failure: a documented exit code, a message on standard error, no
/// panic.
pub(crate) fn fail(command: &mut Command) -> String {
    let output = output(command);
    let code = output.status.code();
    assert!(matches!(code, Some(1..=7 | 130)), "{command:?} ended with {code:?}:\n{}", transcript(&output));
    let message = String::from_utf8(output.stderr).expect("errors are UTF-8");
    assert!(!message.contains("panicked"), "{message}");
    assert!(!message.trim().is_empty());
    message
}

fn transcript(output: &Output) -> String {
    format!("{}\n{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// A process whose output is read line by line. Only the pipe buffers it.
pub(crate) struct Running {
    pub(crate) process: Child,
    lines: Receiver<String>,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the binary starts");
        let stdout = BufReader::new(process.stdout.take().expect("piped"));
        let (sender, lines) = mpsc::sync_channel(0);
        // The thread ends, and closes the pipe, when the receiver is dropped.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { process, lines }
    }

    /// Returns the next line, or `None` at the end of the output.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("no output for {DEADLINE:?}"),
        }
    }

    /// Reads to the end. Returns the remaining lines, the exit status, and standard error.
    pub(crate) fn end(self) -> (Vec<String>, ExitStatus, String) {
        let lines = std::iter::from_fn(|| self.line()).collect();
        let output = end(self.process, "a process that ended its output");
        (lines, output.status, String::from_utf8(output.stderr).expect("errors are UTF-8"))
    }

    /// Closes the output without reading it, and waits for the process.
    pub(crate) fn hang_up(self) -> (ExitStatus, String) {
        drop(self.lines);
        let output = end(self.process, "a process with closed output");
        (output.status, String::from_utf8(output.stderr).expect("errors are UTF-8"))
    }
}

/// A batch's line of `forebay run --output json`.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
pub(crate) struct Batch {
    pub(crate) epoch: u64,
    pub(crate) step: u64,
    pub(crate) offset: u64,
    pub(crate) rows: u64,
    pub(crate) digest: String,
    pub(crate) token: String,
    #[serde(default)]
    pub(crate) gaps: u64,
    #[serde(default)]
    pub(crate) ids: Vec<String>,
}

/// Parses a run's output into batch lines and the summary.
pub(crate) fn run<S: AsRef<std::ffi::OsStr>>(arguments: impl IntoIterator<Item = S>) -> (Vec<Batch>, Value) {
    let mut command = forebay(["run", "--output", "json"]);
    let output = succeed(command.args(arguments));
    let mut lines: Vec<&str> = output.lines().collect();
    let summary = serde_json::from_str(lines.pop().expect("a summary line")).expect("a JSON summary");
    (lines.into_iter().map(|line| serde_json::from_str(line).expect("a JSON batch line")).collect(), summary)
}

/// Maps epoch and offset of batches, of any rank, to rows and digest.
pub(crate) fn log(batches: impl IntoIterator<Item = Batch>) -> BTreeMap<(u64, u64), (u64, String)> {
    let mut log = BTreeMap::new();
    for batch in batches {
        let before = log.insert((batch.epoch, batch.offset), (batch.rows, batch.digest));
        assert!(before.is_none(), "epoch {} offset {} came twice", batch.epoch, batch.offset);
    }
    log
}

/// A temporary folder with a script, removed after the test.
pub(crate) struct Folder {
    folder: tempfile::TempDir,
}

impl Folder {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Writes a file and the folders above it, and returns its path.
    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a name inside the folder")).expect("a folder");
        std::fs::write(&path, bytes).expect("a file");
        path
    }

    /// Writes `script.sql` and returns its path as text.
    pub(crate) fn script(&self, sql: &str) -> String {
        self.write("script.sql", sql).to_str().expect("a UTF-8 path").to_owned()
    }

    /// Writes CSV files of 20 rows with columns `id` (0, 1, …) and `price`, and a shuffled pipeline `train` over them.
    pub(crate) fn clicks(&self, rows: u64) -> String {
        // Each text file is at least one row range, so many small files make many windows.
        for first in (0..rows).step_by(20) {
            let csv: String = (first..rows.min(first + 20)).map(|id| format!("{id},{}.5\n", id % 97)).collect();
            self.write(&format!("clicks/{first:06}.csv"), format!("id,price\n{csv}"));
        }
        self.script(
            "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks';
             CREATE PIPELINE train WITH (shuffle = true, seed = 5, batch_size = 10) AS
                 SELECT id, log1p(price) AS price FROM clicks;",
        )
    }
}

/// A running `forebay serve` or `forebay worker`, killed when dropped.
pub(crate) struct Server {
    pub(crate) process: Child,
    pub(crate) uri: String,
    /// The first line of the process's output.
    pub(crate) ready: Value,
}

impl Server {
    pub(crate) fn start(script: &str, more: &[&str]) -> Self {
        Self::launch(forebay(["serve", script, "--port", "0", "--output", "json"]).args(more))
    }

    /// Starts a command whose first line names the address that it listens on.
    pub(crate) fn launch(command: &mut Command) -> Self {
        let mut process = command.stdout(Stdio::piped()).spawn().expect("the binary starts");
        let mut line = String::new();
        BufReader::new(process.stdout.take().expect("piped")).read_line(&mut line).expect("a line of output");
        let ready: Value = serde_json::from_str(&line).expect("the server says where it listens");
        Self { process, uri: ready["uri"].as_str().expect("a URI").to_owned(), ready }
    }

    /// Returns the port that the process listens on.
    pub(crate) fn port(&self) -> String {
        self.uri.rsplit(':').next().expect("a URI with a port").to_owned()
    }

    /// Kills the process, which cannot say farewell.
    pub(crate) fn kill(&mut self) {
        self.process.kill().expect("a child process");
        self.process.wait().expect("it can be waited for");
    }

    /// Asks the process to stop, and returns its exit status.
    pub(crate) fn stop(mut self, name: &str) -> Option<i32> {
        let id = self.process.id();
        signal(id, name);
        let (sender, receiver) = mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(self.process.wait().expect("it can be waited for").code()));
            receiver.recv_timeout(DEADLINE).unwrap_or_else(|_| {
                signal(id, "KILL");
                panic!("the server was still running {DEADLINE:?} after SIG{name}")
            })
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Runs a command and expects one error that contains all of `phrases`.
pub(crate) fn wrong(arguments: &[&str], phrases: &[&str]) {
    let message = fail(&mut forebay(arguments));
    let errors = message.lines().filter(|line| line.starts_with("error: ")).count();
    assert!(errors == 1 && message.starts_with("error: "), "{arguments:?} gives one error:\n{message}");
    for phrase in phrases {
        assert!(message.contains(phrase), "{arguments:?} lacks {phrase:?}:\n{message}");
    }
}

pub(crate) fn text(path: &Path) -> &str {
    path.to_str().expect("a UTF-8 path")
}

/// Returns a script with a pipeline `p` of all columns of a table of this format over `location`.
pub(crate) fn everything(format: &str, location: &str) -> String {
    format!("CREATE EXTERNAL TABLE t STORED AS {format} LOCATION '{location}'; CREATE PIPELINE p AS SELECT * FROM t;")
}

/// Makes a folder with `clicks.csv`: `id` and `price`, three good rows.
pub(crate) fn clicks_csv() -> Folder {
    let folder = Folder::new();
    folder.write("clicks.csv", "id,price\n0,1.5\n1,2.5\n2,3.5\n");
    folder
}
