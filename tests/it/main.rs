//! Whole-system tests of what users see. They are one binary, because linking takes most of the build time.

#![allow(missing_docs, reason = "tests say what they test by their names")]

mod support;

mod bad_input;
mod bad_rows;
mod buckets;
mod circles;
mod cluster;
mod dynamic;
mod elastic;
mod feed;
mod house;
mod joins;
mod lost_and_changed;
mod metrics;
mod portable;
mod rotation;
mod rows;
mod security;
mod slt;
mod spec;
mod sql_differences;
mod texts;
mod window_local;
mod wrong_statements;
