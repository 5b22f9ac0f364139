//! Integers times powers of two, computed without rounding.
//!
//! Every finite float is such a number, and so are sums, differences and products of floats. An average or a variance
//! is one of them divided by an integer. Here they have as many digits as they need, and are rounded once, at the end.

/// The bits of a digit.
pub(super) const DIGIT_BITS: u32 = 32;
const DIGIT: i64 = 0xffff_ffff;

/// The bits of a float after its first.
const FRACTION_BITS: u32 = 52;
/// The power of two that the last bit of the smallest float stands for.
const LOWEST_EXPONENT: i32 = -1074;
/// The exponent of infinities as stored, less one for the first bit of a float, which is added to it.
const INFINITE_EXPONENT: i32 = 2046;
/// [`round`] takes the highest three digits together. Their highest bit is not among the lowest 64.
const HEAD_BITS_MIN: u32 = 65;
const HEAD_BITS_MAX: u32 = 96;

/// An integer times a power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Dyadic {
    is_negative: bool,
    /// From the lowest. Neither the lowest nor the highest is zero: zero has no digits.
    digits: Vec<u32>,
    /// The lowest digit stands for 2^(32 · `first`).
    first: i32,
}

/// Moves what exceeds 32 bits of each chunk to the next one, so that all but the last are digits.
pub(super) fn carry(chunks: &mut [i64]) {
    let Some((last, chunks)) = chunks.split_last_mut() else { return };
    let mut carried = 0;
    for chunk in chunks {
        let sum = *chunk + carried;
        (*chunk, carried) = (sum & DIGIT, sum >> DIGIT_BITS);
    }
    *last += carried;
}

impl Dyadic {
    /// The sum of all chunks, the lowest of which stands for 2^(32 · `first`). The last must have room for the sum.
    pub(super) fn of_chunks(chunks: &mut [i64], first: i32) -> Self {
        carry(chunks);
        let is_negative = chunks.last().is_some_and(|last| *last < 0);
        if is_negative {
            chunks.iter_mut().for_each(|chunk| *chunk = -*chunk);
            carry(chunks);
        }
        debug_assert!(chunks.iter().all(|chunk| (0..=DIGIT).contains(chunk)), "the last chunk has no room");
        Self::trimmed(is_negative, chunks.iter().map(|chunk| *chunk as u32).collect(), first)
    }

    fn trimmed(is_negative: bool, mut digits: Vec<u32>, first: i32) -> Self {
        let Some(lowest) = digits.iter().position(|digit| *digit != 0) else {
            return Self { is_negative: false, digits: Vec::new(), first: 0 };
        };
        digits.drain(..lowest);
        while digits.last() == Some(&0) {
            digits.pop();
        }
        Self { is_negative, digits, first: first + lowest as i32 }
    }

    pub(super) fn plus(&self, other: &Self) -> Self {
        self.combined(other, other.is_negative)
    }

    pub(super) fn minus(&self, other: &Self) -> Self {
        self.combined(other, !other.is_negative)
    }

    fn combined(&self, other: &Self, is_other_negative: bool) -> Self {
        let first = self.first.min(other.first);
        // One more, for what is carried.
        let mut chunks = vec![0; (self.end().max(other.end()) - first) as usize + 1];
        for (number, is_negative) in [(self, self.is_negative), (other, is_other_negative)] {
            let chunks = &mut chunks[(number.first - first) as usize..];
            for (chunk, digit) in chunks.iter_mut().zip(&number.digits) {
                *chunk += if is_negative { -i64::from(*digit) } else { i64::from(*digit) };
            }
        }
        Self::of_chunks(&mut chunks, first)
    }

    pub(super) fn times(&self, other: &Self) -> Self {
        let mut digits = vec![0; self.digits.len() + other.digits.len()];
        for (at, digit) in self.digits.iter().enumerate() {
            let mut carried = 0;
            for (by, other) in other.digits.iter().enumerate() {
                let sum = u64::from(digits[at + by]) + u64::from(*digit) * u64::from(*other) + carried;
                (digits[at + by], carried) = (sum as u32, sum >> DIGIT_BITS);
            }
            digits[at + other.digits.len()] = carried as u32;
        }
        Self::trimmed(self.is_negative != other.is_negative, digits, self.first + other.first)
    }

    /// The closest float. Of two, it is the one whose last bit is zero.
    pub(super) fn rounded(&self) -> f64 {
        round(self.is_negative, &self.digits, self.first, false)
    }

