//! Replays the corpora, and mutations of them: the short form of `fuzz/run`.
//!
//! `FOREBAY_SEED` chooses the mutations, and `FOREBAY_FUZZ_MUTATIONS` multiplies their number.

#![allow(clippy::print_stdout)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use forebay_fuzz::{TARGETS, Target};

/// Numbers at which arithmetic may fail.
const ABSURD: [u64; 8] = [0, 1, 127, 1 << 15, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1, u64::MAX];

fn corpus(target: &Target) -> Vec<(PathBuf, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = std::fs::read_dir(&folder).expect("a corpus");
    let mut files: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).expect("an input"))).collect()
}

/// An xorshift generator: a test needs no better one.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit.max(1)
    }
}

/// Changes an input in one to four places.
fn mutate(data: &mut Vec<u8>, other: &[u8], random: &mut Random, bytes_max: usize) {
    for _ in 0..=random.below(4) {
        let at = random.below(data.len());
        match random.below(8) {
            0 | 1 if !data.is_empty() => data[at] ^= 1 << random.below(8),
            2 if !data.is_empty() => data[at] = random.below(256) as u8,
            3 => data.insert(at.min(data.len()), random.below(256) as u8),
            4 => drop(data.drain(at..(at + 1 + random.below(8)).min(data.len()))),
            5 => {
                let (from, length) = (random.below(other.len()), random.below(64));
                let part = &other[from..(from + length).min(other.len())];
                data.splice(at..at, part.iter().copied());
            }
            6 => {
                let text = ABSURD[random.below(ABSURD.len())].to_string();
                let digits = data.iter().skip(at).take_while(|byte| byte.is_ascii_digit()).count();
                data.splice(at..at + digits, text.bytes());
            }
            _ => {
                let number = ABSURD[random.below(ABSURD.len())].to_le_bytes();
                let end = (at + [1, 2, 4, 8][random.below(4)]).min(data.len());
                data[at..end].copy_from_slice(&number[..end - at]);
            }
        }
        data.truncate(bytes_max);
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect("a number"))
}

fn replay(target: &Target) {
    let seed = number("FOREBAY_SEED").unwrap_or(1);
    println!("{}: FOREBAY_SEED={seed}", target.name);
    let corpus = corpus(target);
    assert!(!corpus.is_empty(), "{} has no corpus", target.name);
    let (mut good, mut accepted) = (0, 0);
    for (path, data) in &corpus {
        assert!(data.len() <= target.bytes_max, "{} is longer than its target's limit", path.display());
        println!("{}", path.display());
        let is_accepted = (target.run)(data);
        if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("refused-")) {
            assert!(!is_accepted, "{} is accepted", path.display());
        } else {
            good += 1;
            accepted += usize::from(is_accepted);
        }
    }
    assert!(2 * accepted >= good, "only {accepted} of {good} inputs are accepted: renew the corpus");
    let mut random = Random(seed | 1);
    let times = number("FOREBAY_FUZZ_MUTATIONS").unwrap_or(1) as usize;
    for _ in 0..target.mutations * times {
        let mut data = corpus[random.below(corpus.len())].1.clone();
        mutate(&mut data, &corpus[random.below(corpus.len())].1, &mut random, target.bytes_max);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&data))) {
            println!("the input, as hexadecimal digits: {}", hex(&data));
            std::panic::resume_unwind(panic);
        }
    }
}

fn hex(data: &[u8]) -> String {
    data.iter().map(|byte| format!("{byte:02x}")).collect()
}

macro_rules! replays {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            replay(TARGETS.iter().find(|target| target.name == stringify!($name)).expect("a target"));
        })*

        #[test]
        fn every_target_is_replayed() {
            let names: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

replays!(token message jpeg stream request ticket footer sql);
