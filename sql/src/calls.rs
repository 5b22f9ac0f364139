//! Calls of operators: converts named arguments and defaults to positional arguments.
//!
//! DataFusion's functions take arguments by position, while an operator's descriptor names them. So every call of a
//! registered operator is rewritten before planning: `resize(image, width => 8, height => 4)` becomes `resize(image, 4,
//! 8, …)` with the defaults filled in. Constants are checked at the same time, because the places of arguments are
//! known only here.

use std::ops::ControlFlow;
use std::path::Path;

use datafusion::scalar::ScalarValue;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments, Ident,
    ObjectName, ObjectNamePart, Query, Select, SetExpr, Spanned, TableFactor, UnaryOperator, Value, VisitMut,
    VisitorMut, visit_relations_mut,
};
use datafusion::sql::sqlparser::parser::Parser;
use datafusion::sql::sqlparser::tokenizer::Tokenizer;
use forebay_operators::fits::{FIT_ON, Fit};
use forebay_operators::{ConstantKind, Descriptor, Parameter, ParameterKind, RowOperator};

use crate::error::{Error, Place, Result};
use crate::fits::{self, Fits};
use crate::literals;
use crate::tokens::{DIALECT, Tokens};
use crate::{access, depth};
use forebay_diagnostics::nearest;

/// The places of a rewritten call and its arguments in the text.
#[derive(Debug)]
pub(crate) struct CallSite {
    /// The name of the operator.
    pub(crate) operator: &'static str,
    /// The name that is written: that of the operator, or of a fit that becomes a call of it.
    pub(crate) name: &'static str,
    /// Whether its constants are fitted.
    pub(crate) is_fitted: bool,
    /// The place of the function's name.
    pub(crate) place: Place,
    /// The place of each given value, by parameter.
    pub(crate) arguments: Vec<(&'static str, Place)>,
}

/// Finds what cannot be run in a query of another text.
type Refusals<'a> = &'a dyn Fn(&Query, &Tokens) -> Vec<Error>;

/// Rewrites all calls of operators in a query and its subqueries. Leaves an invalid call unchanged, and adds to
/// `errors`. `refusals` checks the conditions that calls hold as texts.
pub(crate) fn resolve(
    query: &mut Query,
    base: &Path,
    tokens: &Tokens,
    refusals: Refusals<'_>,
    errors: &mut Vec<Error>,
) -> Vec<CallSite> {
    let mut resolver = Resolver { base, tokens, refusals, errors, calls: Vec::new(), fits: Fits::default() };
    let _ = VisitMut::visit(query, &mut resolver);
    resolver.calls
}

/// The operator that a function's name refers to.
pub(crate) fn operator(name: &ObjectName) -> Option<&'static Descriptor> {
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return None };
    forebay_operators::find(&ident.value).map(|operator| operator.descriptor())
}

/// The table operator that a name in FROM refers to, if it is called.
pub(crate) fn table_operator(name: &ObjectName) -> Option<&'static dyn RowOperator> {
    let [ObjectNamePart::Identifier(ident)] = name.0.as_slice() else { return None };
    forebay_operators::find_table_operator(&ident.value)
}

struct Resolver<'a> {
    /// The base folder of relative paths.
    base: &'a Path,
    tokens: &'a Tokens,
    refusals: Refusals<'a>,
    errors: &'a mut Vec<Error>,
    calls: Vec<CallSite>,
    fits: Fits,
}

