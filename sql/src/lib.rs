//! Parses text to statements, and plans a pipeline's query, with places in errors.
//!
//! Forebay's SQL is DataFusion's SQL with a few statements about pipelines. [`parse`] turns a text into [`Statement`]s:
//! names, options, and the exact text of each pipeline's query. [`plan()`] turns the query of a [`PipelineDefinition`]
//! into DataFusion's `LogicalPlan`. It requires a session with the tables, the operators, [`expr_planner`] and
//! [`relation_planner`]. It refuses queries that a feed cannot run, converts the named arguments and defaults of
//! operators to positional arguments, and lets DataFusion plan the rest. A call of a table operator becomes a
//! [`RowsNode`]. An [`Error`] has a message, the [`Place`] in the text and a hint; [`Error::render`] shows them below
//! the source line.
//!
//! ```
//! use std::sync::Arc;
//!
//! use datafusion::arrow::datatypes::{DataType, Field, Schema};
//! use datafusion::datasource::empty::EmptyTable;
//! use datafusion::execution::SessionStateBuilder;
//! use datafusion::prelude::SessionContext;
//! use forebay_sql::{Statement, expr_planner, parse, plan};
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! // Before DataFusion's own planners, which turn every array into a call of `make_array`.
//! let state = SessionStateBuilder::new().with_expr_planners(vec![expr_planner()]).with_default_features().build();
//! let session = SessionContext::new_with_state(state);
//! forebay_operators::scalar_udfs().into_iter().for_each(|function| session.register_udf(function));
//! let columns = Schema::new(vec![Field::new("path", DataType::Utf8, false)]);
//! session.register_table("photos", Arc::new(EmptyTable::new(Arc::new(columns)))).unwrap();
//!
//! let text = "CREATE PIPELINE train WITH (seed = 17) AS
//!     SELECT hash_bucket(path, buckets => 10) AS fold FROM photos";
//! let Some(Statement::CreatePipeline(pipeline)) = parse(text).unwrap().pop() else { unreachable!() };
//! assert_eq!(pipeline.name, "train");
//! let plan = plan(&pipeline, "".as_ref(), &session.state()).await.unwrap();
//! assert!(plan.to_string().starts_with("Projection: hash_bucket(photos.path, Int64(10), Int64(0)) AS fold"));
//!
//! let error = parse("CREATE PIPLINE train AS SELECT path FROM photos").unwrap_err();
//! assert_eq!(error.message(), "expected PIPELINE or EXTERNAL TABLE after CREATE, found \"PIPLINE\"");
//! assert_eq!(error.place().unwrap().to_string(), "line 1, column 8");
//! assert_eq!(error.hint(), Some("did you mean PIPELINE?"));
//! # });
//! ```
//!
//! This crate does not run or store anything, does not know where tables come from, and does not cut or optimize plans.
//! It parses the options of pipelines and tables with their places; the engine and storage check them.
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access;
mod arithmetic;
mod calls;
mod depth;
mod diagnosis;
mod error;
mod fits;
mod fitted_field;
mod float_keys;
mod functions;
mod literals;
mod local_time;
mod parser;
mod plan;
mod refusals;
mod relations;
mod rows_node;
mod sample;
mod statement;
mod table;
mod tokens;

pub use arithmetic::optimizer_rules;
pub use error::{Error, Place, Result};
pub use fitted_field::{FittedField, KeptName};
pub use float_keys::tells_floats_apart;
pub use literals::expr_planner;
pub use local_time::analyzer_rule;
pub use parser::parse;
pub use plan::{needs_all_rows, place_of, plan, plan_query};
pub use relations::relation_planner;
pub use rows_node::RowsNode;
pub use sample::SAMPLE;
pub use statement::{
    MaterializeDefinition, MaterializeSource, OptionValue, PipelineDefinition, PipelineOption, QueryDefinition,
    Statement, TableDefinition,
};
