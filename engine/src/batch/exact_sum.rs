//! Sums of floats that do not depend on the order of additions.
//!
//! An [`ExactSum`] is the sum of its values without rounding: a wide integer that counts units of a power of two. A
//! value adds its mantissa, shifted to its place. Additions of integers commute, so values, and sums of parts, can be
//! added in any order. Only the result is rounded. The average and the variance follow from exact sums, too.
//!
//! This is the small superaccumulator of Radford Neal, "Fast exact summation using small and large superaccumulators"
//! (2015, arXiv:1505.05571), with one difference. His integer has room for all floats, in 67 chunks that carry to each
//! other after many additions. A query may have a sum for each of a million groups, whose values are mostly of similar
//! size. So a sum here is 128 bits near its values. It has chunks, which it adds these bits to, only if a value or the
//! sum itself does not fit there.

mod dyadic;
#[cfg(test)]
pub(super) mod tests;

use std::iter::repeat_n;

use self::dyadic::{DIGIT_BITS, Dyadic, carry};

/// The place of the bit that stands for 1. It is a digit's lowest bit, and the square of the smallest float is above
/// place 0.
const ONE: u32 = 68 * DIGIT_BITS;

const FRACTION_BITS: u32 = 52;
const MANTISSA_BITS: u32 = FRACTION_BITS + 1;
/// The exponent of infinities and of what is not a number, as stored.
const SPECIAL_EXPONENT: u32 = 0x7ff;
/// The place of the lowest bit of a float, less its exponent as stored.
const FLOAT_PLACE: u32 = ONE - 1075;

/// A mantissa is shifted by less, and then fits its 128 bits. Multiplying it by a power of two takes less time than
/// shifting 128 bits.
const SHIFTS: usize = 63;
const POWERS: [i64; SHIFTS] = {
    let mut powers = [1; SHIFTS];
    let mut shift = 1;
    while shift < SHIFTS {
        powers[shift] = 2 * powers[shift - 1];
        shift += 1;
    }
    powers
};

/// Digits of 128 bits at any place.
const NEAR_DIGITS: usize = 5;
/// Additions change a chunk by 2^32 at most, so that it has room for so many.
const ADDITIONS_MAX: u32 = 1 << 16;

/// There are many representations of what is not a number. Results have this one.
pub(super) const NAN: f64 = f64::from_bits(0x7ff8_0000_0000_0000);

/// Bytes of the number of terms of a sum, each of which is an integer and its place.
const COUNT_BYTES: usize = size_of::<u16>();
/// The place of a term that is a value without a place: an infinity, or not a number.
const SPECIAL_PLACE: u32 = u16::MAX as u32;

/// A sum of floats.
///
/// A sum of no values is 0, and so is one of negative zeros, as in DataFusion, which adds them to 0.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactSum {
    /// How many units of `place`.
    near: i128,
    place: u32,
    /// What did not fit, and values that are not finite.
    rest: Option<Box<Rest>>,
}

/// A sum of squares of floats. It leaves out values that are not finite.
///
/// A square has twice as many bits as a float. Its halves have sums of their own, whose 128 bits then have room for
/// values of different sizes.
#[derive(Clone, Debug, Default)]
pub(super) struct ExactSquares {
    high: ExactSum,
    low: ExactSum,
}

#[derive(Clone, Debug, Default)]
struct Rest {
    /// The units of a chunk are 2^32 times those of the one before.
    chunks: Vec<i64>,
    /// The first chunk is at the place of so many digits.
    first: usize,
    /// Since chunks carried to each other.
    additions: u32,
    not_numbers: u64,
    infinities: u64,
    negative_infinities: u64,
}

/// The mantissa of a finite float with its sign, and the place of the mantissa's lowest bit.
#[inline]
fn split(value: f64) -> Option<(i64, u32)> {
    let bits = value.to_bits();
    let exponent = (bits >> FRACTION_BITS) as u32 & SPECIAL_EXPONENT;
    if exponent == SPECIAL_EXPONENT {
        return None;
    }
    // The smallest floats, and zero, lack the first bit.
    let first_bit = u64::from(exponent != 0) << FRACTION_BITS;
    let magnitude = (bits & ((1 << FRACTION_BITS) - 1) | first_bit) as i64;
    let sign = bits as i64 >> 63;
    Some(((magnitude ^ sign) - sign, exponent.max(1) + FLOAT_PLACE))
}

impl ExactSum {
    /// Adds a value, and returns by how many bytes the sum grows.
    #[inline]
    pub(super) fn add(&mut self, value: f64) -> usize {
        match split(value) {
            Some((mantissa, place)) => self.add_mantissa(mantissa, place),
            None => self.count_special(value, 1),
        }
    }

    /// Takes back a value that was added.
    pub(super) fn remove(&mut self, value: f64) -> usize {
        match split(value) {
            Some((mantissa, place)) => self.add_mantissa(-mantissa, place),
            None => self.count_special(value, u64::MAX),
        }
    }

