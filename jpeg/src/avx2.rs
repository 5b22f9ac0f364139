//! AVX2 versions of the arithmetic, and the bit loop with BMI2. This is the only module with unsafe code.
//!
//! Every function gives the same bytes as the portable code. Tests compare the two.
#![expect(unsafe_code, reason = "instructions for vectors read and write by address")]

use std::arch::x86_64::*;

use crate::bits::{self, Bits};
use crate::blocks::{self, BLOCK, BlockSpec, Predictions};
use crate::colour::{self, HalfWidthRow, Triple};
use crate::error::Error;
use crate::idct::*;
use crate::reduced::{self, *};

/// Proof that the processor supports the instructions.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Avx2(());

impl Avx2 {
    pub(crate) fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("lzcnt")
            && is_x86_feature_detected!("movbe");
        found.then_some(Self(()))
    }

    /// Like `bits::copy`.
    pub(crate) fn copy(self, from: &[u8], to: &mut [u8]) -> usize {
        assert!(to.len() >= from.len());
        // SAFETY: `detect` found the feature; the output is as long as the input, as was asserted.
        let at = unsafe { copy(from, to) };
        at + bits::copy(&from[at..], &mut to[at..])
    }

    pub(crate) fn read(
        self,
        bits: &mut Bits<'_>,
        mcu: &[BlockSpec<'_>],
        predictions: &mut Predictions,
        coefficients: &mut [i16],
        lasts: &mut [u8],
    ) -> Result<(), Error> {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,movbe")]
        fn run(
            bits: &mut Bits<'_>,
            mcu: &[BlockSpec<'_>],
            predictions: &mut Predictions,
            coefficients: &mut [i16],
            lasts: &mut [u8],
        ) -> Result<(), Error> {
            blocks::read(bits, mcu, predictions, coefficients, lasts)
        }
        // SAFETY: `detect` found the features.
        unsafe { run(bits, mcu, predictions, coefficients, lasts) }
    }

    pub(crate) fn skip(
        self,
        bits: &mut Bits<'_>,
        mcu: &[BlockSpec<'_>],
        predictions: &mut Predictions,
        mcus: usize,
    ) -> Result<(), Error> {
        #[target_feature(enable = "avx2,bmi1,bmi2,lzcnt,movbe")]
        fn run(
            bits: &mut Bits<'_>,
            mcu: &[BlockSpec<'_>],
            predictions: &mut Predictions,
            mcus: usize,
        ) -> Result<(), Error> {
            blocks::skip(bits, mcu, predictions, mcus)
        }
        // SAFETY: `detect` found the features.
        unsafe { run(bits, mcu, predictions, mcus) }
    }

    /// Like `idct::pair`.
    #[inline]
    pub(crate) fn pair(
        self,
        blocks: &mut [i16; 2 * BLOCK],
        lasts: [u8; 2],
        samples: &mut [u8],
        starts: [(usize, usize); 2],
    ) {
        for (start, stride) in starts {
            assert!(stride.max(start) <= samples.len() && start + 7 * stride + 8 <= samples.len());
        }
        // SAFETY: `detect` found the features; all eight rows of both blocks lie in the samples, as was asserted.
        unsafe {
            match lasts[0].max(lasts[1]) {
                0 => levels(blocks, samples, starts),
                1..=QUARTER => pair::<true>(blocks, samples, starts),
                _ => pair::<false>(blocks, samples, starts),
            }
        }
    }

    /// Like `reduced::pair`.
    #[inline]
    pub(crate) fn reduced(
        self,
        side: usize,
        blocks: &mut [i16; 2 * BLOCK],
        lasts: [u8; 2],
        samples: &mut [u8],
        starts: [(usize, usize); 2],
    ) {
        let last = lasts[0].max(lasts[1]);
        if last == 0 {
            return reduced::pair(side, blocks, lasts, samples, starts);
        }
        assert!(side == 4 || side == 2);
        for (start, stride) in starts {
            assert!(stride.max(start) <= samples.len() && start + (side - 1) * stride + side <= samples.len());
        }
        // SAFETY: `detect` found the features; all rows of both blocks lie in the samples, as was asserted.
        unsafe {
            match (side, last <= QUARTER) {
                (4, true) => four::<true>(blocks, samples, starts),
                (4, false) => four::<false>(blocks, samples, starts),
                (_, true) => two::<true>(blocks, samples, starts),
                (_, false) => two::<false>(blocks, samples, starts),
            }
        }
    }

    /// Like `colour::sums`.
    pub(crate) fn sums(self, near: &[u8], far: Option<&[u8]>, out: &mut [u16]) {
        #[target_feature(enable = "avx2")]
        fn run(near: &[u8], far: Option<&[u8]>, out: &mut [u16]) {
            colour::sums(near, far, out);
        }
        // SAFETY: `detect` found the feature.
        unsafe { run(near, far, out) }
    }

    /// Like `colour::pairs`.
    pub(crate) fn pairs(self, input: &HalfWidthRow<'_>, out: &mut [u8]) {
        let groups = (input.skip + out.len() / 3).div_ceil(32);
        assert!(input.skip < 2 && input.luma.len() >= groups * 32);
        assert!(input.cb.len() >= groups * 16 + 2 && input.cr.len() >= groups * 16 + 2);
        // SAFETY: `detect` found the feature; the inputs hold whole groups, as was asserted.
        unsafe { pairs(input, out) }
    }

    /// Like `colour::triple`, for luma and differences or for plain colours.
    pub(crate) fn triple(self, input: &Triple<'_>, differences: bool, out: &mut [u8]) {
        let groups = (out.len() / 3).div_ceil(32);
        assert!(input.iter().all(|row| row.len() >= groups * 32));
        // SAFETY: `detect` found the feature; the inputs hold whole groups, as was asserted.
        unsafe { if differences { triple::<true>(input, out) } else { triple::<false>(input, out) } }
    }
}

/// Copies bytes up to the first 0xFF byte or the end of the last whole group of 32. Returns the number of bytes copied.
///
/// # Safety
/// `to` is as long as `from`.
#[target_feature(enable = "avx2")]
unsafe fn copy(from: &[u8], to: &mut [u8]) -> usize {
    let mut at = 0;
    while at + 32 <= from.len() {
        // SAFETY: 32 bytes lie in both, by this function's condition.
        let ones = unsafe {
            let bytes = _mm256_loadu_si256(from.as_ptr().add(at).cast());
            _mm256_storeu_si256(to.as_mut_ptr().add(at).cast(), bytes);
            _mm256_movemask_epi8(_mm256_cmpeq_epi8(bytes, _mm256_set1_epi8(-1)))
        };
        if ones != 0 {
            return at + ones.trailing_zeros() as usize;
        }
        at += 32;
    }
    at
}

/// Fills two blocks with one value each.
///
/// # Safety
/// Each start is followed by eight rows of eight samples.
#[target_feature(enable = "avx2")]
unsafe fn levels(blocks: &mut [i16; 2 * BLOCK], samples: &mut [u8], starts: [(usize, usize); 2]) {
    for (block, (start, stride)) in blocks.chunks_exact_mut(BLOCK).zip(starts) {
        let value = _mm_set1_epi8(level(block[0]) as i8);
        block[0] = 0;
        for row in 0..8 {
            // SAFETY: by this function's condition.
            unsafe { _mm_storel_epi64(samples.as_mut_ptr().add(start + row * stride).cast(), value) };
        }
    }
}

/// Transforms two blocks side by side, the first in the lower lanes. With `QUARTER`, only the first four rows and
/// columns of both blocks hold nonzero coefficients.
///
/// # Safety
/// Each start is followed by eight rows of eight samples.
#[target_feature(enable = "avx2")]
unsafe fn pair<const QUARTER: bool>(blocks: &mut [i16; 2 * BLOCK], samples: &mut [u8], starts: [(usize, usize); 2]) {
    let columns = transpose::<QUARTER>(pass::<{ DESCALE[0] as i32 }, QUARTER>(take::<QUARTER>(blocks)));
    let x = pass::<{ DESCALE[1] as i32 }, QUARTER>(columns);

    // Turns columns of words into rows of bytes.
    let centre = _mm256_set1_epi8(-128);
    let bytes = |a, b| _mm256_add_epi8(_mm256_packs_epi16(a, b), centre);
    let (p04, p15, p26, p37) = (bytes(x[0], x[4]), bytes(x[1], x[5]), bytes(x[2], x[6]), bytes(x[3], x[7]));
    let (p01, p45) = (_mm256_unpacklo_epi8(p04, p15), _mm256_unpackhi_epi8(p04, p15));
    let (p23, p67) = (_mm256_unpacklo_epi8(p26, p37), _mm256_unpackhi_epi8(p26, p37));
    let (left, left_below) = (_mm256_unpacklo_epi16(p01, p23), _mm256_unpackhi_epi16(p01, p23));
    let (right, right_below) = (_mm256_unpacklo_epi16(p45, p67), _mm256_unpackhi_epi16(p45, p67));
    let twice = [
        _mm256_unpacklo_epi32(left, right),
        _mm256_unpackhi_epi32(left, right),
        _mm256_unpacklo_epi32(left_below, right_below),
        _mm256_unpackhi_epi32(left_below, right_below),
    ];
    for (number, rows) in twice.into_iter().enumerate() {
        for (half, (start, stride)) in halves(rows).into_iter().zip(starts) {
            // SAFETY: rows `2 * number` and the next lie in the samples, by this function's condition.
            unsafe {
                let to = samples.as_mut_ptr().add(start + 2 * number * stride);
                _mm_storel_epi64(to.cast(), half);
                _mm_storeh_pd(to.add(stride).cast(), _mm_castsi128_pd(half));
            }
        }
    }
}

/// Loads the rows of two blocks, the first in the lower lanes, and zeroes the blocks. With `QUARTER`, loads four rows
/// only.
#[target_feature(enable = "avx2")]
#[inline]
fn take<const QUARTER: bool>(blocks: &mut [i16; 2 * BLOCK]) -> [__m256i; 8] {
    let mut rows = [_mm256_setzero_si256(); 8];
    let used = if QUARTER { 4 } else { 8 };
    let at = blocks.as_mut_ptr();
    for (number, row) in rows[..used].iter_mut().enumerate() {
        // SAFETY: row `number` of both blocks lies in them.
        unsafe {
            let low = at.add(number * 8).cast::<__m128i>();
            let high = at.add(BLOCK + number * 8).cast::<__m128i>();
            *row = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(low)), _mm_loadu_si128(high), 1);
            _mm_storeu_si128(low, _mm_setzero_si128());
            _mm_storeu_si128(high, _mm_setzero_si128());
        }
    }
    rows
}

/// Multiplies each word of a pair by its factor and adds the two products.
#[target_feature(enable = "avx2")]
#[inline]
fn mul(pairs: __m256i, a: i16, b: i16) -> __m256i {
    _mm256_madd_epi16(pairs, _mm256_set1_epi32(i32::from(a) & 0xFFFF | i32::from(b) << 16))
}

/// Transforms two blocks to 4 x 4 samples each, the first in the lower lanes, like `reduced::four`.
///
/// # Safety
/// Each start is followed by four rows of four samples.
#[target_feature(enable = "avx2")]
unsafe fn four<const QUARTER: bool>(blocks: &mut [i16; 2 * BLOCK], samples: &mut [u8], starts: [(usize, usize); 2]) {
    // The inputs are words of row 0 above zeros, and pairs of rows 2 and 6, 1 and 3, 5 and 7. The outputs are rows of
    // sums.
    let pass = |x0, x26, x13, x57, rounding: i32| {
        let (even, odd) = (_mm256_srai_epi32(x0, 2), [mul(x13, F_2_562, F_0_899), mul(x13, F_1_061, -F_2_172)]);
        let even = _mm256_add_epi32(even, _mm256_set1_epi32(rounding));
        let second = mul(x26, F_1_847, -F_0_765);
        let odd = if QUARTER {
            odd
        } else {
            let more = [mul(x57, -F_0_601, -F_0_509), mul(x57, F_1_451, -F_0_211)];
            [_mm256_add_epi32(odd[0], more[0]), _mm256_add_epi32(odd[1], more[1])]
        };
        let even = [_mm256_add_epi32(even, second), _mm256_sub_epi32(even, second)];
        [
            _mm256_add_epi32(even[0], odd[0]),
            _mm256_add_epi32(even[1], odd[1]),
            _mm256_sub_epi32(even[1], odd[1]),
            _mm256_sub_epi32(even[0], odd[0]),
        ]
    };
    let (low, high) = (|a, b| _mm256_unpacklo_epi16(a, b), |a, b| _mm256_unpackhi_epi16(a, b));
    const ROUNDING: [i32; 2] = [1 << (DESCALE_4[0] - 1), 1 << (DESCALE_4[1] - 1)];
    let zero = _mm256_setzero_si256();

    let x = take::<QUARTER>(blocks);
    let left = pass(low(zero, x[0]), low(x[2], x[6]), low(x[1], x[3]), low(x[5], x[7]), ROUNDING[0]);
    let right = if QUARTER {
        left
    } else {
        pass(high(zero, x[0]), high(x[2], x[6]), high(x[1], x[3]), high(x[5], x[7]), ROUNDING[0])
    };
    let down = |sum| _mm256_srai_epi32::<{ DESCALE_4[0] as i32 }>(sum);
    let y: [__m256i; 4] = std::array::from_fn(|row| _mm256_packs_epi32(down(left[row]), down(right[row])));

    // Each vector holds two columns, one after the other.
    let columns = |a, b| [_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b)];
    let [c01, c23] = columns(low(y[0], y[1]), low(y[2], y[3]));
    let [c45, c67] = if QUARTER { [zero; 2] } else { columns(high(y[0], y[1]), high(y[2], y[3])) };
    let sums = pass(low(zero, c01), low(c23, c67), high(c01, c23), high(c45, c67), ROUNDING[1]);
    let [a, b, c, d] = sums.map(|sum| _mm256_srai_epi32::<{ DESCALE_4[1] as i32 }>(sum));
    let bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    let bytes = _mm256_add_epi8(bytes, _mm256_set1_epi8(-128));
    let places = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    let rows = _mm256_shuffle_epi8(bytes, places);
    for (half, (start, stride)) in halves(rows).into_iter().zip(starts) {
        let rows = [
            _mm_extract_epi32::<0>(half),
            _mm_extract_epi32::<1>(half),
            _mm_extract_epi32::<2>(half),
            _mm_extract_epi32::<3>(half),
        ];
        for (number, row) in rows.into_iter().enumerate() {
            // SAFETY: the row lies in the samples, by this function's condition.
            unsafe { samples.as_mut_ptr().add(start + number * stride).cast::<i32>().write_unaligned(row) };
        }
    }
}

