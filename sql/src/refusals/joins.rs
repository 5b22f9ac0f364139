//! Joins, and subqueries in conditions.
//!
//! A feed's rows are the rows of the first table. The table to the right of a JOIN, or in a subquery of WHERE, is read
//! whole and kept in memory, and its rows are found by equal keys.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, Ident, Join, JoinConstraint, JoinOperator, Query, Select, SelectItem, SetExpr,
    Spanned, TableFactor, TableWithJoins, UnaryOperator, Visit, Visitor, visit_expressions,
};
use forebay_operators::Determinism;

use super::search::{JOIN_HINT, Search};
use crate::{Place, calls};

/// The most joins in one FROM. Each adds a level of nesting to the plan.
const JOINS_MAX: usize = 32;
/// The same, of joins that are looked up. Each adds a layer to the feed.
const LOOKUPS_MAX: usize = 8;

const RIGHT_HINT: &str = "draw in the SELECT around the join";

impl Search<'_> {
    pub(super) fn joins(&mut self, item: &TableWithJoins) {
        item.joins.iter().for_each(|join| self.join(join));
        for most in [LOOKUPS_MAX, JOINS_MAX] {
            if let Some(join) = item.joins.get(most) {
                let until = Place::start(join.relation.span()).unwrap_or(self.here);
                self.joins.push((most, self.tokens.last(until, &["JOIN"]).unwrap_or(until)));
            }
        }
    }

    /// Refuses more joins than a query of its kind may have.
    pub(super) fn refuse_many_joins(&mut self) {
        let most = if self.is_feed() && !self.needs_tables { LOOKUPS_MAX } else { JOINS_MAX };
        for (_, place) in std::mem::take(&mut self.joins).into_iter().filter(|(at, _)| *at == most) {
            self.refuse_at(place, &format!("more than {most} joins in one FROM"), JOIN_HINT);
        }
    }

    /// Refuses a `*` for which DataFusion would select the wrong key. For a column in USING, it keeps the key of the
    /// table whose name is first in the alphabet. The key of a LEFT JOIN's second table is null for rows without a
    /// match.
    pub(super) fn wildcard(&mut self, projection: &[SelectItem], item: &TableWithJoins) {
        let Some(star) = projection.iter().find(|item| matches!(item, SelectItem::Wildcard(_))) else { return };
        let first = name(&item.relation);
        let is_left = |join: &&Join| {
            let (JoinOperator::Left(constraint) | JoinOperator::LeftOuter(constraint)) = &join.join_operator else {
                return false;
            };
            matches!(constraint, JoinConstraint::Using(_) | JoinConstraint::Natural) && name(&join.relation) < first
        };
        if item.joins.iter().any(|join| is_left(&join)) {
            let place = Place::start(star.span()).unwrap_or(self.here);
            self.refuse_at(
                place,
                "`*` would take the column of USING from the second table, where it is null for rows without a match",
                "list the columns, or name the tables so that the first one's name comes first in the alphabet",
            );
        }
    }

    /// Refuses a join for which DataFusion would return wrong keys, or that it does not know.
    pub(super) fn join(&mut self, join: &Join) {
        use JoinOperator as Join;

        let is_feed = self.is_feed();
        let unnamed = |constraint: &JoinConstraint| match constraint {
            JoinConstraint::Natural if is_feed => {
                Some(("NATURAL JOIN would change with the columns of the tables", "name them: `USING (id)`"))
            }
            JoinConstraint::None => {
                let pairs = "a join without a condition returns every pair of rows";
                Some((pairs, "write CROSS JOIN if all pairs are meant, or `ON a.id = b.id`"))
            }
            _ => None,
        };
        let keeps_right = |constraint: &JoinConstraint| match constraint {
            JoinConstraint::Using(_) | JoinConstraint::Natural => Some((
                "a key of USING or NATURAL would be null for rows that only the second table has",
                "write `ON a.id = b.id`, and `coalesce(a.id, b.id)` for the key",
            )),
            other => unnamed(other),
        };
        let refused = match &join.join_operator {
            _ if join.global => Some(("GLOBAL would be silently ignored", "leave it out")),
            Join::CrossJoin(_) => None,
            Join::Join(constraint)
            | Join::Inner(constraint)
            | Join::Left(constraint)
            | Join::LeftOuter(constraint)
            | Join::LeftSemi(constraint)
            | Join::LeftAnti(constraint)
            | Join::RightSemi(constraint)
            | Join::RightAnti(constraint) => unnamed(constraint),
            Join::Right(constraint) | Join::RightOuter(constraint) | Join::FullOuter(constraint) => {
                keeps_right(constraint)
            }
            _ => Some((
                "there is no such join",
                "joins are JOIN, LEFT JOIN, RIGHT JOIN, FULL JOIN, CROSS JOIN, LEFT SEMI JOIN and LEFT ANTI JOIN",
            )),
        };
        if let Some((message, hint)) = refused {
            self.refuse_before(join.relation.span(), &["JOIN"], message, hint);
        }
        self.needs_tables |= !is_lookup(&join.join_operator);
        match &join.relation {
            TableFactor::Table { args: None, .. } => {}
            TableFactor::Derived { lateral: false, subquery, .. } => self.right_side(subquery),
            _ => self.needs_tables = true,
        }
    }

    /// Refuses functions that the query of a second table must not call.
    fn right_side(&mut self, query: &Query) {
        if !self.is_feed() {
            return;
        }
        let mut search = RightSide { found: Vec::new(), needs_tables: false, here: self.here };
        let _ = Visit::visit(query, &mut search);
        self.needs_tables |= search.needs_tables;
        for (place, message) in search.found {
            self.refuse_at(place, message, RIGHT_HINT);
        }
    }

    /// Records the subqueries that are conditions of a SELECT.
    pub(super) fn memberships(&mut self, selection: Option<&Expr>) {
        let Some(selection) = selection else { return };
        for condition in conjuncts(selection) {
            if let Some(query) = membership(condition) {
                self.memberships.extend(Place::start(query.span()));
            }
        }
    }

    /// Records all subqueries in a condition of a SELECT.
    pub(super) fn conditions(&mut self, condition: &Expr) {
        let places = &mut self.conditions;
        let _ = visit_expressions(condition, |expr| {
            if let Expr::Exists { subquery, .. } | Expr::InSubquery { subquery, .. } = expr {
                places.extend(Place::start(subquery.span()));
            }
            ControlFlow::<()>::Continue(())
        });
    }

    /// Refuses a subquery that is not in a condition, and finds out whether it is looked up.
    pub(super) fn membership(&mut self, expr: &Expr, query: &Query) {
        let place = Place::start(query.span()).unwrap_or(self.here);
        let is_exists = matches!(expr, Expr::Exists { .. });
        if !self.conditions.contains(&place) {
            let word = if is_exists { "EXISTS" } else { "IN (SELECT …)" };
            let message = format!("{word} must be in a condition: WHERE, HAVING or QUALIFY");
            return self.refuse_at(place, &message, "for a value, write LEFT JOIN, and `other.id IS NOT NULL`");
        }
        let is_looked_up =
            self.memberships.contains(&place) && (!is_exists || selection(query).is_some_and(has_equality));
        self.needs_tables |= !is_looked_up;
        self.right_side(query);
    }
}

