//! Turns option names in hints into flags.
//!
//! The libraries do not know the command line: their hints say `option "tls.ca"`, which a Rust or Python program reads
//! as the name of a field or argument. This module turns each such phrase into the flag, `--tls-ca`.

use std::collections::BTreeSet;

use clap::Command;

/// The text before an option's name in a hint.
const PHRASE: &str = "option \"";

/// Replaces the option names in the hint of `text` with the flags of `command`. Names without a flag do not change.
pub(crate) fn spell(text: &str, command: &Command) -> String {
    let Some(hint) = text.find("hint: ") else { return text.to_owned() };
    let flags: BTreeSet<&str> = std::iter::once(command)
        .chain(command.get_subcommands())
        .flat_map(|command| command.get_arguments().filter_map(|argument| argument.get_long()))
        .collect();
    let (mut spelled, mut rest) = (text[..hint].to_owned(), &text[hint..]);
    while let Some(begin) = rest.find(PHRASE) {
        let (before, named) = (&rest[..begin], &rest[begin + PHRASE.len()..]);
        let Some(end) = named.find('"') else { break };
        let flag = named[..end].replace(['_', '.'], "-");
        if flags.contains(flag.as_str()) {
            spelled.push_str(before.strip_suffix("the ").unwrap_or(before));
            spelled.push_str("--");
            spelled.push_str(&flag);
        } else {
            spelled.push_str(&rest[..begin + PHRASE.len() + end + 1]);
        }
        rest = &named[end + 1..];
    }
    spelled.push_str(rest);
    spelled
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn options_in_hints_become_flags() {
        let long = |name: &'static str| Arg::new(name).long(name);
        let run = Command::new("run").args([long("root"), long("tls-ca")]);
        let command = Command::new("forebay").subcommand(run);
        for (text, expected) in [
            ("no CA\nhint: set the option \"tls.ca\"", "no CA\nhint: set --tls-ca"),
            ("hint: option \"root\", or option \"tls_ca\" too", "hint: --root, or --tls-ca too"),
            ("hint: the option \"colour\" has none", "hint: the option \"colour\" has none"),
            (
                "unknown option \"root\"\nhint: did you mean \"root\"?",
                "unknown option \"root\"\nhint: did you mean \"root\"?",
            ),
            ("hint: an option \"without an end", "hint: an option \"without an end"),
            ("no hint for the option \"root\"", "no hint for the option \"root\""),
        ] {
            assert_eq!(spell(text, &command), expected);
        }
    }
}
