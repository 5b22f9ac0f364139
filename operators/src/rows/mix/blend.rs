//! The numbers that a call draws to mix a row with its partner.

use super::Mix;
use crate::image_column::Rectangle;
use crate::keyed::Draws;

/// The way two images are mixed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MixMethod {
    /// Blends every pixel.
    Mixup,
    /// Pastes a box.
    Cutmix {
        /// Height in pixels.
        height: usize,
        /// Width in pixels.
        width: usize,
        /// Adjacent values of a pixel: 3, or 1 if each channel is a plane.
        interleaved: usize,
    },
}

/// The mix of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Blend {
    /// The weight of the row's own image, out of [`WHOLE`](Self::WHOLE).
    pub(super) own: u32,
    /// The box that `cutmix` pastes.
    pub(super) pasted: Rectangle,
}

impl Blend {
    pub(super) const WHOLE: u32 = 1 << 16;

    pub(super) fn share(own: u32) -> f64 {
        f64::from(own) / f64::from(Self::WHOLE)
    }

    /// Returns the weight of the row's own label.
    pub(super) fn of_label(&self, way: MixMethod) -> f32 {
        match way {
            MixMethod::Mixup => Self::share(self.own) as f32,
            MixMethod::Cutmix { height, width, .. } => {
                1.0 - (self.pasted.height * self.pasted.width) as f32 / (height * width) as f32
            }
        }
    }
}

impl Mix {
    /// Draws the mix of a row with this random key, for the call at `site`.
    pub(super) fn blend(&self, key: u64, site: u64) -> Blend {
        let mut draws = Draws::new(key, site);
        let mixes = draws.uniform() < f64::from_bits(self.p);
        let lambda = if mixes { beta(f64::from_bits(self.alpha), &mut draws) } else { 1.0 };
        let own = (lambda * f64::from(Blend::WHOLE)).round() as u32;
        let MixMethod::Cutmix { height, width, .. } = self.way else {
            return Blend { own, pasted: Rectangle { top: 0, left: 0, height: 0, width: 0 } };
        };
        let half = 0.5 * (1.0 - Blend::share(own)).sqrt();
        let side = |length: usize, draws: &mut Draws| {
            let (centre, half) = (draws.below(length as u64) as usize, (half * length as f64) as usize);
            let first = centre.saturating_sub(half);
            (first, (centre + half).min(length) - first)
        };
        let (left, width) = side(width, &mut draws);
        let (top, height) = side(height, &mut draws);
        Blend { own, pasted: Rectangle { top, left, height, width } }
    }
}

/// Draws a number from Beta(alpha, alpha), as the ratio of two numbers from Gamma(alpha). These are kept as logarithms,
/// since for a small alpha they are too small for a float.
fn beta(alpha: f64, draws: &mut Draws) -> f64 {
    if alpha == 1.0 {
        return draws.uniform();
    }
    let (a, b) = (ln_gamma(alpha, draws), ln_gamma(alpha, draws));
    1.0 / (1.0 + libm::exp(b - a))
}

/// Draws the logarithm of a number from Gamma(shape, 1): Marsaglia and Tsang, A Simple Method for Generating Gamma
/// Variables (2000), with their reduction of shapes below 1.
fn ln_gamma(shape: f64, draws: &mut Draws) -> f64 {
    if shape < 1.0 {
        let uniform = 1.0 - draws.uniform();
        return ln_gamma(shape + 1.0, draws) + libm::log(uniform) / shape;
    }
    let d = shape - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    loop {
        let x = normal(draws);
        let v = 1.0 + c * x;
        if v <= 0.0 {
            continue;
        }
        let v = v * v * v;
        let uniform = 1.0 - draws.uniform();
        if libm::log(uniform) < 0.5 * x * x + d - d * v + d * libm::log(v) {
            return libm::log(d) + libm::log(v);
        }
    }
}

/// Draws a number from the standard normal distribution: Marsaglia's polar method.
fn normal(draws: &mut Draws) -> f64 {
    loop {
        let (x, y) = (draws.uniform_in(-1.0, 1.0), draws.uniform_in(-1.0, 1.0));
        let square = x * x + y * y;
        if square > 0.0 && square < 1.0 {
            return x * (-2.0 * libm::log(square) / square).sqrt();
        }
    }
}
