//! The identity of a query: a hash of its plan's canonical form and of the plan's dependencies.
//!
//! A walk over the logical plan ([`nodes`]), its expressions ([`expressions`]) and their constants ([`values`]) writes
//! the form. Nodes and expressions that need several rows are in [`whole_tables`] and [`aggregates`]. Each part begins
//! with a tag and each text with its length, so only equal plans have equal forms. The walk refuses unknown parts:
//! omitting one would make different queries equal. See decision 31.

mod aggregates;
mod calls;
mod expressions;
mod form;
mod nodes;
#[cfg(test)]
mod tests;
mod values;
mod whole_tables;

pub(crate) use calls::{files, function_versions, operator_versions, uncacheable_calls};
pub(crate) use nodes::{VERSION, fingerprint};
