//! The configuration of DataFusion for pipelines.

use std::sync::Arc;

use datafusion::execution::SessionStateBuilder;
use datafusion::physical_optimizer::PhysicalOptimizerRule;
use datafusion::physical_optimizer::optimizer::PhysicalOptimizer;
use datafusion::prelude::{SessionConfig, SessionContext};

/// DataFusion with the operators and the syntax of pipelines.
pub(crate) fn planner() -> SessionContext {
    let mut config = SessionConfig::new().with_target_partitions(1).with_information_schema(false);
    let parser = &mut config.options_mut().sql_parser;
    // Arrow's view types are recent: many readers of Flight and IPC do not support them.
    parser.map_string_types_to_utf8view = false;
    parser.collect_spans = true;
    // A feed of a subquery with ORDER BY has that order.
    parser.enable_subquery_sort_elimination = false;
    let mut builder = SessionStateBuilder::new()
        .with_config(config)
        .with_default_features()
        .with_analyzer_rule(forebay_sql::analyzer_rule())
        .with_optimizer_rules(forebay_sql::optimizer_rules())
        .with_physical_optimizer_rules(physical_optimizer_rules());
    let operators = forebay_operators::scalar_udfs().into_iter().map(Arc::new);
    let functions = builder.scalar_functions().get_or_insert_default();
    functions.extend(operators);
    // Later ones replace earlier ones of the same name.
    functions.extend(forebay_operators::portable_math().into_iter().map(Arc::new));
    functions.extend(forebay_operators::text_functions().into_iter().map(Arc::new));
    functions.extend(forebay_operators::list_functions().into_iter().map(Arc::new));
    let aggregates = forebay_operators::fits::aggregates().into_iter().map(Arc::new);
    builder.aggregate_functions().get_or_insert_default().extend(aggregates);
    // First, so that it sees array literals before DataFusion turns them into function calls.
    builder.expr_planners().get_or_insert_default().insert(0, forebay_sql::expr_planner());
    builder.relation_planners().get_or_insert_default().insert(0, forebay_sql::relation_planner());
    SessionContext::new_with_state(builder.build())
}

/// DataFusion's rules without `FilterPushdown`. It moves conditions, and those that joins compute while they run, below
/// projections and sorts, and finds their columns there by name. If two columns have one name, as those of two joined
/// tables may, it can take the wrong one, and rows are lost (apache/datafusion#25259 fixes it, after version 55). Scans
/// of this engine take no such conditions anyway.
fn physical_optimizer_rules() -> Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> {
    let mut rules = PhysicalOptimizer::new().rules;
    rules.retain(|rule| !rule.name().starts_with("FilterPushdown"));
    rules
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_rules_that_move_conditions_by_name_are_left_out() {
        assert_eq!(physical_optimizer_rules().len() + 2, PhysicalOptimizer::new().rules.len());
    }
}
