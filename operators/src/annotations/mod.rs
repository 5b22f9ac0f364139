//! Operators on what annotates an image: boxes and points that move with it.
//!
//! Each geometric operator on images has a counterpart for boxes and one for points. A counterpart gets the size of the
//! image and makes the same draws as the image's call with the same `key`, so both move alike. A box never leaves its
//! list: one that is no longer visible becomes `[0, 0, 0, 0]`, so that labels keep their places until
//! `filter_by_boxes` removes both.

mod column;
pub(crate) mod convert;
pub(crate) mod filter;
mod geometry;
#[cfg(test)]
mod golden;
pub(crate) mod operators;