    #[inline]
    fn add_mantissa(&mut self, mantissa: i64, place: u32) -> usize {
        // Zeros are frequent, and a mistaken guess about a branch takes longer than an addition.
        let shift = place.wrapping_sub(self.place) * u32::from(mantissa != 0);
        if let Some(power) = POWERS.get(shift as usize) {
            let (sum, overflows) = self.near.overflowing_add(i128::from(mantissa) * i128::from(*power));
            if !overflows {
                self.near = sum;
                return 0;
            }
        }
        self.add_term(i128::from(mantissa), place)
    }

    /// Adds so many units of `place`, wherever it is.
    #[cold]
    fn add_term(&mut self, integer: i128, place: u32) -> usize {
        if self.near == 0 {
            self.begin_at(integer, place);
            return 0;
        }
        let lowest = place.min(self.place);
        let near = shifted(self.near, self.place - lowest);
        let sum = near.zip(shifted(integer, place - lowest)).and_then(|(near, more)| near.checked_add(more));
        if let Some(sum) = sum {
            (self.near, self.place) = (sum, lowest);
            return 0;
        }
        // The next values are rather near this one.
        let bytes = self.heap_bytes();
        self.rest.get_or_insert_default().add(self.near, self.place);
        self.begin_at(integer, place);
        self.heap_bytes() - bytes
    }

    /// Begins with so many units of `place`, and with as much room below them as above.
    fn begin_at(&mut self, integer: i128, place: u32) {
        let room = integer.unsigned_abs().leading_zeros().saturating_sub(1);
        let below = (room / 2).min(place);
        (self.near, self.place) = (integer << below, place - below);
    }

    /// Counts a value that is not finite so much more often.
    #[cold]
    fn count_special(&mut self, special: f64, by: u64) -> usize {
        let bytes = self.heap_bytes();
        let rest = self.rest.get_or_insert_default();
        let count = match special {
            f64::INFINITY => &mut rest.infinities,
            f64::NEG_INFINITY => &mut rest.negative_infinities,
            _ => &mut rest.not_numbers,
        };
        *count = count.wrapping_add(by);
        self.heap_bytes() - bytes
    }

    /// The sum, if values are infinite or not numbers.
    fn special(&self) -> Option<f64> {
        let rest = self.rest.as_ref()?;
        match (rest.not_numbers, rest.infinities, rest.negative_infinities) {
            (0, 0, 0) => None,
            (0, _, 0) => Some(f64::INFINITY),
            (0, 0, _) => Some(f64::NEG_INFINITY),
            _ => Some(NAN),
        }
    }

    /// The sum of the finite values.
    fn exact(&self) -> Dyadic {
        let one = (ONE / DIGIT_BITS) as i32;
        let Some(rest) = &self.rest else {
            let mut chunks = [0; NEAR_DIGITS + 1];
            chunks[..NEAR_DIGITS].copy_from_slice(&digits(self.near, self.place));
            return Dyadic::of_chunks(&mut chunks, (self.place / DIGIT_BITS) as i32 - one);
        };
        let mut all = rest.clone();
        all.add(self.near, self.place);
        all.carry();
        // Room for the sign.
        all.chunks.push(0);
        Dyadic::of_chunks(&mut all.chunks, all.first as i32 - one)
    }

    /// The float that is closest to the sum.
    pub(super) fn rounded(&self) -> f64 {
        self.special().unwrap_or_else(|| self.exact().rounded())
    }

    /// The float that is closest to the average of so many values.
    pub(super) fn average(&self, count: u64) -> f64 {
        self.special().unwrap_or_else(|| self.exact().quotient([count, 1]))
    }

    /// Writes the sum for [`Self::merge`].
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend_from_slice(&[0; COUNT_BYTES]);
        let mut terms: u16 = 0;
        let mut write = |place: u32, integer: i128| {
            bytes.extend_from_slice(&(place as u16).to_le_bytes());
            bytes.extend_from_slice(&integer.to_le_bytes());
            terms += 1;
        };
        if let Some(special) = self.special() {
            write(SPECIAL_PLACE, i128::from(special.to_bits()));
        } else {
            if self.near != 0 {
                // Bits below would take room in the sum that this is added to.
                let zeros = self.near.trailing_zeros();
                write(self.place + zeros, self.near >> zeros);
            }
            if let Some(rest) = &self.rest {
                let chunks = (rest.first as u32..).zip(&rest.chunks).filter(|(_, chunk)| **chunk != 0);
                chunks.for_each(|(at, chunk)| write(at * DIGIT_BITS, i128::from(*chunk)));
            }
        }
        bytes[start..start + COUNT_BYTES].copy_from_slice(&terms.to_le_bytes());
    }

    /// Adds the sum that was written at the beginning of the bytes, and takes it from them. Returns by how many bytes
    /// this sum grows, or `None` if the bytes are no sum.
    pub(super) fn merge(&mut self, written: &mut &[u8]) -> Option<usize> {
        let terms = u16::from_le_bytes(take(written)?);
        let mut bytes = 0;
        for _ in 0..terms {
            let place = u32::from(u16::from_le_bytes(take(written)?));
            let integer = i128::from_le_bytes(take(written)?);
            bytes += match place {
                SPECIAL_PLACE => self.count_special(f64::from_bits(integer as u64), 1),
                _ => self.add_term(integer, place),
            };
        }
        Some(bytes)
    }

    /// The bytes that it takes apart from its own.
    pub(super) fn heap_bytes(&self) -> usize {
        self.rest.as_ref().map_or(0, |rest| size_of::<Rest>() + rest.chunks.capacity() * size_of::<i64>())
    }
}

