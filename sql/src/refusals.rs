//! Refuses SQL that cannot be run, and SQL that would be silently ignored.
//!
//! DataFusion parses some clauses (FOR UPDATE, EXCEPT ALL) without obeying them. So this module searches a query for
//! such constructs before it is planned. Syntax nodes are destructured without `..` where a new field could be a new
//! clause. With a new parser, the crate then does not compile until the field is refused or allowed here.
//!
//! The search also finds out whether a query needs whole tables. A feed computes each row of one table separately,
//! filters rows, looks up rows of other tables, and preserves the order of rows.

mod functions;
mod joins;
mod search;
mod subsets;
mod unnest;

use std::ops::ControlFlow;

use datafusion::execution::SessionState;
use datafusion::sql::sqlparser::ast::{
    BinaryOperator, Distinct, Expr, FunctionArg, FunctionArgExpr, GroupByExpr, ObjectName, PipeOperator, Query, Select,
    SelectFlavor, SelectItem, SetExpr, SetOperator, SetQuantifier, Spanned, TableFactor, TableWithJoins, Value, Visit,
    Visitor,
};
use datafusion::sql::sqlparser::tokenizer::Span;
use forebay_operators::TABLE_OPERATORS;

use crate::calls;
use crate::error::{Error, Place};
use crate::tokens::Tokens;
pub(crate) use search::Purpose;
use search::{BEFOREHAND, LATERAL_HINT, OF_A_PIPELINE, SAMPLE, SAMPLE_HINT, Search, UNNEST_HINT};

/// Finds all parts of the query that cannot be run.
pub(crate) fn find(query: &Query, purpose: Purpose, state: &SessionState, tokens: &Tokens, start: Place) -> Vec<Error> {
    search(query, purpose, state, tokens, start).errors
}

/// Whether a feed cannot compute each row of the query separately, or refuses the query.
pub(crate) fn is_for_all_rows(query: &Query, state: &SessionState, tokens: &Tokens, start: Place) -> bool {
    let found = search(query, Purpose::Feed, state, tokens, start);
    found.needs_tables || !found.errors.is_empty()
}

fn search<'a>(
    query: &Query,
    purpose: Purpose,
    state: &'a SessionState,
    tokens: &'a Tokens,
    start: Place,
) -> Search<'a> {
    let mut search = Search {
        purpose,
        state,
        tokens,
        errors: Vec::new(),
        needs_tables: false,
        has_begun: false,
        joins: Vec::new(),
        here: start,
        unnests: Vec::new(),
        packed: Vec::new(),
        memberships: Vec::new(),
        conditions: Vec::new(),
    };
    let _ = Visit::visit(query, &mut search);
    search.refuse_many_joins();
    search
}

impl Visitor for Search<'_> {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        self.pass(query.span());
        self.query(query);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        self.pass(select.select_token.0.span);
        self.select(select);
        ControlFlow::Continue(())
    }

    fn pre_visit_table_factor(&mut self, factor: &TableFactor) -> ControlFlow<()> {
        self.pass(factor.span());
        self.table_factor(factor);
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &Expr) -> ControlFlow<()> {
        if let Expr::Function(function) = expr {
            self.pass(function.name.span());
            self.function(function);
        } else {
            self.expr(expr);
        }
        ControlFlow::Continue(())
    }
}

