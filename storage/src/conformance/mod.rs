//! The checks that every registered format must pass.
//!
//! A feed is a function of its snapshot only if each format is: it must return the same rows whole or range by range,
//! in this process or from a snapshot sent to another one, and an error for any file that is not the pinned file.
//! [`check`] writes the format's own samples into a folder and reads them in all these ways. Then it damages them: the
//! error must name a bad row, and any other bytes must give rows or an error that names the file, within bounds of time
//! and memory. Random choices follow from a seed that every message contains.

#[cfg(test)]
mod broken;
mod damage;
mod reading;
mod samples;

use std::collections::BTreeSet;

use self::samples::{Samples, ensure};
use crate::Stores;
use crate::formats::format::Format;
use crate::formats::registry::FORMATS;

/// Runs all checks on one format, with files in `folder`. The error describes the difference and the options.
///
/// # Errors
/// The first check that fails, as a message.
pub async fn check(format: &'static dyn Format, stores: &Stores, folder: &str, seed: u64) -> Result<(), String> {
    check_reading(format, stores, folder).await?;
    for samples in Samples::all(format, stores, folder)? {
        let named = |problem| format!("{:?} (seed {seed}): {problem}", samples.format);
        damage::check(&samples, seed).await.map_err(named)?;
    }
    Ok(())
}

/// Runs the checks on intact, missing and replaced files.
///
/// # Errors
/// The first check that fails, as a message.
pub async fn check_reading(format: &'static dyn Format, stores: &Stores, folder: &str) -> Result<(), String> {
    complete(format).map_err(|problem| format!("{}: {problem}", format.descriptor().name))?;
    for samples in Samples::all(format, stores, folder)? {
        reading::check(&samples).await.map_err(|problem| format!("{:?}: {problem}", samples.format))?;
    }
    Ok(())
}

/// Checks that the descriptor is complete, and that its names are unique to the format.
fn complete(format: &dyn Format) -> Result<(), String> {
    let descriptor = format.descriptor();
    let is_name = |text: &str| {
        let is_letter = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        !text.is_empty() && text.bytes().all(is_letter)
    };
    for (what, text) in [("summary", descriptor.summary), ("row group", descriptor.row_group)] {
        ensure!(!text.is_empty(), "no {what}");
        ensure!(!text.ends_with('.'), "the {what} ends with a period");
    }
    ensure!(!descriptor.extensions.is_empty(), "no extension");
    let others = FORMATS.iter().map(|other| other.descriptor()).filter(|other| other.name != descriptor.name);
    let others: Vec<_> = others.collect();
    for name in std::iter::once(&descriptor.name).chain(descriptor.aliases) {
        ensure!(is_name(name), "\"{name}\" is not snake case");
        let is_taken = others.iter().any(|other| other.name == *name || other.aliases.contains(name));
        ensure!(!is_taken, "another format is called \"{name}\"");
    }
    for extension in descriptor.extensions {
        ensure!(is_name(extension), "the extension \"{extension}\" is not in lower case");
        let is_taken = others.iter().any(|other| other.extensions.contains(extension));
        ensure!(!is_taken, "another format has the extension \"{extension}\"");
    }
    let mut names = BTreeSet::new();
    for option in descriptor.options {
        ensure!(is_name(option.name), "the option \"{}\" is not snake case", option.name);
        ensure!(names.insert(option.name), "two options are called \"{}\"", option.name);
        ensure!(!option.docs.is_empty(), "no docs for \"{}\"", option.name);
        option.parse(option.default).map_err(|error| format!("the default of an option: {error}"))?;
    }
    for implied in descriptor.implied {
        let option = descriptor.options.iter().find(|option| option.name == implied.option);
        let option = option.ok_or_else(|| format!("\"{}\" implies an option that is none", implied.suffix))?;
        option.parse(implied.value).map_err(|error| format!("\"{}\" implies: {error}", implied.suffix))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_format_conforms_on_disk() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap();
        for format in FORMATS {
            check_reading(*format, &Stores::new(), root.to_str().unwrap()).await.unwrap();
        }
    }
}
