//! The form of expressions.

use arrow::datatypes::{DataType, Field};
use datafusion::common::{Column, TableReference};
use datafusion::error::Result;
use datafusion::logical_expr::expr::{Alias, LambdaVariable, ScalarFunction, SetQuantifier};
use datafusion::logical_expr::{BinaryExpr, Case, Expr, Like, Operator, Subquery};
use datafusion::scalar::ScalarValue;
use forebay_operators::{ConstantKind, Parameter, ParameterKind};

use super::aggregates::over_rows;
use super::form::Form;
use super::values::{field, metadata, value};
use crate::function::FunctionUdf;

/// Writes an expression.
pub(super) fn expression(form: &mut Form, expr: &Expr) -> Result<()> {
    match expr {
        Expr::Alias(Alias { expr, relation, name, metadata: fields }) => {
            form.tag("alias");
            form.optional(relation.as_ref(), relation_form)?;
            form.text(name);
            form.optional(fields.as_ref(), |form, fields| metadata(form, fields.inner()))?;
            expression(form, expr)
        }
        Expr::Column(name) => {
            form.tag("column");
            column(form, name)
        }
        Expr::OuterReferenceColumn(_, name) => {
            form.tag("outer column");
            column(form, name)
        }
        Expr::Literal(constant, fields) => {
            form.tag("literal");
            value(form, constant)?;
            form.optional(fields.as_ref(), |form, fields| metadata(form, fields.inner()))
        }
        Expr::BinaryExpr(BinaryExpr { left, op, right }) => {
            form.tag("binary");
            form.tag(operator(*op));
            expression(form, left)?;
            expression(form, right)
        }
        Expr::ScalarFunction(call) => function(form, call),
        Expr::HigherOrderFunction(call) => {
            form.tag("higher-order function");
            form.text(call.name());
            expressions(form, &call.args)
        }
        Expr::Cast(cast) => {
            form.tag(cast_tag(&cast.field, "cast", "cast to local time"));
            field(form, &cast.field)?;
            expression(form, &cast.expr)
        }
        Expr::TryCast(cast) => {
            form.tag(cast_tag(&cast.field, "try cast", "try cast to local time"));
            field(form, &cast.field)?;
            expression(form, &cast.expr)
        }
        other => condition(form, other),
    }
}

/// The tag of a cast to the type of `field`. Casts of times used to give the time in UTC.
fn cast_tag(field: &Field, cast: &'static str, to_local_time: &'static str) -> &'static str {
    match field.data_type() {
        DataType::Timestamp(_, None) => to_local_time,
        _ => cast,
    }
}

/// Writes an expression that returns a boolean, chooses between values, or reads a subquery.
fn condition(form: &mut Form, expr: &Expr) -> Result<()> {
    match expr {
        Expr::Not(of) => unary(form, "not", of),
        Expr::Negative(of) => unary(form, "checked negative", of),
        Expr::IsNull(of) => unary(form, "is null", of),
        Expr::IsNotNull(of) => unary(form, "is not null", of),
        Expr::IsTrue(of) => unary(form, "is true", of),
        Expr::IsNotTrue(of) => unary(form, "is not true", of),
        Expr::IsFalse(of) => unary(form, "is false", of),
        Expr::IsNotFalse(of) => unary(form, "is not false", of),
        Expr::IsUnknown(of) => unary(form, "is unknown", of),
        Expr::IsNotUnknown(of) => unary(form, "is not unknown", of),
        Expr::Like(like) => pattern(form, "like", like),
        Expr::SimilarTo(like) => pattern(form, "similar to", like),
        Expr::Between(between) => {
            form.tag("between");
            form.flag(between.negated);
            [&between.expr, &between.low, &between.high].into_iter().try_for_each(|part| expression(form, part))
        }
        Expr::Case(Case { expr, when_then_expr, else_expr }) => {
            form.tag("case");
            form.optional(expr.as_deref(), expression)?;
            form.list(when_then_expr, |form, (when, then)| {
                expression(form, when)?;
                expression(form, then)
            })?;
            form.optional(else_expr.as_deref(), expression)
        }
        Expr::InList(within) => {
            form.tag("in list");
            form.flag(within.negated);
            expression(form, &within.expr)?;
            expressions(form, &within.list)
        }
        Expr::InSubquery(within) => {
            form.tag("in subquery");
            form.flag(within.negated);
            expression(form, &within.expr)?;
            subquery(form, &within.subquery)
        }
        Expr::Exists(exists) => {
            form.tag("exists");
            form.flag(exists.negated);
            subquery(form, &exists.subquery)
        }
        Expr::SetComparison(comparison) => {
            form.tag("set comparison");
            form.tag(operator(comparison.op));
            form.tag(match comparison.quantifier {
                SetQuantifier::Any => "any",
                SetQuantifier::All => "all",
            });
            expression(form, &comparison.expr)?;
            subquery(form, &comparison.subquery)
        }
        Expr::ScalarSubquery(of) => {
            form.tag("scalar subquery");
            subquery(form, of)
        }
        Expr::Lambda(lambda) => {
            form.tag("lambda");
            form.list(&lambda.params, |form, name| {
                form.text(name);
                Ok(())
            })?;
            expression(form, &lambda.body)
        }
        Expr::LambdaVariable(LambdaVariable { name, field: of, .. }) => {
            form.tag("lambda variable");
            form.text(name);
            form.optional(of.as_ref(), |form, of| field(form, of))
        }
        other => over_rows(form, other),
    }
}

