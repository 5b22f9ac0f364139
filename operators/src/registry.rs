//! The list of all operators: one line each, and nothing else to edit when one is added.

use datafusion::logical_expr::ScalarUDF;

use crate::descriptor::Descriptor;
use crate::operator::{Operator, OperatorUdf};

/// Every operator, by category and then by name.
pub static OPERATORS: &[&dyn Operator] = &[
    &crate::decode_image::DecodeImage,
    &crate::center_crop::CenterCrop,
    &crate::normalize::Normalize,
    &crate::random_hflip::RandomHflip,
    &crate::random_resized_crop::RandomResizedCrop,
    &crate::resize::Resize,
    &crate::clamp::Clamp,
    &crate::log1p::Log1p,
    &crate::hash_bucket::HashBucket,
    &crate::pad_to::PadTo,
    &crate::sleep::Sleep,
];

/// Every operator that is called in FROM and makes rows of rows.
pub static TABLE_OPERATORS: &[&Descriptor] = &[&crate::pack::DESCRIPTOR];

/// The table operator with this name. Names are compared without case, as SQL does.
pub fn find_table_operator(name: &str) -> Option<&'static Descriptor> {
    TABLE_OPERATORS.iter().copied().find(|descriptor| descriptor.name.eq_ignore_ascii_case(name))
}

/// The operator with this name. Names are compared without case, as SQL does.
pub fn find(name: &str) -> Option<&'static dyn Operator> {
    OPERATORS.iter().copied().find(|operator| operator.descriptor().name.eq_ignore_ascii_case(name))
}

/// All operators as DataFusion functions, ready for `SessionContext::register_udf`.
pub fn scalar_udfs() -> Vec<ScalarUDF> {
    OPERATORS.iter().map(|operator| ScalarUDF::from(OperatorUdf::new(*operator))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_without_case() {
        assert_eq!(find("Resize").map(|o| o.descriptor().name), Some("resize"));
        assert!(find("rotate").is_none());
    }
}
