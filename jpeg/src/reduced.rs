//! The inverse cosine transform to fewer samples: libjpeg's `jidctred.c`, to 4 x 4 or 2 x 2, and the mean of a block.
//!
//! Each sample is nearly the mean of the samples that the whole transform gives at its position. A few frequencies that
//! hardly matter are left out: number 4 of 8 for four samples, those of even number for two. Values between the column
//! pass and the row pass saturate at 16 bits, as in `idct`.

use crate::blocks::BLOCK;
use crate::idct::{DESCALE, F_0_765, F_0_899, F_1_847, F_2_562, level};

pub(crate) const F_0_211: i16 = 1730;
pub(crate) const F_0_509: i16 = 4176;
pub(crate) const F_0_601: i16 = 4926;
pub(crate) const F_0_720: i16 = 5906;
pub(crate) const F_0_850: i16 = 6967;
pub(crate) const F_1_061: i16 = 8697;
pub(crate) const F_1_272: i16 = 10426;
pub(crate) const F_1_451: i16 = 11893;
pub(crate) const F_2_172: i16 = 17799;
pub(crate) const F_3_624: i16 = 29692;

/// Bits by which each pass scales down, to four samples and to two. A mean is a sum that is halved, or halved twice.
pub(crate) const DESCALE_4: [u32; 2] = [DESCALE[0] + 1, DESCALE[1] + 1];
pub(crate) const DESCALE_2: [u32; 2] = [DESCALE[0] + 2, DESCALE[1] + 2];

/// Turns two blocks into one sample each. Only the first coefficient of a block may be nonzero.
#[inline(always)]
pub(crate) fn means(blocks: &mut [i16; 2 * BLOCK], samples: &mut [u8], starts: [(usize, usize); 2]) {
    for (at, (start, _)) in starts.into_iter().enumerate() {
        samples[start] = mean(std::mem::take(&mut blocks[at * BLOCK]));
    }
}

/// Like `idct::pair`, to 4 x 4 or 2 x 2 samples.
pub(crate) fn pair(
    side: usize,
    blocks: &mut [i16; 2 * BLOCK],
    lasts: [u8; 2],
    samples: &mut [u8],
    starts: [(usize, usize); 2],
) {
    for ((block, last), (start, stride)) in blocks.chunks_exact_mut(BLOCK).zip(lasts).zip(starts) {
        match (side, last) {
            (2, 0) => put([[level(std::mem::take(&mut block[0])); 2]; 2], samples, start, stride),
            (_, 0) => put([[level(std::mem::take(&mut block[0])); 4]; 4], samples, start, stride),
            (2, _) => put(square(block, two::<{ DESCALE_2[0] }>, two::<{ DESCALE_2[1] }>), samples, start, stride),
            _ => put(square(block, four::<{ DESCALE_4[0] }>, four::<{ DESCALE_4[1] }>), samples, start, stride),
        }
    }
}

/// Returns the mean of a block. Beyond four times the range it wraps around, which libjpeg does only here.
#[inline(always)]
fn mean(dc: i16) -> u8 {
    sample(dc.wrapping_add(4) << 3 >> 6)
}

#[inline(always)]
fn sample(value: i16) -> u8 {
    (value.clamp(-128, 127) + 128) as u8
}

/// Transforms columns, then rows, and zeroes the block.
#[inline(always)]
fn square<const SIDE: usize>(
    block: &mut [i16],
    columns: impl Fn([i16; 8]) -> [i16; SIDE],
    rows: impl Fn([i16; 8]) -> [i16; SIDE],
) -> [[u8; SIDE]; SIDE] {
    let between: [[i16; SIDE]; 8] =
        std::array::from_fn(|column| columns(std::array::from_fn(|row| block[row * 8 + column])));
    block.fill(0);
    std::array::from_fn(|row| rows(std::array::from_fn(|column| between[column][row])).map(sample))
}

#[inline(always)]
fn put<const SIDE: usize>(rows: [[u8; SIDE]; SIDE], samples: &mut [u8], start: usize, stride: usize) {
    for (number, row) in rows.iter().enumerate() {
        samples[start + number * stride..][..SIDE].copy_from_slice(row);
    }
}

fn four<const SHIFT: u32>(x: [i16; 8]) -> [i16; 4] {
    let tmp0 = i32::from(x[0]) << 14;
    let tmp2 = sum([(x[2], F_1_847), (x[6], -F_0_765)]);
    let even = [tmp0.wrapping_add(tmp2), tmp0.wrapping_sub(tmp2)];
    let odd = [
        sum([(x[1], F_2_562), (x[3], F_0_899), (x[5], -F_0_601), (x[7], -F_0_509)]),
        sum([(x[1], F_1_061), (x[3], -F_2_172), (x[5], F_1_451), (x[7], -F_0_211)]),
    ];
    [
        scale::<SHIFT>(even[0].wrapping_add(odd[0])),
        scale::<SHIFT>(even[1].wrapping_add(odd[1])),
        scale::<SHIFT>(even[1].wrapping_sub(odd[1])),
        scale::<SHIFT>(even[0].wrapping_sub(odd[0])),
    ]
}

fn two<const SHIFT: u32>(x: [i16; 8]) -> [i16; 2] {
    let even = i32::from(x[0]) << 15;
    let odd = sum([(x[1], F_3_624), (x[3], -F_1_272), (x[5], F_0_850), (x[7], -F_0_720)]);
    [scale::<SHIFT>(even.wrapping_add(odd)), scale::<SHIFT>(even.wrapping_sub(odd))]
}

#[inline(always)]
fn sum<const COUNT: usize>(terms: [(i16, i16); COUNT]) -> i32 {
    terms.iter().fold(0, |sum: i32, (x, factor)| sum.wrapping_add(i32::from(*x) * i32::from(*factor)))
}

#[inline(always)]
fn scale<const SHIFT: u32>(value: i32) -> i16 {
    (value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT).clamp(-32768, 32767) as i16
}
