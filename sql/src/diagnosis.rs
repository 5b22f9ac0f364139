//! Rewords DataFusion's errors and finds their places.
//!
//! DataFusion knows the place of some of its errors. The others are found by a slow search that needs no list of
//! errors: the query is planned again with one expression replaced by NULL. If the error disappears, that expression
//! contains the mistake, and the search continues inside it. Each trial costs one planning, well under a millisecond
//! for a typical pipeline, and only queries with an error pay for it.

use std::collections::HashSet;
use std::ops::ControlFlow;

use datafusion::common::{Column, DataFusionError, SchemaError};
use datafusion::execution::SessionState;
use datafusion::logical_expr::LogicalPlan;
use datafusion::sql::sqlparser::ast::{Expr, Query, Spanned, Value, Visit, VisitMut, Visitor, VisitorMut};

use crate::calls::{self, CallSite};
use crate::error::{Error, Place};
use crate::functions;
use crate::plan::attempt;
use forebay_diagnostics::{nearest, plain_message, unwrapped};

/// Maximum number of planning runs in the search for a place.
const ATTEMPTS_MAX: usize = 300;

/// A part of the message for a fit whose input is not a number: the function that the input of a fit calls first.
const OF_FIT: &str = "isnan";

/// The end of the message for an argument that DataFusion has made a decimal of two integers.
const OF_MIXED_INTEGERS: &str = "got Decimal128(20, 0)";

/// Maximum number of names in a hint.
const NAMES_MAX: usize = 24;

/// Explains why a query could not be planned.
pub(crate) async fn diagnose(
    error: DataFusionError,
    query: &Query,
    mut state: SessionState,
    calls: &[CallSite],
) -> Error {
    state.config_mut().options_mut().sql_parser.collect_spans = true;
    let error = attempt(query, &state).await.err().unwrap_or(error);
    let worded = worded(&error, &state);
    if let Some(call) = calls.iter().find(|call| message_of(&error).starts_with(&format!("{}: ", call.operator))) {
        let message = message_of(&error);
        let place = ExpressionSearch::new(query, &state, &message).call(call.operator, calls).await;
        // The search visits only expressions, and a table operator is not an expression.
        let place = place.unwrap_or_else(|| blamed(call, &message));
        let worded = match message.ends_with(OF_MIXED_INTEGERS) {
            true => worded.with_hint(
                "numbers of rows, as row_number() and ntile() give them, are unsigned, and become decimals beside \
                 other integers: write CAST(row_number() OVER … AS BIGINT)",
            ),
            false => worded,
        };
        return as_written(worded, calls, place).or_place(Some(place));
    }
    if let Some(call) = calls.iter().find(|call| call.is_fitted)
        && message_of(&error).contains(OF_FIT)
    {
        let place = call.arguments.first().map_or(call.place, |(_, place)| *place);
        let message = format!("{}: what is fitted to must be numbers", call.name);
        let hint = "unnest lists in a subquery of FROM, or give the constants";
        return Error::new(message).with_place(place).with_hint(hint);
    }
    let span = error.diagnostic().and_then(|diagnostic| diagnostic.span);
    let place = span.map(|span| Place { line: span.start.line, column: span.start.column });
    match place {
        Some(place) => worded.with_place(place),
        None => {
            let message = message_of(&error);
            worded.or_place(ExpressionSearch::new(query, &state, &message).place().await)
        }
    }
}

/// The error with the name that the call at `place` is written with.
fn as_written(error: Error, calls: &[CallSite], place: Place) -> Error {
    let is_it = |call: &&CallSite| call.place == place || call.arguments.iter().any(|(_, argument)| *argument == place);
    let Some(CallSite { operator, name, .. }) = calls.iter().rfind(is_it) else { return error };
    let Some(rest) = error.message().strip_prefix(operator).filter(|_| name != operator) else { return error };
    let written = Error::new(format!("{name}{rest}"));
    match error.hint() {
        Some(hint) => written.with_hint(hint),
        None => written,
    }
}

/// The place of the argument that an operator's error is about, or of the call.
fn blamed(call: &CallSite, message: &str) -> Place {
    let parameter = message.strip_prefix(&format!("{}: \"", call.operator)).and_then(|rest| rest.split('"').next());
    let argument = call.arguments.iter().find(|(name, _)| Some(*name) == parameter);
    argument.map_or(call.place, |(_, place)| *place)
}

