//! Operators on decoded images, most of which keep their number of pixels.
//!
//! [`steps`] has what is done to one image, [`affine`] and [`blur`] its larger kernels; [`augment`] and [`policy`] are the
//! operators that draw which steps, by key.

mod affine;
pub(crate) mod augment;
mod blur;
pub(crate) mod encode;
#[cfg(test)]
mod golden;
pub(crate) mod in_place;
pub(crate) mod pad;
pub(crate) mod policy;
pub(crate) mod random_crop;
mod steps;
pub(crate) mod to_chw;
