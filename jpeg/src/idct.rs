//! The inverse cosine transform: libjpeg's accurate integer method (`jidctint.c`; Loeffler, Ligtenberg and Moschytz,
//! ICASSP 1989).
//!
//! Where the method leaves a choice, this follows libjpeg-turbo's vector code: sums of coefficients wrap at 16 bits,
//! and values between the column pass and the row pass saturate at 16 bits. The choice affects hostile files only, but
//! it makes all implementations agree on them too.

use crate::blocks::BLOCK;

const CONST_BITS: u32 = 13;
const PASS1_BITS: u32 = 2;
/// Bits by which the first and the second pass scale down.
pub(crate) const DESCALE: [u32; 2] = [CONST_BITS - PASS1_BITS, CONST_BITS + PASS1_BITS + 3];

pub(crate) const F_0_298: i16 = 2446;
pub(crate) const F_0_390: i16 = 3196;
pub(crate) const F_0_541: i16 = 4433;
pub(crate) const F_0_765: i16 = 6270;
pub(crate) const F_0_899: i16 = 7373;
pub(crate) const F_1_175: i16 = 9633;
pub(crate) const F_1_501: i16 = 12299;
pub(crate) const F_1_847: i16 = 15137;
pub(crate) const F_1_961: i16 = 16069;
pub(crate) const F_2_053: i16 = 16819;
pub(crate) const F_2_562: i16 = 20995;
pub(crate) const F_3_072: i16 = 25172;

/// The highest zigzag index up to which all coefficients are in the first four rows and columns.
pub(crate) const QUARTER: u8 = 9;

/// Transforms two blocks, zeroes them, and writes their samples at `starts`.
pub(crate) fn pair(blocks: &mut [i16; 2 * BLOCK], lasts: [u8; 2], samples: &mut [u8], starts: [(usize, usize); 2]) {
    for ((block, last), (start, stride)) in blocks.chunks_exact_mut(BLOCK).zip(lasts).zip(starts) {
        if last == 0 {
            let value = level(block[0]);
            block[0] = 0;
            for row in 0..8 {
                samples[start + row * stride..][..8].fill(value);
            }
            continue;
        }
        let mut between = [0; BLOCK];
        for column in 0..8 {
            let input = std::array::from_fn(|row| block[row * 8 + column]);
            let output = one_dimension::<{ DESCALE[0] }>(input);
            output.iter().enumerate().for_each(|(row, value)| between[row * 8 + column] = *value);
        }
        for row in 0..8 {
            let input = std::array::from_fn(|column| between[row * 8 + column]);
            let output = one_dimension::<{ DESCALE[1] }>(input);
            let out = &mut samples[start + row * stride..][..8];
            out.iter_mut().zip(output).for_each(|(out, value)| *out = (value.clamp(-128, 127) + 128) as u8);
        }
        block.fill(0);
    }
}

/// Returns the sample value that fills a block without AC coefficients.
#[inline(always)]
pub(crate) fn level(dc: i16) -> u8 {
    let between = i32::from(dc).saturating_mul(1 << PASS1_BITS).clamp(-32768, 32767);
    (((between + 16) >> 5).clamp(-128, 127) + 128) as u8
}

fn one_dimension<const SHIFT: u32>(x: [i16; 8]) -> [i16; 8] {
    let mul = |a: i16, fa: i16, b: i16, fb: i32| i32::from(a) * i32::from(fa) + i32::from(b) * fb;
    let wide = i32::from;

    let tmp2 = mul(x[2], F_0_541, x[6], wide(F_0_541) - wide(F_1_847));
    let tmp3 = mul(x[6], F_0_541, x[2], wide(F_0_541) + wide(F_0_765));
    let tmp0 = wide(x[0].wrapping_add(x[4])) << CONST_BITS;
    let tmp1 = wide(x[0].wrapping_sub(x[4])) << CONST_BITS;
    let even = [tmp0.wrapping_add(tmp3), tmp1.wrapping_add(tmp2), tmp1.wrapping_sub(tmp2), tmp0.wrapping_sub(tmp3)];

    let (z3, z4) = (x[7].wrapping_add(x[3]), x[5].wrapping_add(x[1]));
    let z3_ = mul(z4, F_1_175, z3, wide(F_1_175) - wide(F_1_961));
    let z4_ = mul(z3, F_1_175, z4, wide(F_1_175) - wide(F_0_390));
    let odd = [
        mul(x[7], -F_0_899, x[1], wide(F_1_501) - wide(F_0_899)).wrapping_add(z4_),
        mul(x[5], -F_2_562, x[3], wide(F_3_072) - wide(F_2_562)).wrapping_add(z3_),
        mul(x[3], -F_2_562, x[5], wide(F_2_053) - wide(F_2_562)).wrapping_add(z4_),
        mul(x[1], -F_0_899, x[7], wide(F_0_298) - wide(F_0_899)).wrapping_add(z3_),
    ];

    let scale = |value: i32| (value.wrapping_add(1 << (SHIFT - 1)) >> SHIFT).clamp(-32768, 32767) as i16;
    std::array::from_fn(|at| match at {
        0..4 => scale(even[at].wrapping_add(odd[at])),
        _ => scale(even[7 - at].wrapping_sub(odd[7 - at])),
    })
}