/// Transforms two blocks to 2 x 2 samples each, the first in the lower lanes, like `reduced::two`.
///
/// # Safety
/// Each start is followed by two rows of two samples.
#[target_feature(enable = "avx2")]
unsafe fn two<const QUARTER: bool>(blocks: &mut [i16; 2 * BLOCK], samples: &mut [u8], starts: [(usize, usize); 2]) {
    let zero = _mm256_setzero_si256();
    let x = take::<QUARTER>(blocks);
    let pass = |x0, x13, x57| {
        let even = _mm256_add_epi32(_mm256_srai_epi32(x0, 1), _mm256_set1_epi32(1 << (DESCALE_2[0] - 1)));
        let odd = mul(x13, F_3_624, -F_1_272);
        let odd = if QUARTER { odd } else { _mm256_add_epi32(odd, mul(x57, F_0_850, -F_0_720)) };
        [_mm256_add_epi32(even, odd), _mm256_sub_epi32(even, odd)]
            .map(|sum| _mm256_srai_epi32::<{ DESCALE_2[0] as i32 }>(sum))
    };
    let (low, high) = (|a, b| _mm256_unpacklo_epi16(a, b), |a, b| _mm256_unpackhi_epi16(a, b));
    let left = pass(low(zero, x[0]), low(x[1], x[3]), low(x[5], x[7]));
    let right = if QUARTER { left } else { pass(high(zero, x[0]), high(x[1], x[3]), high(x[5], x[7])) };
    let (upper, lower) = (_mm256_packs_epi32(left[0], right[0]), _mm256_packs_epi32(left[1], right[1]));

    // Words at even positions contribute nothing.
    let [c, d] = if QUARTER { [0; 2] } else { [F_0_850, -F_0_720] };
    let factors = _mm256_broadcastsi128_si256(_mm_setr_epi16(0, F_3_624, 0, -F_1_272, 0, c, 0, d));
    let odd = _mm256_hadd_epi32(_mm256_madd_epi16(upper, factors), _mm256_madd_epi16(lower, factors));
    let odd = _mm256_hadd_epi32(odd, odd);
    let even = _mm256_srai_epi32(low(zero, low(upper, lower)), 1);
    let even = _mm256_add_epi32(even, _mm256_set1_epi32(1 << (DESCALE_2[1] - 1)));
    let sums = _mm256_unpacklo_epi32(_mm256_add_epi32(even, odd), _mm256_sub_epi32(even, odd));
    let words = _mm256_packs_epi32(_mm256_srai_epi32::<{ DESCALE_2[1] as i32 }>(sums), zero);
    let bytes = _mm256_add_epi8(_mm256_packs_epi16(words, zero), _mm256_set1_epi8(-128));
    for (half, (start, stride)) in halves(bytes).into_iter().zip(starts) {
        let rows = _mm_cvtsi128_si32(half);
        for (number, row) in [rows as i16, (rows >> 16) as i16].into_iter().enumerate() {
            // SAFETY: the row lies in the samples, by this function's condition.
            unsafe { samples.as_mut_ptr().add(start + number * stride).cast::<i16>().write_unaligned(row) };
        }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn halves(whole: __m256i) -> [__m128i; 2] {
    [_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)]
}

/// Applies one dimension of the transform to eight columns of each of two blocks, like `idct::one_dimension`.
#[target_feature(enable = "avx2")]
#[inline]
fn pass<const SHIFT: i32, const QUARTER: bool>(x: [__m256i; 8]) -> [__m256i; 8] {
    let zero = _mm256_setzero_si256();
    let wide = |a, b| [_mm256_unpacklo_epi16(a, b), _mm256_unpackhi_epi16(a, b)];
    let mul = |pairs: [__m256i; 2], a: i16, b: i16| pairs.map(|pair| self::mul(pair, a, b));
    let add = |a: [__m256i; 2], b: [__m256i; 2]| [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])];
    let sub = |a: [__m256i; 2], b: [__m256i; 2]| [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])];
    // A word above a word of zeros, shifted right by 3, is the word times 2^13.
    let times_8192 = |words| wide(zero, words).map(|word| _mm256_srai_epi32(word, 3));

    let z = wide(x[2], x[6]);
    let tmp2 = mul(z, F_0_541, F_0_541 - F_1_847);
    let tmp3 = mul(z, F_0_541 + F_0_765, F_0_541);
    let (tmp0, tmp1) = if QUARTER {
        let tmp0 = times_8192(x[0]);
        (tmp0, tmp0)
    } else {
        (times_8192(_mm256_add_epi16(x[0], x[4])), times_8192(_mm256_sub_epi16(x[0], x[4])))
    };
    let rounding = _mm256_set1_epi32(1 << (SHIFT - 1));
    let (tmp0, tmp1) = (add(tmp0, [rounding; 2]), add(tmp1, [rounding; 2]));
    let even = [add(tmp0, tmp3), add(tmp1, tmp2), sub(tmp1, tmp2), sub(tmp0, tmp3)];

    let odd = if QUARTER {
        // These sums of factors remain when the other inputs are zero.
        let w = wide(x[1], x[3]);
        [
            mul(w, F_1_501 - F_0_899 + F_1_175 - F_0_390, F_1_175),
            mul(w, F_1_175, F_3_072 - F_2_562 + F_1_175 - F_1_961),
            mul(w, F_1_175 - F_0_390, F_1_175 - F_2_562),
            mul(w, F_1_175 - F_0_899, F_1_175 - F_1_961),
        ]
    } else {
        let z = wide(_mm256_add_epi16(x[7], x[3]), _mm256_add_epi16(x[5], x[1]));
        let z3 = mul(z, F_1_175 - F_1_961, F_1_175);
        let z4 = mul(z, F_1_175, F_1_175 - F_0_390);
        let (outer, inner) = (wide(x[7], x[1]), wide(x[5], x[3]));
        [
            add(mul(outer, -F_0_899, F_1_501 - F_0_899), z4),
            add(mul(inner, -F_2_562, F_3_072 - F_2_562), z3),
            add(mul(inner, F_2_053 - F_2_562, -F_2_562), z4),
            add(mul(outer, F_0_298 - F_0_899, -F_0_899), z3),
        ]
    };
    let scale =
        |sum: [__m256i; 2]| _mm256_packs_epi32(_mm256_srai_epi32::<SHIFT>(sum[0]), _mm256_srai_epi32::<SHIFT>(sum[1]));
    [
        scale(add(even[0], odd[0])),
        scale(add(even[1], odd[1])),
        scale(add(even[2], odd[2])),
        scale(add(even[3], odd[3])),
        scale(sub(even[3], odd[3])),
        scale(sub(even[2], odd[2])),
        scale(sub(even[1], odd[1])),
        scale(sub(even[0], odd[0])),
    ]
}

