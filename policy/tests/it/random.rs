//! Random numbers from a seed: SplitMix64.

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number from 0 to 1.
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.unit()
    }

    /// A positive number with mean 1 and about this coefficient of variation: log-normal, from twelve uniform ones.
    pub(crate) fn noise(&mut self, variation: f64) -> f64 {
        let normal = (0..12).map(|_| self.unit()).sum::<f64>() - 6.0;
        let sigma = (1.0 + variation * variation).ln().sqrt();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

pub(crate) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    number ^ (number >> 31)
}
