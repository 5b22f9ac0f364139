//! The scripts of `forebay serve`: files and folders, which are opened again when they change.
//!
//! Each script runs in a session of its own, so that it may fail without an effect on the others. What has run without
//! an error is served. A script that fails keeps its earlier version.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Result;
use forebay_engine::{Error, ErrorKind, FeedOptions, ReadOptions, Session};
use forebay_flight_client::wire::{ScriptChange, ScriptReport};
use forebay_flight_server::Scripts;

use crate::exit::refuse;
use crate::script;
use crate::stages;

/// The scripts behind a served session.
pub(crate) struct ScriptFiles {
    /// The files and folders that were given, and whether each is a folder.
    paths: Vec<(PathBuf, bool)>,
    served: Arc<Session>,
    opened: tokio::sync::Mutex<BTreeMap<PathBuf, Script>>,
    failures: std::sync::Mutex<BTreeMap<PathBuf, String>>,
}

/// A script that runs without an error.
struct Script {
    text: String,
    session: Arc<Session>,
    pipelines: Vec<String>,
    /// Its pipelines that cannot be read, because a file is damaged.
    failed: BTreeMap<String, Error>,
}

impl ScriptFiles {
    /// Opens all scripts and lets `served` have their tables and pipelines.
    ///
    /// # Errors
    /// The first error of a script, but for damaged files, which fail only their pipelines; names that two scripts
    /// define; no script or no pipeline at all.
    pub(crate) async fn open(paths: Vec<PathBuf>, served: Arc<Session>) -> Result<Self> {
        let (mut opened, mut failures, mut first) = (BTreeMap::new(), BTreeMap::new(), None);
        let paths: Vec<_> = paths.into_iter().map(|path| (path.clone(), path.is_dir())).collect();
        for path in list(&paths)? {
            let text = script::read(&path)?;
            match Script::open(&served, &path, text).await {
                Ok(script) => {
                    check_names(&path, &script.session, &opened)?;
                    first = first.or_else(|| Some(script.failed.values().next()?.clone().into()));
                    opened.insert(path, script);
                }
                // A damaged file is no error of the scripts. It is tried again with each reload.
                Err(error) if error.downcast_ref::<Error>().is_some_and(|error| error.kind() == ErrorKind::Data) => {
                    failures.insert(path, error.to_string());
                    first = first.or(Some(error));
                }
                Err(error) => return Err(error),
            }
        }
        if opened.values().all(|script| script.pipelines.is_empty()) {
            return Err(first.unwrap_or_else(script::no_pipeline));
        }
        opened.values().for_each(Script::log_damage);
        for (path, error) in &failures {
            tracing::error!(script = %path.display(), error, "script not served");
        }
        served.take_over(opened.values().map(|script| &*script.session))?;
        Ok(Self { paths, served, opened: opened.into(), failures: failures.into() })
    }

    /// The pipelines that can be read, in the order of their names.
    pub(crate) async fn pipelines(&self) -> Vec<String> {
        let opened = self.opened.lock().await;
        let mut pipelines: Vec<_> = opened.values().flat_map(|script| script.pipelines.iter().cloned()).collect();
        pipelines.sort();
        pipelines
    }

    /// The pipelines that cannot be read because a file is damaged, with the error.
    pub(crate) async fn broken_pipelines(&self) -> BTreeMap<String, Error> {
        let opened = self.opened.lock().await;
        opened.values().flat_map(|script| script.failed.clone()).collect()
    }

    /// Opens scripts again that changed, were not there, or were broken by a damaged file; or `all`.
    async fn look(&self, all: bool) -> Result<Vec<ScriptReport>> {
        let mut opened = self.opened.lock().await;
        let mut reports = Vec::new();
        let paths = list(&self.paths)?;
        // First, because another script may have their names now.
        let gone: Vec<_> = opened.keys().filter(|path| !paths.contains(path)).cloned().collect();
        for path in gone {
            opened.remove(&path);
            reports.push(report(&path, ScriptChange::Removed, Vec::new(), None));
        }
        let mut failed = Vec::new();
        for path in &paths {
            match self.look_at(path, all, &mut opened).await {
                Ok((change, pipelines)) => reports.push(report(path, change, pipelines, None)),
                Err(_) => failed.push(path),
            }
        }
        // Again, because a name may have moved to them from a script that was looked at later.
        for path in failed {
            reports.push(match self.look_at(path, all, &mut opened).await {
                Ok((change, pipelines)) => report(path, change, pipelines, None),
                Err(error) => {
                    let pipelines = opened.get(path).map_or(Vec::new(), |script| script.pipelines.clone());
                    report(path, ScriptChange::Failed, pipelines, Some(&error))
                }
            });
        }
        reports.sort_by(|a, b| a.script.cmp(&b.script));
        self.served.take_over(opened.values().map(|script| &*script.session))?;
        Ok(reports)
    }

    async fn look_at(
        &self,
        path: &Path,
        all: bool,
        opened: &mut BTreeMap<PathBuf, Script>,
    ) -> Result<(ScriptChange, Vec<String>)> {
        let text = script::read(path)?;
        let change = match opened.get(path) {
            None => ScriptChange::Added,
            Some(before) if !all && before.text == text && before.failed.is_empty() => {
                return Ok((ScriptChange::Unchanged, before.pipelines.clone()));
            }
            Some(_) => ScriptChange::Changed,
        };
        let script = Script::open(&self.served, path, text).await?;
        check_names(path, &script.session, opened)?;
        script.log_damage();
        let pipelines = script.pipelines.clone();
        opened.insert(path.to_owned(), script);
        Ok((change, pipelines))
    }
}