/// Transposes rows of words in each lane. With `LEFT`, only the first four columns hold nonzero values.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose<const LEFT: bool>(r: [__m256i; 8]) -> [__m256i; 8] {
    let four = |a: [__m256i; 4]| {
        let (top, top_right) = (_mm256_unpacklo_epi32(a[0], a[1]), _mm256_unpackhi_epi32(a[0], a[1]));
        let (bottom, bottom_right) = (_mm256_unpacklo_epi32(a[2], a[3]), _mm256_unpackhi_epi32(a[2], a[3]));
        [
            _mm256_unpacklo_epi64(top, bottom),
            _mm256_unpackhi_epi64(top, bottom),
            _mm256_unpacklo_epi64(top_right, bottom_right),
            _mm256_unpackhi_epi64(top_right, bottom_right),
        ]
    };
    let left = four(std::array::from_fn(|at| _mm256_unpacklo_epi16(r[2 * at], r[2 * at + 1])));
    let right = if LEFT {
        [_mm256_setzero_si256(); 4]
    } else {
        four(std::array::from_fn(|at| _mm256_unpackhi_epi16(r[2 * at], r[2 * at + 1])))
    };
    [left[0], left[1], left[2], left[3], right[0], right[1], right[2], right[3]]
}

/// Samples split into two halves: words of even columns, words of odd columns.
type EvenOdd = [__m256i; 2];

