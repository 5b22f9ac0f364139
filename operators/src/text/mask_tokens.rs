//! `mask_tokens`: tokens and labels for masked language modelling.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::Field;
use datafusion::common::Result;

use super::token_pairs::{self, IGNORED, TokenPairs, Tokens};
use crate::descriptor::{ConstantKind, Descriptor, Determinism, Example, Parameter, TypeClass};
use crate::operator::{Arguments, Operator};

static DESCRIPTOR: Descriptor = Descriptor {
    name: "mask_tokens",
    category: "text",
    summary: "Hides some tokens of each list at random, and returns what they were as labels",
    parameters: &[
        Parameter::input("tokens", TypeClass::IntegerList, "The token ids"),
        Parameter::constant("mask_id", ConstantKind::Integer, "The id of the mask token").like("103"),
        Parameter::constant("vocab_size", ConstantKind::PositiveInteger, "The number of ids").like("30522"),
        Parameter::constant("special_ids", ConstantKind::NumberList, "The ids that stay, such as padding")
            .like("[0, 101, 102]"),
        Parameter::constant("p", ConstantKind::Number, "The probability of a token to be chosen").or("0.15"),
        Parameter::KEY,
    ],
    returns: "a struct of input_ids and labels, lists of Int64 as long as tokens",
    determinism: Determinism::KeyedRandom,
    docs: "Each token that is not special is chosen with probability p. Of the chosen tokens, 80 % become mask_id, 10 % \
           an id below vocab_size, and 10 % stay. Labels are the ids before for chosen tokens, and -100 for all others, \
           which PyTorch's losses ignore. Draws: for each token that is not special, whether it is chosen, and if so, \
           what becomes of it, and an id if it becomes one. A null token stays null and is never chosen. Null in, null \
           out.",
    source: "BERT (Devlin et al., 2018), as in `DataCollatorForLanguageModeling` of Hugging Face, with the draws of \
             the row's random key",
    examples: &[Example {
        sql: "mask_tokens(ids, mask_id => 103, vocab_size => 30522, special_ids => [0, 101, 102])",
        result: "{input_ids: [101, 103, 2003, 102], labels: [-100, 2023, -100, -100]}",
    }],
    ..Descriptor::BASE
};

/// The operator `mask_tokens`.
#[derive(Debug)]
pub(crate) struct MaskTokens;

/// The share of chosen tokens that become the mask, and of those that become the mask or any id.
const MASKED: f64 = 0.8;
const REPLACED: f64 = 0.9;

impl Operator for MaskTokens {
    fn descriptor(&self) -> &'static Descriptor {
        &DESCRIPTOR
    }

    fn return_field(&self, arguments: &Arguments) -> Result<Field> {
        let p = arguments.number("p")?;
        if !(0.0..=1.0).contains(&p) {
            return arguments.refuse("p", format_args!("must be from 0 to 1, got {p}"));
        }
        special_ids(arguments)?;
        Ok(token_pairs::field("masked", arguments.field("tokens")?.is_nullable()))
    }

    fn evaluate(&self, arguments: &mut Arguments) -> Result<ArrayRef> {
        let (mask_id, p) = (arguments.integer("mask_id")?, arguments.number("p")?);
        let (special, vocab_size) = (special_ids(arguments)?, arguments.positive("vocab_size")? as u64);
        let tokens = Tokens::try_new(arguments.array("tokens")?)?;
        let mut pairs = TokenPairs::new(DESCRIPTOR.name, tokens.count());
        for row in 0..tokens.len() {
            if tokens.is_valid(row) {
                let mut draws = arguments.draws(row)?;
                for token in tokens.row(row) {
                    let chosen = token.filter(|token| !special.contains(token)).filter(|_| draws.uniform() < p);
                    let Some(chosen) = chosen else {
                        pairs.input(token);
                        pairs.label(Some(IGNORED));
                        continue;
                    };
                    let fate = draws.uniform();
                    pairs.input(Some(match fate {
                        fate if fate < MASKED => mask_id,
                        fate if fate < REPLACED => draws.below(vocab_size) as i64,
                        _ => chosen,
                    }));
                    pairs.label(Some(chosen));
                }
            }
            pairs.end_row()?;
        }
        Ok(Arc::new(pairs.finish(tokens.nulls())?))
    }
}

fn special_ids(arguments: &Arguments) -> Result<Vec<i64>> {
    let whole = |id: f64| match id.fract() == 0.0 {
        true => Ok(id as i64),
        false => arguments.refuse("special_ids", format_args!("must be whole numbers, got {id}")),
    };
    arguments.numbers("special_ids")?.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use datafusion::logical_expr::lit;
    use datafusion::prelude::col;

    use super::super::token_pairs::tests::{pairs_of, rows};
    use super::*;
    use crate::constants::parse_literal;
    use crate::testing::{golden, keyed, keys, select};

    fn masked(tokens: &[Vec<i64>], p: f64) -> Vec<(Vec<i64>, Vec<i64>)> {
        let special = lit(parse_literal("[0, 101, 102]").unwrap());
        let call = keyed("mask_tokens", vec![col("x"), lit(103), lit(30_522), special, lit(p)]);
        pairs_of(&select(call, vec![rows("x", tokens), keys(tokens.len() as u64)]).unwrap())
    }

    #[test]
    fn tokens_are_those_of_the_definition_in_python() {
        let golden = golden("token_pairs");
        let lists = |name: &str| -> Vec<Vec<i64>> { serde_json::from_value(golden[name].clone()).unwrap() };
        let got = masked(&lists("tokens"), 0.15);
        assert_eq!(got.iter().map(|pair| pair.0.clone()).collect::<Vec<_>>(), lists("masked_inputs"));
        assert_eq!(got.iter().map(|pair| pair.1.clone()).collect::<Vec<_>>(), lists("masked_labels"));
    }

    #[test]
    fn shares_are_those_of_bert() {
        let tokens: Vec<i64> = (1_000..1_100).collect();
        let got = masked(&vec![tokens.clone(); 2_000], 0.15);
        let (mut chosen, mut hidden, mut kept) = (0, 0, 0);
        for (inputs, labels) in &got {
            for ((input, label), token) in inputs.iter().zip(labels).zip(&tokens) {
                match *label {
                    IGNORED => assert_eq!(input, token),
                    label => {
                        assert_eq!(label, *token);
                        chosen += 1;
                        hidden += usize::from(*input == 103);
                        kept += usize::from(input == token);
                        assert!((0..30_522).contains(input));
                    }
                }
            }
        }
        let share = |part: usize, of: usize| part as f64 / of as f64;
        assert!((share(chosen, 200_000) - 0.15).abs() < 0.005, "{chosen}");
        assert!((share(hidden, chosen) - 0.8).abs() < 0.01, "{hidden} of {chosen}");
        assert!((share(kept, chosen) - 0.1).abs() < 0.01, "{kept} of {chosen}");
    }

    #[test]
    fn special_tokens_stay() {
        let tokens = vec![vec![101, 7, 102, 0, 0], vec![]];
        let got = masked(&tokens, 1.0);
        assert_eq!(got[0].1, [IGNORED, 7, IGNORED, IGNORED, IGNORED]);
        assert_eq!((got[0].0[0], &got[0].0[2..]), (101, &[102, 0, 0][..]));
        assert_eq!(got[1], (vec![], vec![]));
        assert_eq!(masked(&tokens, 0.0)[0].0, tokens[0]);
    }
}
