//! Exact sums, compared with sums in any order.

use super::*;

/// Random bits.
pub(in super::super) fn random(seed: u64, index: u64) -> u64 {
    let mut bits = (seed << 32 | index).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

/// Values whose sizes differ in many ways.
fn values(seed: u64, count: u64) -> Vec<f64> {
    let unit = |index| (random(seed, index) >> 11) as f64 / (1_u64 << 53) as f64;
    let value = |index| {
        let (unit, other) = (unit(2 * index), random(seed, 2 * index + 1));
        match seed % 8 {
            0 => unit,
            1 => (unit - 0.5) * 1e6,
            2 => (unit - 0.5) * 10_f64.powi((other % 60) as i32 - 30),
            3 => (unit - 0.5) * 10_f64.powi((other % 600) as i32 - 300),
            // Subnormal floats and those above them.
            4 => (unit - 0.5) * 10_f64.powi(-305 - (other % 19) as i32),
            // Mostly zeros.
            5 => [0.0, -0.0, unit, 0.0][other as usize % 4],
            // Sums of integers, with much that cancels.
            6 => ((other % 1001) as f64 - 500.0) * 2_f64.powi((index % 3) as i32 * 40),
            // Any bits of a finite float.
            _ => f64::from_bits(other & !(1 << 62)),
        }
    };
    (0..count).map(value).collect()
}

fn shuffled(seed: u64, values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|index| random(seed, *index as u64));
    order.into_iter().map(|index| values[index]).collect()
}

fn sum_of(values: &[f64]) -> ExactSum {
    let mut sum = ExactSum::default();
    values.iter().for_each(|value| _ = sum.add(*value));
    sum
}

fn squares_of(values: &[f64]) -> ExactSquares {
    let mut sum = ExactSquares::default();
    values.iter().for_each(|value| _ = sum.add(*value));
    sum
}

/// The sum of parts that are merged.
fn merged(parts: &[&[f64]]) -> ExactSum {
    let mut sum = ExactSum::default();
    for part in parts {
        let mut bytes = Vec::new();
        sum_of(part).write(&mut bytes);
        let mut written = &bytes[..];
        sum.merge(&mut written).unwrap();
        assert!(written.is_empty());
    }
    sum
}

/// A sum that has nothing in common with the other: how often each bit is added, from that of 2^-2200.
struct Bits(Vec<i64>);

impl Bits {
    fn new() -> Self {
        Self(vec![0; 4400])
    }

    fn add(&mut self, magnitude: u128, exponent: i32, is_negative: bool) {
        let set = (0..128).filter(|bit| magnitude >> bit & 1 == 1);
        set.for_each(|bit| self.0[(exponent + 2200) as usize + bit] += if is_negative { -1 } else { 1 });
    }

    /// The mantissa, exponent and sign of a float.
    fn of(value: f64) -> (u128, i32, bool) {
        let (bits, exponent) = (value.abs().to_bits(), (value.to_bits() >> 52 & 0x7ff) as i32);
        let mantissa = if exponent == 0 { bits } else { bits & (u64::MAX >> 12) | 1 << 52 };
        (mantissa.into(), exponent.max(1) - 1075, value.is_sign_negative())
    }

    fn rounded(mut self) -> f64 {
        for bit in 1..self.0.len() {
            let below = self.0[bit - 1];
            (self.0[bit - 1], self.0[bit]) = (below & 1, self.0[bit] + (below >> 1));
        }
        let is_negative = self.0.last() == Some(&-1);
        if is_negative {
            // The two's complement: all bits above the lowest one are inverted.
            let lowest = self.0.iter().position(|bit| *bit == 1).unwrap();
            self.0.iter_mut().skip(lowest + 1).for_each(|bit| *bit = 1 - bit.abs());
        }
        let Some(highest) = self.0.iter().rposition(|bit| *bit == 1) else { return 0.0 };
        let lowest = highest.saturating_sub(52).max(2200 - 1074);
        let mantissa = (lowest..=highest).rev().fold(0_u64, |mantissa, bit| 2 * mantissa + self.0[bit] as u64);
        let is_half = self.0[lowest - 1] == 1;
        let is_up = is_half && (mantissa % 2 == 1 || self.0[..lowest - 1].contains(&1));
        // Two steps, of which neither rounds.
        let exponent = lowest as i32 - 2200;
        let magnitude = (mantissa + u64::from(is_up)) as f64 * 2_f64.powi(exponent / 2);
        let magnitude = magnitude * 2_f64.powi(exponent - exponent / 2);
        if is_negative { -magnitude } else { magnitude }
    }
}

fn reference(values: &[f64]) -> f64 {
    let mut bits = Bits::new();
    for value in values {
        let (mantissa, exponent, is_negative) = Bits::of(*value);
        bits.add(mantissa, exponent, is_negative);
    }
    bits.rounded()
}

