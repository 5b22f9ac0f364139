//! Operators on decoded images. Most of them keep the number of pixels.
//!
//! [`adjustments`] has the changes of one image, and [`affine`] and [`blur`] their larger kernels. The operators in
//! [`augment`] and [`policy`] draw changes by key.

mod adjustments;
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
pub(crate) mod to_chw;
