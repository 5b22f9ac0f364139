//! `corrupt_spans`: tokens and labels for span corruption, the objective of T5.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use super::token_pairs::{self, TokenPairs, Tokens};
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::keyed::Draws;
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "corrupt_spans",
    category: "text",
    summary: "Replaces spans of tokens by sentinels at random, and returns the spans as labels",
    parameters: &[
        Parameter::input("tokens", TypeClass::IntegerList, "The token ids, without the end of the text"),
        Parameter::constant("first_sentinel", ConstantKind::Integer, "The id of the first sentinel; others count down")
            .like("32099"),
        Parameter::constant("p", ConstantKind::Number, "The share of tokens to remove, above 0 and below 1").or("0.15"),
        Parameter::constant("mean_length", ConstantKind::Number, "The mean number of tokens of a span, at least 1")
            .or("3.0"),
        Parameter::constant("sentinels", ConstantKind::PositiveInteger, "The number of sentinels").or("100"),
        Parameter::KEY,
    ],
    returns: "a struct of input_ids and labels, lists of Int64",
    determinism: Determinism::KeyedRandom,
    docs: "A share p of the tokens, at least one, is removed in spans. Of n tokens, round(n * p) are removed in \
           round(removed / mean_length) spans, at least one and at most sentinels; both round ties to even. All ways \
           to cut the removed tokens, and those that stay, into as many parts are equally likely; the first part \
           stays. In input_ids the i-th span becomes the sentinel first_sentinel - i; labels hold the same sentinels, \
           each before the span's tokens. Append the token for the end of the text to both if the model wants it. A \
           list of fewer than two tokens stays, with empty labels. Null in, null out.",
    source: "T5 (Raffel et al., 2019), `random_spans_noise_mask`, with the draws of the row's random key",
    examples: &[Example {
        sql: "corrupt_spans([11, 12, 13, 14, 15, 16], first_sentinel => 32099, p => 0.3, mean_length => 2)",
        result: "{input_ids: [11, 12, 32099, …], labels: [32099, 13, 14, …]}",
    }],
    ..Descriptor::BASE
};

/// The operator `corrupt_spans`.
#[derive(Debug)]
pub(crate) struct CorruptSpans;