#[test]
fn a_sum_is_exact_in_any_order_and_in_any_parts() {
    for seed in 0..48 {
        let values = values(seed, 10 + 20 * seed);
        let expected = reference(&values).to_bits();
        let rounded = sum_of(&values).rounded();
        assert_eq!(rounded.to_bits(), expected, "seed {seed}: {rounded:e}");
        for order in 0..4 {
            let values = shuffled(seed + 1000 * (order + 1), &values);
            assert_eq!(sum_of(&values).rounded().to_bits(), expected, "seed {seed}, order {order}");
            assert_eq!(sum_of(&values).exact(), merged(&[&values]).exact(), "seed {seed}, order {order}");
            let rows = 1 + random(seed, order) as usize % values.len();
            let parts: Vec<&[f64]> = values.chunks(rows).rev().collect();
            assert_eq!(merged(&parts).rounded().to_bits(), expected, "seed {seed}, order {order}, {rows} rows");
        }
    }
}

#[test]
fn a_million_values_have_one_sum() {
    let values = values(3, 1_000_000);
    let sum = sum_of(&values).rounded();
    let other = sum_of(&shuffled(100, &values)).rounded();
    assert_eq!(sum.to_bits(), other.to_bits(), "{sum:e}, {other:e}");
}

#[test]
fn what_is_removed_was_never_there() {
    for seed in 0..32 {
        let values = values(seed, 1000);
        let (kept, removed) = values.split_at(random(seed, 0) as usize % 1000);
        let (mut sum, mut squares) = (sum_of(&values), squares_of(&values));
        for value in shuffled(seed, removed) {
            sum.remove(value);
            squares.remove(value);
        }
        assert_eq!(sum.exact(), sum_of(kept).exact(), "seed {seed}");
        assert_eq!(squares.exact(), squares_of(kept).exact(), "seed {seed}");
    }
}

#[test]
fn squares_are_exact() {
    for seed in 0..32 {
        let values = values(seed, 500);
        let mut bits = Bits::new();
        for value in &values {
            let (mantissa, exponent, _) = Bits::of(*value);
            bits.add(mantissa * mantissa, 2 * exponent, false);
        }
        let sum = squares_of(&shuffled(seed, &values));
        let (mut bytes, mut copy) = (Vec::new(), ExactSquares::default());
        sum.write(&mut bytes);
        copy.merge(&mut &bytes[..]).unwrap();
        assert_eq!(copy.exact(), sum.exact(), "seed {seed}");
        let (rounded, expected) = (sum.exact().rounded(), bits.rounded());
        assert_eq!(rounded.to_bits(), expected.to_bits(), "seed {seed}: {rounded:e}, {expected:e}");
    }
}

#[test]
fn a_variance_rounds_once() {
    for seed in 0..32 {
        let count = 2 + random(seed, 0) % 60;
        let integers: Vec<i128> = (1..=count).map(|index| (random(seed, index) % 2000) as i128 - 1000).collect();
        let (total, squares) = (integers.iter().sum::<i128>(), integers.iter().map(|x| x * x).sum::<i128>());
        let distances = squares * i128::from(count) - total * total;
        // An offset changes nothing, and a factor of a power of two has its square.
        for (offset, exponent) in [(0.0, 0), (2_f64.powi(40), 0), (-2_f64.powi(39), 200), (0.0, -400)] {
            let values: Vec<f64> = integers.iter().map(|x| (*x as f64 + offset) * 2_f64.powi(exponent)).collect();
            let (sum, of_squares) = (sum_of(&shuffled(seed, &values)), squares_of(&values));
            for divisor in [count, count - 1] {
                // Division of floats that are integers rounds once.
                let expected = distances as f64 / (count * divisor) as f64 * 2_f64.powi(2 * exponent);
                let variance = of_squares.variance(&sum, count, divisor);
                assert_eq!(variance.to_bits(), expected.to_bits(), "seed {seed}: {integers:?}, {offset}");
            }
            let average = (total as f64 / count as f64) * 2_f64.powi(exponent);
            if offset == 0.0 {
                assert_eq!(sum.average(count).to_bits(), average.to_bits(), "seed {seed}: {integers:?}");
            }
        }
    }
    let variance = |values: &[f64]| {
        let count = values.len() as u64;
        squares_of(values).variance(&sum_of(values), count, count)
    };
    assert_eq!(variance(&[0.1; 7]).to_bits(), 0);
    assert_eq!(variance(&[1e300, -1e300]), f64::INFINITY);
    assert_eq!(variance(&[f64::INFINITY, 1.0]).to_bits(), NAN.to_bits());
    // Half of the difference, squared. The squares of the values themselves are above all floats.
    let large = 2_f64.powi(513);
    assert_eq!(variance(&[large, large + 2_f64.powi(461)]), 2_f64.powi(920));
    assert_eq!(sum_of(&[f64::MAX, f64::MAX]).average(2), f64::MAX);
    assert_eq!(sum_of(&[-f64::INFINITY, 1.0]).average(2), f64::NEG_INFINITY);
}

fn check(values: &[f64], expected: f64) {
    let sum = sum_of(values).rounded();
    assert_eq!(sum.to_bits(), expected.to_bits(), "{values:?}: {sum:e}");
    let reversed: Vec<f64> = values.iter().rev().copied().collect();
    assert_eq!(sum_of(&reversed).rounded().to_bits(), expected.to_bits(), "{reversed:?}");
    let parts: Vec<&[f64]> = values.chunks(1).collect();
    assert_eq!(merged(&parts).rounded().to_bits(), expected.to_bits(), "parts of {values:?}");
}