impl VisitorMut for Resolver<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.fits.enter_query();
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, _: &mut Query) -> ControlFlow<()> {
        self.fits.leave_query();
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.fits.enter_select(select);
        ControlFlow::Continue(())
    }

    fn post_visit_select(&mut self, select: &mut Select) -> ControlFlow<()> {
        self.fits.leave_select(select, self.errors);
        ControlFlow::Continue(())
    }

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        let Expr::Function(function) = expr else { return ControlFlow::Continue(()) };
        let call = match (fits::fit_of(function), operator(&function.name)) {
            (Some(fit), _) => self.fit(function, fit),
            (None, Some(descriptor)) => rewrite(function, descriptor, self.base, self.tokens),
            (None, None) => return ControlFlow::Continue(()),
        };
        match call {
            Ok(call) => self.calls.push(call),
            Err(error) => self.errors.push(error),
        }
        ControlFlow::Continue(())
    }

    fn post_visit_table_factor(&mut self, factor: &mut TableFactor) -> ControlFlow<()> {
        if let TableFactor::Table { name, args: Some(args), .. } = factor
            && let Some(operator) = table_operator(name)
        {
            match rewrite_table(name, &mut args.args, operator.descriptor(), self.base, self.tokens) {
                Ok(call) => self.calls.push(call),
                Err(error) => self.errors.push(error),
            }
        }
        ControlFlow::Continue(())
    }
}

impl Resolver<'_> {
    /// Rewrites a call whose constants are fitted.
    fn fit(&mut self, function: &mut Function, fit: &'static Fit) -> Result<CallSite> {
        let call = rewrite(function, fit.descriptor, self.base, self.tokens)?;
        let FunctionArguments::List(list) = &function.args else { return Ok(call) };
        let fit_on = match list.args.last() {
            Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr))) => literal(expr),
            _ => None,
        };
        let fit_on = match fit_on {
            Some(ScalarValue::Utf8(Some(text))) if !text.trim().is_empty() => {
                let place = call.arguments.iter().find(|(name, _)| *name == FIT_ON.name);
                let place = place.map_or(call.place, |(_, place)| *place);
                let condition = self.condition(&text).map_err(|error| {
                    let message = format!("{}: \"{}\": {}", call.name, FIT_ON.name, error.message());
                    let of_call = Error::new(message).with_place(place);
                    match error.hint() {
                        Some(hint) => of_call.with_hint(hint),
                        None => of_call,
                    }
                })?;
                Some(condition)
            }
            _ => None,
        };
        self.fits.call(fit, function, fit_on, call.place)?;
        Ok(CallSite { operator: fit.operator, is_fitted: true, ..call })
    }

    /// The condition that a text is, with its calls rewritten.
    fn condition(&self, text: &str) -> Result<Expr> {
        let tokens = Tokens::of(text)?;
        depth::check_tokens(&tokens)?;
        let mut query = all_of(&Expr::Identifier(Ident::new("fitted")))?;
        if let SetExpr::Select(select) = query.body.as_mut() {
            select.selection = Some(depth::on_large_stack(|| fits::parsed(text))?);
        }
        depth::check_query(&query, Place::START)?;
        let mut errors = (self.refusals)(&query, &tokens);
        access::rewrite(&mut query);
        let SetExpr::Select(select) = *query.body else { return Err(Error::new("is no condition")) };
        let mut condition = select.selection.unwrap_or_else(|| Expr::Value(Value::Null.into()));
        let (refusals, fits) = (self.refusals, Fits::default());
        let mut resolver =
            Resolver { base: self.base, tokens: &tokens, refusals, errors: &mut errors, calls: Vec::new(), fits };
        let _ = VisitMut::visit(&mut condition, &mut resolver);
        match errors.into_iter().next() {
            Some(error) => Err(error),
            None => Ok(condition),
        }
    }
}

/// Rewrites the call of a table operator, whose arguments follow the rules for functions.
fn rewrite_table(
    name: &mut ObjectName,
    args: &mut Vec<FunctionArg>,
    descriptor: &'static Descriptor,
    base: &Path,
    tokens: &Tokens,
) -> Result<CallSite> {
    let list = FunctionArgumentList { duplicate_treatment: None, args: args.clone(), clauses: Vec::new() };
    let mut function = Function {
        name: name.clone(),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(list),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    };
    let call = rewrite(&mut function, descriptor, base, tokens)?;
    if let FunctionArguments::List(list) = function.args {
        *args = list.args;
    }
    match args.first_mut() {
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(Expr::Subquery(_)))) => {}
        // DataFusion resolves only the tables that it finds in FROM.
        Some(FunctionArg::Unnamed(FunctionArgExpr::Expr(rows @ Expr::Identifier(_)))) => {
            *rows = Expr::Subquery(Box::new(all_of(rows)?));
        }
        _ => {
            let place = call.arguments.first().map_or(call.place, |(_, place)| *place);
            let message = format!("{}: \"rows\" must be a subquery or a table's name", descriptor.name);
            return Err(Error::new(message).with_place(place).with_hint(signature(descriptor)));
        }
    }
    *name = function.name;
    Ok(call)
}