impl Operator for CorruptSpans {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let (p, mean_length) = (arguments.number("p")?, arguments.number("mean_length")?);
        if p <= 0.0 || p >= 1.0 {
            return arguments.refuse("p", format_args!("must be above 0 and below 1, got {p}"));
        }
        if mean_length < 1.0 {
            return arguments.refuse("mean_length", format_args!("must be at least 1, got {mean_length}"));
        }
        Ok(token_pairs::field("corrupted", arguments.field("tokens")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (p, mean_length) = (arguments.number("p")?, arguments.number("mean_length")?);
        let (first_sentinel, sentinels) = (arguments.integer("first_sentinel")?, arguments.positive("sentinels")?);
        let tokens = Tokens::try_new(arguments.array("tokens")?)?;
        let mut pairs = TokenPairs::new(DESCRIPTOR.name, tokens.count());
        let (mut removed, mut kept) = (Vec::new(), Vec::new());
        for row in 0..tokens.len() {
            let length = if tokens.is_valid(row) { tokens.length(row) } else { 0 };
            if length < 2 {
                (0..length).for_each(|at| pairs.input(tokens.get(row, at)));
                pairs.end_row()?;
                continue;
            }
            let draws = &mut arguments.draws(row)?;
            let noise = ((length as f64 * p).round_ties_even() as usize).clamp(1, length - 1);
            let spans = (noise as f64 / mean_length).round_ties_even() as usize;
            let spans = spans.min(sentinels).min(length - noise).max(1);
            cut(noise, spans, draws, &mut removed);
            cut(length - noise, spans, draws, &mut kept);
            let mut at = 0;
            for (span, (kept, removed)) in kept.iter().zip(&removed).enumerate() {
                let sentinel = Some(first_sentinel.wrapping_sub(span as i64));
                (at..at + kept).for_each(|at| pairs.input(tokens.get(row, at)));
                pairs.input(sentinel);
                pairs.label(sentinel);
                at += kept;
                (at..at + removed).for_each(|at| pairs.label(tokens.get(row, at)));
                at += removed;
            }
            pairs.end_row()?;
        }
        Ok(Arc::new(pairs.finish(tokens.nulls())?))
    }
}

/// Cuts `length` into as many positive parts, with all ways equally likely. Each inner boundary is taken with the
/// probability of those that are still needed among those that are left.
fn cut(length: usize, parts: usize, draws: &mut Draws, out: &mut Vec<usize>) {
    out.clear();
    let (mut start, mut needed) = (0, parts - 1);
    for boundary in 1..length {
        if needed > 0 && (draws.below((length - boundary) as u64) as usize) < needed {
            out.push(boundary - start);
            (start, needed) = (boundary, needed - 1);
        }
    }
    out.push(length - start);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use super::super::token_pairs::tests::{pairs_of, rows};
    use super::*;
    use crate::testing::{golden, keyed, keys, select, sql};

    fn corrupted(tokens: &[Vec<i64>], p: f64, mean_length: f64, sentinels: i64) -> Vec<(Vec<i64>, Vec<i64>)> {
        let call = keyed("corrupt_spans", vec![col("x"), lit(32_099), lit(p), lit(mean_length), lit(sentinels)]);
        pairs_of(&select(call, vec![rows("x", tokens), keys(tokens.len() as u64)]).unwrap())
    }

    #[test]
    fn tokens_are_those_of_the_definition_in_python() {
        let golden = golden("token_pairs");
        let lists = |name: &str| -> Vec<Vec<i64>> { serde_json::from_value(golden[name].clone()).unwrap() };
        let got = corrupted(&lists("tokens"), 0.15, 3.0, 100);
        assert_eq!(got.iter().map(|pair| pair.0.clone()).collect::<Vec<_>>(), lists("span_inputs"));
        assert_eq!(got.iter().map(|pair| pair.1.clone()).collect::<Vec<_>>(), lists("span_labels"));
    }

    #[test]
    fn the_spans_put_back_give_the_tokens() {
        let tokens: Vec<Vec<i64>> = (0..200).map(|length| (0..length).collect()).collect();
        for (p, mean_length, sentinels) in [(0.15, 3.0, 100), (0.5, 1.0, 100), (0.99, 2.5, 3), (0.001, 10.0, 1)] {
            for (tokens, (inputs, labels)) in tokens.iter().zip(corrupted(&tokens, p, mean_length, sentinels)) {
                let is_sentinel = |id: &i64| *id > 10_000;
                let mut spans = labels.split(is_sentinel).skip(1);
                let mut whole = vec![];
                for id in &inputs {
                    if is_sentinel(id) { whole.extend_from_slice(spans.next().unwrap()) } else { whole.push(*id) }
                }
                assert_eq!(whole, *tokens);
                assert!(spans.next().is_none());
                let count = inputs.iter().filter(|id| is_sentinel(id)).count();
                assert!(count <= sentinels as usize && (count > 0) == (tokens.len() > 1));
            }
        }
    }

    #[test]
    fn all_cuts_are_equally_likely() {
        let (mut counts, mut out) = (BTreeMap::new(), vec![]);
        for row in 0..6_000 {
            cut(5, 3, &mut Draws::new(row, 0), &mut out);
            *counts.entry(out.clone()).or_insert(0) += 1;
        }
        assert_eq!(counts.len(), 6, "{counts:?}");
        assert!(counts.values().all(|count| (850..1_150).contains(count)), "{counts:?}");
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let check = |call: &str, expect: &str| {
            assert_eq!(sql(call, vec![rows("x", &[vec![1]])]).unwrap_err(), expect);
        };
        check("corrupt_spans(x, 9, 1)", "corrupt_spans: \"p\" must be above 0 and below 1, got 1");
        check("corrupt_spans(x, 9, 0.1, 0.5)", "corrupt_spans: \"mean_length\" must be at least 1, got 0.5");
    }
}
