//! The identity of a build: two builds with equal identities compute equal bytes.
//!
//! A version kept by hand says too little: two commits, or two patch releases of a dependency, share it, and the same
//! program may compute other bytes on another processor. So an identity has three parts: the version, the versions of
//! the packages that compute, and a digest of results.

use std::collections::BTreeMap;

#[cfg(debug_assertions)]
use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// The header of a request that holds the version of the client, if it is Forebay's.
pub const VERSION_HEADER: &str = "forebay-version";

/// The version of this program.
///
/// A debug build takes it from the variable `FOREBAY_TEST_VERSION`, if that is set: so tests run processes of several
/// versions. A release build ignores the variable.
pub fn version() -> &'static str {
    #[cfg(debug_assertions)]
    {
        static CLAIMED: OnceLock<Option<String>> = OnceLock::new();
        if let Some(claimed) = CLAIMED.get_or_init(|| std::env::var("FOREBAY_TEST_VERSION").ok()) {
            return claimed;
        }
    }
    env!("CARGO_PKG_VERSION")
}

/// What a build is, and how its machine computes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    /// Forebay's version.
    pub version: String,
    /// The version of each package that computes, by name.
    pub packages: BTreeMap<String, String>,
    /// A digest of results that this process computed.
    pub probe: String,
}

impl Build {
    /// The differences between this build and another one, as messages; empty if there are none.
    pub fn differences(&self, there: &Self) -> Vec<String> {
        let mut differences = Vec::new();
        if self.version != there.version {
            differences.push(format!("forebay is version {} here and {} there", self.version, there.version));
        }
        for (name, here) in &self.packages {
            match there.packages.get(name) {
                Some(there) if there == here => {}
                Some(there) => differences.push(format!("{name} is version {here} here and {there} there")),
                None => differences.push(format!("{name} is version {here} here and unknown there")),
            }
        }
        if differences.is_empty() && self.probe != there.probe {
            differences.push("the same expressions give other results there".to_owned());
        }
        differences
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        let here = Build {
            version: "0.1.0".to_owned(),
            packages: BTreeMap::from([("libm".to_owned(), "0.2.16".to_owned())]),
            probe: "digest".to_owned(),
        };
        let check = |change: &dyn Fn(&mut Build), expected: &str| {
            let mut there = here.clone();
            change(&mut there);
            assert_eq!(here.differences(&there).join("; "), expected);
        };
        check(&|_| (), "");
        check(&|there| there.probe.clear(), "the same expressions give other results there");
        check(&|there| there.version = "0.0.9".to_owned(), "forebay is version 0.1.0 here and 0.0.9 there");
        check(&|there| _ = there.packages.remove("libm"), "libm is version 0.2.16 here and unknown there");
        let other = |there: &mut Build| _ = there.packages.insert("libm".to_owned(), "9".to_owned());
        check(&other, "libm is version 0.2.16 here and 9 there");
    }
}