/// Builds `SELECT * FROM table`, with the place of the table's name.
fn all_of(table: &Expr) -> Result<Query> {
    let tokens = Tokens::of(&format!("SELECT * FROM {table}"))?;
    let mut parser = Parser::new(&DIALECT).with_tokens_with_locations(tokens.to_vec());
    let mut query = parser.parse_query().map_err(|error| Error::new(format!("not a table's name: {error}")))?;
    let Expr::Identifier(ident) = table else { return Ok(*query) };
    let _ = visit_relations_mut(query.as_mut(), |name| {
        *name = ObjectName::from(vec![ident.clone()]);
        ControlFlow::<()>::Continue(())
    });
    Ok(*query)
}

fn rewrite(function: &mut Function, descriptor: &'static Descriptor, base: &Path, tokens: &Tokens) -> Result<CallSite> {
    let operator = descriptor.name;
    let place = Place::start(function.name.span()).unwrap_or(Place::START);
    let refuse = |message: &str| Error::new(format!("{operator}: {message}")).with_place(place);
    if function.filter.is_some() || function.over.is_some() || !function.within_group.is_empty() {
        return Err(refuse("is computed row by row and takes no FILTER, OVER or WITHIN GROUP"));
    }
    let no_parameters = matches!(function.parameters, FunctionArguments::None);
    let given = match &function.args {
        FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses })
            if clauses.is_empty() && no_parameters =>
        {
            args
        }
        _ => return Err(refuse("takes a list of arguments and nothing else").with_hint(signature(descriptor))),
    };
    let places = tokens.arguments(place);
    let mut slots: Vec<Option<CallArgument>> = descriptor.parameters.iter().map(|_| None).collect();
    let mut named = false;
    for (index, argument) in given.iter().enumerate() {
        let argument_place = places.get(index).copied().or(Place::start(argument.span())).unwrap_or(place);
        let (slot, argument) = match argument {
            FunctionArg::Unnamed(value) => {
                let expr = expr(value, descriptor, argument_place)?;
                if named {
                    return Err(positional_after_named(descriptor, argument_place));
                }
                if index >= slots.len() {
                    return Err(too_many(descriptor, given.len(), argument_place));
                }
                if let Some(error) = equals_for_arrow(expr, descriptor) {
                    return Err(error.with_place(argument_place));
                }
                (index, CallArgument { expr: expr.clone(), place: argument_place })
            }
            FunctionArg::Named { name, arg, operator: _ } => {
                named = true;
                let slot = slot(name, descriptor).map_err(|error| error.with_place(argument_place))?;
                let value_place = tokens.after(argument_place, 2).unwrap_or(argument_place);
                (slot, CallArgument { expr: expr(arg, descriptor, value_place)?.clone(), place: value_place })
            }
            FunctionArg::ExprNamed { .. } => {
                return Err(Error::new(format!("{operator}: an argument's name is a word"))
                    .with_place(argument_place)
                    .with_hint(signature(descriptor)));
            }
        };
        if slots[slot].is_some() {
            return Err(Error::new(format!("{operator}: \"{}\" is given twice", descriptor.parameters[slot].name))
                .with_place(argument_place));
        }
        slots[slot] = Some(argument);
    }
    let mut call = CallSite { operator, name: operator, is_fitted: false, place, arguments: Vec::new() };
    let mut args = Vec::with_capacity(slots.len());
    for (parameter, slot) in descriptor.parameters.iter().zip(slots) {
        let expr = match slot {
            Some(argument) => {
                call.arguments.push((parameter.name, argument.place));
                check(argument, parameter, descriptor, base)?
            }
            None => default(parameter, descriptor, place)?,
        };
        args.push(FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)));
    }
    function.args =
        FunctionArguments::List(FunctionArgumentList { duplicate_treatment: None, args, clauses: Vec::new() });
    // The name may be quoted, and in any case.
    if let Some(ObjectNamePart::Identifier(ident)) = function.name.0.first_mut() {
        *ident = Ident { value: operator.to_owned(), quote_style: None, span: ident.span };
    }
    Ok(call)
}

