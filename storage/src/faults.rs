//! Stores that fail as stores in the cloud do, by a seed, for tests.
//!
//! Requests fail before anything happened, or happen while their answers are lost. Writes and deletions happen after
//! their answers, or once more later. Listings are not of one moment. A process that is killed is a store of which all
//! requests after some number fail. The stores below are shared: what a killed process wrote is found by others.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::task::Poll;

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, ObjectStoreExt,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;

use crate::Stores;

/// How often requests fail, each in a thousand.
#[derive(Clone, Copy, Debug)]
pub struct FaultRates {
    /// Nothing happens, and an error is returned.
    pub failed: u32,
    /// The request happens, but an error is returned.
    pub lost: u32,
    /// An error is returned, and the write or deletion happens later.
    pub late: u32,
    /// The write or deletion happens, and once more later.
    pub repeated: u32,
    /// Most times that other futures run before a request happens.
    pub delay_max: u32,
}

impl FaultRates {
    /// No faults.
    pub const NONE: Self = Self { failed: 0, lost: 0, late: 0, repeated: 0, delay_max: 0 };
}

/// The faults of some stores.
#[derive(Debug)]
pub struct Faults {
    rates: FaultRates,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    random: u64,
    requests: u64,
    /// The number of the first request that fails like all later ones, and whether it happens.
    crash: Option<(u64, bool)>,
    fired: [u64; 4],
    pending: Vec<Pending>,
}

/// A request that happens before request `at`.
#[derive(Debug)]
struct Pending {
    at: u64,
    store: Arc<dyn ObjectStore>,
    request: Request,
}

#[derive(Clone, Debug)]
enum Request {
    Put(Path, PutPayload, PutOptions),
    Delete(Path),
}

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Fine,
    Failed,
    Lost,
    Late,
    Repeated,
}

impl Faults {
    /// Stores that share the files and the memory of `stores` and have these faults.
    pub fn over(stores: &Stores, rates: FaultRates, seed: u64) -> (Stores, Arc<Self>) {
        Self::with(stores, rates, seed, None)
    }

    /// Stores of a process that is killed with its request number `request`, counted from 0. `happens` says whether
    /// that request still happens.
    pub fn crash(stores: &Stores, request: u64, happens: bool) -> (Stores, Arc<Self>) {
        Self::with(stores, FaultRates::NONE, 0, Some((request, happens)))
    }

    fn with(stores: &Stores, rates: FaultRates, seed: u64, crash: Option<(u64, bool)>) -> (Stores, Arc<Self>) {
        let state = State { random: seed, requests: 0, crash, fired: [0; 4], pending: Vec::new() };
        let faults = Arc::new(Self { rates, state: Mutex::new(state) });
        let wrap = |inner| Arc::new(FaultyStore { inner, faults: Arc::clone(&faults) }) as Arc<dyn ObjectStore>;
        (stores.wrapped(wrap), Arc::clone(&faults))
    }

    /// The number of requests so far.
    pub fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    /// How many requests have failed, lost their answers, come late and been repeated.
    pub fn fired(&self) -> [u64; 4] {
        self.state.lock().fired
    }

    /// Lets all requests happen that are still on their way.
    pub async fn settle(&self) {
        self.arrive(u64::MAX).await;
    }

    /// A number below `end`, by the seed.
    pub fn random(&self, end: u64) -> u64 {
        self.state.lock().random(end)
    }

    /// Lets other futures run up to as often as the rates say.
    pub async fn pause(&self) {
        let times = self.random(u64::from(self.rates.delay_max) + 1);
        for _ in 0..times {
            others_run().await;
        }
    }

    /// Begins a request, and decides what happens to it.
    async fn begin(&self, is_write: bool) -> Fate {
        self.pause().await;
        let (fate, at) = {
            let mut state = self.state.lock();
            let at = state.requests;
            state.requests += 1;
            (state.fate(at, &self.rates, is_write), at)
        };
        self.arrive(at).await;
        fate
    }

    /// Lets the requests happen that are due before request `at`.
    async fn arrive(&self, at: u64) {
        loop {
            let next = {
                let mut state = self.state.lock();
                let due = state.pending.iter().position(|pending| pending.at <= at);
                due.map(|due| state.pending.remove(due))
            };
            let Some(Pending { store, request, .. }) = next else { return };
            // Nobody waits for the answer.
            let _ = request.happen(&store).await;
        }
    }

    async fn run(&self, store: &Arc<dyn ObjectStore>, request: Request) -> Result<Option<PutResult>> {
        let fate = self.begin(true).await;
        if fate == Fate::Late || fate == Fate::Repeated {
            let mut state = self.state.lock();
            let at = state.requests + 1 + state.random(40);
            state.pending.push(Pending { at, store: Arc::clone(store), request: request.clone() });
        }
        match fate {
            Fate::Failed | Fate::Late => Err(fault("the connection was refused")),
            Fate::Lost => {
                let _ = request.happen(store).await;
                Err(fault("the connection was closed before the answer"))
            }
            Fate::Fine | Fate::Repeated => request.happen(store).await,
        }
    }

