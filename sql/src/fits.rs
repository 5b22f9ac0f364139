//! Fits: calls whose constants are fitted to rows.
//!
//! `SELECT standardize(x) FROM t WHERE c` names no mean. It becomes
//!
//! ```sql
//! SELECT standardize(x, get_field(fitted, 'mean'), get_field(fitted, 'std')) FROM t WHERE c
//! ```
//!
//! where `fitted` is a subquery of one value, which is the same for all fits to the same rows:
//!
//! ```sql
//! (SELECT named_struct('mean', avg(v0), 'std', …) FROM (SELECT x AS v0 FROM t WHERE c))
//! ```
//!
//! With `fit_on => 'd'`, the subquery has `WHERE d` instead. So a pipeline for validation fits to the rows of training.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use datafusion::arrow::datatypes::DataType;
use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, GroupByExpr, Ident,
    ObjectNamePart, Query, Select, SelectItem, SetExpr, TableFactor, Value, Visit, VisitMut, VisitorMut,
    visit_expressions,
};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::{Token, Tokenizer};
use forebay_operators::fits::{Fit, find_fit};

use crate::calls::literal;
use crate::error::{Error, Place, Result};
use crate::fitted_field::{FittedField, KeptName};
use crate::tokens::DIALECT;

/// The beginning of the markers that stand for constants.
const MARKER: &str = "__forebay_fitted_";

/// The most bytes of the texts that stand for the constants of a SELECT. Each has a copy of what it is fitted to.
const TEXT_MOST: usize = 16 << 20;

/// The fit that a call is, if it leaves out what is fitted. The operator of the same name takes other calls.
pub(crate) fn fit_of(function: &Function) -> Option<&'static Fit> {
    let [ObjectNamePart::Identifier(ident)] = function.name.0.as_slice() else { return None };
    let fit = find_fit(&ident.value)?;
    let FunctionArguments::List(list) = &function.args else { return None };
    let is_of_operator = |(at, argument): (usize, &FunctionArg)| match argument {
        FunctionArg::Named { name, .. } => {
            fit.constants.iter().any(|(constant, _)| name.value.eq_ignore_ascii_case(constant))
        }
        _ => at > 0,
    };
    let has_own_name = !fit.descriptor.name.eq_ignore_ascii_case(fit.operator);
    (has_own_name || !list.args.iter().enumerate().any(is_of_operator)).then_some(fit)
}

/// The fits of a query that is visited, by the SELECT that has them.
#[derive(Default)]
pub(crate) struct Fits {
    /// The SELECTs and queries that contain the place of the visit; `None` for the clauses of a query.
    around: Vec<Option<OfSelect>>,
    /// The number of fits so far.
    count: usize,
}

/// The fits of a SELECT, and its columns as they are written.
#[derive(Default)]
struct OfSelect {
    fits: Vec<Pending>,
    columns: Vec<String>,
}

/// A call whose constants are markers, until its SELECT is complete.
struct Pending {
    fit: &'static Fit,
    number: usize,
    /// The arguments, by parameter.
    arguments: BTreeMap<&'static str, Expr>,
    fit_on: Option<Expr>,
    place: Place,
}

impl Pending {
    fn marker(&self, constant: &str) -> String {
        format!("{MARKER}{} {constant}", self.number)
    }

    fn refuse(&self, message: &str, hint: &str) -> Error {
        Error::new(format!("{}: {message}", self.fit.descriptor.name)).with_place(self.place).with_hint(hint)
    }

    /// The name of the list that it continues.
    fn kept(&self) -> Option<KeptName> {
        let kept = self.fit.kept.as_ref()?;
        let given = |parameter| self.arguments.get(parameter).and_then(literal);
        let name = given(kept.name).and_then(|name| Some(name.try_as_str()??.to_owned()))?;
        let most = given(kept.most).and_then(|most| most.cast_to(&DataType::UInt64).ok());
        let most = if let Some(ScalarValue::UInt64(Some(most))) = most { most } else { u64::MAX };
        (!name.is_empty()).then_some(KeptName { most, name })
    }
}

impl Fits {
    pub(crate) fn enter_query(&mut self) {
        self.around.push(None);
    }

    pub(crate) fn leave_query(&mut self) {
        self.around.pop();
    }