#[test]
fn ends_of_the_range_and_what_is_between_floats() {
    let (largest, smallest) = (f64::MAX, f64::from_bits(1));
    check(&[], 0.0);
    check(&[-0.0, -0.0], 0.0);
    check(&[1e308, 1e308, -1e308], 1e308);
    check(&[1e308, 1e308], f64::INFINITY);
    check(&[-largest, -largest, largest, largest, 5.0], 5.0);
    check(&[largest, 2_f64.powi(970)], f64::INFINITY);
    check(&[largest, largest / 2_f64.powi(54)], largest);
    check(&[largest, 1e-300], largest);
    check(&[smallest; 3], f64::from_bits(3));
    check(&[f64::MIN_POSITIVE, -smallest], f64::from_bits((1 << 52) - 1));
    check(&[1.0, smallest, -1.0], smallest);
    check(&[1e100, 1.0, -1e100], 1.0);
    // 2^53 + 1 is between two floats, and the even one is below.
    let between = 2_f64.powi(53);
    check(&[between, 1.0], between);
    check(&[between, 1.0, smallest], between + 2.0);
    check(&[between, 1.0, -smallest], between);
    check(&[between, 3.0], between + 4.0);
    check(&[-between, -1.0, -smallest], -between - 2.0);
    check(&[0.1; 10], 1.0);
}

#[test]
fn infinities_and_what_is_not_a_number() {
    let (infinity, other) = (f64::INFINITY, f64::from_bits(0xfff8_0000_0000_0123));
    check(&[1.0, infinity, -1e308], infinity);
    check(&[-infinity, 1.0, -infinity], -infinity);
    check(&[infinity, -infinity], NAN);
    check(&[1.0, other, infinity], NAN);
    let mut sum = sum_of(&[1.0, infinity, other, -infinity, 2.0]);
    sum.remove(other);
    assert_eq!(sum.rounded().to_bits(), NAN.to_bits());
    sum.remove(infinity);
    assert_eq!(sum.rounded(), -infinity);
    sum.remove(-infinity);
    assert_eq!(sum.rounded(), 3.0);
    assert_eq!(squares_of(&[3.0, infinity, NAN]).exact().rounded(), 9.0);
}

#[test]
fn what_leaves_its_place_is_kept() {
    // More additions to the rest than its chunks have room for, to the same chunks.
    let pair = [2_f64.powi(1023) - 2_f64.powi(970), 2_f64.powi(500)];
    let mut sum = ExactSum::default();
    for _ in 0..40_000 {
        pair.iter().for_each(|value| _ = sum.add(*value));
        pair.iter().for_each(|value| _ = sum.add(-*value));
        sum.add(-1.0);
    }
    assert_eq!(sum.rounded(), -40_000.0);
    // The first value is so small that others are elsewhere.
    let mut sum = sum_of(&[1e-12]);
    (0..1000).for_each(|_| _ = sum.add(1e12));
    assert_eq!(sum.rounded(), 1e15);
    // Each value fits, and 10,000 of them do not.
    let mut sum = sum_of(&[1.0]);
    (0..10_000).for_each(|_| _ = sum.add(1.5 * 2_f64.powi(25)));
    assert!(sum.heap_bytes() > 0);
    assert_eq!(sum.rounded(), 1.0 + 15_000.0 * 2_f64.powi(25));
}

#[test]
fn values_of_similar_size_take_no_more_than_their_sum() {
    assert_eq!(size_of::<ExactSum>(), 32);
    let unit = |index| (random(1, index) >> 11) as f64 / (1_u64 << 53) as f64;
    let similar: Vec<f64> = (0..100_000).map(|index| (unit(index) - 0.5) * 1e3).collect();
    assert_eq!(sum_of(&similar).heap_bytes(), 0);
    let parts: Vec<&[f64]> = similar.chunks(77).collect();
    assert_eq!(merged(&parts).heap_bytes(), 0);
    let mut sum = ExactSum::default();
    let bytes: usize = values(3, 1000).into_iter().map(|value| sum.add(value)).sum();
    assert!(bytes > 0);
    assert_eq!(bytes, sum.heap_bytes());
}

#[test]
fn other_bytes_are_no_sum() {
    let mut bytes = Vec::new();
    sum_of(&[1.0, 2.0]).write(&mut bytes);
    for end in 0..bytes.len() {
        assert_eq!(ExactSum::default().merge(&mut &bytes[..end]), None, "{end}");
    }
    // Any integer at any place.
    let mut sum = sum_of(&[1.0]);
    let term = [&1_u16.to_le_bytes()[..], &65_534_u16.to_le_bytes(), &i128::MIN.to_le_bytes()].concat();
    for _ in 0..3 {
        assert!(sum.merge(&mut &term[..]).is_some());
    }
    assert_eq!(sum.rounded(), f64::NEG_INFINITY);
}
