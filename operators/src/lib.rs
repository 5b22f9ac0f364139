//! Preprocessing functions for training data: what each declares about itself, how it is found, and its kernel.
//!
//! # Main types
//!
//! An [`Operator`] is a function of one row. Its [`Descriptor`] holds everything that is known about it without running
//! it: parameters with their defaults, version, determinism, what it does to rows and bytes, documentation. Planner,
//! cache, error texts and the generated reference ([`reference::markdown`]) read the descriptor, and nothing else lists
//! operators or their properties. [`Arguments`] gives an operator its arguments by name. [`OperatorUdf`] makes a
//! DataFusion function of any operator; [`OPERATORS`], [`find`] and [`scalar_udfs`] are the registry. Random operators
//! take their numbers from [`Draws`], a pure function of a row's [`random_key`] and the call site. [`image_column`] describes
//! how images are stored in Arrow; [`image_chain`] runs chains of image operators as one.
//!
//! ```
//! use datafusion::assert_batches_eq;
//! use datafusion::prelude::SessionContext;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> datafusion::error::Result<()> {
//! let context = SessionContext::new();
//! for udf in forebay_operators::scalar_udfs() {
//!     context.register_udf(udf);
//! }
//! let frame = context.sql("SELECT clamp(7.5, 0, 5) AS x, hash_bucket('berlin', 1000) AS bucket").await?;
//! assert_batches_eq!(
//!     ["+-----+--------+", "| x   | bucket |", "+-----+--------+", "| 5.0 | 472    |", "+-----+--------+"],
//!     &frame.collect().await?
//! );
//! # Ok(())
//! # }
//! ```
//!
//! # Adding an operator
//!
//! 1. Write `src/<name>.rs`: a `static` descriptor, a unit struct, `impl Operator`, golden tests. `resize.rs` is a short
//!    one to start from.
//! 2. Add its line to [`registry`], and the `mod` line here.
//! 3. Add an `.slt` with the calls a user would make.
//!
//! The `conformance` suite then runs on it without being told: batches, rows, slices and permutations must agree bit
//! for bit, nulls must stay null, hostile bytes must not panic, and the descriptor must be complete.
//!
//! # What this crate does not do
//!
//! It knows no storage (a tokenizer that a call names is a small local file, see [`files`]), no pipelines and no feeds: bytes arrive as a column, and a random key arrives as a column too.
//! It resolves neither named arguments nor their defaults in SQL text, decides nothing about order, fusion or caching,
//! and does not skip bad rows: an operator fails with the first row it cannot compute, and the engine chooses what
//! becomes of it. Kernels run on the calling thread and use no thread pool of their own.

mod cast_tensor;
mod center_crop;
mod chunk;
mod clamp;
pub mod conformance;
mod decode_image;
pub mod descriptor;
mod drop_near_duplicates;
pub mod files;
mod hash_bucket;
pub mod image_chain;
pub mod image_column;
pub mod keyed;
mod log1p;
pub mod made_rows;
mod mix;
pub mod nearest;
mod normalize;
pub mod operator;
mod pack;
mod pad_to;
mod pixels;
mod random_hflip;
mod random_resized_crop;
pub mod reference;
pub mod registry;
mod resample;
mod resize;
mod reuse;
pub mod row_operator;
mod sleep;
mod table;
mod tensors;
#[cfg(test)]
mod testing;
mod text;

pub use datafusion::scalar::ScalarValue;
pub use descriptor::{
    Commutes, ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, ParameterKind, Rows, STEP_ARGUMENT,
    TypeClass,
};
pub use keyed::{Draws, KEY_ARGUMENTS, random_key};
pub use made_rows::{InputPart, InputRows, Made, MadeRows, MakeRows, RowAt, WindowTooLarge};
pub use nearest::nearest;
pub use operator::{Arguments, Operator, OperatorUdf};
pub use registry::{OPERATORS, TABLE_OPERATORS, descriptor, descriptors, find, find_table_operator, scalar_udfs};
pub use row_operator::{ColumnValue, ReadColumn, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};
