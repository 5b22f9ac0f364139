//! Hidden columns: row identity and randomness, woven into a plan.
//!
//! The rewrite adds a row's `sample_id`, its random key and the length of its global step to the scan
//! ([`hidden_columns`](super::hidden_columns)), and carries them through every projection ([`weave()`]). It passes each
//! keyed-random call the key of its row and its call site's number, and each step-dependent call the step's length
//! ([`calls`]), and may reorder calls ([`relaxed`]). Masks that are cropped like their images get a check of their size
//! ([`masks`]). The result is an ordinary deterministic plan, so the optimizer may move, merge and prune freely.
//!
//! The plan is cut at each operator that derives rows. The part below it becomes a layer ([`layers`]). The part above
//! reads a table of the layer's rows, which has its own hidden columns.

mod calls;
mod flattened;
mod join;
mod layers;
mod masks;
mod relaxed;
mod shared_draws;
mod table;
mod table_call;
mod weave;

pub(super) use layers::{Woven, WovenLayer};
pub(crate) use table::FeedTable;
pub(super) use weave::weave;
