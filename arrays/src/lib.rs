//! Facts about Arrow columns shared by all parts of a feed.
//!
//! - [`TensorType`] reads and writes the metadata of tensor columns.
//! - [`digest()`] identifies the fields and values of a batch, whatever their layout in memory.
//! - [`DeferredStep`] is the last step of a column, which the feed's reader computes.
//! - [`pool`] recycles the memory of large arrays.
//!
//! ```
//! use arrow::datatypes::DataType;
//! use forebay_arrays::{FixedShapeTensor, TensorType};
//!
//! let matrix = FixedShapeTensor::new(DataType::Float32, vec![2, 3]);
//! let field = matrix.field("matrix", false).expect("six values fit into a list");
//! assert_eq!(TensorType::of(&field), Some(TensorType::Fixed(matrix)));
//! ```
//!
//! The crate depends on Arrow and on no other crate of Forebay: the operators, the engine, the Flight client and the
//! Python package all use it, and a trainer that only reads links nothing else of the engine.

mod deferred;
mod digest;
mod join;
pub mod pool;
mod size;
mod tensor_type;
mod views;

pub use deferred::{DeferredStep, Widen, finish_deferred, matches_when_finished};
pub use digest::{digest, schema_digest};
pub use join::{JoinedSize, joined};
pub use size::{batch_bytes, column_bytes};
pub use tensor_type::{
    BFLOAT16, DTYPE_KEY, FixedShapeTensor, MalformedTensor, TensorType, VariableShapeTensor, item, type_name,
};
pub use views::without_views;

/// Why a column cannot be computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ColumnError {
    /// The result exceeds what one Arrow array can address. Smaller batches help.
    Exhausted(String),
    /// The values contradict their type.
    Damaged(String),
    /// A caller passed a column of the wrong type: a bug.
    Internal(String),
}

impl std::fmt::Display for ColumnError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Exhausted(message) | Self::Damaged(message) | Self::Internal(message)) = self;
        f.write_str(message)
    }
}

impl std::error::Error for ColumnError {}