/// Whether rows of the second table can be looked up by keys.
fn is_lookup(operator: &JoinOperator) -> bool {
    let (JoinOperator::Join(constraint)
    | JoinOperator::Inner(constraint)
    | JoinOperator::Left(constraint)
    | JoinOperator::LeftOuter(constraint)
    | JoinOperator::LeftSemi(constraint)
    | JoinOperator::LeftAnti(constraint)) = operator
    else {
        return false;
    };
    match constraint {
        JoinConstraint::Using(_) => true,
        JoinConstraint::On(condition) => has_equality(condition),
        JoinConstraint::Natural | JoinConstraint::None => false,
    }
}

/// The qualifier of a table's columns, in DataFusion's case folding.
fn name(factor: &TableFactor) -> Option<String> {
    let folded = |name: &Ident| match name.quote_style {
        Some(_) => name.value.clone(),
        None => name.value.to_lowercase(),
    };
    match factor {
        TableFactor::Table { alias: Some(alias), .. } | TableFactor::Derived { alias: Some(alias), .. } => {
            Some(folded(&alias.name))
        }
        TableFactor::Table { name, .. } => name.0.last().and_then(|part| part.as_ident()).map(folded),
        TableFactor::NestedJoin { table_with_joins, .. } => name(&table_with_joins.relation),
        _ => None,
    }
}

/// The subquery of `IN` or `EXISTS`, or of their negations.
fn membership(expr: &Expr) -> Option<&Query> {
    match expr {
        Expr::Nested(inner) | Expr::UnaryOp { op: UnaryOperator::Not, expr: inner } => membership(inner),
        Expr::InSubquery { subquery, .. } | Expr::Exists { subquery, .. } => Some(subquery),
        _ => None,
    }
}

fn selection(query: &Query) -> Option<&Expr> {
    match query.body.as_ref() {
        SetExpr::Select(select) => select.selection.as_ref(),
        _ => None,
    }
}

fn has_equality(condition: &Expr) -> bool {
    conjuncts(condition).iter().any(|condition| matches!(condition, Expr::BinaryOp { op: BinaryOperator::Eq, .. }))
}

/// The operands of AND.
fn conjuncts(condition: &Expr) -> Vec<&Expr> {
    let (mut todo, mut found) = (vec![condition], Vec::new());
    while let Some(condition) = todo.pop() {
        match condition {
            Expr::Nested(inner) => todo.push(inner),
            Expr::BinaryOp { left, op: BinaryOperator::And, right } => todo.extend([right.as_ref(), left.as_ref()]),
            other => found.push(other),
        }
    }
    found
}

/// The search through the query of a second table, whose rows are read once.
struct RightSide {
    found: Vec<(Place, &'static str)>,
    needs_tables: bool,
    here: Place,
}

impl Visitor for RightSide {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.here = Place::start(select.select_token.0.span).unwrap_or(self.here);
        self.needs_tables |= select.from.iter().any(|item| !item.joins.is_empty());
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { args: Some(_), .. } = factor {
            let place = Place::start(factor.span()).unwrap_or(self.here);
            self.found.push((place, "a table operator inside the second table of a join"));
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.needs_tables |= function.name.to_string().eq_ignore_ascii_case("unnest");
            let place = Place::start(function.name.span()).unwrap_or(self.here);
            self.found.extend(not_of_a_right_side(function).map(|message| (place, message)));
        }
        ControlFlow::Continue(())
    }
}

fn not_of_a_right_side(function: &Function) -> Option<&'static str> {
    match calls::operator(&function.name)?.determinism {
        Determinism::Deterministic | Determinism::WindowOrder => None,
        Determinism::KeyedRandom => Some("a random operator inside the second table of a join, which is read once"),
        Determinism::StepLength => Some("an operator that depends on the step, inside the second table of a join"),
    }
}
