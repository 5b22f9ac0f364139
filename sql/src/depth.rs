//! The limits of nesting in a query.
//!
//! Parsing, visiting, copying and planning a query are recursive, and a stack overflow ends the process. Parsing has
//! its own stack, which is large enough for every text within the parser's limit. The other steps run on threads with
//! two megabytes, so this module refuses a query if planning it might overflow. For example, `a + a + …` nests once per
//! operator without recursion in the parser.
//!
//! The limits fit debug builds, whose frames are about ten times as large as in release builds. All builds accept the
//! same queries.

use std::collections::HashMap;
use std::ops::ControlFlow;

use datafusion::sql::sqlparser::ast::{
    ArrayElemTypeDef, DataType, Expr, Function, ObjectName, ObjectNamePart, Query, Select, TypedString, Value, Visit,
    Visitor, visit_expressions,
};
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
/// Each type within another, in a cast. Measured: planning overflows at 58.
const TYPE_NESTING: usize = 2;
/// Each query of a WITH that reads another, although its text does not nest. Measured: planning overflows at 36.
const CHAIN_NESTING: usize = 3;
const CHAIN_JOIN_NESTING: usize = 2;

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
    match Visit::visit(query, &mut Depth::default()) {
        ControlFlow::Continue(()) => Ok(()),
        ControlFlow::Break(()) => Err(too_deep(place)),
    }
}

/// Refuses the type of a declared column that is too deep to process.
pub(crate) fn check_type(data_type: &DataType, place: Place) -> Result<()> {
    match type_depth(data_type) * TYPE_NESTING > NESTING_MAX {
        true => Err(Error::new("the column's type is nested too deeply").with_place(place)),
        false => Ok(()),
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

/// The depth of the part that is being visited.
#[derive(Default)]
struct Depth {
    now: usize,
    /// The queries around this part.
    around: Vec<Chain>,
    /// The queries of WITH that are not visited yet, with their names.
    named: HashMap<*const Query, String>,
    /// How deeply the plan of each visited query of WITH nests.
    chains: HashMap<String, usize>,
}

/// A query, for the depth of its plan.
#[derive(Clone, Copy, Default)]
struct Chain {
    joins: usize,
    /// The deepest plan that it reads.
    read: usize,
}

impl Visitor for Depth {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        for cte in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(&raw const *cte.query, cte.alias.name.value.to_lowercase());
        }
        self.around.push(Chain::default());
        self.enter(QUERY_NESTING)
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.now -= QUERY_NESTING;
        let Chain { joins, read } = self.around.pop().unwrap_or_default();
        let chain = read + joins * CHAIN_JOIN_NESTING;
        match (self.named.remove(&(&raw const *query)), self.around.last_mut()) {
            (Some(name), _) => _ = self.chains.insert(name, chain + CHAIN_NESTING),
            (None, Some(around)) => around.read = around.read.max(chain),
            (None, None) => {}
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        if let Some(query) = self.around.last_mut() {
            query.joins = query.joins.max(joins(select));
        }
        self.enter(joins(select) * JOIN_NESTING)
    }

    fn post_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.now -= joins(select) * JOIN_NESTING;
        ControlFlow::Continue(())
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<()> {
        let name = relation.0.last().and_then(ObjectNamePart::as_ident).map(|name| name.value.to_lowercase());
        let Some(&chain) = name.and_then(|name| self.chains.get(&name)) else { return ControlFlow::Continue(()) };
        if let Some(query) = self.around.last_mut() {
            query.read = query.read.max(chain);
        }
        self.check(chain)
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.enter(nesting(expr))
    }

    fn post_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        self.now -= nesting(expr);
        ControlFlow::Continue(())
    }
}

impl Depth {
    fn enter(&mut self, nesting: usize) -> ControlFlow<()> {
        self.now += nesting;
        self.check(0)
    }