impl ExactSquares {
    /// Adds the square of a value, and returns by how many bytes the sum grows.
    #[inline]
    pub(super) fn add(&mut self, value: f64) -> usize {
        self.add_square(value, 1)
    }

    /// Takes back a value that was added.
    pub(super) fn remove(&mut self, value: f64) -> usize {
        self.add_square(value, -1)
    }

    #[inline]
    fn add_square(&mut self, value: f64, sign: i64) -> usize {
        let Some((mantissa, place)) = split(value) else { return 0 };
        let square = u128::from(mantissa.unsigned_abs()).pow(2);
        let place = 2 * place - ONE;
        let (high, low) = (square >> MANTISSA_BITS, square & ((1 << MANTISSA_BITS) - 1));
        let bytes = self.high.add_mantissa(sign * high as i64, place + MANTISSA_BITS);
        bytes + self.low.add_mantissa(sign * low as i64, place)
    }

    /// The float that is closest to the variance of so many values with this sum: their squared distances from the
    /// average, in total, divided by `divisor`.
    pub(super) fn variance(&self, sum: &ExactSum, count: u64, divisor: u64) -> f64 {
        if sum.special().is_some() {
            return NAN;
        }
        // The total of squared distances is the sum of squares less the square of the sum divided by the count. Here
        // all of it is multiplied by the count, so that nothing is rounded before the last division.
        let (sum, squares) = (sum.exact(), self.exact());
        squares.times(&Dyadic::from(count)).minus(&sum.times(&sum)).quotient([count, divisor])
    }

    fn exact(&self) -> Dyadic {
        self.high.exact().plus(&self.low.exact())
    }

    /// Writes the sum for [`Self::merge`].
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        self.high.write(bytes);
        self.low.write(bytes);
    }

    /// As [`ExactSum::merge`].
    pub(super) fn merge(&mut self, written: &mut &[u8]) -> Option<usize> {
        Some(self.high.merge(written)? + self.low.merge(written)?)
    }

    /// The bytes that it takes apart from its own.
    pub(super) fn heap_bytes(&self) -> usize {
        self.high.heap_bytes() + self.low.heap_bytes()
    }
}

impl Rest {
    /// Adds so many units of `place`.
    fn add(&mut self, integer: i128, place: u32) {
        let first = (place / DIGIT_BITS) as usize;
        if self.chunks.is_empty() {
            self.first = first;
        }
        if first < self.first {
            self.chunks.splice(..0, repeat_n(0, self.first - first));
            self.first = first;
        }
        let at = first - self.first;
        if self.chunks.len() < at + NEAR_DIGITS {
            self.chunks.resize(at + NEAR_DIGITS, 0);
        }
        for (chunk, digit) in self.chunks[at..].iter_mut().zip(digits(integer, place)) {
            *chunk += digit;
        }
        self.additions += 1;
        if self.additions == ADDITIONS_MAX {
            self.carry();
        }
    }

    fn carry(&mut self) {
        if self.chunks.last().is_some_and(|last| last.unsigned_abs() >> DIGIT_BITS != 0) {
            self.chunks.push(0);
        }
        carry(&mut self.chunks);
        self.additions = 0;
    }
}

/// So many units of `place` as digits, from the one that has `place`. The last one has the sign.
fn digits(integer: i128, place: u32) -> [i64; NEAR_DIGITS] {
    let shift = place % DIGIT_BITS;
    let (low, high) = (integer << shift, integer >> (i128::BITS - 1 - shift) >> 1);
    let digit = |at: u32| i64::from((low >> (at * DIGIT_BITS)) as u32);
    [digit(0), digit(1), digit(2), digit(3), high as i64]
}

/// The integer times 2^`by`, if it fits.
fn shifted(integer: i128, by: u32) -> Option<i128> {
    (by < i128::BITS).then(|| integer << by).filter(|shifted| shifted >> by == integer)
}

/// Takes the first bytes.
fn take<const BYTES: usize>(bytes: &mut &[u8]) -> Option<[u8; BYTES]> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*first)
}