/// # Safety
/// The inputs hold whole groups of 32 pixels.
#[target_feature(enable = "avx2")]
unsafe fn pairs(input: &HalfWidthRow<'_>, out: &mut [u8]) {
    let groups = (input.skip + out.len() / 3).div_ceil(32);
    // One addition centres the difference and rounds it.
    let bias = input.bias.map(|bias| _mm256_set1_epi16(bias - (128 << 4)));
    for group in 0..groups {
        // SAFETY: the group lies in the inputs, by this function's condition.
        let (luma, cb, cr) = unsafe {
            let luma = split(_mm256_loadu_si256(input.luma.as_ptr().add(group * 32).cast()));
            let difference = |sums: &[u16]| {
                let at = |ahead| _mm256_loadu_si256(sums.as_ptr().add(group * 16 + ahead).cast());
                let (before, this, after) = (at(0), at(1), at(2));
                let thrice = _mm256_add_epi16(this, _mm256_add_epi16(this, this));
                let one = |other, bias| _mm256_srai_epi16(_mm256_add_epi16(_mm256_add_epi16(thrice, other), bias), 4);
                [one(before, bias[0]), one(after, bias[1])]
            };
            (luma, difference(input.cb), difference(input.cr))
        };
        put::<0>(rgb(luma, cb, cr), group, input.skip, out);
    }
}

