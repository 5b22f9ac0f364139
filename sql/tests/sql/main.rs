//! Tests of the crate's public behaviour: statements, plans and error texts.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod errors;
mod mutations;
mod plans;
mod statements;

use std::sync::Arc;

use datafusion::arrow::datatypes::{DataType, Field, Schema};
use datafusion::datasource::empty::EmptyTable;
use datafusion::execution::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::LogicalPlan;
use datafusion::prelude::SessionContext;
use forebay_sql::{
    PipelineDefinition, QueryDefinition, Result, Statement, expr_planner, parse, plan, plan_query, relation_planner,
};

/// A session with two tables of image files.
fn session() -> SessionState {
    let state = SessionStateBuilder::new()
        .with_expr_planners(vec![expr_planner()])
        .with_relation_planners(vec![relation_planner()])
        .with_default_features()
        .build();
    let context = SessionContext::new_with_state(state);
    for function in forebay_operators::scalar_udfs() {
        context.register_udf(function);
    }
    for function in forebay_operators::fits::aggregates() {
        context.register_udaf(function);
    }
    let photos = Schema::new(vec![
        Field::new("bytes", DataType::Binary, true),
        Field::new("path", DataType::Utf8, true),
        Field::new("size", DataType::Int64, true),
        Field::new("label", DataType::Int64, true),
        Field::new("Weight", DataType::Float32, true),
    ]);
    context.register_table("photos", Arc::new(EmptyTable::new(Arc::new(photos)))).unwrap();
    let scans =
        Schema::new(vec![Field::new("bytes", DataType::Binary, true), Field::new("text", DataType::Utf8, true)]);
    context.register_table("scans", Arc::new(EmptyTable::new(Arc::new(scans)))).unwrap();
    let item = Arc::new(Field::new_list_field(DataType::Int64, true));
    let texts = Schema::new(vec![
        Field::new("tokens", DataType::List(Arc::clone(&item)), true),
        Field::new("words", DataType::LargeList(item), true),
        Field::new("text", DataType::Utf8, true),
    ]);
    context.register_table("texts", Arc::new(EmptyTable::new(Arc::new(texts)))).unwrap();
    context.state()
}

/// The pipeline of a text that contains nothing else.
fn pipeline(text: &str) -> Result<PipelineDefinition> {
    match parse(text)?.pop() {
        Some(Statement::CreatePipeline(pipeline)) => Ok(pipeline),
        other => panic!("expected a pipeline, got {other:?}"),
    }
}

/// Plans a pipeline on this thread. Tests have two megabytes of stack, like the threads of a server.
fn planned(pipeline: &PipelineDefinition, state: &SessionState) -> Result<LogicalPlan> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(plan(pipeline, "".as_ref(), state))
}

/// Plans a query whose rows are looked at.
fn query_planned(query: &QueryDefinition, state: &SessionState) -> Result<LogicalPlan> {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(plan_query(query, "".as_ref(), state))
}
