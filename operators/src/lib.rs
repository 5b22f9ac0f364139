//! Preprocessing functions for training data: their declarations, their registry and their kernels.
//!
//! # Main types
//!
//! An [`Operator`] is a function of one row. Its [`Descriptor`] holds the properties that are known without running it:
//! parameters with their defaults, version, determinism, effects on rows and bytes, documentation. The planner, the
//! cache, error texts and the generated reference ([`reference::markdown`]) read the descriptor. No other list of
//! operators or their properties exists. [`Arguments`] gives an operator its arguments by name. [`OperatorUdf`] makes a
//! DataFusion function of any operator. [`OPERATORS`], [`find`] and [`scalar_udfs`] are the registry.
//!
//! A [`RowOperator`] is a table operator: a function of rows, called in FROM. It makes a [`RowPlan`] from a call, and
//! [`MakeRows`] then gives the input row from which each new row derives. [`TABLE_OPERATORS`] and
//! [`find_table_operator`] are the registry of table operators.
//!
//! Random operators take their numbers from [`Draws`], a pure function of a row's [`random_key`] and the call site.
//! [`image_column`] describes how images are stored in Arrow; [`image_chain`] runs chains of image operators as one.
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
//! 1. Write `src/<name>.rs`: a `static` descriptor that ends with `..Descriptor::BASE`, a unit struct, `impl Operator`,
//!    golden tests. `resize.rs` is a short one to start from.
//! 2. Add its line to [`registry`], and its `mod` line here.
//! 3. Add `tests/slt/<name>.slt` with the calls that a user would make.
//! 4. Run `cargo run -- operators --output markdown > docs/operators.md`.
//!
//! The [`conformance`] suite then runs on it automatically: batches, rows, slices and permutations must agree bit for
//! bit, nulls must stay null, hostile bytes must not panic, and every claim of the descriptor must hold.
//!
//! # Adding a fit
//!
//! A [fit](fits) is a call whose constants follow from rows, such as `categorify`: write its file in `src/fits/`, with a
//! line in [`fits::FITS`], and do steps 3 and 4.
//!
//! # Adding a table operator
//!
//! The same four steps in the folder `src/rows/`, with `impl RowOperator`; the `mod` line and the line of
//! [`TABLE_OPERATORS`] are both in `src/rows/mod.rs`. `drop_near_duplicates.rs` is one that keeps the columns of its
//! input ([`RowPlan::keeping`]), `pack.rs` one that computes its own. The examples of its descriptor are whole queries
//! over the tables `numbers` and `pictures` of `tests/slt/data`. The suite in [`conformance::tables`] checks that rows
//! do not depend on how a window is divided or ordered, that identities are unique, and that windows of no rows, of one
//! row and with bad rows are computed.
//!
//! # What this crate does not do
//!
//! It knows no storage, pipelines or feeds: bytes and random keys arrive as columns. (A tokenizer that a call names is
//! a small local file, see [`files`].) It does not resolve named arguments or their defaults in SQL text, and it makes
//! no decisions about order, fusion or caching. It does not skip bad rows: an operator fails with the first row that it
//! cannot compute, and the engine decides about that row. Kernels run on the calling thread and use no thread pool of
//! their own.

mod accumulating;
mod annotations;
mod arguments;
mod call_cost;
mod cast_tensor;
mod center_crop;
mod check_size;
mod checked_arithmetic;
mod checked_sum;
mod chunk;
mod clamp;
pub mod conformance;
mod constants;
mod decode_image;
pub mod descriptor;
mod digests;
pub mod files;
pub mod fits;
mod float_key;
mod hash_bucket;
mod hash_split;
pub mod image_chain;
pub mod image_column;
mod json;
mod keep_position;
pub mod keyed;
mod list_functions;
mod log1p;
pub mod made_rows;
mod masks;
mod measured;
mod normalize;
pub mod operator;
mod pad_to;
mod pixels;
mod portable_math;
mod random;
mod random_hflip;
mod random_resized_crop;
pub mod reference;
pub mod registry;
mod resample;
mod resize;
mod reuse;
pub mod row_operator;
mod rows;
mod sleep;
mod strip;
mod table;
mod tensors;
#[cfg(test)]
mod testing;
mod text;
mod text_functions;
mod waiting;

pub use accumulating::{aggregated_rows, for_each_value, replace_aggregates};
pub use call_cost::{CallCost, CallCosts};
pub use checked_arithmetic::checked_arithmetic;
pub use checked_sum::checked_sum;
pub use datafusion::scalar::ScalarValue;
pub use descriptor::{
    ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, ParameterKind, Pixels, ReducedDecode, Rows,
    STEP_ARGUMENT, SizeRatio, TypeClass,
};
pub use float_key::float_key;
pub use json::json_access;
pub use keep_position::KEEP_POSITION;
pub use keyed::{Draws, KEY_ARGUMENTS, random_key, shared_site};
pub use list_functions::list_functions;
pub use made_rows::{InputPart, InputRows, Made, MadeRows, MakeRows, RowAt, WindowTooLarge};
pub use masks::{Decoding, KeyedCrop, image_of, smoothing};
pub use measured::measured;
pub use operator::{Arguments, Operator, OperatorUdf};
pub use portable_math::{portable_math, portable_version};
pub use random::pick::pick_lazily;
pub use registry::{OPERATORS, descriptor, descriptors, find, find_table_operator, scalar_udf, scalar_udfs};
pub use row_operator::{ColumnValue, ReadColumn, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};
pub use rows::TABLE_OPERATORS;
pub use text_functions::{LENGTHENING, TEXT_LENGTH_MAX, length_unit, text_functions};
pub use waiting::{replace_while_waiting, waiting};