/// Writes the number of expressions, then each expression.
pub(super) fn expressions(form: &mut Form, exprs: &[Expr]) -> Result<()> {
    form.list(exprs, expression)
}

/// Writes a column's name.
pub(super) fn column(form: &mut Form, column: &Column) -> Result<()> {
    form.optional(column.relation.as_ref(), relation_form)?;
    form.text(&column.name);
    Ok(())
}

/// Writes a table's name.
pub(super) fn relation_form(form: &mut Form, relation: &TableReference) -> Result<()> {
    form.list([relation.catalog(), relation.schema(), Some(relation.table())], |form, part| {
        form.optional(part, |form, part| {
            form.text(part);
            Ok(())
        })
    })
}

/// Writes a call: the function and its arguments. A file is identified by its content, wherever it is.
fn function(form: &mut Form, call: &ScalarFunction) -> Result<()> {
    let callee = Callee::of(call);
    self::callee(form, &callee)?;
    let Callee::Operator(name, _) = callee else { return expressions(form, &call.args) };
    let parameters = forebay_operators::find(name).map_or(&[][..], |operator| operator.descriptor().parameters);
    let file = |at: usize, argument| digest(parameters.get(at)?, argument);
    form.list(call.args.iter().enumerate(), |form, (at, argument)| match file(at, argument) {
        Some(digest) => {
            form.tag("file");
            form.text(digest);
            Ok(())
        }
        None => expression(form, argument),
    })
}

/// The digest of the file that a constant names.
fn digest<'a>(parameter: &Parameter, argument: &'a Expr) -> Option<&'a str> {
    match (parameter.kind, argument) {
        (
            ParameterKind::Constant(ConstantKind::File | ConstantKind::Vocabulary),
            Expr::Literal(ScalarValue::Utf8(Some(text)), _),
        ) => Some(forebay_operators::files::pinned(text)?.1),
        _ => None,
    }
}