struct CallArgument {
    expr: Expr,
    place: Place,
}

fn expr<'a>(value: &'a FunctionArgExpr, descriptor: &Descriptor, place: Place) -> Result<&'a Expr> {
    match value {
        FunctionArgExpr::Expr(expr) => Ok(expr),
        _ => Err(Error::new(format!("{}: `*` is not an argument", descriptor.name))
            .with_place(place)
            .with_hint(signature(descriptor))),
    }
}

/// The position of a named argument.
fn slot(name: &Ident, descriptor: &Descriptor) -> Result<usize> {
    let names = || descriptor.parameters.iter().map(|parameter| parameter.name);
    if let Some(slot) = names().position(|other| other.eq_ignore_ascii_case(&name.value)) {
        return Ok(slot);
    }
    let all = names().collect::<Vec<_>>().join(", ");
    let hint = match nearest(&name.value, names()) {
        Some(near) => format!("did you mean \"{near}\"? arguments: {all}"),
        None => format!("arguments: {all}"),
    };
    Err(Error::new(format!("{}: unknown argument \"{}\"", descriptor.name, name.value)).with_hint(hint))
}

fn positional_after_named(descriptor: &Descriptor, place: Place) -> Error {
    Error::new(format!("{}: a positional argument after a named one", descriptor.name))
        .with_place(place)
        .with_hint("name it too: `name => value`")
}

fn too_many(descriptor: &Descriptor, given: usize, place: Place) -> Error {
    let names: Vec<_> = descriptor.parameters.iter().map(|parameter| parameter.name).collect();
    let (count, names) = (names.len(), names.join(", "));
    let plural = if count == 1 { "" } else { "s" };
    Error::new(format!("{}: takes {count} argument{plural} ({names}), got {given}", descriptor.name)).with_place(place)
}

/// Detects `resize(image, height = 224)`, a comparison in place of a named argument.
fn equals_for_arrow(expr: &Expr, descriptor: &Descriptor) -> Option<Error> {
    let Expr::BinaryOp { left, op: BinaryOperator::Eq, right } = expr else { return None };
    let Expr::Identifier(name) = left.as_ref() else { return None };
    let slot = slot(name, descriptor).ok()?;
    let name = descriptor.parameters[slot].name;
    Some(
        Error::new(format!("{}: `{expr}` is a comparison, not a named argument", descriptor.name))
            .with_hint(format!("write `{name} => {right}`")),
    )
}

/// Checks a given value. Planning checks whether the type of an input fits.
fn check(argument: CallArgument, parameter: &Parameter, descriptor: &Descriptor, base: &Path) -> Result<Expr> {
    let ParameterKind::Constant(kind) = parameter.kind else { return Ok(argument.expr) };
    let problem = match literal(&argument.expr) {
        Some(value) => match parameter.kind.check(&value) {
            Ok(()) => match pinned(kind, &value, base) {
                Ok(None) => return Ok(unnested(argument.expr)),
                Ok(Some(pinned)) => return Ok(pinned),
                Err(problem) => {
                    let error = Error::new(format!("{}: \"{}\" {problem}", descriptor.name, parameter.name));
                    return Err(error.with_place(argument.place).with_hint(FILE_HINT));
                }
            },
            Err(problem) => problem,
        },
        None => {
            let got = match unnested(argument.expr) {
                Expr::Identifier(_) | Expr::CompoundIdentifier(_) => "a column",
                Expr::Array(list) if list.elem.is_empty() => "an empty list",
                _ => "an expression",
            };
            format!("must be {} written as a constant, got {got}", parameter.kind.wording())
        }
    };
    let example =
        parameter.default.filter(|&default| default != "NULL").or(parameter.example).unwrap_or(kind.example());
    Err(Error::new(format!("{}: \"{}\" {problem}", descriptor.name, parameter.name))
        .with_place(argument.place)
        .with_hint(format!("write `{} => {example}`", parameter.name)))
}

