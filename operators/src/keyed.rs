//! Keyed randomness: random numbers depend on where they are used, not on earlier draws.
//!
//! A keyed-random operator holds no generator. The engine gives each row a *random key*, computed from the feed's seed,
//! the epoch and the row's `sample_id`. It gives each call in the pipeline's text a *site*. These two numbers determine
//! all draws of one call for one row. So the draws do not depend on batches, partitions, workers or restarts.
//!
//! # The algorithm is a persisted contract
//!
//! Feeds are recomputed from their seed years later. So no part of this may change unless the `version` of every
//! keyed-random operator is raised. All integers are hashed as 8 little-endian bytes; `xxh3_64` is XXH3 with 64 bits
//! and seed 0.
//!
//! 1. `random_key = xxh3_64(seed ‖ epoch ‖ sample_id)`.
//! 2. `state = xxh3_64(random_key ‖ site)`.
//! 3. The i-th draw (from 1) is splitmix64's output for `state + i * 0x9E3779B97F4A7C15`, modulo 2^64.
//! 4. `uniform()` is a draw's top 53 bits times 2^-53. `uniform_in(a, b)` is `a + (b - a) * uniform()`.
//! 5. `below(n)` is Lemire's multiplication method with rejection: the high 64 bits of `draw * n`. A draw is rejected
//!    if the low 64 bits are below `2^64 mod n`.
//!
//! The site of a call with a `key` is [`shared_site`], so two such calls draw the same numbers for a row.

use xxhash_rust::xxh3::xxh3_64;

/// The names of the two arguments that the engine appends to the call of a keyed-random operator: a `UInt64` column of
/// keys from [`random_key`], and a `UInt64` literal that identifies the call site.
pub const KEY_ARGUMENTS: [&str; 2] = ["random_key", "site"];

/// Returns the site of the calls of an operator with a key. Descriptors name the operators that draw as one
/// ([`Descriptor::draws_as`](crate::Descriptor::draws_as)).
///
/// Sites without a key are hashes of other texts: a `#` follows the operator's name there.
pub fn shared_site(draws_as: &str, key: &str) -> u64 {
    xxh3_64(format!("{draws_as}@{key}").as_bytes())
}

/// Returns the key of a row in an epoch.
pub fn random_key(seed: u64, epoch: u64, sample_id: u64) -> u64 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
    bytes[16..].copy_from_slice(&sample_id.to_le_bytes());
    xxh3_64(&bytes)
}

/// The random numbers of one call for one row, in the order of the draws.
#[derive(Debug, Clone)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// Starts the draws of the call at `site` for the row with this key.
    pub fn new(key: u64, site: u64) -> Self {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&key.to_le_bytes());
        bytes[8..].copy_from_slice(&site.to_le_bytes());
        Self { state: xxh3_64(&bytes) }
    }

    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.next()
    }

    /// Draws a number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        const ULP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.next() >> 11) as f64 * ULP
    }

    /// Draws a number from a to b. Rounding may give b itself.
    pub fn uniform_in(&mut self, a: f64, b: f64) -> f64 {
        a + (b - a) * self.uniform()
    }

    /// Draws an integer in [0, n), each equally likely. `n` must be above zero.
    pub fn below(&mut self, n: u64) -> u64 {
        debug_assert!(n > 0, "below(0) has no result");
        let mut product = u128::from(self.next()) * u128::from(n);
        if (product as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u64) < threshold {
                product = u128::from(self.next()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected values come from an independent implementation in Python with the `xxhash` package.

    #[test]
    fn keys_are_known() {
        assert_eq!(random_key(0, 0, 0), 0x743d_f94e_e4c7_8a2a);
        assert_eq!(random_key(17, 3, 12345), 0xfd45_3a34_5090_9d1f);
        assert_eq!(random_key(u64::MAX, u64::MAX, u64::MAX), 0x76fe_f599_e99b_44d6);
    }

    #[test]
    fn sites_of_keys_are_known() {
        assert_eq!(shared_site("random_crop", "view"), 0xc380_d003_13d5_d13d);
        assert_ne!(
            shared_site("random_hflip", "view"),
            0xc380_d003_13d5_d13d,
            "operators with one key do not draw alike"
        );
    }

    #[test]
    fn the_generator_is_splitmix64() {
        assert_eq!(Draws { state: 0 }.next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn draws_are_known() {
        let draws = || Draws::new(random_key(17, 3, 12345), 99);
        let mut a = draws();
        assert_eq!(
            [a.next(), a.next(), a.next()],
            [0x25ed_7272_eb4a_6ddb, 0x556b_f205_6b95_631e, 0x3e32_c550_beca_307c]
        );
        let mut a = draws();
        let uniform = [a.uniform(), a.uniform(), a.uniform()];
        assert_eq!(uniform, [0.14815440469400587, 0.333678366015723, 0.24296220036811955]);
        assert_eq!(draws().uniform_in(2.0, 4.0), 2.0 + 2.0 * uniform[0]);
    }

    #[test]
    fn bounded_draws_are_known_also_where_some_are_rejected() {
        let mut a = Draws::new(random_key(17, 3, 12345), 99);
        assert_eq!([1, 2, 10, 1000].map(|n| a.below(n)), [0, 0, 2, 800]);
        // This bound rejects nearly half of the draws.
        let n = (1 << 63) + 1;
        assert_eq!(
            [a.below(n), a.below(n), a.below(n)],
            [432006348091322326, 5773081046000910970, 7423101580857297875]
        );
        assert_eq!(a.next(), 0x6dab_9c5d_cee1_0c12);
    }

    #[test]
    fn bounded_draws_reach_every_value_equally() {
        let mut a = Draws::new(1, 2);
        let mut counts = [0; 7];
        (0..70_000).for_each(|_| counts[a.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (9_600..10_400).contains(count)), "{counts:?}");
    }
}