/// # Safety
/// The inputs hold whole groups of 32 pixels.
#[target_feature(enable = "avx2")]
unsafe fn triple<const DIFFERENCES: bool>(input: &Triple<'_>, out: &mut [u8]) {
    let centre = |words: EvenOdd| words.map(|word| _mm256_sub_epi16(word, _mm256_set1_epi16(128)));
    for group in 0..(out.len() / 3).div_ceil(32) {
        // SAFETY: the group lies in the inputs, by this function's condition.
        let [a, b, c] = input.map(|row| split(unsafe { _mm256_loadu_si256(row.as_ptr().add(group * 32).cast()) }));
        let colours = if DIFFERENCES { rgb(a, centre(b), centre(c)) } else { [a, b, c] };
        if DIFFERENCES { put::<1>(colours, group, 0, out) } else { put::<2>(colours, group, 0, out) }
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn split(bytes: __m256i) -> EvenOdd {
    [_mm256_and_si256(bytes, _mm256_set1_epi16(255)), _mm256_srli_epi16(bytes, 8)]
}

/// Converts luma and centred differences to colours, which may be out of range, like `colour::rgb`.
#[target_feature(enable = "avx2")]
#[inline]
fn rgb(luma: EvenOdd, cb: EvenOdd, cr: EvenOdd) -> [EvenOdd; 3] {
    let zero = _mm256_setzero_si256();
    let mut out = [[zero; 2]; 3];
    for half in 0..2 {
        let (y, cb, cr) = (luma[half], cb[half], cr[half]);
        // The product of twice the difference loses its lower half. Adding 1 and halving rounds the rest.
        let product = |difference, factor| {
            let high = _mm256_mulhi_epi16(_mm256_add_epi16(difference, difference), _mm256_set1_epi16(factor));
            _mm256_srai_epi16(_mm256_add_epi16(high, _mm256_set1_epi16(1)), 1)
        };
        let red = _mm256_add_epi16(_mm256_add_epi16(y, cr), product(cr, (colour::CR_RED - 0x1_0000) as i16));
        let twice = _mm256_add_epi16(cb, cb);
        let blue = _mm256_add_epi16(_mm256_add_epi16(y, twice), product(cb, (colour::CB_BLUE - 0x2_0000) as i16));
        let factors = (-colour::CB_GREEN) & 0xFFFF | (0x1_0000 - colour::CR_GREEN) << 16;
        let green = |pair| {
            let sum = _mm256_madd_epi16(pair, _mm256_set1_epi32(factors));
            _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << 15)), 16)
        };
        let both = _mm256_packs_epi32(green(_mm256_unpacklo_epi16(cb, cr)), green(_mm256_unpackhi_epi16(cb, cr)));
        let green = _mm256_add_epi16(_mm256_sub_epi16(y, cr), both);
        (out[0][half], out[1][half], out[2][half]) = (red, green, blue);
    }
    out
}

