//! Truncated and altered files must give rows, or an error that names the file. They must not cause a panic, a hang, or
//! memory beyond a bound.

use std::panic::AssertUnwindSafe;
use std::time::{Duration, Instant};

use futures::FutureExt;

use super::reading::read_all;
use super::samples::{Samples, ensure};
use crate::ErrorKind;

const ROWS: u64 = 40;
/// Number of places to truncate a file, and number of bytes to alter; each of these bytes takes two other values.
const CUTS: usize = 100;
const BYTES: usize = 400;
/// Number of randomly damaged files, each with several changes.
const RANDOM: u64 = 200;
const TIME_MAX: Duration = Duration::from_secs(20);
/// Maximum growth of the process's memory over one damaged file of a few kilobytes.
const MEMORY_MAX: u64 = 1 << 30;

pub(super) async fn check(samples: &Samples<'_>, seed: u64) -> Result<(), String> {
    let name = samples.name("damage/a");
    let whole = samples.sample(&name, 0..ROWS).bytes;
    for cut in spread(whole.len(), CUTS) {
        one(samples, &name, whole[..cut].to_vec()).await.map_err(|p| format!("cut after {cut} bytes: {p}"))?;
    }
    for at in spread(whole.len(), BYTES) {
        for change in [0xff, 0x2a] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            one(samples, &name, bytes).await.map_err(|p| format!("byte {at} xor {change:#x}: {p}"))?;
        }
    }
    for number in 0..RANDOM {
        let bytes = damaged(&whole, seed, number);
        one(samples, &name, bytes).await.map_err(|p| format!("random damage {number}: {p}"))?;
    }
    Ok(())
}

/// At most `count` numbers below `end`, evenly spread.
fn spread(end: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..end).step_by(end.div_ceil(count).max(1))
}

/// Opens and reads one damaged file.
async fn one(samples: &Samples<'_>, name: &str, bytes: Vec<u8>) -> Result<(), String> {
    samples.put(name, bytes).await;
    let (began, memory) = (Instant::now(), memory_peak());
    let reading = async {
        let dataset = samples.open(name, None).await?;
        // Small enough to split row groups, large enough to split them only a few times.
        read_all(&dataset, 1 << 10).await
    };
    // Dropping the future discards any state that the panic left inconsistent.
    let result = AssertUnwindSafe(reading).catch_unwind().await.map_err(|_| "panicked".to_owned())?;
    let (took, grown) = (began.elapsed(), memory_peak().saturating_sub(memory));
    ensure!(took < TIME_MAX, "took {took:?}");
    ensure!(grown < MEMORY_MAX, "took {grown} bytes of memory");
    if let Err(error) = result {
        let is_damage = matches!(error.kind(), ErrorKind::Data | ErrorKind::Invalid);
        ensure!(is_damage, "is an error of kind {:?}: {error}", error.kind());
        ensure!(error.to_string().contains(name), "the error does not name the file: {error}");
    }
    Ok(())
}

/// The peak address space of this process, if the system reports it. It includes memory that was allocated and never
/// touched.
fn memory_peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
    let kilobytes = peak.and_then(|peak| peak.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

/// The file with a few changes determined by `seed` and `number`: bytes overwritten, numbers made huge, pieces removed
/// or repeated.
fn damaged(whole: &[u8], seed: u64, number: u64) -> Vec<u8> {
    let mut hash = blake3::Hasher::new();
    hash.update(&seed.to_le_bytes()).update(&number.to_le_bytes());
    let mut random = hash.finalize_xof();
    let mut below = |bound: usize| {
        let mut bytes = [0; 8];
        random.fill(&mut bytes);
        (u64::from_le_bytes(bytes) % bound.max(1) as u64) as usize
    };
    let mut bytes = whole.to_vec();
    for _ in 0..1 + below(3) {
        let at = below(bytes.len());
        let end = (at + 1 + below(16)).min(bytes.len());
        match below(5) {
            0 => bytes[at..end].iter_mut().for_each(|byte| *byte = below(256) as u8),
            1 => bytes[at..end].fill(0xff),
            2 => bytes[at..end].fill(0),
            3 => drop(bytes.drain(at..end)),
            _ => {
                let piece = bytes[at..end].to_vec();
                let place = below(bytes.len());
                bytes.splice(place..place, piece);
            }
        }
    }
    bytes
}