    pub(crate) fn enter_select(&mut self, select: &Select) {
        let columns = select.projection.iter().map(ToString::to_string).collect();
        self.around.push(Some(OfSelect { fits: Vec::new(), columns }));
    }

    /// The call of the operator that a fit becomes. The call of the fit has all its arguments, by position.
    pub(crate) fn call(
        &mut self,
        fit: &'static Fit,
        function: &mut Function,
        fit_on: Option<Expr>,
        place: Place,
    ) -> Result<()> {
        let mut arguments = BTreeMap::new();
        if let FunctionArguments::List(list) = &function.args {
            for (parameter, argument) in fit.descriptor.parameters.iter().zip(&list.args) {
                if let FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) = argument {
                    arguments.insert(parameter.name, expr.clone());
                }
            }
        }
        for (parameter, choices) in fit.choices {
            if let Some(Expr::Value(value)) = arguments.get(parameter)
                && let Value::SingleQuotedString(text) = &value.value
                && !choices.contains(&text.as_str())
            {
                let choices: Vec<_> = choices.iter().map(|choice| format!("'{choice}'")).collect();
                let message =
                    format!("{}: \"{parameter}\" must be {}, got '{text}'", fit.descriptor.name, choices.join(" or "));
                return Err(Error::new(message).with_place(place));
            }
        }
        for (parameter, most) in fit.greatest {
            let given = arguments.get(parameter).and_then(literal);
            let given = given.and_then(|value| value.cast_to(&DataType::UInt64).ok());
            if let Some(ScalarValue::UInt64(Some(number))) = given
                && number > *most
            {
                let message = format!("{}: \"{parameter}\" must be at most {most}, got {number}", fit.descriptor.name);
                return Err(Error::new(message).with_place(place));
            }
        }
        for (parameter, other) in fit.one_less {
            let is_left_out =
                matches!(arguments.get(parameter), Some(Expr::Value(value)) if value.value == Value::Null);
            let other = arguments.get(other).and_then(literal).and_then(|value| value.cast_to(&DataType::Int64).ok());
            if let (true, Some(ScalarValue::Int64(Some(other)))) = (is_left_out, other) {
                let before = other.checked_sub(1).unwrap_or(i64::MAX);
                arguments.insert(parameter, parsed(&before.to_string())?);
            }
        }
        let pending = Pending { fit, number: self.count, arguments, fit_on, place };
        if pending.arguments.values().any(unnests) {
            let hint = "unnest in a subquery of FROM, and call it outside";
            return Err(pending.refuse("the items of an unnested list are other rows than those of its SELECT", hint));
        }
        self.count += 1;
        let Some(descriptor) = forebay_operators::descriptor(fit.operator) else {
            return Err(Error::new(format!("there is no operator \"{}\"", fit.operator)).with_place(place));
        };
        let mut args = Vec::new();
        for (at, parameter) in descriptor.parameters.iter().enumerate() {
            let given = match at {
                0 => pending.arguments.get(fit.descriptor.parameters[0].name),
                _ => pending.arguments.get(parameter.name),
            };
            let expr = match given {
                _ if fit.constants.iter().any(|(constant, _)| *constant == parameter.name) => {
                    Expr::Identifier(Ident::new(pending.marker(parameter.name)))
                }
                Some(given) => given.clone(),
                None => parsed(parameter.default.unwrap_or("NULL"))?,
            };
            args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)));
        }
        function.args =
            FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() });
        if let Some(ObjectNamePart::Identifier(ident)) = function.name.0.first_mut() {
            *ident = Ident { value: fit.operator.to_owned(), quote_style: None, span: ident.span };
        }
        match self.around.last_mut() {
            Some(Some(of_select)) => {
                of_select.fits.push(pending);
                Ok(())
            }
            _ => Err(outside(&pending)),
        }
    }

    /// Replaces the markers of a SELECT by what its fits give.
    pub(crate) fn leave_select(&mut self, select: &mut Select, errors: &mut Vec<Error>) {
        let OfSelect { fits, columns } = self.around.pop().flatten().unwrap_or_default();
        if fits.is_empty() {
            return;
        }
        // A column without a name gets that of the call as it is written.
        for (item, column) in select.projection.iter_mut().zip(columns) {
            if let SelectItem::UnnamedExpr(expr) = item
                && !markers(expr).is_empty()
            {
                *item = SelectItem::ExprWithAlias { expr: expr.clone(), alias: Ident::with_quote('"', column) };
            }
        }
        if let Err(error) = replace(select, fits) {
            errors.push(error);
        }
    }
}

