//! The operators' reference, generated from their descriptors.

use std::fmt::Write;

use crate::descriptor::{Descriptor, Parameter};
use crate::registry::{OPERATORS, TABLE_OPERATORS};

/// The whole of `docs/operators.md`.
pub fn markdown() -> String {
    let mut text = String::from(
        "# Operators\n\n\
         <!-- Generated from the operators' descriptors by `forebay_operators::reference::markdown`; do not edit. -->\n\n\
         Functions of one row, for the `SELECT` list and for conditions. Arguments may be given by position or by name with `=>`. \
         An image is a tensor of height x width x 3 (`HWC`, RGB), either of fixed shape (`arrow.fixed_shape_tensor`) or of \
         variable shape (`arrow.variable_shape_tensor`). The table operators make rows of rows and are called in `FROM`.\n\n",
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
    for Parameter { name, kind, default, docs } in *parameters {
        let default = default.map_or(String::new(), |default| format!("`{default}`"));
        let _ = writeln!(text, "| `{name}` | {} | {default} | {docs} |", kind.wording());
    }
    let _ = writeln!(text, "\nReturns {returns}.\n\n{docs}\n");
    for example in descriptor.examples {
        let _ = writeln!(text, "- `{}` → {}", example.sql, example.result);
    }
    let commutes = match (descriptor.commutes.pixelwise, descriptor.commutes.spatial) {
        (true, true) => "; commutes with pixelwise and spatial neighbours",
        (true, false) => "; commutes with pixelwise neighbours",
        (false, true) => "; commutes with spatial neighbours",
        (false, false) => "",
    };
    let _ = writeln!(
        text,
        "\nFollows {source}. Version {version}; {}; {}; about {} bytes out per byte in{commutes}.",
        descriptor.determinism.wording(),
        descriptor.rows.wording(),
        descriptor.size_ratio,
    );
    text
}

fn argument(parameter: &Parameter) -> String {
    match parameter.default {
        Some(default) => format!("{} => {default}", parameter.name),
        None => parameter.name.to_owned(),
    }
}

/// All descriptors by category, in the order of the registry; those of table operators last.
fn sections() -> Vec<(&'static str, Vec<&'static Descriptor>)> {
    let mut sections: Vec<(&str, Vec<&Descriptor>)> = vec![];
    for operator in OPERATORS {
        let descriptor = operator.descriptor();
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
            "random_hflip(image, p => 0.5)",
            "| `p` | a number | `0.5` | The probability of mirroring, from 0 to 1 |",
            "Version 1; keyed-random; one-to-one; about 1 bytes out per byte in; commutes with pixelwise neighbours.",
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
