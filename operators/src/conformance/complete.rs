//! Checks that a descriptor is complete.

use crate::descriptor::{Descriptor, Determinism, Parameter, ParameterKind, SizeRatio};

/// Checks all properties of a descriptor.
pub(super) fn complete(descriptor: &Descriptor) -> Result<(), String> {
    let Descriptor { name, version, category, summary, returns, docs, source, examples, .. } = descriptor;
    ensure!(
        name.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'),
        "the name is not snake case"
    );
    ensure!(*version > 0, "versions begin with 1");
    for (what, text) in
        [("category", category), ("summary", summary), ("returns", returns), ("docs", docs), ("source", source)]
    {
        ensure!(!text.is_empty(), "the descriptor's \"{what}\" is empty");
    }
    ensure!(!summary.ends_with('.'), "the summary ends with a period");
    ensure!(!examples.is_empty(), "no example");
    ensure!(
        examples.iter().all(|e| e.sql.contains(name) && !e.result.is_empty()),
        "an example does not show the operator"
    );
    let is_of_rows = descriptor.parameters.iter().any(|p| p.kind == ParameterKind::Rows);
    if descriptor.determinism == Determinism::KeyedRandom && !is_of_rows {
        ensure!(descriptor.position(Parameter::KEY.name).is_some(), "it draws, but takes no key");
    }
    let SizeRatio { least, most } = descriptor.size_ratio;
    ensure!((0.0..=most).contains(&least) && most > 0.0, "the size ratio is no range");
    let optional = descriptor.parameters.iter().position(|p| p.default.is_some()).unwrap_or(usize::MAX);
    for (i, parameter) in descriptor.parameters.iter().enumerate() {
        let name = parameter.name;
        ensure!(descriptor.position(name) == Some(i), "two parameters are called \"{name}\"");
        ensure!(!parameter.docs.is_empty(), "no docs for \"{name}\"");
        match (parameter.default, parameter.default_value()) {
            (None, _) => ensure!(i < optional, "\"{name}\" is required, but follows a default"),
            (Some(text), None) => return Err(format!("the default of \"{name}\" is not a literal: {text}")),
            (Some(_), Some(value)) => {
                // A constant of a table operator may be left out, such as the name of the only column that fits.
                if value.is_null() && descriptor.parameters[0].kind == ParameterKind::Rows {
                    continue;
                }
                let is_constant = matches!(parameter.kind, ParameterKind::Constant(_));
                ensure!(is_constant || value.is_null(), "the input \"{name}\" has a default");
                parameter.kind.check(&value).map_err(|problem| format!("the default of \"{name}\" {problem}"))?;
            }
        }
    }
    Ok(())
}