    /// The float that is closest to this number divided by both divisors, neither of which is zero.
    pub(super) fn quotient(&self, divisors: [u64; 2]) -> f64 {
        // The quotient by an integer is the same digits without the lowest of the dividend. That they are there counts.
        let divisor_bits: u32 = divisors.iter().map(|divisor| u64::BITS - divisor.leading_zeros()).sum();
        let needed = 1 + (HEAD_BITS_MIN + divisor_bits).div_ceil(DIGIT_BITS) as usize;
        let mut digits = vec![0; needed.saturating_sub(self.digits.len())];
        digits.extend_from_slice(&self.digits[self.digits.len().saturating_sub(needed)..]);
        let mut has_rest = self.digits.len() > needed;
        for divisor in divisors {
            has_rest |= divide(&mut digits, divisor);
        }
        while digits.last() == Some(&0) {
            digits.pop();
        }
        round(self.is_negative, &digits, self.end() - needed as i32, has_rest)
    }

    /// The place of the digit above the highest.
    fn end(&self) -> i32 {
        self.first + self.digits.len() as i32
    }
}

impl From<u64> for Dyadic {
    fn from(integer: u64) -> Self {
        Self::trimmed(false, vec![integer as u32, (integer >> DIGIT_BITS) as u32], 0)
    }
}

/// Divides the digits, and returns whether there is a remainder.
fn divide(digits: &mut [u32], divisor: u64) -> bool {
    let mut remainder = 0;
    for digit in digits.iter_mut().rev() {
        // The remainder is below the divisor, so the quotient is a digit. Division of 64 bits is much faster.
        if divisor <= u64::from(u32::MAX) {
            let dividend = remainder << DIGIT_BITS | u64::from(*digit);
            (*digit, remainder) = ((dividend / divisor) as u32, dividend % divisor);
        } else {
            let (dividend, divisor) = (u128::from(remainder) << DIGIT_BITS | u128::from(*digit), u128::from(divisor));
            (*digit, remainder) = ((dividend / divisor) as u32, (dividend % divisor) as u64);
        }
    }
    remainder != 0
}

