//! How fast a store is: a trial that writes a few objects, reads them back, and deletes them.

use std::time::{Duration, Instant};

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};

use crate::{Result, Stores};

/// Objects of a round, and their bytes. The rounds grow, so that a slow store is not asked for much.
const ROUNDS: [(u64, usize); 4] = [(4, 64 << 10), (8, 256 << 10), (8, 1 << 20), (8, 4 << 20)];
/// A round that takes longer is the last.
const ROUND_LONG: Duration = Duration::from_millis(200);
/// Requests at a time.
const WRITES_AT_ONCE: usize = 4;
const READS_AT_ONCE: usize = 16;

/// The measured rates of a store, with several requests at a time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StoreRates {
    /// Bytes read per second.
    pub read: f64,
    /// Bytes written per second.
    pub written: f64,
}

/// The folder under a root in which its store is measured.
pub(crate) fn trial_folder(root: &str) -> String {
    format!("{}/trial", root.trim_end_matches('/'))
}

/// Whether a name is of an object that [`store_rates`] wrote: the number of the measurement, the round and the object.
pub(crate) fn is_of_trial(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match name.split('-').collect::<Vec<_>>()[..] {
        [id, round, object] => {
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()) && is_number(round) && is_number(object)
        }
        _ => false,
    }
}

/// Measures the store of `root`, in which it writes objects of the number `id`. Those of a process that is killed stay
/// until [`gc`](crate::artifact::gc).
///
/// # Errors
/// Those of the store.
pub async fn store_rates(stores: &Stores, root: &str, id: u64) -> Result<StoreRates> {
    let folder = trial_folder(root);
    let mut rates = StoreRates { read: 0.0, written: 0.0 };
    for (round, (objects, bytes)) in ROUNDS.into_iter().enumerate() {
        let urls: Vec<String> = (0..objects).map(|object| format!("{folder}/{id:016x}-{round}-{object}")).collect();
        let measured = trial(stores, &urls, bytes).await;
        for url in &urls {
            // An object that stays is only a few megabytes too many.
            let _ = stores.delete(url).await;
        }
        let (writing, reading) = measured?;
        let sum = (objects as usize * bytes) as f64;
        rates = StoreRates { read: sum / reading.as_secs_f64(), written: sum / writing.as_secs_f64() };
        if writing.max(reading) >= ROUND_LONG {
            break;
        }
    }
    Ok(rates)
}

/// The times of writing objects of so many bytes, and of reading them.
async fn trial(stores: &Stores, urls: &[String], bytes: usize) -> Result<(Duration, Duration)> {
    let write = |url: String| {
        // Nothing that compresses, or that a store has already.
        let mut content = vec![0; bytes];
        blake3::Hasher::new().update(url.as_bytes()).finalize_xof().fill(&mut content);
        let stores = stores.clone();
        async move { stores.put(&url, Bytes::from(content)).await }
    };
    let read = |url: String| {
        let stores = stores.clone();
        async move { stores.get(&url).await.map(drop) }
    };
    let begun = Instant::now();
    stream::iter(urls.to_vec()).map(write).buffer_unordered(WRITES_AT_ONCE).try_collect::<()>().await?;
    let written = begun.elapsed();
    let begun = Instant::now();
    stream::iter(urls.to_vec()).map(read).buffer_unordered(READS_AT_ONCE).try_collect::<()>().await?;
    Ok((written, begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_trial_leaves_nothing_behind() {
        let stores = Stores::new();
        let rates = store_rates(&stores, "memory:///root/", 7).await.unwrap();
        assert!(rates.read > 0.0 && rates.written > 0.0);
        assert!(stores.list("memory:///root").await.unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_store_that_takes_nothing_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        store_rates(&Stores::new(), file.to_str().unwrap(), 7).await.unwrap_err();
    }
}