/// Positions of one colour's bytes of 16 pixels, even columns before odd ones, in each third of 48 bytes.
const PLACES: [[[i8; 16]; 3]; 3] = {
    let mut places = [[[-1; 16]; 3]; 3];
    let mut byte = 0;
    while byte < 48 {
        let pixel = byte / 3;
        places[byte % 3][byte / 16][byte % 16] = (pixel % 2 * 8 + pixel / 2) as i8;
        byte += 1;
    }
    places
};

/// Clamps and interleaves a group of 32 pixels and writes them into a row whose first `skip` pixels are left out.
#[target_feature(enable = "avx2")]
#[inline]
fn put<const SOURCE: u8>(colours: [EvenOdd; 3], group: usize, skip: usize, out: &mut [u8]) {
    let bytes = colours.map(|half| _mm256_packus_epi16(half[0], half[1]));
    let mut thirds = [_mm256_setzero_si256(); 3];
    for (number, third) in thirds.iter_mut().enumerate() {
        for (bytes, places) in bytes.iter().zip(&PLACES) {
            // SAFETY: the places are 16 bytes.
            let places = unsafe { _mm_loadu_si128(places[number].as_ptr().cast()) };
            let moved = _mm256_shuffle_epi8(*bytes, _mm256_broadcastsi128_si256(places));
            *third = _mm256_or_si256(*third, moved);
        }
    }
    let write = |to: *mut u8| {
        for (number, third) in thirds.into_iter().enumerate() {
            // SAFETY: `to` points to 96 bytes.
            unsafe {
                _mm_storeu_si128(to.add(16 * number).cast(), _mm256_castsi256_si128(third));
                _mm_storeu_si128(to.add(48 + 16 * number).cast(), _mm256_extracti128_si256(third, 1));
            }
        }
    };
    let start = group * 96;
    if start >= skip * 3 && start - skip * 3 + 96 <= out.len() {
        write(out[start - skip * 3..][..96].as_mut_ptr());
        return;
    }
    let mut whole = [0; 96];
    write(whole.as_mut_ptr());
    let from = if group == 0 { skip * 3 } else { 0 };
    let to = &mut out[start + from - skip * 3..];
    let len = to.len().min(96 - from);
    to[..len].copy_from_slice(&whole[from..from + len]);
}
