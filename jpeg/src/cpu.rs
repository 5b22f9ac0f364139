//! Selects the implementation: the portable one, or the one for this processor.

#[cfg(target_arch = "x86_64")]
use crate::avx2::Avx2;
use crate::bits::{self, Bits};
use crate::blocks::{self, BLOCK, BlockSpec, Predictions};
use crate::colour::{self, HalfWidthRow, Triple};
use crate::error::Error;
use crate::idct;
use crate::reduced;

/// An implementation. All implementations give the same bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Cpu {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
}

impl Default for Cpu {
    fn default() -> Self {
        #[cfg(target_arch = "x86_64")]
        if let Some(found) = Avx2::detect() {
            return Self::Avx2(found);
        }
        Self::Portable
    }
}

impl Cpu {
    pub(crate) fn copy(self, from: &[u8], to: &mut [u8]) -> usize {
        match self {
            Self::Portable => bits::copy(from, to),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.copy(from, to),
        }
    }

    pub(crate) fn read(
        self,
        bits: &mut Bits<'_>,
        mcu: &[BlockSpec<'_>],
        predictions: &mut Predictions,
        coefficients: &mut [i16],
        lasts: &mut [u8],
    ) -> Result<(), Error> {
        match self {
            Self::Portable => blocks::read(bits, mcu, predictions, coefficients, lasts),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.read(bits, mcu, predictions, coefficients, lasts),
        }
    }

    pub(crate) fn skip(
        self,
        bits: &mut Bits<'_>,
        mcu: &[BlockSpec<'_>],
        predictions: &mut Predictions,
        mcus: usize,
    ) -> Result<(), Error> {
        match self {
            Self::Portable => blocks::skip(bits, mcu, predictions, mcus),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.skip(bits, mcu, predictions, mcus),
        }
    }

    /// Transforms two blocks, each to `side` x `side` samples: 8, 4, 2 or 1.
    #[inline]
    pub(crate) fn pair(
        self,
        side: usize,
        blocks: &mut [i16; 2 * BLOCK],
        lasts: [u8; 2],
        samples: &mut [u8],
        starts: [(usize, usize); 2],
    ) {
        match (side, self) {
            (1, _) => reduced::means(blocks, samples, starts),
            (8, Self::Portable) => idct::pair(blocks, lasts, samples, starts),
            #[cfg(target_arch = "x86_64")]
            (8, Self::Avx2(cpu)) => cpu.pair(blocks, lasts, samples, starts),
            (_, Self::Portable) => reduced::pair(side, blocks, lasts, samples, starts),
            #[cfg(target_arch = "x86_64")]
            (_, Self::Avx2(cpu)) => cpu.reduced(side, blocks, lasts, samples, starts),
        }
    }

    pub(crate) fn sums(self, near: &[u8], far: Option<&[u8]>, out: &mut [u16]) {
        match self {
            Self::Portable => colour::sums(near, far, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.sums(near, far, out),
        }
    }

    pub(crate) fn pairs(self, input: &HalfWidthRow<'_>, out: &mut [u8]) {
        match self {
            Self::Portable => colour::pairs(input, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.pairs(input, out),
        }
    }

    pub(crate) fn triple(self, input: &Triple<'_>, differences: bool, out: &mut [u8]) {
        match self {
            Self::Portable => colour::triple(input, differences, out),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(cpu) => cpu.triple(input, differences, out),
        }
    }
}
