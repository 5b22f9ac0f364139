//! The limits of nesting in a query.
//!
//! Parsing, visiting, copying and planning a query are recursive, and a stack overflow ends the process. Parsing has
//! its own stack, which is large enough for every text within the parser's limit. The other steps run on threads with
//! two megabytes, so this module refuses a query if planning it might overflow. For example, `a + a + …` nests once per
//! operator without recursion in the parser.
//!
//! The limits fit debug builds, whose frames are about ten times as large as in release builds. All builds accept the
//! same queries.

use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{Expr, Query, Select, Visit, Visitor};
use datafusion::sql::sqlparser::tokenizer::Token;

use crate::error::{Error, Place, Result};
use crate::tokens::Tokens;

/// Maximum depth of nesting. Measured: with two megabytes, planning overflows between 80 and 95 operators, or between
/// 15 and 20 nested calls.
const NESTING_MAX: usize = 76;
const OPERATOR_NESTING: usize = 1;
const EXPRESSION_NESTING: usize = 5;
const QUERY_NESTING: usize = 8;
const JOIN_NESTING: usize = 5;

/// Maximum number of operators in a text. Only dropping the tree recurses this deeply, with small frames.
const OPERATORS_MAX: usize = 4096;

/// The stack size for parsing. The parser refuses more than fifty levels, which need less than half of it.
const STACK_BYTES: usize = 32 << 20;

/// Refuses a text whose tree could be too deep to drop.
pub(crate) fn check_tokens(tokens: &Tokens) -> Result<()> {
    match tokens.iter().filter(|token| is_operator(&token.token)).nth(OPERATORS_MAX) {
        Some(token) => Err(Error::new(format!("the text has more than {OPERATORS_MAX} operators"))
            .or_place(Place::start(token.span))
            .with_hint("write a long chain of OR as IN (…)")),
        None => Ok(()),
    }
}

/// Refuses a query that is too deep to process.
pub(crate) fn check_query(query: &Query, place: Place) -> Result<()> {
    match Visit::visit(query, &mut Depth(0)) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(too_deep(place)),
    }
}

pub(crate) fn too_deep(place: Place) -> Error {
    Error::new("the query is nested too deeply")
        .with_place(place)
        .with_hint("write a long chain of OR as IN (…), and name inner results in WITH or in a table")
}

/// Runs `work` on a stack that is large enough for parsing.
pub(crate) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("forebay-parse".to_owned()).stack_size(STACK_BYTES);
        match thread.spawn_scoped(scope, work) {
            Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
            Err(error) => Err(Error::shortage(format!("no thread to parse on: {error}"))),
        }
    })
}

struct Depth(usize);

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.enter(QUERY_NESTING)
    }

    fn post_visit_query(&mut self, _query: &Query) -> ControlFlow<()> {
        self.0 -= QUERY_NESTING;
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.enter(joins(select))
    }

    fn post_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.0 -= joins(select);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.enter(nesting(expr))
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.0 -= nesting(expr);
        ControlFlow::Continue(())
    }
}

impl Depth {
    fn enter(&mut self, nesting: usize) -> ControlFlow<()> {
        self.0 += nesting;
        if self.0 > NESTING_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A plan nests once for each join.
fn joins(select: &Select) -> usize {
    select.from.iter().map(|item| item.joins.len() * JOIN_NESTING).sum()
}

fn nesting(expr: &Expr) -> usize {
    match expr {
        Expr::BinaryOp { .. } | Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) => OPERATOR_NESTING,
        _ => EXPRESSION_NESTING,
    }
}

/// Whether a token can nest an expression without parentheses. The parser counts parentheses.
fn is_operator(token: &Token) -> bool {
    const WORDS: [&str; 18] = [
        "AND", "OR", "XOR", "NOT", "IS", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP", "SIMILAR", "IN", "AT",
        "COLLATE", "DIV", "MOD", "UNION", "JOIN",
    ];
    match token {
        Token::Word(word) => {
            word.quote_style.is_none() && WORDS.iter().any(|name| word.value.eq_ignore_ascii_case(name))
        }
        Token::Number(..)
        | Token::SingleQuotedString(_)
        | Token::DoubleQuotedString(_)
        | Token::EscapedStringLiteral(_)
        | Token::Comma
        | Token::SemiColon
        | Token::LParen
        | Token::RParen
        | Token::RArrow
        | Token::EOF => false,
        _ => true,
    }
}
