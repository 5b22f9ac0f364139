//! Hidden columns: row identity and randomness, woven into a plan.
//!
//! The rewrite widens the scan by a row's `sample_id`, its random key and the length of its global step
//! ([`hidden_columns`](super::hidden_columns)), and carries them through every projection ([`weave()`]). It gives each
//! keyed-random call the key of its row and the number of its call site, and each call that depends on the step its
//! length ([`calls`]). After it, a plan is an ordinary deterministic one: the optimizer may move, merge and prune as it
//! likes.
//!
//! At each operator that changes rows the plan is cut: the part below it becomes a layer ([`layers`]), and the part
//! above reads a table of the rows that the layer makes, which has hidden columns of its own.

mod calls;
mod flattened;
mod join;
mod layers;
mod table;
mod table_call;
mod weave;

pub(super) use layers::WovenLayer;
pub(crate) use table::FeedTable;
pub(super) use weave::weave;
