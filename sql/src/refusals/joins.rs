//! Joins, and subqueries in conditions.
//!
//! A feed's rows are the rows of the first table. The table to the right of a JOIN, or in a subquery of WHERE, is read
//! whole and kept in memory, and its rows are found by equal keys.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, Ident, Join, JoinConstraint, JoinOperator, Query, Select, SelectItem, SetExpr,
    Spanned, TableFactor, TableWithJoins, UnaryOperator, Visit, Visitor,
};
use forebay_operators::Determinism;

use super::search::{JOIN_HINT, Search};
use crate::{Place, calls};

/// Maximum number of joins in one FROM. Each join adds a level of nesting to the plan.
const JOINS_MAX: usize = 8;
const JOINS_MAX_OF_ROWS: usize = 32;

const ON_HINT: &str = "write `FROM table JOIN other ON table.id = other.id`, or `USING (id)`";
const SIDES_HINT: &str = "swap the tables: samples are rows of the first one, and the others are looked up by key";
const RIGHT_HINT: &str = "join a table, or `(SELECT columns FROM table WHERE …)`; compute the rest beforehand";

impl Search<'_> {
    pub(super) fn joins(&mut self, item: &TableWithJoins) {
        item.joins.iter().for_each(|join| self.join(join));
        let most = if self.is_feed() { JOINS_MAX } else { JOINS_MAX_OF_ROWS };
        if let Some(join) = item.joins.get(most) {
            let message = format!("more than {most} joins in one FROM");
            self.refuse_before(join.relation.span(), &["JOIN"], &message, JOIN_HINT);
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

    pub(super) fn join(&mut self, join: &Join) {
        let Join { relation, global, join_operator } = join;
        if !self.is_feed() && !global {
            return self.join_of_rows(join);
        }
        let refused = match join_operator {
            _ if *global => Some(("GLOBAL would be silently ignored", "leave it out")),
            JoinOperator::Join(constraint)
            | JoinOperator::Inner(constraint)
            | JoinOperator::Left(constraint)
            | JoinOperator::LeftOuter(constraint)
            | JoinOperator::LeftSemi(constraint)
            | JoinOperator::LeftAnti(constraint) => match constraint {
                JoinConstraint::Using(_) => None,
                JoinConstraint::On(condition) if has_equality(condition) => None,
                JoinConstraint::On(_) => {
                    Some(("a join needs an equality between columns of both tables, and this one has none", ON_HINT))
                }
                JoinConstraint::Natural => {
                    Some(("NATURAL JOIN would change with the columns of the tables", "name them: `USING (id)`"))
                }
                JoinConstraint::None => Some((PAIRS, ON_HINT)),
            },
            JoinOperator::CrossJoin(_) | JoinOperator::StraightJoin(_) => Some((PAIRS, ON_HINT)),
            JoinOperator::Right(_) | JoinOperator::RightOuter(_) => {
                Some(("RIGHT JOIN keeps the rows of the second table", SIDES_HINT))
            }
            JoinOperator::RightSemi(_) | JoinOperator::RightAnti(_) => {
                Some(("this join returns rows of the second table", SIDES_HINT))
            }
            JoinOperator::FullOuter(_) => {
                Some(("FULL JOIN keeps rows of the second table that match no sample", JOIN_HINT))
            }
            JoinOperator::Semi(_)
            | JoinOperator::Anti(_)
            | JoinOperator::CrossApply
            | JoinOperator::OuterApply
            | JoinOperator::AsOf { .. }
            | JoinOperator::ArrayJoin
            | JoinOperator::LeftArrayJoin
            | JoinOperator::InnerArrayJoin => {
                Some(("joins are JOIN, LEFT JOIN, LEFT SEMI JOIN and LEFT ANTI JOIN", JOIN_HINT))
            }
        };
        if let Some((message, hint)) = refused {
            self.refuse_before(relation.span(), &["JOIN"], message, hint);
        }
        match relation {
            TableFactor::Table { args: None, .. } => {}
            TableFactor::Derived { lateral: false, subquery, .. } => self.right_side(subquery),
            // These are refused elsewhere.
            TableFactor::Derived { .. } | TableFactor::UNNEST { .. } => {}
            _ => {
                let place = Place::start(relation.span()).unwrap_or(self.here);
                self.refuse_at(place, "the second table of a join must be a table, which is read whole", RIGHT_HINT);
            }
        }
    }

    /// Refuses a join of whole tables for which DataFusion would return wrong keys, or that it does not know.
    fn join_of_rows(&mut self, join: &Join) {
        use JoinOperator as Join;

        let keeps_right = |constraint: &JoinConstraint| match constraint {
            JoinConstraint::Using(_) | JoinConstraint::Natural => Some((
                "a key of USING or NATURAL would be null for rows that only the second table has",
                "write `ON a.id = b.id`, and `coalesce(a.id, b.id)` for the key",
            )),
            JoinConstraint::None => Some((PAIRS, "write CROSS JOIN if all pairs are meant, or `ON a.id = b.id`")),
            JoinConstraint::On(_) => None,
        };
        let refused = match &join.join_operator {
            Join::CrossJoin(_) => None,
            Join::Join(constraint)
            | Join::Inner(constraint)
            | Join::Left(constraint)
            | Join::LeftOuter(constraint)
            | Join::LeftSemi(constraint)
            | Join::LeftAnti(constraint)
            | Join::RightSemi(constraint)
            | Join::RightAnti(constraint) => {
                matches!(constraint, JoinConstraint::None).then(|| keeps_right(constraint)).flatten()
            }
            Join::Right(constraint) | Join::RightOuter(constraint) | Join::FullOuter(constraint) => {
                keeps_right(constraint)
            }
            _ => Some(("there is no such join", "joins are JOIN, LEFT, RIGHT, FULL and CROSS JOIN, and SEMI and ANTI")),
        };
        if let Some((message, hint)) = refused {
            self.refuse_before(join.relation.span(), &["JOIN"], message, hint);
        }
    }

    /// Refuses clauses that the query of a second table must not have.
    fn right_side(&mut self, query: &Query) {
        let mut found = Vec::new();
        let _ = Visit::visit(query, &mut RightSide { found: &mut found, here: self.here });
        for (place, message) in found {
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

    /// Refuses a subquery that is not a condition of a SELECT, and clauses that such a condition must not have.
    pub(super) fn membership(&mut self, expr: &Expr, query: &Query) {
        let place = Place::start(query.span()).unwrap_or(self.here);
        let word = if matches!(expr, Expr::Exists { .. }) { "EXISTS" } else { "IN (SELECT …)" };
        if !self.memberships.contains(&place) {
            let message = format!("{word} must be a condition of WHERE, alone or combined with AND");
            return self.refuse_at(place, &message, "write `WHERE id IN (SELECT id FROM other) AND …`");
        }
        if matches!(expr, Expr::Exists { .. }) && !selection(query).is_some_and(has_equality) {
            let message = "EXISTS needs an equality between columns of both tables, and this one has none";
            return self.refuse_at(place, message, "write `EXISTS (SELECT * FROM other WHERE other.id = table.id)`");
        }
        self.right_side(query);
    }
}

const PAIRS: &str = "a join without a condition returns every pair of rows";

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

/// The functions that the second table of a join cannot call, because its rows are read once.
struct RightSide<'a> {
    found: &'a mut Vec<(Place, &'static str)>,
    here: Place,
}

impl Visitor for RightSide<'_> {
    type Break = ();

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.here = Place::start(select.select_token.0.span).unwrap_or(self.here);
        if let Some(join) = select.from.iter().find_map(|item| item.joins.first()) {
            let place = Place::start(join.relation.span()).unwrap_or(self.here);
            self.found.push((place, "a join inside the second table of a join"));
        }
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
        if let Expr::Function(function) = expr
            && let Some(message) = not_of_a_right_side(function)
        {
            self.found.push((Place::start(function.name.span()).unwrap_or(self.here), message));
        }
        ControlFlow::Continue(())
    }
}

fn not_of_a_right_side(function: &Function) -> Option<&'static str> {
    if function.name.to_string().eq_ignore_ascii_case("unnest") {
        return Some("UNNEST inside the second table of a join");
    }
    match calls::operator(&function.name)?.determinism {
        Determinism::Deterministic | Determinism::WindowOrder => None,
        Determinism::KeyedRandom => Some("a random operator inside the second table of a join, which is read once"),
        Determinism::StepLength => Some("an operator that depends on the step, inside the second table of a join"),
    }
}
