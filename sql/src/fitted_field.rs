//! Names of the fields of fitted values.

use std::fmt;

/// The beginning of the names.
const FITTED: &str = "__forebay_fit_";

/// The name of a field of a fitted value, which says what the constant is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FittedField {
    /// The place among the fields.
    pub number: usize,
    /// The fit and its constant, as in `standardize.mean`.
    pub constant: String,
    /// The list that the constant continues.
    pub kept: Option<KeptName>,
}

/// A list that continues its last version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptName {
    /// The most entries.
    pub most: u64,
    /// The name that all versions have.
    pub name: String,
}

impl FittedField {
    /// Whether this is the name of such a field.
    pub fn is_name(name: &str) -> bool {
        name.starts_with(FITTED)
    }

    /// The field with this name.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(FITTED)?.splitn(4, ' ');
        let (number, constant) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
        let kept = match (parts.next(), parts.next()) {
            (Some(most), Some(name)) => Some(KeptName { most: most.parse().ok()?, name: name.to_owned() }),
            _ => None,
        };
        Some(Self { number, constant, kept })
    }
}

impl fmt::Display for FittedField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{FITTED}{} {}", self.number, self.constant)?;
        match &self.kept {
            Some(KeptName { most, name }) => write!(f, " {most} {name}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_what_fields_are() {
        let plain = FittedField { number: 3, constant: "standardize.mean".to_owned(), kept: None };
        let kept = KeptName { most: 10, name: "all users".to_owned() };
        let kept = FittedField { number: 0, constant: "categorify.vocabulary".to_owned(), kept: Some(kept) };
        for field in [plain, kept] {
            assert_eq!(FittedField::parse(&field.to_string()), Some(field.clone()));
            assert!(FittedField::is_name(&field.to_string()));
        }
        assert_eq!(FittedField::parse("mean"), None);
    }
}
