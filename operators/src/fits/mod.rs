//! Fits: calls whose constants follow from rows.
//!
//! A *fit* is an aggregate and a rewrite. `standardize(x)` names no mean and no deviation. The planner makes a query of
//! aggregates over the rows that the call is fitted to, and writes `standardize(x, mean => …, std => …)` with its
//! results. So a fit computes nothing itself: the operator that its call becomes does, with constants like any other.
//!
//! A new fit is a file with a [`Fit`], a line in [`FITS`], and a `tests/slt` file.

mod categorify;
mod fit;
mod lists;
mod literals;
mod quantiles;
mod scales;

use datafusion::logical_expr::AggregateUDF;

pub use self::categorify::{FIRST_SEEN, VOCABULARY};
pub use self::fit::{FIT_ON, Fit, KeptList};
pub use self::lists::FittedList;
pub use self::quantiles::QUANTILES;

/// Every fit.
pub static FITS: &[&Fit] =
    &[&scales::MIN_MAX, &quantiles::QUANTILE_BUCKETIZE, &scales::STANDARDIZE, &categorify::CATEGORIFY];

/// Returns the fit whose calls have this name. Names are case-insensitive, like in SQL.
pub fn find_fit(name: &str) -> Option<&'static Fit> {
    FITS.iter().copied().find(|fit| fit.descriptor.name.eq_ignore_ascii_case(name))
}

/// Returns the aggregates that fits need beyond those of SQL, ready for `SessionContext::register_udaf`. A new version
/// of one has a new name, which changes the fingerprints of all that is fitted with it.
pub fn aggregates() -> Vec<AggregateUDF> {
    vec![categorify::Vocabulary::udaf(), quantiles::Quantiles::udaf()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry;

    #[test]
    fn operators_have_the_constants_and_the_parameters() {
        for fit in FITS {
            let name = fit.descriptor.name;
            let operator = registry::find(fit.operator).unwrap_or_else(|| panic!("{name}")).descriptor();
            assert_eq!(fit.descriptor.parameters.last().map(|parameter| parameter.name), Some(FIT_ON.name), "{name}");
            assert_eq!(fit.descriptor.parameters[0].kind, operator.parameters[0].kind, "{name}");
            for (constant, _) in fit.constants {
                let parameter = operator.parameters.iter().find(|parameter| parameter.name == *constant);
                assert!(parameter.is_some_and(|parameter| parameter.is_fitted), "{name}: {constant}");
            }
            for parameter in &operator.parameters[1..] {
                let is_fitted = fit.constants.iter().any(|(constant, _)| *constant == parameter.name);
                let is_given = fit.descriptor.position(parameter.name).is_some() || parameter.default.is_some();
                assert!(is_fitted || is_given, "{name}: nothing gives {}", parameter.name);
            }
            let checked = fit.choices.iter().map(|(parameter, _)| parameter);
            let kept = fit.kept.iter().flat_map(|kept| [&kept.name, &kept.most]);
            let one_less = fit.one_less.iter().flat_map(|(parameter, than)| [parameter, than]);
            let greatest = fit.greatest.iter().map(|(parameter, _)| parameter);
            for parameter in checked.chain(greatest).chain(one_less).chain(kept) {
                assert!(fit.descriptor.position(parameter).is_some(), "{name}: {parameter}");
            }
        }
    }
}
