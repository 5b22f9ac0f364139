//! Operators that draw values for the rest of a query: numbers, elements of lists, and one of several values.

pub(crate) mod choice;
pub(crate) mod numbers;
pub(crate) mod pick;
