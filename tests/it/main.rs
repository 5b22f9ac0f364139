//! Whole-system tests: what a user could see. One binary, since linking is what costs.

#![allow(missing_docs, reason = "tests say what they test by their names")]

mod support;

mod bad_input;
mod feed;
mod house;
mod slt;