    async fn read<T>(&self, request: impl Future<Output = Result<T>>) -> Result<T> {
        match self.begin(false).await {
            Fate::Fine => request.await,
            _ => Err(fault("the connection was refused")),
        }
    }
}

impl State {
    /// SplitMix64.
    fn random(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end.max(1)
    }

    fn fate(&mut self, at: u64, rates: &FaultRates, is_write: bool) -> Fate {
        if let Some((crash, happens)) = self.crash
            && at >= crash
        {
            return if at == crash && happens && is_write { Fate::Lost } else { Fate::Failed };
        }
        let mut drawn = self.random(1000);
        let fates = [
            (Fate::Failed, rates.failed),
            (Fate::Lost, rates.lost),
            (Fate::Late, rates.late),
            (Fate::Repeated, rates.repeated),
        ];
        // What was read may be lost, but nothing else happens to reading.
        for (number, (fate, rate)) in fates.into_iter().enumerate().take(if is_write { 4 } else { 1 }) {
            if drawn < u64::from(rate) {
                self.fired[number] += 1;
                return fate;
            }
            drawn -= u64::from(rate);
        }
        Fate::Fine
    }
}

impl Request {
    async fn happen(self, store: &Arc<dyn ObjectStore>) -> Result<Option<PutResult>> {
        match self {
            Self::Put(path, payload, options) => store.put_opts(&path, payload, options).await.map(Some),
            Self::Delete(path) => store.delete(&path).await.map(|()| None),
        }
    }
}

fn fault(what: &str) -> Error {
    Error::Generic { store: "faulty store", source: what.into() }
}

/// Lets other futures of the task run once.
async fn others_run() {
    let mut has_waited = false;
    std::future::poll_fn(|context| match std::mem::replace(&mut has_waited, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    })
    .await;
}

#[derive(Clone, Debug)]
struct FaultyStore {
    inner: Arc<dyn ObjectStore>,
    faults: Arc<Faults>,
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "faulty {}", self.inner)
    }
}

impl FaultyStore {
    /// Lists in two pages, as if others wrote between them: no listing of a store is of one moment.
    async fn list_in_pages(&self, prefix: Option<&Path>) -> Result<Vec<ObjectMeta>> {
        let mut first: Vec<ObjectMeta> = self.inner.list(prefix).try_collect().await?;
        if self.faults.rates.delay_max == 0 || first.is_empty() {
            return Ok(first);
        }
        first.sort_by(|a, b| a.location.cmp(&b.location));
        first.truncate(self.faults.random(first.len() as u64) as usize);
        // Now and then, for long.
        for _ in 0..if self.faults.random(8) == 0 { 40 } else { 1 } {
            self.faults.pause().await;
        }
        let second: Vec<ObjectMeta> = self.inner.list(prefix).try_collect().await?;
        let end = first.last().map(|meta| meta.location.clone());
        first.extend(second.into_iter().filter(|meta| end.as_ref().is_none_or(|end| meta.location > *end)));
        Ok(first)
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let done = self.faults.run(&self.inner, Request::Put(path.clone(), payload, options)).await?;
        done.ok_or_else(|| fault("a write had no answer"))
    }

    async fn put_multipart_opts(&self, path: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.faults.read(self.inner.put_multipart_opts(path, options)).await?;
        Ok(Box::new(FaultyUpload { inner, faults: Arc::clone(&self.faults) }))
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.faults.read(self.inner.get_opts(path, options)).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.faults.read(self.inner.get_ranges(path, ranges)).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let store = self.clone();
        let delete = move |path: Result<Path>| {
            let store = store.clone();
            async move {
                let path = path?;
                store.faults.run(&store.inner, Request::Delete(path.clone())).await?;
                Ok(path)
            }
        };
        paths.then(delete).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (store, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let listed = store.faults.read(store.list_in_pages(prefix.as_ref())).await;
            futures::stream::iter(listed.map_or_else(|error| vec![Err(error)], |all| all.into_iter().map(Ok).collect()))
        };
        futures::stream::once(listed).flatten().boxed()
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        let offset = offset.clone();
        let is_after = move |meta: &Result<ObjectMeta>| {
            std::future::ready(meta.as_ref().map_or(true, |meta| meta.location > offset))
        };
        self.list(prefix).filter(is_after).boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.faults.read(self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.faults.read(self.inner.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.faults.read(self.inner.rename_opts(from, to, options)).await
    }
}

/// An upload of which no part arrives late.
#[derive(Debug)]
struct FaultyUpload {
    inner: Box<dyn MultipartUpload>,
    faults: Arc<Faults>,
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl MultipartUpload for FaultyUpload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let (part, faults) = (self.inner.put_part(data), Arc::clone(&self.faults));
        Box::pin(async move { faults.read(part).await })
    }

    async fn complete(&mut self) -> Result<PutResult> {
        self.faults.read(self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        self.faults.read(self.inner.abort()).await
    }
}