fn outside(pending: &Pending) -> Error {
    let hint = "call it in a subquery of FROM, and use its result";
    pending.refuse("is fitted to the rows of its SELECT, so it must be in the list of columns", hint)
}

fn replace(select: &mut Select, fits: Vec<Pending>) -> Result<()> {
    let seen: BTreeSet<String> = select.projection.iter().flat_map(markers).collect();
    let is_grouped = !matches!(&select.group_by, GroupByExpr::Expressions(by, _) if by.is_empty());
    for pending in &fits {
        if !pending.fit.constants.iter().all(|(constant, _)| seen.contains(&pending.marker(constant))) {
            return Err(outside(pending));
        }
        if is_grouped || select.having.is_some() || select.qualify.is_some() {
            let message = "is fitted to the rows of FROM, which this SELECT groups or chooses from";
            return Err(pending.refuse(message, "group them in a subquery of FROM, and call it outside"));
        }
    }
    let mut values = BTreeMap::new();
    let mut waiting = fits;
    while !waiting.is_empty() {
        // A fit over the result of another comes after it.
        let is_ready = |pending: &Pending| pending.arguments.values().all(|expr| markers(expr).is_empty());
        let (ready, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(is_ready);
        add_values(select, ready, &mut values)?;
        waiting = others;
        let mut by_name = Substitution(|name: &str| values.get(name).cloned());
        for expr in waiting.iter_mut().flat_map(|pending| pending.arguments.values_mut()) {
            let _ = VisitMut::visit(expr, &mut by_name);
        }
    }
    let mut by_name = Substitution(|name: &str| values.get(name).cloned());
    for item in &mut select.projection {
        let _ = VisitMut::visit(item, &mut by_name);
    }
    Ok(())
}

/// Adds the values of the markers of `fits`. Fits to the same rows are one subquery.
fn add_values(select: &Select, fits: Vec<Pending>, values: &mut BTreeMap<String, Expr>) -> Result<()> {
    let mut by_rows: BTreeMap<Option<String>, Vec<Pending>> = BTreeMap::new();
    for pending in fits {
        by_rows.entry(pending.fit_on.as_ref().map(ToString::to_string)).or_default().push(pending);
    }
    for fits in by_rows.into_values() {
        let (subquery, fields) = subquery(select, &fits)?;
        if subquery.to_string().len().saturating_mul(fields.len()) > TEXT_MOST {
            let hint = "write the rows of the subquery to files with MATERIALIZE, or fit fewer columns at each level";
            return Err(fits[0].refuse("is over too many other fits, in subqueries of subqueries", hint));
        }
        for (marker, field) in fields {
            let mut value = parsed("get_field(NULL, NULL)")?;
            if let Expr::Function(Function { args: FunctionArguments::List(list), .. }) = &mut value {
                let subquery = Expr::Subquery(Box::new(subquery.clone()));
                let field = Expr::Value(Value::SingleQuotedString(field).into());
                list.args = [subquery, field].map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))).to_vec();
            }
            values.insert(marker, value);
        }
    }
    Ok(())
}

/// An aggregate of a subquery.
#[derive(PartialEq)]
struct Aggregate {
    expr: Expr,
    kept: Option<KeptName>,
}

impl Aggregate {
    fn has_name(&self, name: &str) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.name == name)
    }
}