/// The float that is closest to the number with these digits, and with some below them if it `has_rest`. The highest
/// digit is not zero.
fn round(is_negative: bool, digits: &[u32], first: i32, has_rest: bool) -> f64 {
    let Some(highest) = digits.len().checked_sub(1) else { return 0.0 };
    let digit = |below: usize| highest.checked_sub(below).map_or(0, |at| u128::from(digits[at]));
    let head = digit(0) << 64 | digit(1) << 32 | digit(2);
    let has_rest = has_rest || digits[..highest.saturating_sub(2)].iter().any(|digit| *digit != 0);
    // The powers of two that the lowest bits of the head and of the float stand for.
    let head_exponent = DIGIT_BITS as i32 * (first + highest as i32 - 2);
    let exponent = (head_exponent + head.ilog2() as i32 - FRACTION_BITS as i32).max(LOWEST_EXPONENT);
    let dropped_bits = (exponent - head_exponent) as u32;
    let stored_exponent = exponent - LOWEST_EXPONENT;
    let magnitude = if stored_exponent >= INFINITE_EXPONENT {
        f64::INFINITY
    } else if dropped_bits > HEAD_BITS_MAX {
        // Less than half of the smallest float.
        0.0
    } else {
        let (kept, dropped, half) = (head >> dropped_bits, head & ((1 << dropped_bits) - 1), 1 << (dropped_bits - 1));
        let is_up = dropped > half || (dropped == half && (has_rest || kept & 1 == 1));
        // The first bit of a float adds one to the exponent as stored, and so does a carry into the next bit. The
        // smallest floats lack that bit: their exponent is stored as 0.
        f64::from_bits(((stored_exponent as u64) << FRACTION_BITS) + kept as u64 + u64::from(is_up))
    };
    if is_negative { -magnitude } else { magnitude }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64, index: u64) -> u64 {
        let mut bits = (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        bits = (bits ^ bits >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ bits >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ bits >> 31
    }

    /// `integer` · 2^(32 · `first`).
    fn dyadic(integer: i128, first: i32) -> Dyadic {
        let magnitude = integer.unsigned_abs();
        let digits = (0..4).map(|at| (magnitude >> (32 * at)) as u32).collect();
        Dyadic::trimmed(integer < 0, digits, first)
    }

    /// A random integer with a random number of bits.
    fn integer(seed: u64, index: u64, bits_max: u64) -> i128 {
        let wide = i128::from(random(seed, 3 * index) as i64) << 63 | i128::from(random(seed, 3 * index + 1) >> 1);
        wide >> (127 - random(seed, 3 * index + 2) % bits_max)
    }

    #[test]
    fn arithmetic_is_that_of_integers() {
        for index in 0..20_000 {
            let (a, b) = (integer(1, index, 62), integer(2, index, 62));
            let (first, other_first) = (index as i32 % 7 - 3, index as i32 % 5 - 2);
            let (x, y) = (dyadic(a, first), dyadic(b, first));
            assert_eq!(x.plus(&y), dyadic(a + b, first), "{a} + {b}");
            assert_eq!(x.minus(&y), dyadic(a - b, first), "{a} - {b}");
            assert_eq!(x.times(&dyadic(b, other_first)), dyadic(a * b, first + other_first), "{a} * {b}");
            // 2^32 of `first` is one of `first + 1`.
            assert_eq!(x.minus(&dyadic(b, first + 1)), dyadic(a - (b << 32), first), "{a} - {b} << 32");
        }
    }

    #[test]
    fn integers_round_as_casts_do() {
        for index in 0..20_000 {
            let integer = integer(3, index, 126);
            assert_eq!(dyadic(integer, 0).rounded().to_bits(), (integer as f64).to_bits(), "{integer}");
            let scaled = integer as f64 * 2_f64.powi(-96);
            assert_eq!(dyadic(integer, -3).rounded().to_bits(), scaled.to_bits(), "{integer} / 2^96");
        }
        let above = 9_007_199_254_740_994.0;
        for (integer, alone, with_more) in [
            ((1 << 53) - 1, 9_007_199_254_740_991.0, 9_007_199_254_740_991.0),
            ((1 << 53) + 1, 9_007_199_254_740_992.0, above),
            ((1 << 53) + 2, above, above),
            ((1 << 53) + 3, 9_007_199_254_740_996.0, 9_007_199_254_740_996.0),
            (-(1 << 53) - 1, -9_007_199_254_740_992.0, -9_007_199_254_740_992.0),
            ((1 << 54) - 1, 18_014_398_509_481_984.0, 18_014_398_509_481_984.0),
        ] {
            assert_eq!(dyadic(integer, 0).rounded(), alone, "{integer}");
            // A bit far below decides between two floats that are equally close.
            let more = dyadic(integer, 3).plus(&dyadic(1, 0)).rounded();
            assert_eq!(more, with_more * 2_f64.powi(96), "{integer} and 2^-96");
        }
    }

    #[test]
    fn the_ends_of_the_range_round() {
        let largest = dyadic((1 << 53) - 1, 0).times(&dyadic(1 << 11, 30));
        assert_eq!(largest.rounded(), f64::MAX);
        // The largest float and half of its last bit is closer to the next power of two, which is infinite.
        let half = dyadic(1 << 10, 30);
        assert_eq!(largest.plus(&half).rounded(), f64::INFINITY);
        assert_eq!(largest.plus(&half.minus(&dyadic(1, 0))).rounded(), f64::MAX);
        assert_eq!(dyadic(-1, 32).rounded(), f64::NEG_INFINITY);
        assert_eq!(dyadic(-1, 200).rounded(), f64::NEG_INFINITY);
        // 2^-1088 is 2^-14 of the smallest float.
        let smallest = f64::from_bits(1);
        assert_eq!(dyadic(1 << 14, -34).rounded(), smallest);
        assert_eq!(dyadic(1 << 13, -34).rounded(), 0.0);
        assert_eq!(dyadic((1 << 13) + 1, -34).rounded(), smallest);
        assert_eq!(dyadic(3 << 13, -34).rounded(), 2.0 * smallest);
        assert_eq!(dyadic((1 << 66) - (1 << 13), -34).rounded(), f64::MIN_POSITIVE);
        assert_eq!(dyadic((1 << 66) - (1 << 14), -34).rounded(), f64::from_bits((1 << 52) - 1));
        assert_eq!(dyadic(1, -200).rounded(), 0.0);
        assert_eq!(dyadic(0, 5).rounded().to_bits(), 0);
    }

    #[test]
    fn quotients_of_integers_round_as_those_of_floats() {
        for index in 0..20_000 {
            let dividend = integer(4, index, 53);
            let divisors = [5, 6].map(|seed| random(seed, index) >> (38 + random(seed + 2, index) % 26) | 1);
            // Division of floats that are integers rounds once.
            let expected = dividend as f64 / (divisors[0] * divisors[1]) as f64;
            let got = dyadic(dividend, 0).quotient(divisors);
            assert_eq!(got, expected, "{dividend} / {divisors:?}");
            let large = [divisors[0] << 38, divisors[1]];
            let got = dyadic(dividend, 7).quotient(large);
            assert_eq!(got, expected * 2_f64.powi(224 - 38), "{dividend} 2^224 / {large:?}");
        }
        let third = dyadic(1, 0).plus(&dyadic(1, -100)).quotient([3, 1]);
        assert_eq!(third, 1.0 / 3.0);
        assert_eq!(dyadic(0, 0).quotient([3, 7]).to_bits(), 0);
        // 2^54 + 2 is between two floats of 2^54 and 2^54 + 4: what is below the digits that are divided decides.
        let between = dyadic((1 << 54) + 2, 0);
        assert_eq!(between.quotient([1, 1]), 2_f64.powi(54));
        assert_eq!(between.plus(&dyadic(1, -20)).quotient([1, 1]), 2_f64.powi(54) + 4.0);
    }
}