/// The innermost message, without the prefix for its kind.
fn message_of(error: &DataFusionError) -> String {
    root(error).message().into_owned()
}

/// The innermost error, or the first of several.
fn root(error: &DataFusionError) -> &DataFusionError {
    match error.find_root() {
        DataFusionError::Collection(errors) => errors.first().map_or(error, root),
        other => other,
    }
}

fn worded(error: &DataFusionError, state: &SessionState) -> Error {
    match root(error) {
        DataFusionError::SchemaError(error, _) => match error.as_ref() {
            SchemaError::FieldNotFound { field, valid_fields } => no_column(field, valid_fields),
            SchemaError::AmbiguousReference { field } => ambiguous(&field.name),
            SchemaError::DuplicateUnqualifiedField { name } | SchemaError::DuplicateQualifiedField { name, .. } => {
                same_names(Some(name))
            }
        },
        other => {
            let message = other.message();
            if let Some(name) = quoted(&message, "table '", "' not found") {
                return no_table(name, state);
            }
            if let Some(name) = quoted(&message, "Invalid function '", "'") {
                return functions::unknown(name, state);
            }
            if let Some(error) = tensor_arithmetic(&message) {
                return error;
            }
            if let Some(column) = ungrouped(&message) {
                let message = format!("\"{column}\" is neither in GROUP BY nor inside an aggregate");
                return Error::new(message).with_hint(format!("add it to GROUP BY, or write min({column})"));
            }
            if message.starts_with("Projections require unique expression names") {
                return same_names(repeated(&message));
            }
            cleaned(&message)
        }
    }
}

/// The column in DataFusion's refusal of a column beside aggregates.
fn ungrouped(message: &str) -> Option<&str> {
    let (_, rest) = message.split_once(", column \"")?;
    rest.split_once("\" must appear in the GROUP BY clause").map(|(column, _)| column)
}

/// Arithmetic on a tensor, such as `image + 1`. DataFusion treats tensors as lists, which have no arithmetic.
fn tensor_arithmetic(message: &str) -> Option<Error> {
    let expression = quoted(message, "Cannot coerce arithmetic expression ", " to valid types")?;
    let is_list = ["FixedSizeList(", "Struct("].iter().any(|list| expression.contains(list));
    let operator = match [" + ", " - ", " * ", " / "].iter().find(|operator| expression.contains(**operator)) {
        Some(&" + ") => "+",
        Some(&" - ") => "-",
        Some(&" * ") => "*",
        Some(_) => "/",
        None => return None,
    };
    is_list.then(|| {
        Error::new(format!("`{operator}` does not support tensors"))
            .with_hint("write `tensor_add(a, b)`, `tensor_sub(a, b)`, `tensor_mul(a, b)` or `tensor_div(a, b)`")
    })
}

/// Refuses samples with two columns of one name, as in `SELECT *` over a join.
pub(crate) fn twice(plan: &LogicalPlan) -> Option<Error> {
    let mut seen = HashSet::new();
    let twice = plan.schema().fields().iter().find(|field| !seen.insert(field.name()))?;
    Some(same_names(Some(twice.name())))
}

fn ambiguous(name: &str) -> Error {
    Error::new(format!("two columns are named \"{name}\"")).with_hint(format!(
        "write which table's it is, such as `table.{name}`, or rename one of them: `expression AS name`"
    ))
}

/// The name in DataFusion's refusal: `… but the expression "a AS x" at position 0 and "b AS x" at position 1 …`.
fn repeated(message: &str) -> Option<&str> {
    let (_, second) = message.split_once(" and \"")?;
    let (expression, _) = second.split_once("\" at position")?;
    let name = expression.rsplit_once(" AS ").map_or(expression, |(_, alias)| alias);
    Some(name.rsplit('.').next().unwrap_or(name).trim_matches('"'))
}

fn same_names(name: Option<&str>) -> Error {
    let error = match name {
        Some(name) => Error::new(format!("two columns are named \"{name}\"")),
        None => Error::new("two columns of a SELECT have the same name"),
    };
    error.with_hint(
        "rename one of them: `expression AS name`; a cast has its column's name: write it in a subquery of FROM",
    )
}

fn quoted<'a>(message: &'a str, before: &str, after: &str) -> Option<&'a str> {
    message.strip_prefix(before)?.split_once(after).map(|(name, _)| name)
}

