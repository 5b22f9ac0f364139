//! A scan's header (T.81, B.2.3) and its restart intervals.

use crate::bits::{Bits, Entropy};
use crate::blocks::Predictions;
use crate::error::Error;
use crate::header::Header;

/// One component of a scan.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ScanComponent {
    /// The component's index in the frame.
    pub(crate) component: usize,
    /// The numbers of its Huffman tables.
    pub(crate) dc: usize,
    pub(crate) ac: usize,
}

/// The content of a scan.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scan {
    parts: [ScanComponent; 4],
    count: usize,
    /// The first and last zigzag index in a block.
    pub(crate) first: usize,
    pub(crate) last: usize,
    /// Number of low bits missing before the scan, or 0 if it is the first one, and number missing after it.
    pub(crate) high: u32,
    pub(crate) low: u32,
}

impl Scan {
    pub(crate) fn read(header: &Header, content: &[u8]) -> Result<Self, Error> {
        let bad = Error::Damaged("a scan header that does not fit the frame");
        let [count, rest @ ..] = content else { return Err(bad) };
        let count = usize::from(*count);
        if !(1..=header.components().len()).contains(&count) || rest.len() != 2 * count + 3 {
            return Err(bad);
        }
        let mut parts = [ScanComponent::default(); 4];
        let mut used = [false; 4];
        for (part, bytes) in parts.iter_mut().zip(rest[..2 * count].chunks_exact(2)) {
            let mut named = header.components().iter().zip(used).enumerate();
            let component = named.find(|(_, (component, used))| component.id == bytes[0] && !used);
            let (dc, ac) = (usize::from(bytes[1] >> 4), usize::from(bytes[1] & 15));
            let Some((component, _)) = component.filter(|_| dc <= 3 && ac <= 3) else { return Err(bad) };
            used[component] = true;
            *part = ScanComponent { component, dc, ac };
        }
        let [first, last, bits] = [rest[2 * count], rest[2 * count + 1], rest[2 * count + 2]];
        let (first, last) = (usize::from(first), usize::from(last));
        Ok(Self { parts, count, first, last, high: u32::from(bits >> 4), low: u32::from(bits & 15) })
    }

    /// Returns whether a progressive scan is one that the standard allows (T.81, G.1.1.1).
    pub(crate) fn is_progressive(&self) -> bool {
        let band = match self.first {
            0 => self.last == 0,
            _ => self.first <= self.last && self.last <= 63 && self.count == 1,
        };
        band && self.low <= 13 && (self.high == 0 || self.high == self.low + 1)
    }

    pub(crate) fn parts(&self) -> &[ScanComponent] {
        &self.parts[..self.count]
    }
}

/// A cursor over the restart intervals of a scan.
#[derive(Debug)]
pub(crate) struct Intervals<'a> {
    entropy: &'a Entropy,
    /// MCUs in an interval.
    interval: usize,
    /// MCUs left in the current interval.
    left: usize,
    number: usize,
    pub(crate) bits: Bits<'a>,
    pub(crate) predictions: Predictions,
}

impl<'a> Intervals<'a> {
    /// Starts at the first interval. `interval` is 0 for a scan without restarts.
    pub(crate) fn new(entropy: &'a Entropy, interval: usize) -> Result<Self, Error> {
        let interval = if interval == 0 { usize::MAX } else { interval };
        let bits = entropy.interval(0)?;
        Ok(Self { entropy, interval, left: interval, number: 0, bits, predictions: Predictions::default() })
    }

    /// Takes at most `wanted` MCUs without a restart between them. Returns their number, and whether they begin an
    /// interval.
    pub(crate) fn take(&mut self, wanted: usize) -> Result<(usize, bool), Error> {
        if self.left == 0 {
            self.bits.finish()?;
            self.number += 1;
            self.bits = self.entropy.interval(self.number)?;
            self.predictions = Predictions::default();
            self.left = self.interval;
        }
        let fresh = self.left == self.interval;
        let count = wanted.min(self.left);
        self.left -= count;
        Ok((count, fresh))
    }
}