/// The subquery of fits to the same rows, and the field of each marker.
fn subquery(select: &Select, fits: &[Pending]) -> Result<(Query, BTreeMap<String, String>)> {
    let (mut inputs, mut names, mut aggregates) = (Vec::<Expr>::new(), Vec::<String>::new(), Vec::<Aggregate>::new());
    let mut fields = BTreeMap::new();
    for pending in fits {
        let kept = pending.kept();
        let first = pending.fit.descriptor.parameters[0].name;
        let input = substituted(pending.fit.input, |name| {
            pending.arguments.get(name).filter(|_| name.eq_ignore_ascii_case(first)).cloned()
        })?;
        let at = inputs.iter().position(|other| *other == input).unwrap_or_else(|| {
            inputs.push(input);
            inputs.len() - 1
        });
        for (constant, aggregate) in pending.fit.constants {
            let aggregate = substituted(aggregate, |name| match name == first {
                true => Some(Expr::Identifier(Ident::new(format!("v{at}")))),
                false => pending.arguments.get(name).cloned(),
            })?;
            let aggregate = Aggregate { expr: aggregate, kept: kept.clone() };
            if let Some(KeptName { name, .. }) = &kept
                && aggregates.iter().any(|other| *other != aggregate && other.has_name(name))
            {
                let message = format!("two vocabularies have the name '{name}'");
                return Err(pending.refuse(&message, "give each a name of its own in keep_ids"));
            }
            let at = aggregates.iter().position(|other| *other == aggregate).unwrap_or_else(|| {
                let constant = format!("{}.{constant}", pending.fit.descriptor.name);
                names.push(FittedField { number: aggregates.len(), constant, kept: kept.clone() }.to_string());
                aggregates.push(aggregate);
                aggregates.len() - 1
            });
            fields.insert(pending.marker(constant), names[at].clone());
        }
    }
    let columns: Vec<String> = (0..inputs.len()).map(|at| format!("NULL AS v{at}")).collect();
    let text = format!("(SELECT named_struct(NULL) FROM (SELECT {}) AS fitted)", columns.join(", "));
    let Expr::Subquery(mut outer) = parsed(&text)? else { return Err(Error::new("a fit is no subquery")) };
    if let SetExpr::Select(of_struct) = outer.body.as_mut() {
        if let Some(SelectItem::UnnamedExpr(Expr::Function(Function { args: FunctionArguments::List(list), .. }))) =
            of_struct.projection.first_mut()
        {
            let names = names.into_iter().map(|name| Expr::Value(Value::SingleQuotedString(name).into()));
            let pairs = names.zip(aggregates).flat_map(|(name, aggregate)| [name, aggregate.expr]);
            list.args = pairs.map(|expr| FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))).collect();
        }
        if let Some(TableFactor::Derived { subquery, .. }) = of_struct.from.first_mut().map(|from| &mut from.relation)
            && let SetExpr::Select(of_inputs) = subquery.body.as_mut()
        {
            for (item, input) in of_inputs.projection.iter_mut().zip(inputs) {
                if let SelectItem::ExprWithAlias { expr, .. } = item {
                    *expr = input;
                }
            }
            of_inputs.from.clone_from(&select.from);
            of_inputs.named_window.clone_from(&select.named_window);
            of_inputs.selection = match &fits[0].fit_on {
                Some(condition) => Some(condition.clone()),
                None => select.selection.clone(),
            };
        }
    }
    Ok((*outer, fields))
}

/// An expression of this text, without places.
pub(crate) fn parsed(text: &str) -> Result<Expr> {
    let tokens = Tokenizer::new(&DIALECT, text).tokenize().map_err(|error| Error::new(error.to_string()))?;
    let mut parser = Parser::new(&DIALECT).with_tokens(tokens);
    let expr = parser.parse_expr().and_then(|expr| {
        parser.expect_token(&Token::EOF)?;
        Ok(expr)
    });
    expr.map_err(|error| Error::new(error.to_string().trim_start_matches("sql parser error: ").to_owned()))
}

/// An expression of this text, with other expressions for some of its names.
fn substituted(text: &str, by: impl Fn(&str) -> Option<Expr>) -> Result<Expr> {
    let mut expr = parsed(text)?;
    let _ = VisitMut::visit(&mut expr, &mut Substitution(by));
    Ok(expr)
}

/// Replaces names by expressions.
struct Substitution<F>(F);

impl<F: Fn(&str) -> Option<Expr>> VisitorMut for Substitution<F> {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        if let Expr::Identifier(ident) = expr
            && let Some(by) = (self.0)(&ident.value)
        {
            *expr = by;
        }
        ControlFlow::Continue(())
    }
}

/// Whether an expression derives rows.
fn unnests(expr: &Expr) -> bool {
    let found = visit_expressions(expr, |expr| match expr {
        Expr::Function(function) if function.name.to_string().eq_ignore_ascii_case("unnest") => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    found.is_break()
}

/// The markers in a part of a query.
fn markers(part: &impl Visit) -> Vec<String> {
    let mut found = Vec::new();
    let _ = visit_expressions(part, |expr| {
        if let Expr::Identifier(ident) = expr
            && ident.value.starts_with(MARKER)
        {
            found.push(ident.value.clone());
        }
        ControlFlow::<()>::Continue(())
    });
    found
}
