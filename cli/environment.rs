//! The environment variable of each flag: `FOREBAY_` and the flag's name in capitals.
//!
//! A variable that is empty counts as unset, because templates of manifests and units often leave one empty.

use std::ffi::OsStr;

use clap::builder::{BoolishValueParser, Resettable};
use clap::{Arg, ArgAction, Command};

const PREFIX: &str = "FOREBAY_";
/// The flag without a variable of its own name: `run` and `materialize` read FOREBAY_URI themselves, and only without a
/// script.
const WITHOUT: &str = "connect";

/// Gives each flag of `command` and of its subcommands a variable, unless it declares another one.
pub(crate) fn add(command: Command) -> Command {
    command.mut_args(with_variable).mut_subcommands(add)
}

fn with_variable(flag: Arg) -> Arg {
    let variable = match (flag.get_env(), flag.get_long()) {
        (Some(declared), _) => declared.to_owned(),
        (None, Some(name)) if name != WITHOUT => {
            format!("{PREFIX}{}", name.replace('-', "_").to_ascii_uppercase()).into()
        }
        _ => return flag,
    };
    // The bare flag takes no value, but its variable has one.
    let flag = match flag.get_action() {
        ArgAction::SetTrue => flag.value_parser(BoolishValueParser::new()),
        _ => flag,
    };
    match std::env::var_os(&variable) {
        Some(value) if is_unset(&variable, &value) => flag.env(Resettable::Reset),
        _ => flag.env(variable),
    }
}

/// Whether a variable means nothing: it is empty, or Kubernetes set it. For a service named `forebay` or
/// `forebay-metrics`, Kubernetes sets `FOREBAY_PORT` or `FOREBAY_METRICS_PORT` in each container of the namespace to a
/// URL such as `tcp://10.0.0.1:7070`.
fn is_unset(variable: &OsStr, value: &OsStr) -> bool {
    let is_of_kubernetes = variable.to_string_lossy().ends_with("_PORT") && value.to_string_lossy().contains("://");
    value.is_empty() || is_of_kubernetes
}
