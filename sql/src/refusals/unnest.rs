//! UNNEST: one list in the columns of a SELECT, and nowhere else.
//!
//! With two lists, DataFusion would pad the shorter one with nulls, which would silently become training data.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Query, Select, SelectItem, Spanned, Visit, Visitor};

use super::search::Search;
use crate::Place;

/// Whether a SELECT contains UNNEST.
pub(super) fn unnests(select: &Select) -> bool {
    let mut calls = UnnestCalls { places: Vec::new(), queries: 0 };
    let _ = Visit::visit(&select.projection, &mut calls);
    !calls.places.is_empty()
}

impl Search<'_> {
    /// Records the UNNEST calls of a SELECT.
    pub(super) fn unnests(&mut self, projection: &[SelectItem]) {
        let mut calls = UnnestCalls { places: Vec::new(), queries: 0 };
        for item in projection {
            let _ = Visit::visit(item, &mut calls);
        }
        self.unnests.extend(calls.places.first());
        for &more in calls.places.iter().skip(1) {
            self.unnests.push(more);
            self.refuse_at(
                more,
                "a second UNNEST in one SELECT",
                "unnest one list in a subquery, and the other in the outer query",
            );
        }
    }

    /// Refuses a call that is not among the columns of a SELECT.
    pub(super) fn unnest(&mut self, place: Place) {
        if !self.unnests.contains(&place) {
            self.refuse_at(
                place,
                "UNNEST derives rows, and must be among the columns of a SELECT",
                "unnest in a subquery: `FROM (SELECT unnest(list) AS item FROM table) WHERE item > 0`",
            );
        }
    }
}

/// The calls of UNNEST in an expression, except in subqueries.
struct UnnestCalls {
    places: Vec<Place>,
    queries: usize,
}

impl Visitor for UnnestCalls {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.queries += 1;
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.queries -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr
            && self.queries == 0
            && function.name.to_string().eq_ignore_ascii_case("unnest")
        {
            self.places.extend(Place::start(function.name.span()));
        }
        ControlFlow::Continue(())
    }
}