impl Script {
    /// Runs a script in a session of its own, and opens every pipeline now, so that the operator sees errors, and not
    /// the first trainer. Pipelines over damaged files must not keep the others from being served.
    async fn open(served: &Session, path: &Path, text: String) -> Result<Self> {
        let session = served.beside(path.parent().unwrap_or(Path::new("")));
        session.execute_what_opens(&path.display().to_string(), &text).await?;
        let mut failed = session.broken().pipelines;
        let mut pipelines = Vec::new();
        for pipeline in session.pipelines() {
            let prepared = stages::prepare(&session, &pipeline).await;
            let feed = prepared.and_then(|()| session.open(&pipeline, &FeedOptions::default()));
            match feed.and_then(|feed| feed.expected_samples(&ReadOptions::default())) {
                Ok(_) => pipelines.push(pipeline),
                Err(error) if error.kind() == ErrorKind::Data => {
                    failed.insert(pipeline, error);
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Self { text, session: Arc::new(session), pipelines, failed })
    }

    /// Logs what could not be opened because a file is damaged.
    fn log_damage(&self) {
        for (table, error) in &self.session.broken().tables {
            tracing::error!(%table, kind = ?error.kind(), %error, "table not opened");
        }
        for (pipeline, error) in &self.failed {
            tracing::error!(%pipeline, kind = ?error.kind(), %error, "pipeline not served; its readers get this error");
        }
    }
}

#[async_trait::async_trait]
impl Scripts for ScriptFiles {
    async fn reload(&self, all: bool) -> Vec<ScriptReport> {
        let reports = self.look(all).await.unwrap_or_else(|error| {
            // None could be looked at, such as a folder that is not there.
            self.paths.iter().map(|(path, _)| report(path, ScriptChange::Failed, Vec::new(), Some(&error))).collect()
        });
        for ScriptReport { script, change, pipelines, error } in &reports {
            match (change, error) {
                (_, Some(error)) => tracing::error!(script, error, "script not opened; what was served before stays"),
                (ScriptChange::Unchanged, None) => {}
                (ScriptChange::Removed, None) => tracing::info!(script, "script removed"),
                (_, None) => tracing::info!(script, pipelines = pipelines.join(", "), "script opened"),
            }
        }
        let failures = reports.iter().filter_map(|it| Some((PathBuf::from(&it.script), it.error.clone()?)));
        *self.failures.lock().expect("no panic holds it") = failures.collect();
        reports
    }

    fn failures(&self) -> Vec<(String, String)> {
        let failures = self.failures.lock().expect("no panic holds it");
        failures.iter().map(|(path, error)| (path.display().to_string(), error.clone())).collect()
    }
}

fn report(path: &Path, change: ScriptChange, pipelines: Vec<String>, error: Option<&anyhow::Error>) -> ScriptReport {
    let error = error.map(|error| match error.downcast_ref::<Error>() {
        Some(error) => error.to_string(),
        None => format!("{error:#}"),
    });
    ScriptReport { script: path.display().to_string(), change, pipelines, error }
}

/// The scripts at these paths, each once: files, and the files `*.sql` of folders. Hidden ones do not count: Kubernetes
/// keeps the files of a volume in such folders.
///
/// # Errors
/// A folder that cannot be read, such as one that is not mounted now: its scripts must not be taken for removed.
fn list(paths: &[(PathBuf, bool)]) -> Result<Vec<PathBuf>> {
    let mut scripts = Vec::new();
    for (path, is_folder) in paths {
        if !is_folder {
            scripts.push(path.clone());
            continue;
        }
        let unreadable = |error: std::io::Error| {
            Error::invalid(format!("cannot read the folder \"{}\" of scripts: {error}", path.display()))
        };
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let script = entry.map_err(unreadable)?.path();
            let name = script.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if name.ends_with(".sql") && !name.starts_with('.') && script.is_file() {
                scripts.push(script);
            }
        }
    }
    scripts.sort();
    scripts.dedup();
    if scripts.is_empty() {
        let paths: Vec<_> = paths.iter().map(|(path, _)| path.display().to_string()).collect();
        refuse!("there is no script in \"{}\"\nhint: a folder's scripts end in .sql", paths.join("\", \""));
    }
    Ok(scripts)
}

/// Refuses names of tables and pipelines that another script defines.
fn check_names(path: &Path, session: &Session, others: &BTreeMap<PathBuf, Script>) -> Result<()> {
    let names = |session: &Session| {
        let broken = session.broken();
        let pipelines = session.pipelines().into_iter().chain(broken.pipelines.into_keys());
        let tables = session.tables().into_iter().map(|(name, _)| name).chain(broken.tables.into_keys());
        let pipelines = pipelines.map(|name| ("pipeline", name));
        pipelines.chain(tables.map(|name| ("table", name))).collect::<Vec<_>>()
    };
    let own = names(session);
    for (other, script) in others.iter().filter(|(other, _)| *other != path) {
        if let Some((what, name)) = names(&script.session).into_iter().find(|name| own.contains(name)) {
            refuse!(
                "the scripts \"{}\" and \"{}\" both create the {what} \"{name}\"\nhint: rename one of them",
                other.display(),
                path.display()
            );
        }
    }
    Ok(())
}
