//! Functions that a feed cannot call: clocks, and random generators with state.
//!
//! A session's functions declare their volatility. The names listed here are refused for the same reasons in sessions
//! that do not have them, because the error "not found" would mislead.

use datafusion::logical_expr::Volatility;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArguments, Spanned, Value,
};
use forebay_operators::{Descriptor, Determinism, LENGTHENING, OPERATORS, TEXT_LENGTH_MAX, length_unit};

use super::search::{OF_A_PIPELINE, Search, UNNEST_HINT};
use crate::{Place, calls, fits};

impl Search<'_> {
    pub(super) fn function(&mut self, function: &Function) {
        let name = function.name.to_string().to_lowercase();
        // In some clauses (PIVOT) the parser drops the places of names.
        let place = Place::start(function.name.span()).or_else(|| self.tokens.next(self.here, &[&name]));
        let place = place.unwrap_or(self.here);
        self.needs_tables |= function.over.is_some() || matches!(function.args, FunctionArguments::Subquery(_));
        if fits::fit_of(function).is_some() {
            self.needs_tables = true;
            return;
        }
        // `calls` checks an operator's call against its descriptor.
        if let Some(operator) = calls::operator(&function.name) {
            match operator.determinism {
                Determinism::KeyedRandom if !self.is_feed() => {
                    self.refuse_at(place, &format!("\"{name}\" draws from a feed's seed and epoch"), OF_A_PIPELINE);
                }
                Determinism::StepLength if !self.is_feed() => {
                    self.refuse_at(place, &format!("\"{name}\" depends on the step of a feed"), OF_A_PIPELINE);
                }
                _ => {}
            }
            return;
        }
        if calls::table_operator(&function.name).is_some() {
            let message = format!("\"{name}\" is a table operator: call it in FROM");
            return self.refuse_at(place, &message, &format!("write `FROM {name}((SELECT …), …)`"));
        }
        let name = name.as_str();
        if name == "explode" {
            return self.refuse_at(place, "EXPLODE is not a function here", UNNEST_HINT);
        }
        if name == "unnest" {
            return self.unnest(place);
        }
        if CLOCKS.contains(&name) && self.is_feed() {
            return self.refuse_at(
                place,
                &format!("\"{name}\" reads the clock, and a feed must compute the same rows whenever it runs"),
                "write the time as a literal, such as TIMESTAMP '2026-01-31 00:00:00'",
            );
        }
        if RANDOM.contains(&name) && self.is_feed() {
            let keyed = OPERATORS.iter().map(|operator| operator.descriptor());
            let keyed = keyed.filter(|descriptor| descriptor.determinism == Determinism::KeyedRandom);
            let (numbers, others): (Vec<_>, Vec<_>) = keyed.partition(|descriptor| descriptor.category == "random");
            let names = |descriptors: Vec<&Descriptor>| {
                descriptors.into_iter().map(|descriptor| descriptor.name).collect::<Vec<_>>().join(", ")
            };
            return self.refuse_at(
                place,
                &format!("\"{name}\" returns new random values on every run, and a feed must reproduce its rows"),
                &format!(
                    "write `random_uniform()`: like all keyed operators, it draws from the feed's seed, the epoch and \
                     the sample; values: {}; others: {}",
                    names(numbers),
                    names(others)
                ),
            );
        }
        if let Some(length) = constant_length(name, function).filter(|length| *length > TEXT_LENGTH_MAX) {
            return self.refuse_at(
                place,
                &format!(
                    "\"{name}\" would make a text of {length} {}, and {TEXT_LENGTH_MAX} is the most",
                    length_unit(name)
                ),
                "give a smaller number",
            );
        }
        let scalar = self.state.scalar_functions().get(name);
        if self.is_feed() && scalar.is_some_and(|call| call.signature().volatility != Volatility::Immutable) {
            return self.refuse_at(
                place,
                &format!("\"{name}\" depends on more than its arguments, and a feed must reproduce its rows"),
                "leave it out",
            );
        }
        if !matches!(function.parameters, FunctionArguments::None) || (scalar.is_some() && has_clauses(function)) {
            let message = format!("a clause of \"{name}\" would be silently ignored");
            self.refuse_at(place, &message, "only aggregates and window functions have DISTINCT, FILTER, OVER, …");
        }
        self.needs_tables |= scalar.is_none() && self.state.aggregate_functions().contains_key(name);
    }
}

/// Whether a call has a clause that only aggregates and window functions have.
fn has_clauses(function: &Function) -> bool {
    let of_arguments = match &function.args {
        FunctionArguments::List(list) => list.duplicate_treatment.is_some() || !list.clauses.is_empty(),
        FunctionArguments::None | FunctionArguments::Subquery(_) => false,
    };
    of_arguments
        || function.over.is_some()
        || function.filter.is_some()
        || function.null_treatment.is_some()
        || !function.within_group.is_empty()
}

/// The length of the text that a call with a constant length, or of a constant number of copies, makes at least.
fn constant_length(name: &str, function: &Function) -> Option<i64> {
    let FunctionArguments::List(list) = &function.args else { return None };
    let constant = |argument: &FunctionArg| match argument {
        FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Value(value))) => Some(value.value.clone()),
        _ => None,
    };
    let (text, number) = match &list.args[..] {
        [text, number, ..] if LENGTHENING.contains(&name) => (constant(text), constant(number)?),
        _ => return None,
    };
    let Value::Number(number, _) = number else { return None };
    let number = number.parse().unwrap_or(i64::MAX);
    Some(match (name, text) {
        ("repeat", Some(Value::SingleQuotedString(text))) => number.saturating_mul(text.len() as i64),
        _ => number,
    })
}

/// Clock functions, for sessions that do not have them.
const CLOCKS: &[&str] = &[
    "now",
    "today",
    "current_timestamp",
    "current_date",
    "current_time",
    "localtime",
    "localtimestamp",
    "getdate",
    "sysdate",
];

/// Functions that draw from a stateful generator.
const RANDOM: &[&str] = &["random", "rand", "uuid", "gen_random_uuid", "newid"];
