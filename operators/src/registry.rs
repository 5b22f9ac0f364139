//! The list of all operators: one line each, and nothing else to edit when one is added.

use datafusion::logical_expr::ScalarUDF;

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
];

/// The operator with this name. Names are compared without case, as SQL does.
pub fn find(name: &str) -> Option<&'static dyn Operator> {
    OPERATORS.iter().copied().find(|operator| operator.descriptor().name.eq_ignore_ascii_case(name))
}

/// All operators as DataFusion functions, ready for `SessionContext::register_udf`.
pub fn scalar_udfs() -> Vec<ScalarUDF> {
    OPERATORS.iter().map(|operator| ScalarUDF::from(OperatorUdf::new(*operator))).collect()
}

/// The operator whose name is closest to a misspelt one, for "did you mean".
pub fn nearest(name: &str) -> Option<&'static str> {
    let name = name.to_ascii_lowercase();
    OPERATORS
        .iter()
        .map(|operator| operator.descriptor().name)
        .map(|candidate| (edits(&name, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= candidate.len() / 3)
        .min()
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance over bytes; operator names are ASCII.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_without_case() {
        assert_eq!(find("Resize").map(|o| o.descriptor().name), Some("resize"));
        assert!(find("rotate").is_none());
    }

    #[test]
    fn a_misspelt_name_finds_its_neighbour() {
        assert_eq!(nearest("rezise"), Some("resize"));
        assert_eq!(nearest("decode_images"), Some("decode_image"));
        assert_eq!(nearest("transmogrify"), None);
    }
}