const FILE_HINT: &str = "relative paths start at the script's folder, or at the session's base";

/// The absolute path of a file with the digest of its content, which identifies the call.
fn pinned(kind: ConstantKind, value: &ScalarValue, base: &Path) -> std::result::Result<Option<Expr>, String> {
    let ScalarValue::Utf8(Some(path)) = value else { return Ok(None) };
    if !kind.is_path(path) {
        return Ok(None);
    }
    let text = forebay_operators::files::pin(path, base)?;
    Ok(Some(Expr::Value(Value::SingleQuotedString(text).into())))
}

fn default(parameter: &Parameter, descriptor: &Descriptor, place: Place) -> Result<Expr> {
    let Some(text) = parameter.default else {
        return Err(Error::new(format!("{}: \"{}\" is missing", descriptor.name, parameter.name))
            .with_place(place)
            .with_hint(signature(descriptor)));
    };
    // The tokens have no places, because a default is not in the user's text.
    let tokens = Tokenizer::new(&DIALECT, text).tokenize().map_err(|error| error.to_string());
    let expr = tokens
        .and_then(|tokens| Parser::new(&DIALECT).with_tokens(tokens).parse_expr().map_err(|error| error.to_string()));
    expr.map_err(|error| {
        debug_assert!(false, "the default of {} in {} is not SQL: {error}", parameter.name, descriptor.name);
        Error::new(format!("{}: the default of \"{}\" is broken: {error}", descriptor.name, parameter.name))
            .with_place(place)
    })
}

/// The signature of an operator: `resize(image, height, width, antialias => true)`.
fn signature(descriptor: &Descriptor) -> String {
    let parameters: Vec<_> = descriptor
        .parameters
        .iter()
        .map(|parameter| match parameter.default {
            Some(default) => format!("{} => {default}", parameter.name),
            None => parameter.name.to_owned(),
        })
        .collect();
    let from = if forebay_operators::find_table_operator(descriptor.name).is_some() { "FROM " } else { "" };
    format!("write `{from}{}({})`", descriptor.name, parameters.join(", "))
}

fn unnested(expr: Expr) -> Expr {
    match expr {
        Expr::Nested(inner) => unnested(*inner),
        other => other,
    }
}

/// The value of an expression that is a literal, a signed number, or an array of these.
pub(crate) fn literal(expr: &Expr) -> Option<ScalarValue> {
    match expr {
        Expr::Nested(inner) => literal(inner),
        Expr::Value(value) => match &value.value {
            Value::Number(number, _) => parse_number(number),
            Value::Boolean(boolean) => Some(ScalarValue::Boolean(Some(*boolean))),
            Value::Null => Some(ScalarValue::Null),
            other => other.clone().into_string().map(|text| ScalarValue::Utf8(Some(text))),
        },
        Expr::UnaryOp { op: UnaryOperator::Plus, expr } => literal(expr).filter(|value| value.data_type().is_numeric()),
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => match expr.as_ref() {
            Expr::Value(value) => match &value.value {
                Value::Number(number, _) => parse_number(&format!("-{number}")),
                _ => None,
            },
            Expr::Nested(_) => literal(expr).and_then(|value| value.arithmetic_negate().ok()),
            _ => None,
        },
        Expr::Array(array) => {
            let elements: Option<Vec<ScalarValue>> = array.elem.iter().map(literal).collect();
            literals::list(elements?)
        }
        _ => None,
    }
}

fn parse_number(number: &str) -> Option<ScalarValue> {
    if let Ok(integer) = number.parse() {
        return Some(ScalarValue::Int64(Some(integer)));
    }
    if let Ok(integer) = number.parse() {
        return Some(ScalarValue::UInt64(Some(integer)));
    }
    number.parse().ok().map(|float| ScalarValue::Float64(Some(float)))
}