    /// Refuses a part that nests this deeply in itself.
    fn check(&self, nesting: usize) -> ControlFlow<()> {
        if self.now + nesting > NESTING_MAX { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// A plan nests once for each join.
fn joins(select: &Select) -> usize {
    select.from.iter().map(|item| item.joins.len()).sum()
}

fn nesting(expr: &Expr) -> usize {
    match expr {
        Expr::BinaryOp { .. } | Expr::Identifier(_) | Expr::CompoundIdentifier(_) | Expr::Value(_) => OPERATOR_NESTING,
        Expr::CompoundFieldAccess { access_chain, .. } => EXPRESSION_NESTING + access_chain.len() * OPERATOR_NESTING,
        Expr::Cast { data_type, .. }
        | Expr::Convert { data_type: Some(data_type), .. }
        | Expr::TypedString(TypedString { data_type, .. }) => EXPRESSION_NESTING + type_depth(data_type) * TYPE_NESTING,
        Expr::Function(function) => EXPRESSION_NESTING + named_type_depth(function) * TYPE_NESTING,
        _ => EXPRESSION_NESTING,
    }
}

/// The number of types around the innermost type.
fn type_depth(data_type: &DataType) -> usize {
    let inner = match data_type {
        DataType::Array(
            ArrayElemTypeDef::AngleBracket(item)
            | ArrayElemTypeDef::SquareBracket(item, _)
            | ArrayElemTypeDef::Parenthesis(item),
        )
        | DataType::Nullable(item)
        | DataType::LowCardinality(item) => type_depth(item),
        DataType::Map(key, value) => type_depth(key).max(type_depth(value)),
        DataType::Struct(fields, _) | DataType::Tuple(fields) => {
            fields.iter().map(|field| type_depth(&field.field_type)).max().unwrap_or(0)
        }
        _ => return 0,
    };
    inner + 1
}

/// Like [`type_depth`], for the types that texts name in calls such as `arrow_cast(x, 'List(Int8)')`.
fn named_type_depth(function: &Function) -> usize {
    let name = function.name.0.last().and_then(ObjectNamePart::as_ident).map(|name| name.value.to_lowercase());
    if !name.is_some_and(|name| name.starts_with("arrow_")) {
        return 0;
    }
    let mut deepest = 0;
    let _ = visit_expressions(&function.args, |expr| {
        if let Expr::Value(value) = expr
            && let Value::SingleQuotedString(text) = &value.value
        {
            let depths = text.chars().scan(0_usize, |open, character| {
                match character {
                    '(' => *open += 1,
                    ')' => *open = open.saturating_sub(1),
                    _ => {}
                }
                Some(*open)
            });
            deepest = deepest.max(depths.max().unwrap_or(0));
        }
        ControlFlow::<()>::Continue(())
    });
    deepest
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

#[cfg(test)]
mod tests {
    use crate::parser::parse;

    /// Found by `fuzz/`: each of these overflowed the stack of a thread that plans.
    #[test]
    fn what_nests_without_parentheses_counts() {
        let chain = |length: usize| {
            let link = |at: usize| match at {
                0 => "a0 AS (SELECT x FROM t)".to_owned(),
                at => format!("a{at} AS (SELECT x + 1 AS x FROM a{})", at - 1),
            };
            let links: Vec<_> = (0..length).map(link).collect();
            format!("WITH {} SELECT x FROM a{}", links.join(", "), length - 1)
        };
        for (few, many) in [
            (format!("SELECT x{} FROM t", "[1]".repeat(8)), format!("SELECT x{} FROM t", "[1]".repeat(100))),
            (format!("SELECT CAST(x AS INT{}) FROM t", "[]".repeat(8)), {
                format!("SELECT CAST(x AS INT{}) FROM t", "[]".repeat(50))
            }),
            (format!("SELECT CAST(x AS {}INT{}) FROM t", "ARRAY<".repeat(8), ">".repeat(8)), {
                format!("SELECT CAST(x AS {}INT{}) FROM t", "ARRAY<".repeat(40), ">".repeat(40))
            }),
            (format!("SELECT arrow_cast(x, '{}Int8{}') FROM t", "List(".repeat(8), ")".repeat(8)), {
                format!("SELECT arrow_cast(x, '{}Int8{}') FROM t", "List(".repeat(50), ")".repeat(50))
            }),
            (
                format!("SELECT tags{} '5' FROM t", "[1]".repeat(8)),
                format!("SELECT tags{} '5' FROM t", "[1]".repeat(200)),
            ),
            (chain(16), chain(35)),
        ] {
            assert!(parse(&format!("CREATE PIPELINE p AS {few}")).is_ok(), "{few}");
            let error = parse(&format!("CREATE PIPELINE p AS {many}")).unwrap_err();
            assert_eq!(error.message(), "the query is nested too deeply", "{many}");
        }
    }

    #[test]
    fn types_of_columns_are_bounded() {
        let table =
            |depth| format!("CREATE EXTERNAL TABLE t (a INT{}) STORED AS JSONL LOCATION 'x'", "[]".repeat(depth));
        assert!(parse(&table(8)).is_ok());
        assert_eq!(parse(&table(60)).unwrap_err().message(), "the column's type is nested too deeply");
    }
}
