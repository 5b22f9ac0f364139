//! Operators that draw values for the rest of a query: numbers, and elements of lists.

pub(crate) mod choice;
pub(crate) mod numbers;
