//! A call of a table operator as a node of a logical plan.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use datafusion::arrow::datatypes::Fields;
use datafusion::common::{DFSchema, DFSchemaRef, TableReference, internal_err};
use datafusion::error::Result;
use datafusion::logical_expr::{Expr, LogicalPlan, UserDefinedLogicalNodeCore};
use datafusion::scalar::ScalarValue;
use forebay_operators::{RowArguments, RowOperator, RowPlan};

/// A call of a table operator in a plan.
#[derive(Clone, Debug)]
pub struct RowsNode {
    operator: &'static dyn RowOperator,
    constants: Vec<ScalarValue>,
    plan: Arc<RowPlan>,
    input: Arc<LogicalPlan>,
    schema: DFSchemaRef,
}

impl RowsNode {
    /// A call of `operator` over the rows of `input`, with a constant for each parameter after the rows.
    pub(crate) fn try_new(
        operator: &'static dyn RowOperator,
        constants: Vec<ScalarValue>,
        input: LogicalPlan,
    ) -> Result<Self> {
        let descriptor = operator.descriptor();
        let columns: Fields = input.schema().fields().clone();
        let plan = operator.plan(&RowArguments::new(descriptor, &constants, &columns))?;
        let qualifier = TableReference::bare(descriptor.name);
        let fields = plan.results.iter().map(|result| (Some(qualifier.clone()), Arc::clone(&result.field))).collect();
        let metadata = if plan.keeps_columns() { input.schema().metadata().clone() } else { Default::default() };
        let schema = Arc::new(DFSchema::new_with_metadata(fields, metadata)?);
        Ok(Self { operator, constants, plan: Arc::new(plan), input: Arc::new(input), schema })
    }

    /// The called operator.
    pub fn operator(&self) -> &'static dyn RowOperator {
        self.operator
    }

    /// The constants of the call, one for each parameter after the rows.
    pub fn constants(&self) -> &[ScalarValue] {
        &self.constants
    }

    /// The operator's plan of the call.
    pub fn plan(&self) -> &RowPlan {
        &self.plan
    }

    /// The plan of its input rows.
    pub fn input(&self) -> &LogicalPlan {
        &self.input
    }

    /// The fields that identify a call. The operator's plan follows from them.
    fn identity(&self) -> (&'static str, &[ScalarValue], &LogicalPlan) {
        (self.operator.descriptor().name, &self.constants, &self.input)
    }
}

impl PartialEq for RowsNode {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for RowsNode {}

impl PartialOrd for RowsNode {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        self.identity().partial_cmp(&other.identity())
    }
}

impl Hash for RowsNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.identity().hash(state);
    }
}

impl UserDefinedLogicalNodeCore for RowsNode {
    fn name(&self) -> &'static str {
        self.operator.descriptor().name
    }

    fn inputs(&self) -> Vec<&LogicalPlan> {
        vec![&self.input]
    }

    fn schema(&self) -> &DFSchemaRef {
        &self.schema
    }

    fn expressions(&self) -> Vec<Expr> {
        Vec::new()
    }

    /// Displays all fields that identify the call: the operator's version, the columns named in its arguments, and all
    /// constants.
    fn fmt_for_explain(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptor = self.operator.descriptor();
        write!(f, "{}: version={}", descriptor.name, descriptor.version)?;
        for (parameter, column) in &self.plan.columns {
            write!(f, ", {parameter}={:?}", self.input.schema().field(*column).name())?;
        }
        let named = |name: &str| self.plan.columns.iter().any(|(parameter, _)| *parameter == name);
        for (parameter, value) in descriptor.parameters[1..].iter().zip(&self.constants) {
            if !named(parameter.name) {
                write!(f, ", {}={value:?}", parameter.name)?;
            }
        }
        Ok(())
    }

    fn with_exprs_and_inputs(&self, _: Vec<Expr>, mut inputs: Vec<LogicalPlan>) -> Result<Self> {
        match (inputs.pop(), inputs.is_empty()) {
            (Some(input), true) => Ok(Self { input: Arc::new(input), ..self.clone() }),
            _ => internal_err!("a table operator has one input"),
        }
    }
}