/// The function of a call, with the version that determines its results.
enum Callee<'a> {
    /// An operator and its version.
    Operator(&'a str, u32),
    /// A function of the embedding program and its version, if declared.
    Function(&'a str, Option<&'a str>),
    /// A function of DataFusion. The form's version covers it.
    Sql(&'a str),
    /// The portable form of a function of DataFusion, and its version.
    PortableMath(&'a str, u32),
}

impl<'a> Callee<'a> {
    fn of(call: &'a ScalarFunction) -> Self {
        let name = call.name();
        if let Some(version) = forebay_operators::portable_version(&call.func) {
            return Self::PortableMath(name, version);
        }
        match (FunctionUdf::of_call(call), forebay_operators::find(name)) {
            (Some(function), _) => Self::Function(name, function.version()),
            (None, Some(operator)) => Self::Operator(name, operator.descriptor().version),
            (None, None) => Self::Sql(name),
        }
    }
}

fn callee(form: &mut Form, callee: &Callee<'_>) -> Result<()> {
    match callee {
        Callee::Operator(name, version) => {
            form.tag("operator");
            form.text(name);
            form.number(u64::from(*version));
            Ok(())
        }
        Callee::Function(name, version) => {
            form.tag("function");
            form.text(name);
            form.optional(*version, |form, version| {
                form.text(version);
                Ok(())
            })
        }
        Callee::PortableMath(name, version) => {
            form.tag("portable function");
            form.text(name);
            form.number(u64::from(*version));
            Ok(())
        }
        Callee::Sql(name) => {
            form.tag("sql function");
            form.text(name);
            Ok(())
        }
    }
}

fn unary(form: &mut Form, tag: &'static str, of: &Expr) -> Result<()> {
    form.tag(tag);
    expression(form, of)
}

fn pattern(form: &mut Form, tag: &'static str, like: &Like) -> Result<()> {
    form.tag(tag);
    form.flag(like.negated);
    form.flag(like.case_insensitive);
    form.optional(like.escape_char, |form, escape| {
        form.number(u64::from(u32::from(escape)));
        Ok(())
    })?;
    expression(form, &like.expr)?;
    expression(form, &like.pattern)
}

fn subquery(form: &mut Form, subquery: &Subquery) -> Result<()> {
    expressions(form, &subquery.outer_ref_columns)?;
    form.plan(&subquery.subquery)
}

/// Exhaustive, so that a new operator of a later DataFusion cannot share another operator's name.
fn operator(operator: Operator) -> &'static str {
    match operator {
        Operator::Eq => "equal",
        Operator::NotEq => "not equal",
        Operator::Lt => "less",
        Operator::LtEq => "less or equal",
        Operator::Gt => "greater",
        Operator::GtEq => "greater or equal",
        // Their results used to wrap around, so that tokens of that time might name other samples.
        Operator::Plus => "checked plus",
        Operator::Minus => "checked minus",
        Operator::Multiply => "checked multiply",
        Operator::Divide => "checked divide",
        Operator::Modulo => "modulo",
        Operator::And => "and",
        Operator::Or => "or",
        Operator::IsDistinctFrom => "distinct",
        Operator::IsNotDistinctFrom => "not distinct",
        Operator::RegexMatch => "regex",
        Operator::RegexIMatch => "iregex",
        Operator::RegexNotMatch => "not regex",
        Operator::RegexNotIMatch => "not iregex",
        Operator::LikeMatch => "like",
        Operator::ILikeMatch => "ilike",
        Operator::NotLikeMatch => "not like",
        Operator::NotILikeMatch => "not ilike",
        Operator::BitwiseAnd => "bit and",
        Operator::BitwiseOr => "bit or",
        Operator::BitwiseXor => "bit xor",
        Operator::BitwiseShiftRight => "shift right",
        Operator::BitwiseShiftLeft => "shift left",
        Operator::StringConcat => "concat",
        Operator::AtArrow => "@>",
        Operator::ArrowAt => "<@",
        Operator::Arrow => "->",
        Operator::LongArrow => "->>",
        Operator::HashArrow => "#>",
        Operator::HashLongArrow => "#>>",
        Operator::AtAt => "@@",
        Operator::IntegerDivide => "integer divide",
        Operator::HashMinus => "#-",
        Operator::AtQuestion => "@?",
        Operator::Question => "?",
        Operator::QuestionAnd => "?&",
        Operator::QuestionPipe => "?|",
        Operator::Colon => ":",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_call_is_of_one_function_and_version() {
        let callees = [
            Callee::Operator("resize", 1),
            Callee::Operator("resize", 2),
            Callee::Operator("resiz", 1),
            Callee::Function("resize", None),
            Callee::Function("resize", Some("1")),
            Callee::Function("resize", Some("2")),
            Callee::Sql("resize"),
            Callee::PortableMath("resize", 1),
            Callee::PortableMath("resize", 2),
        ];
        let forms: BTreeSet<String> = callees
            .iter()
            .map(|of| {
                let mut form = Form::new("", |_, _| Ok(()));
                callee(&mut form, of).expect("a form");
                form.finish()
            })
            .collect();
        assert_eq!(forms.len(), callees.len());
    }
}