impl Search<'_> {
    fn query(&mut self, query: &Query) {
        let Query {
            with,
            body,
            order_by,
            limit_clause,
            fetch,
            locks,
            for_clause,
            settings,
            format_clause,
            pipe_operators,
        } = query;
        if let Some(with) = with.as_ref().filter(|with| with.recursive) {
            self.refuse(
                with.with_token.0.span,
                &["RECURSIVE"],
                "WITH RECURSIVE is not supported: it runs until no new rows appear",
                BEFOREHAND,
            );
        }
        self.body(body);
        let is_outermost = !std::mem::replace(&mut self.has_begun, true);
        if let SetExpr::Select(select) = body.as_ref()
            && select.from.is_empty()
        {
            match self.is_feed() && is_outermost {
                true => self.refuse_at(
                    Place::start(select.select_token.0.span).unwrap_or(self.here),
                    "a pipeline needs FROM: its samples are the rows of a table",
                    "write `SELECT … FROM table`",
                ),
                false => self.needs_tables = true,
            }
        }
        let body = body.span();
        self.needs_tables |= order_by.is_some() || limit_clause.is_some() && !subsets::limits_a_table(query);
        if fetch.is_some() {
            self.refuse(body, &["FETCH"], "FETCH is not supported", "write LIMIT");
        }
        if !locks.is_empty() {
            self.refuse(
                body,
                &["FOR"],
                "FOR UPDATE and FOR SHARE would be silently ignored: files are only read",
                "leave it out",
            );
        }
        if for_clause.is_some() {
            self.refuse(body, &["FOR"], "FOR XML and FOR JSON would be silently ignored", "leave it out");
        }
        if settings.is_some() {
            self.refuse(
                body,
                &["SETTINGS"],
                "SETTINGS would be silently ignored",
                "options of a pipeline are in its `WITH (…)`",
            );
        }
        if format_clause.is_some() {
            self.refuse(body, &["FORMAT"], "FORMAT would be silently ignored", "leave it out");
        }
        for operator in pipe_operators {
            self.pipe_operator(operator, body);
        }
    }

    fn body(&mut self, body: &SetExpr) {
        match body {
            SetExpr::Select(_) | SetExpr::Query(_) => {}
            SetExpr::SetOperation { op, set_quantifier: SetQuantifier::All, right, .. }
                if *op != SetOperator::Union =>
            {
                let message = "EXCEPT ALL and INTERSECT ALL would ignore how often a row occurs";
                self.refuse_before(
                    right.span(),
                    &["ALL"],
                    message,
                    "number the rows with row_number(), or leave ALL out",
                );
            }
            SetExpr::SetOperation { .. } | SetExpr::Values(_) => self.needs_tables = true,
            SetExpr::Table(_) => {
                self.refuse_at(self.here, "`TABLE name` is not supported", "write `SELECT * FROM name`")
            }
            SetExpr::Insert(_) | SetExpr::Update(_) | SetExpr::Delete(_) | SetExpr::Merge(_) => {
                self.refuse_at(self.here, "a pipeline only reads", "write a SELECT");
            }
        }
    }

    fn pipe_operator(&mut self, operator: &PipeOperator, body: Span) {
        let word = match operator {
            PipeOperator::Limit { .. }
            | PipeOperator::OrderBy { .. }
            | PipeOperator::Union { .. }
            | PipeOperator::Intersect { .. }
            | PipeOperator::Except { .. } => {
                self.needs_tables = true;
                return;
            }
            PipeOperator::Where { .. }
            | PipeOperator::Select { .. }
            | PipeOperator::Extend { .. }
            | PipeOperator::As { .. } => return,
            PipeOperator::TableSample { .. } => {
                return self.refuse(body, &["|>", "TABLESAMPLE"], SAMPLE, SAMPLE_HINT);
            }
            PipeOperator::Join(join) => return self.join(join),
            PipeOperator::Aggregate { .. } => "AGGREGATE",
            PipeOperator::Set { .. } => "SET",
            PipeOperator::Drop { .. } => "DROP",
            PipeOperator::Rename { .. } => "RENAME",
            PipeOperator::Call { .. } => "CALL",
            PipeOperator::Pivot { .. } => "PIVOT",
            PipeOperator::Unpivot { .. } => "UNPIVOT",
        };
        self.refuse(
            body,
            &["|>", word],
            &format!("the pipe operator {word} is not supported"),
            "pipe operators are WHERE, SELECT, EXTEND, AS, ORDER BY, LIMIT, UNION, INTERSECT and EXCEPT",
        );
    }

    fn select(&mut self, select: &Select) {
        let Select {
            select_token,
            optimizer_hints,
            distinct,
            select_modifiers,
            top,
            top_before_distinct: _,
            projection,
            exclude,
            into,
            from,
            lateral_views,
            prewhere,
            selection,
            connect_by: _,
            group_by: _,
            cluster_by: _,
            distribute_by: _,
            sort_by: _,
            having,
            named_window,
            qualify,
            window_before_qualify: _,
            value_table_mode,
            flavor,
        } = select;
        let start = select_token.0.span;
        self.unnests(projection);
        self.memberships(selection.as_ref());
        for condition in [selection, having, qualify].into_iter().flatten() {
            self.conditions(condition);
        }
        // The earliest places of the clauses after FROM and WHERE.
        let from_end = from.iter().map(|item| item.span()).fold(start, |all, span| all.union(&span));
        let where_end = selection.iter().map(|item| item.span()).fold(from_end, |all, span| all.union(&span));
        if !optimizer_hints.is_empty() || select_modifiers.is_some() {
            self.refuse_at(self.here, "hints after SELECT would be silently ignored", "leave them out");
        }
        if *flavor == SelectFlavor::FromFirstNoSelect {
            self.refuse_at(self.here, "FROM without SELECT has no columns", "write `SELECT * FROM table`");
        }
        self.needs_tables |= matches!(distinct, Some(Distinct::Distinct | Distinct::On(_)))
            || having.is_some()
            || !named_window.is_empty()
            || qualify.is_some()
            || from.len() > 1;
        if top.is_some() {
            self.refuse(start, &["TOP"], "TOP is not supported", "write LIMIT");
        }
        if let Some(mode) = value_table_mode {
            self.refuse(start, &["AS"], &format!("SELECT {mode} would be silently ignored"), "leave it out");
        }
        if exclude.is_some() {
            self.refuse(
                start,
                &["EXCLUDE"],
                "EXCLUDE after the columns would be silently ignored",
                "write `* EXCLUDE (…)`",
            );
        }
        if into.is_some() {
            self.refuse(start, &["INTO"], "INTO is not supported: a pipeline only reads", "leave it out");
        }
        self.from(from, projection);
        if !lateral_views.is_empty() {
            self.refuse(from_end, &["LATERAL"], "LATERAL VIEW is not supported", UNNEST_HINT);
        }
        if prewhere.is_some() {
            self.refuse(from_end, &["PREWHERE"], "PREWHERE would be silently ignored", "write WHERE");
        }
        self.after_where(select, where_end);
    }

    fn from(&mut self, from: &[TableWithJoins], projection: &[SelectItem]) {
        for item in from {
            self.joins(item);
            self.wildcard(projection, item);
        }
    }

    /// Refuses clauses after WHERE.
    fn after_where(&mut self, select: &Select, where_end: Span) {
        if !select.connect_by.is_empty() {
            self.refuse(where_end, &["CONNECT"], "CONNECT BY is not supported", BEFOREHAND);
        }
        match &select.group_by {
            GroupByExpr::All(modifiers) | GroupByExpr::Expressions(_, modifiers) if !modifiers.is_empty() => {
                let message = "what follows the columns of GROUP BY would be silently ignored";
                self.refuse(where_end, &["GROUP", "BY"], message, "write GROUP BY ROLLUP (…) or CUBE (…)");
            }
            GroupByExpr::Expressions(expressions, _) if expressions.is_empty() => {}
            _ => self.needs_tables = true,
        }
        for (clause, given) in [
            ("CLUSTER", select.cluster_by.is_empty()),
            ("DISTRIBUTE", select.distribute_by.is_empty()),
            ("SORT", select.sort_by.is_empty()),
        ] {
            if !given {
                let message = format!("{clause} BY is not supported");
                self.refuse(where_end, &[clause, "BY"], &message, "write ORDER BY");
            }
        }
    }

    fn table_factor(&mut self, factor: &TableFactor) {
        let span = factor.span();
        let (word, is_first) = match factor {
            TableFactor::UNNEST { array_exprs, .. } if array_exprs.len() == 1 && !self.is_feed() => {
                self.needs_tables = true;
                return;
            }
            TableFactor::UNNEST { .. } => {
                let place = self.tokens.last(self.here, &["UNNEST"]).unwrap_or(self.here);
                return self.refuse_at(place, "UNNEST in FROM is not supported", UNNEST_HINT);
            }
            TableFactor::Table {
                name,
                alias: _,
                args,
                with_hints,
                version,
                with_ordinality,
                partitions,
                json_path,
                sample,
                index_hints,
            } => {
                if let Some(args) = args {
                    self.table_function(name, &args.args);
                }
                match sample {
                    Some(sample) if self.is_feed() => self.table_sample(sample, span),
                    Some(_) => {
                        self.refuse(span, &["TABLESAMPLE"], "a sample is drawn when a feed is read", OF_A_PIPELINE)
                    }
                    None => {}
                }
                if version.is_some() {
                    self.refuse(
                        name.span(),
                        &[],
                        "a version of a table would be silently ignored",
                        "the files are pinned when the feed is opened",
                    );
                }
                if !with_hints.is_empty()
                    || *with_ordinality
                    || !partitions.is_empty()
                    || json_path.is_some()
                    || !index_hints.is_empty()
                {
                    self.refuse_at(
                        self.here,
                        "clauses after the table's name would be silently ignored",
                        "leave it out",
                    );
                }
                return;
            }
            TableFactor::Derived { lateral, subquery: _, alias: _, sample } => {
                if *lateral && self.is_feed() {
                    self.refuse_before(span, &["LATERAL"], "LATERAL is not supported in a pipeline", LATERAL_HINT);
                }
                self.needs_tables |= *lateral;
                if sample.is_some() {
                    self.sample(span, "TABLESAMPLE of a subquery is not supported");
                }
                return;
            }
            TableFactor::NestedJoin { table_with_joins, alias: _ } => return self.joins(table_with_joins),
            TableFactor::Function { name, .. } => return self.unknown_table_function(name),
            TableFactor::TableFunction { .. } => ("TABLE", true),
            TableFactor::JsonTable { .. } => ("JSON_TABLE", true),
            TableFactor::OpenJsonTable { .. } => ("OPENJSON", true),
            TableFactor::XmlTable { .. } => ("XMLTABLE", true),
            TableFactor::Unpivot { .. } => ("UNPIVOT", false),
            TableFactor::Pivot { .. } => ("PIVOT", false),
            TableFactor::MatchRecognize { .. } => ("MATCH_RECOGNIZE", false),
            TableFactor::SemanticView { .. } => ("SEMANTIC_VIEW", false),
        };
        // The keyword comes before the first node with a place, or after the table that it modifies.
        let place = if is_first { self.tokens.last(self.here, &[word]) } else { self.tokens.next(self.here, &[word]) };
        self.refuse_at(place.unwrap_or(self.here), &format!("{word} is not supported"), BEFOREHAND);
    }

    /// Accepts the calls of table operators, including their subqueries.
    fn table_function(&mut self, name: &ObjectName, args: &[FunctionArg]) {
        let is_known = self.state.table_functions().contains_key(&name.to_string().to_lowercase());
        if calls::table_operator(name).is_none() {
            if self.is_feed() || !is_known {
                self.unknown_table_function(name);
            }
            return;
        }
        if !self.is_feed() {
            let place = Place::start(name.span()).unwrap_or(self.here);
            let message = format!("\"{name}\" derives rows of a feed's windows");
            return self.refuse_at(place, &message, OF_A_PIPELINE);
        }
        for argument in args {
            let (FunctionArg::Unnamed(argument) | FunctionArg::Named { arg: argument, .. }) = argument else {
                continue;
            };
            if let FunctionArgExpr::Expr(Expr::Subquery(query)) = argument {
                self.packed.extend(Place::start(query.span()));
            }
        }
    }

    fn unknown_table_function(&mut self, name: &ObjectName) {
        let place = Place::start(name.span()).unwrap_or(self.here);
        let operators: Vec<_> = TABLE_OPERATORS.iter().map(|operator| operator.descriptor().name).collect();
        self.refuse_at(
            place,
            &format!("\"{name}\" is called in FROM, and no table operator has that name"),
            &format!("write `FROM table` and call functions in SELECT; table operators: {}", operators.join(", ")),
        );
    }

    fn expr(&mut self, expr: &Expr) {
        match expr {
            Expr::Exists { subquery, .. } | Expr::InSubquery { subquery, .. } => self.membership(expr, subquery),
            Expr::Subquery(query) => {
                let place = Place::start(query.span()).unwrap_or(self.here);
                self.needs_tables |= !self.packed.contains(&place);
            }
            Expr::InUnnest { array_expr, .. } => {
                self.refuse_before(
                    array_expr.span(),
                    &["UNNEST"],
                    "IN UNNEST is not supported",
                    "write `array_has(array, value)`",
                );
            }
            Expr::IsDistinctFrom(left, right) | Expr::IsNotDistinctFrom(left, right)
                if matches!(right.as_ref(), Expr::BinaryOp { op: BinaryOperator::And | BinaryOperator::Or, .. }) =>
            {
                self.refuse(
                    left.span(),
                    &["IS"],
                    "all that follows IS DISTINCT FROM would be compared, AND and OR included",
                    "write brackets: `(a IS DISTINCT FROM b) AND c`",
                );
            }
            Expr::BinaryOp { left, op: BinaryOperator::BitwiseXor, .. } => {
                self.refuse(
                    left.span(),
                    &["^"],
                    "\"^\" is a power in other databases and exclusive or in DataFusion, so it is refused",
                    "write `power(a, b)`, or `(a | b) - (a & b)`",
                );
            }
            Expr::Value(value) if matches!(value.value, Value::Placeholder(_)) => {
                let place = Place::start(value.span).unwrap_or(self.here);
                self.refuse_at(place, "placeholders are not supported", "write the value itself");
            }
            _ => {}
        }
    }
}
