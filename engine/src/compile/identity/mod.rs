//! The identity of a query: a hash of its plan in a canonical form, with what the plan depends on.
//!
//! The form is written by a walk over the logical plan ([`nodes`]), its expressions ([`expressions`]) and their
//! constants ([`values`]). Each part begins with a tag and each text with its length, so two forms are equal only for
//! equal plans. The walk refuses what it does not know: a part that is left out would make different queries equal. See
//! decision 31.

mod calls;
mod expressions;
mod form;
mod nodes;
#[cfg(test)]
mod tests;
mod values;

pub(crate) use calls::{files, function_versions, operator_versions, uncacheable_calls};
pub(crate) use nodes::fingerprint;
