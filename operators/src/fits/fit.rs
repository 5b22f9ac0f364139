//! The description of a fit.

use crate::descriptor::{ConstantKind, Descriptor, Parameter};

/// A call whose constants are fitted.
#[derive(Debug)]
pub struct Fit {
    /// The declaration of the call as it is written. Its first parameter is an input, and its last is [`FIT_ON`].
    pub descriptor: &'static Descriptor,
    /// The operator that the call becomes. It takes the input, the fitted constants, and parameters of the call by
    /// their names.
    pub operator: &'static str,
    /// The fitted constants: a parameter of the operator, and the aggregate that is its value. The aggregate is SQL in
    /// which a parameter's name stands for its argument.
    pub constants: &'static [(&'static str, &'static str)],
    /// The input of the aggregates: SQL in which the first parameter's name stands for its argument.
    pub input: &'static str,
    /// The values that text parameters accept.
    pub choices: &'static [(&'static str, &'static [&'static str])],
    /// The greatest values of integer parameters.
    pub greatest: &'static [(&'static str, u64)],
    /// Integer parameters that, left out, are one less than another one.
    pub one_less: &'static [(&'static str, &'static str)],
    /// The parameters of a list whose entries keep their places while rows are added.
    pub kept: Option<KeptList>,
}

/// The parameters of a fitted list that continues its earlier version.
#[derive(Debug)]
pub struct KeptList {
    /// The text parameter with the name that its versions share. Without a name, each list begins anew.
    pub name: &'static str,
    /// The integer parameter with the most entries.
    pub most: &'static str,
}

/// The parameter that says which rows a call is fitted to.
pub const FIT_ON: Parameter = Parameter::constant(
    "fit_on",
    ConstantKind::Text,
    "The rows of FROM to fit to: an SQL condition. By default, those that WHERE keeps",
)
.or("''");
