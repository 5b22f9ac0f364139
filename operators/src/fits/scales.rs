//! `standardize` and `min_max` without their statistics.

use super::fit::{FIT_ON, Fit};
use crate::descriptor::{Descriptor, Parameter, TypeClass};

const X: Parameter = Parameter::input("x", TypeClass::NumericOrList, "The numbers");

/// Finite numbers, with one zero.
pub(super) const NUMBERS: &str = "CASE WHEN isnan(x) OR abs(CAST(x AS DOUBLE)) = CAST('Infinity' AS DOUBLE) THEN NULL \
                                  ELSE CAST(x AS DOUBLE) + 0.0 END";

pub(super) static STANDARDIZE: Fit = Fit {
    descriptor: &Descriptor { name: "standardize", parameters: &[X, FIT_ON], ..Descriptor::BASE },
    operator: "standardize",
    constants: &[("mean", "avg(x)"), ("std", "CASE WHEN stddev_pop(x) > 0 THEN stddev_pop(x) ELSE 1.0 END")],
    input: NUMBERS,
    choices: &[],
    greatest: &[],
    one_less: &[],
    kept: None,
};

pub(super) static MIN_MAX: Fit = Fit {
    descriptor: &Descriptor { name: "min_max", parameters: &[X, FIT_ON], ..Descriptor::BASE },
    operator: "min_max",
    constants: &[
        ("min", "min(x)"),
        // Equal numbers become 0.
        ("max", "CASE WHEN max(x) > min(x) THEN max(x) ELSE min(x) + greatest(abs(min(x)), 1.0) END"),
    ],
    input: NUMBERS,
    choices: &[],
    greatest: &[],
    one_less: &[],
    kept: None,
};
