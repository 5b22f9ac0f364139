//! `pair_rows`: the columns of another row, for pairs and triplets.

use std::sync::Arc;

use datafusion::common::Result;

use super::groups::Groups;
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, Rows, TypeClass};
use crate::keyed::Draws;
use crate::made_rows::{InputRows, Made, MadeRows, MakeRows, RowAt};
use crate::row_operator::{ColumnValue, ReadColumn, ResultColumn, RowArguments, RowOperator, RowPlan, RowScope};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "pair_rows",
    category: "random",
    summary: "Gives each row the columns of another row in its window, for pairs and triplets",
    parameters: &[
        Parameter::rows("Of any columns"),
        Parameter::constant("same", ConstantKind::Text, "A column that must be equal in both rows").or("NULL"),
        Parameter::constant("different", ConstantKind::Text, "A column that must differ").or("NULL"),
        Parameter::constant("prefix", ConstantKind::Text, "Begins the names of the other row's columns")
            .or("'partner_'"),
    ],
    returns: "the columns of rows, and each of them once more from the other row",
    determinism: Determinism::KeyedRandom,
    rows: Rows::Shrinks,
    docs: "The other row is drawn from the rows of the window that fit, each equally likely, and is never the row itself. \
           A row that no other row fits is left out, such as one without another of its class. A row whose value is \
           null is left out too, and fits no row. Name one of the two columns, or none. For triplets, call `pair_rows` over the rows of another call. Functions in the \
           subquery's SELECT run for the row, and again for the other row with its own randomness. The draw depends \
           only on the feed's seed, the epoch, the sample and the call.",
    source: "Schroff et al., FaceNet (2015), for triplets; the rows are drawn and not mined",
    examples: &[Example {
        sql: "SELECT id, partner_id FROM pair_rows((SELECT id FROM numbers))",
        result: "0 4; 1 4; 2 4; 3 1; 4 3",
    }],
    ..Descriptor::BASE
};

/// Separates the draws of pairs from other hashes.
const PAIRS_DOMAIN: u64 = 0x7061_6972_7300;

/// The operator `pair_rows`.
#[derive(Debug)]
pub(crate) struct PairRows;

impl RowOperator for PairRows {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn scope(&self) -> RowScope {
        RowScope::Window
    }

    fn plan(&self, arguments: &RowArguments<'_>) -> Result<RowPlan> {
        let (fitting, name) = match (arguments.text("same")?, arguments.text("different")?) {
            (None, None) => (Fitting::Any, None),
            (Some(_), None) => (Fitting::Same, Some("same")),
            (None, Some(_)) => (Fitting::Different, Some("different")),
            (Some(_), Some(_)) => return arguments.refuse("different", "cannot be used with \"same\""),
        };
        let mut plan = RowPlan::keeping(arguments.input(), Arc::new(Pairs(fitting)));
        if let Some(name) = name {
            let what = "integers, floats, booleans, texts or binary values";
            let column = arguments.column(name, what, |field| TypeClass::Hashable.accepts(field))?;
            plan.columns = vec![(name, column)];
            plan.reads = vec![ReadColumn::plain(column)];
        }
        let prefix = arguments.text("prefix")?.unwrap_or_default();
        for (column, field) in arguments.input().iter().enumerate() {
            let name = format!("{prefix}{}", field.name());
            if arguments.input().iter().any(|field| *field.name() == name) {
                let problem = format_args!("makes a second column \"{name}\"; write another prefix");
                return arguments.refuse("prefix", problem);
            }
            let field = Arc::new(field.as_ref().clone().with_name(name));
            plan.results.push(ResultColumn::new(field, ColumnValue::Partner(column)));
        }
        Ok(plan)
    }
}

/// A call of `pair_rows`, ready to run.
#[derive(Debug)]
struct Pairs(Fitting);

/// The rows that fit a row.
#[derive(Clone, Copy, Debug)]
enum Fitting {
    Any,
    /// Those with the same value.
    Same,
    /// Those with another value.
    Different,
}

impl MakeRows for Pairs {
    fn make<'a>(&'a self, window: &'a InputRows<'a>) -> Result<MadeRows<'a>> {
        let groups = match self.0 {
            Fitting::Any => Groups::one(window),
            Fitting::Same | Fitting::Different => Groups::by_value(window)?,
        };
        let made = move |(part, rows): (usize, usize)| {
            let rows = (0..rows as u32).map(|row| RowAt { part: part as u32, row });
            let drawn = rows.filter_map(|row| {
                let mut draws = Draws::new(window.random_key(row), PAIRS_DOMAIN ^ window.call);
                let other = match self.0 {
                    Fitting::Any | Fitting::Same => groups.same_value(row, &mut draws),
                    Fitting::Different if groups.holds(row) => groups.another_value(row, &mut draws),
                    Fitting::Different => None,
                };
                Some((row, other?))
            });
            let (parents, partners): (Vec<_>, Vec<_>) = drawn.unzip();
            Ok(Made { partners, ..Made::kept(parents) })
        };
        let parts: Vec<_> = window.parts.iter().map(|part| part.len()).enumerate().collect();
        Ok(Box::new(parts.into_iter().map(made)))
    }
}