fn no_column(field: &Column, valid: &[Column]) -> Error {
    let name = match &field.relation {
        Some(relation) => format!("{}.{}", relation.table(), field.name),
        None => field.name.clone(),
    };
    let error = Error::new(format!("column \"{name}\" not found"));
    let mut names: Vec<&str> = valid.iter().map(|column| column.name.as_str()).collect();
    names.dedup();
    let same = valid.iter().find(|column| column.name.eq_ignore_ascii_case(&field.name));
    if let Some(same) = same {
        return if same.name == field.name {
            match (&field.relation, &same.relation) {
                (Some(_), Some(relation)) => error.with_hint(format!("write `{}.{}`", relation.table(), same.name)),
                _ => error.with_hint(format!("write `{}`", same.name)),
            }
        } else {
            error.with_hint(format!("unquoted names are lower case: write `\"{}\"`", same.name))
        };
    }
    match suggestion(&field.name, "columns", &names) {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn no_table(name: &str, state: &SessionState) -> Error {
    let options = &state.config_options().catalog;
    let prefix = format!("{}.{}.", options.default_catalog, options.default_schema);
    let name = name.strip_prefix(&prefix).unwrap_or(name);
    let error = Error::new(format!("table \"{name}\" not found")).with_missing_table(name);
    let Ok(schema) = state.schema_for_ref(name) else {
        return error.with_hint("names have one part: schemas and catalogs are not supported");
    };
    let mut tables = schema.table_names();
    tables.sort_unstable();
    let names: Vec<&str> = tables.iter().map(String::as_str).collect();
    match suggestion(name, "tables", &names) {
        Some(hint) => error.with_hint(hint),
        None => error.with_hint("there are no tables yet: `CREATE EXTERNAL TABLE name STORED AS PARQUET LOCATION '…'`"),
    }
}

fn suggestion(name: &str, what: &str, names: &[&str]) -> Option<String> {
    if names.is_empty() {
        return None;
    }
    let all = format!("{what}: {}", listed(names));
    Some(match nearest(name, names.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"? {all}"),
        None => all,
    })
}

fn listed(names: &[&str]) -> String {
    match names.len().checked_sub(NAMES_MAX) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..NAMES_MAX].join(", ")),
    }
}

/// DataFusion's message in our style: one line, lower case, no final period, names in double quotes.
fn cleaned(message: &str) -> Error {
    if let Some(error) = functions::wrong_arguments(message) {
        return error;
    }
    let message = unwrapped(message);
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or("the query cannot be planned");
    let (first, advice) = match first.split_once(". ") {
        Some((first, advice)) => (first, Some(advice)),
        None => (first, None),
    };
    let error = Error::new(plain_message(first));
    match advice {
        Some(advice) => error.with_hint(plain_message(advice)),
        None => error,
    }
}

/// The expressions of a query in visiting order, and the search among them.
struct ExpressionSearch<'a> {
    query: &'a Query,
    state: &'a SessionState,
    message: &'a str,
    nodes: Vec<Node>,
    attempts: usize,
}

struct Node {
    parent: Option<usize>,
    place: Option<Place>,
    operator: Option<&'static str>,
}

/// The result of planning with an expression replaced by NULL: no error, or a message.
type PlanningError = Option<String>;

impl<'a> ExpressionSearch<'a> {
    fn new(query: &'a Query, state: &'a SessionState, message: &'a str) -> Self {
        let mut collect = Collect::default();
        let _ = Visit::visit(query, &mut collect);
        ExpressionSearch { query, state, message, nodes: collect.nodes, attempts: 0 }
    }

    /// The start of the smallest expression whose replacement removes the error.
    async fn place(mut self) -> Option<Place> {
        let (mut node, outcome) = self.outermost().await?;
        loop {
            let mut next = None;
            for child in self.children(Some(node)) {
                if self.without(child).await.as_ref() == Some(&outcome) {
                    next = Some(child);
                    break;
                }
            }
            match next {
                Some(child) if self.nodes[child].place.is_some() => node = child,
                _ => return self.nodes[node].place,
            }
        }
    }

    /// The place of the call of the operator with the error, or of the argument that the error is about.
    async fn call(mut self, operator: &str, calls: &[CallSite]) -> Option<Place> {
        let outermost = self.outermost().await;
        let mut candidates: Vec<usize> = (0..self.nodes.len())
            .filter(|&node| self.nodes[node].operator == Some(operator))
            .filter(|&node| outermost.as_ref().is_none_or(|(outermost, _)| self.is_within(node, *outermost)))
            .collect();
        // Arguments are planned before the calls around them, so the innermost of nested calls reports its error first.
        candidates.reverse();
        let mut node = candidates.first().copied()?;
        if candidates.len() > 1 {
            for &candidate in &candidates {
                if self.without(candidate).await.is_some_and(|outcome| outcome.as_deref() != Some(self.message)) {
                    node = candidate;
                    break;
                }
            }
        }
        let place = self.nodes[node].place?;
        Some(calls.iter().find(|call| call.place == place).map_or(place, |call| blamed(call, self.message)))
    }

