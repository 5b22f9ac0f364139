//! The checks that every registered operator passes.
//!
//! A feed is a function only if each operator is one: a function of a row, its constants and, if it declares so, the
//! row's key. [`check`] generates columns for every kind of parameter. It compares the result for a whole batch with
//! the results for its rows, slices and permutations, bit for bit. It also checks nulls, empty batches, hostile bytes,
//! and the completeness of the descriptor. A seed determines all generated data, and each message names it.

macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        match $condition {
            true => {}
            false => return Err(format!($($message)+)),
        }
    };
}

mod case;
mod columns;
mod commutation;
mod complete;
mod scalars;
mod sizes;
pub mod tables;

pub use commutation::check_pairs;
pub use scalars::check;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::OPERATORS;

    #[test]
    fn every_operator_conforms() {
        let seeds = OPERATORS.iter().flat_map(|operator| [1, 2, 3].map(|seed| (*operator, seed)));
        let problems: Vec<_> = seeds.filter_map(|(operator, seed)| check(operator, seed).err()).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }

    #[test]
    fn operators_that_say_so_commute() {
        let problems: Vec<_> = [1, 2, 3].into_iter().filter_map(|seed| check_pairs(OPERATORS, seed).err()).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}
