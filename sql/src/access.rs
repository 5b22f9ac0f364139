//! Access to parts of values: `list[1].field`, `json -> 'key'`, `substring(text FROM 2)`.
//!
//! DataFusion's planner reads a field after an index only if it is written `list[1]['field']`, and has no JSON. All
//! are rewritten before planning, so that everything else sees what DataFusion knows.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    AccessExpr, BinaryOperator, Expr, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList, FunctionArguments,
    Ident, ObjectName, Query, Spanned, UnaryOperator, Value, VisitMut, VisitorMut,
};
use datafusion::sql::sqlparser::tokenizer::Span;
use forebay_operators::json_access;

/// Rewrites all accesses in a query and its subqueries.
pub(crate) fn rewrite(query: &mut Query) {
    let _ = VisitMut::visit(query, &mut Accesses);
}

struct Accesses;

impl VisitorMut for Accesses {
    type Break = ();

    fn post_visit_expr(&mut self, expr: &mut Expr) -> ControlFlow<()> {
        match expr {
            Expr::CompoundFieldAccess { access_chain, .. } => {
                for access in access_chain {
                    if let AccessExpr::Dot(Expr::Identifier(ident)) = access {
                        let name =
                            if ident.quote_style.is_some() { ident.value.clone() } else { ident.value.to_lowercase() };
                        *access = AccessExpr::Dot(Expr::Value(Value::SingleQuotedString(name).with_span(ident.span)));
                    }
                }
            }
            Expr::BinaryOp { left, op: op @ (BinaryOperator::Arrow | BinaryOperator::LongArrow), right } => {
                let name = json_access(*op == BinaryOperator::LongArrow);
                let json = left.as_ref().clone();
                let mut whole = right.as_ref().clone();
                attach(&mut whole, |right| {
                    let path = path(&right).unwrap_or(right);
                    call(name, json.span(), vec![json, path])
                });
                *expr = whole;
            }
            // The planner's own call of this function would bypass the session's.
            Expr::Substring { expr: text, substring_from, substring_for, .. } => {
                let one = || Expr::Value(Value::Number("1".to_owned(), false).into());
                let mut arguments = vec![text.as_ref().clone()];
                arguments.extend(match (substring_from, substring_for) {
                    (None, None) => vec![],
                    (None, Some(length)) => vec![one(), length.as_ref().clone()],
                    (Some(from), None) => vec![from.as_ref().clone()],
                    (Some(from), Some(length)) => vec![from.as_ref().clone(), length.as_ref().clone()],
                });
                *expr = call("substr", text.span(), arguments);
            }
            _ => {}
        }
        ControlFlow::Continue(())
    }
}

/// Replaces the operand of `expr` that comes first in the text. The parser reads `json -> 'a' = 'b'` as `json -> ('a' =
/// 'b')`, with a node of its own for parentheses that are in the text, while Postgres and DuckDB compare last.
fn attach(expr: &mut Expr, replace: impl FnOnce(Expr) -> Expr) {
    let first = match expr {
        Expr::BinaryOp { left, .. } => Some(left),
        Expr::IsNull(of)
        | Expr::IsNotNull(of)
        | Expr::IsTrue(of)
        | Expr::IsNotTrue(of)
        | Expr::IsFalse(of)
        | Expr::IsNotFalse(of) => Some(of),
        Expr::Like { expr: of, .. } | Expr::ILike { expr: of, .. } => Some(of),
        Expr::InList { expr: of, .. } | Expr::Between { expr: of, .. } => Some(of),
        Expr::IsDistinctFrom(of, _) | Expr::IsNotDistinctFrom(of, _) => Some(of),
        _ => None,
    };
    match first {
        Some(first) => attach(first, replace),
        None => {
            let right = std::mem::replace(expr, Expr::Value(Value::Null.into()));
            *expr = replace(right);
        }
    }
}

/// A call of a function. Errors are placed at `span`.
fn call(name: &str, span: Span, arguments: Vec<Expr>) -> Expr {
    let arguments = arguments.into_iter().map(|argument| FunctionArg::Unnamed(FunctionArgExpr::Expr(argument)));
    Expr::Function(Function {
        name: ObjectName::from(vec![Ident::with_span(span, name)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: arguments.collect(),
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

/// The path of an index: `-> 0` is the first item of an array, as `-> '$[0]'`.
fn path(right: &Expr) -> Option<Expr> {
    let (sign, number) = match right {
        Expr::UnaryOp { op: UnaryOperator::Minus, expr } => ("-", expr.as_ref()),
        other => ("", other),
    };
    let Expr::Value(value) = number else { return None };
    let Value::Number(digits, _) = &value.value else { return None };
    Some(Expr::Value(Value::SingleQuotedString(format!("$[{sign}{digits}]")).with_span(value.span)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tokens::DIALECT;
    use datafusion::sql::sqlparser::parser::Parser;

    #[test]
    fn accesses_bind_more_tightly_than_comparisons() {
        let rewritten = |text: &str| {
            let mut query = Parser::new(&DIALECT).try_with_sql(text).unwrap().parse_query().unwrap();
            rewrite(&mut query);
            query.to_string()
        };
        let (json, text) = (json_access(false), json_access(true));
        for (given, expected) in [
            ("SELECT j -> 'a' ->> 'b' = 'c'", format!("SELECT {text}({json}(j, 'a'), 'b') = 'c'")),
            ("SELECT j ->> 'a' IS NULL AND k", format!("SELECT {text}(j, 'a') IS NULL AND k")),
            ("SELECT j -> 0 LIKE '%x' || y", format!("SELECT {json}(j, '$[0]') LIKE '%x' || y")),
            ("SELECT j -> -1 IN ('1')", format!("SELECT {json}(j, '$[-1]') IN ('1')")),
            ("SELECT a || b ->> ('c' || d)", format!("SELECT {text}(a || b, ('c' || d))")),
            ("SELECT substring(s FROM 2)", "SELECT substr(s, 2)".to_owned()),
            ("SELECT substr(s, 2, n)", "SELECT substr(s, 2, n)".to_owned()),
            ("SELECT ls[1].q", "SELECT ls[1].'q'".to_owned()),
        ] {
            assert_eq!(rewritten(given), expected, "{given}");
        }
    }
}
