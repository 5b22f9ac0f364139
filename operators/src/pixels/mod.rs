//! Operators on decoded images that keep their number of pixels or cut them.

pub(crate) mod in_place;
pub(crate) mod random_crop;