    /// The whole expression (of a SELECT list or a WHERE) whose replacement removes the error, or else changes it.
    async fn outermost(&mut self) -> Option<(usize, PlanningError)> {
        let mut changed = None;
        for node in self.children(None) {
            match self.without(node).await? {
                None => return Some((node, None)),
                Some(message) if message != self.message && changed.is_none() => changed = Some((node, Some(message))),
                Some(_) => {}
            }
        }
        changed
    }

    fn children(&self, parent: Option<usize>) -> Vec<usize> {
        (0..self.nodes.len()).filter(|&node| self.nodes[node].parent == parent).collect()
    }

    fn is_within(&self, node: usize, ancestor: usize) -> bool {
        std::iter::successors(Some(node), |&node| self.nodes[node].parent).any(|node| node == ancestor)
    }

    /// Plans the query with one expression replaced; `None` if the number of attempts is exhausted.
    async fn without(&mut self, node: usize) -> Option<PlanningError> {
        self.attempts += 1;
        if self.attempts > ATTEMPTS_MAX {
            return None;
        }
        let mut query = self.query.clone();
        let _ = VisitMut::visit(&mut query, &mut Replace { node, met: 0 });
        Some(attempt(&query, self.state).await.err().map(|error| message_of(&error)))
    }
}

#[derive(Default)]
struct Collect {
    nodes: Vec<Node>,
    open: Vec<usize>,
}

impl Visitor for Collect {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        let (place, operator) = match expr {
            Expr::Function(function) => {
                (Place::start(function.name.span()), calls::operator(&function.name).map(|descriptor| descriptor.name))
            }
            other => (Place::start(other.span()), None),
        };
        self.nodes.push(Node { parent: self.open.last().copied(), place, operator });
        self.open.push(self.nodes.len() - 1);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, _expr: &Expr) -> ControlFlow<()> {
        self.open.pop();
        ControlFlow::Continue(())
    }
}

/// Replaces the expression with the visiting number `node`.
struct Replace {
    node: usize,
    met: usize,
}

impl VisitorMut for Replace {
    type Break = ();

    fn pre_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if self.met == self.node {
            *expr = Expr::Value(Value::Null.into());
            return ControlFlow::Break(());
        }
        self.met += 1;
        ControlFlow::Continue(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_get_our_style() {
        for (message, expected, hint) in [
            ("Unsupported thing.", "unsupported thing", None),
            ("UNION is odd", "UNION is odd", None),
            ("Function 'abs' isn't fine. Try 'f.g'.", "function \"abs\" isn't fine", Some("try \"f.g\"")),
            (
                "No function matches the given name and argument types 'f(Int64)'. You might need to add explicit type \
                 casts.\n\tCandidate functions:\n\tf(x)\n\tf(y)",
                "\"f\" does not take (Int64)",
                Some("it is called as f(x) or f(y); CAST(… AS …) changes a type"),
            ),
            ("", "the query cannot be planned", None),
            ("it's '", "it's '", None),
        ] {
            let error = cleaned(message);
            assert_eq!((error.message(), error.hint()), (expected, hint), "{message}");
        }
    }

    #[test]
    fn arithmetic_on_tensors_names_the_operators_for_it() {
        let message = "Cannot coerce arithmetic expression FixedSizeList(3 x non-null UInt8) + Int64 to valid types";
        let error = tensor_arithmetic(message).expect("a list in an addition");
        assert_eq!(error.message(), "`+` does not support tensors");
        assert!(error.hint().is_some_and(|hint| hint.contains("tensor_add(a, b)")));
        assert!(tensor_arithmetic("Cannot coerce arithmetic expression Utf8 + Int64 to valid types").is_none());
    }

    #[test]
    fn lists_are_bounded() {
        let names: Vec<String> = (0..30).map(|n| n.to_string()).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        assert_eq!(listed(&names[..2]), "0, 1");
        assert!(listed(&names).ends_with("22, 23 and 6 more"));
    }
}
