//! Whole-system tests: what a user could see. One binary, since linking is what costs.

#![allow(missing_docs, reason = "tests say what they test by their names")]

mod support;

mod bad_input;
mod bad_rows;
mod buckets;
mod cluster;
mod dynamic;
mod elastic;
mod feed;
mod house;
mod joins;
mod lost_and_changed;
mod metrics;
mod rows;
mod security;
mod slt;
mod spec;
mod texts;
mod window_local;
