//! Queries whose rows are looked at: see [`batch`](crate::batch).

use std::sync::Arc;

use datafusion::prelude::SessionContext;
use forebay_sql::{QueryDefinition, Statement};
use futures::FutureExt;
use futures::future::BoxFuture;

use super::Session;
use super::catalog::reference;
use super::statements::{Failure, Script};
use crate::batch::{BatchTable, Query, check_fits, determined_fits, without_tables};
use crate::compile;
use crate::error::{Error, Result};
use crate::pipeline::{Refusal, misplaced};

impl Session {
    /// Checks a query over this session's tables. It runs when its rows are read. Errors show lines of the query.
    ///
    /// # Errors
    /// `Invalid` for a text that is not one query, or that cannot be run.
    pub async fn query(&self, text: &str) -> Result<Query> {
        let _executing = self.executing.lock().await;
        let script = Script { name: "query", text };
        match script.statements()?.as_slice() {
            [Statement::Query(definition)] => {
                self.checked_query(definition).await.map_err(|failure| script.error(failure))
            }
            _ => Err(Error::invalid("the text is not one query").with_hint("write one SELECT")),
        }
    }

    /// Whether a text is one query that can be run only over all rows of its tables, and not as a pipeline.
    ///
    /// # Errors
    /// Those of parsing the text.
    pub fn needs_all_rows(&self, text: &str) -> Result<bool> {
        let script = Script { name: "query", text };
        match script.statements()?.as_slice() {
            [Statement::Query(query)] => forebay_sql::needs_all_rows(query, &self.catalog.state())
                .map_err(|error| script.error(Failure::Refused(Refusal::Placed(error)))),
            _ => Ok(false),
        }
    }

    /// Boxed like the future of a statement.
    pub(super) fn checked_query<'a>(
        &'a self,
        definition: &'a QueryDefinition,
    ) -> BoxFuture<'a, Result<Query, Failure>> {
        self.planned_query(definition).boxed()
    }

    async fn planned_query(&self, definition: &QueryDefinition) -> Result<Query, Failure> {
        let at = |error| Failure::At(definition.place, error);
        let state = self.over_whole_tables().map_err(at)?.state();
        let plan = forebay_sql::plan_query(definition, &self.base, &state)
            .await
            .map_err(|error| Failure::Refused(Refusal::Placed(error)))?;
        let failure = |reason| Failure::of(misplaced(&definition.text, definition.place, reason), definition.place);
        compile::check_planned(&plan).map_err(failure)?;
        let analyzed = compile::analyzed(plan.clone(), &state).map_err(at)?;
        compile::check_analyzed(&plan, &analyzed, &state).map_err(failure)?;
        let plan = determined_fits(analyzed).map_err(|error| at(error.into()))?;
        check_fits(&plan).map_err(at)?;
        Ok(Query::new(definition.text.clone(), plan, state, self.batch.clone(), Arc::clone(&self.executor)))
    }

    /// DataFusion with all tables, whose rows it reads itself.
    pub(super) fn over_whole_tables(&self) -> Result<SessionContext> {
        let context = SessionContext::new_with_state(without_tables(self.catalog.state()));
        for (name, dataset) in self.catalog.tables() {
            let table = Arc::new(BatchTable::new(&name, dataset, self.executor.threads()));
            context.register_table(reference(&name), table)?;
        }
        Ok(context)
    }
}
