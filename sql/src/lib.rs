//! From text to statement to logical plan, with places in errors
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod calls;
mod depth;
mod diagnosis;
mod error;
mod literals;
mod nearest;
mod parser;
mod plan;
mod refusals;
mod statement;
mod table;
mod tokens;

pub use error::{Error, Place, Result};
pub use literals::expr_planner;
pub use nearest::nearest;
pub use parser::parse;
pub use plan::plan;
pub use statement::{OptionValue, PipelineDefinition, PipelineOption, Statement, TableDefinition};
