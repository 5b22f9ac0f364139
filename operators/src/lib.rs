//! Preprocessing functions for training data: what they declare, how they are found, and their kernels.

mod center_crop;
mod clamp;
mod decode_image;
#[doc(hidden)]
pub mod conformance;
pub mod descriptor;
mod hash_bucket;
pub mod keyed;
mod log1p;
mod normalize;
pub mod operator;
mod random_hflip;
mod random_resized_crop;
pub mod reference;
pub mod registry;
mod resize;
pub mod tensor;
#[cfg(test)]
mod testing;

pub use descriptor::{
    Commutes, ConstantKind, Descriptor, Determinism, Example, Parameter, ParameterKind, Rows, TypeClass,
};
pub use keyed::{Draws, KEY_ARGUMENTS, random_key};
pub use operator::{Arguments, Operator, OperatorUdf};
pub use registry::{OPERATORS, find, nearest, scalar_udfs};
