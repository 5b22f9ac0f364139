//! The reference of operators, generated from their descriptors.

use std::fmt::Write;

use crate::descriptor::{Descriptor, Parameter, SizeRatio};
use crate::fits::find_fit;
use crate::registry::{OPERATORS, descriptors, find_table_operator};
use crate::rows::TABLE_OPERATORS;

/// Returns the text of `docs/operators.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Operators\n\n<!-- Generated from the operators' descriptors by `forebay_operators::reference::markdown`; do \
         not edit. -->\n\nFunctions of one row, for the `SELECT` list and for conditions. Arguments may be given by \
         position or by name with `=>`. An image is a tensor of height x width x 3 (`HWC`, RGB), either of fixed shape \
         (`arrow.fixed_shape_tensor`) or of variable shape (`arrow.variable_shape_tensor`). The table operators make \
         rows from rows and are called in `FROM`.\n\n",
    );
    for (category, descriptors) in sections() {
        let links: Vec<_> = descriptors.iter().map(|d| format!("[`{name}`](#{name})", name = d.name)).collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "- **{category}**: {}", links.join(", "));
    }
    for (category, descriptors) in sections() {
        let _ = writeln!(text, "\n## {}", capitalised(category));
        for descriptor in descriptors {
            let _ = write!(text, "\n{}", section(descriptor));
        }
    }
    text
}

fn section(descriptor: &Descriptor) -> String {
    let Descriptor { name, version, summary, parameters, returns, docs, source, .. } = descriptor;
    let arguments: Vec<_> = parameters.iter().map(argument).collect();
    let mut text = format!("### {name}\n\n{summary}.\n\n```sql\n{name}({})\n```\n\n", arguments.join(", "));
    text += "| parameter | must be | default | |\n|---|---|---|---|\n";
    let fit = find_fit(name).filter(|fit| fit.operator == *name);
    for Parameter { name, kind, default, docs, is_fitted, .. } in *parameters {
        let default = match default {
            Some(default) => format!("`{default}`"),
            None if *is_fitted && fit.is_some() => "fitted".to_owned(),
            None => String::new(),
        };
        let _ = writeln!(text, "| `{name}` | {} | {default} | {docs} |", kind.wording());
    }
    let _ = writeln!(text, "\nReturns {returns}.\n\n{docs}\n");
    for example in descriptor.examples {
        let _ = writeln!(text, "- `{}` → {}", example.sql, example.result);
    }
    let size = match descriptor.size_ratio {
        SizeRatio { least, most } if least == most => format!("; {least} bytes out per byte in"),
        SizeRatio { most, .. } if most.is_finite() => format!("; at most {most} bytes out per byte in"),
        _ => String::new(),
    };
    let _ = writeln!(
        text,
        "\nFollows {source}. Version {version}; {}; {}{size}{}.",
        descriptor.determinism.wording(),
        descriptor.rows.wording(),
        commuting(descriptor),
    );
    text
}

/// Returns the operators that commute with this one.
fn commuting(descriptor: &Descriptor) -> String {
    let others = OPERATORS.iter().map(|operator| operator.descriptor()).filter(|other| descriptor.commutes_with(other));
    let names: Vec<_> = others.map(|other| format!("`{}`", other.name)).collect();
    if names.is_empty() { String::new() } else { format!("; commutes with {}", names.join(", ")) }
}

fn argument(parameter: &Parameter) -> String {
    match parameter.default {
        Some(default) => format!("{} => {default}", parameter.name),
        None => parameter.name.to_owned(),
    }
}

/// Returns all descriptors by category, in the order of the registry, with fits last in each and table operators last.
fn sections() -> Vec<(&'static str, Vec<&'static Descriptor>)> {
    let mut sections: Vec<(&str, Vec<&Descriptor>)> = vec![];
    for descriptor in descriptors().filter(|descriptor| find_table_operator(descriptor.name).is_none()) {
        match sections.iter_mut().find(|(category, _)| *category == descriptor.category) {
            Some((_, descriptors)) => descriptors.push(descriptor),
            None => sections.push((descriptor.category, vec![descriptor])),
        }
    }
    sections.push(("table operators", TABLE_OPERATORS.iter().map(|operator| operator.descriptor()).collect()));
    sections
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_shows_the_whole_descriptor() {
        let text = section(crate::find("random_hflip").unwrap().descriptor());
        for part in [
            "### random_hflip\n",
            "random_hflip(image, p => 0.5, key => '')",
            "| `p` | a number | `0.5` | The probability of mirroring, from 0 to 1 |",
            "Version 1; keyed-random; one-to-one; 1 bytes out per byte in; commutes with `posterize`, `random_grayscale`, `solarize`",
        ] {
            assert!(text.contains(part), "{part}\nis not in\n{text}");
        }
    }

    #[test]
    fn every_operator_has_a_section_and_a_link_to_it() {
        let text = markdown();
        for name in crate::registry::descriptors().map(|descriptor| descriptor.name) {
            assert!(text.contains(&format!("(#{name})")) && text.contains(&format!("\n### {name}\n")), "{name}");
        }
    }
}
