//! What to say about a function that does not exist, or that does not take the arguments of a call.

use datafusion::execution::SessionState;
use forebay_diagnostics::{nearest, plain_message};
use forebay_operators::descriptors;

use crate::error::Error;

/// Functions of other databases, and what does the same here.
const ELSEWHERE: &[(&str, &str)] = &[
    ("charindex", "strpos(text, part)"),
    ("current_setting", "a constant"),
    ("date_diff", "date_part('day', later - earlier)"),
    ("datediff", "date_part('day', later - earlier)"),
    ("day", "date_part('day', time)"),
    ("dayofweek", "date_part('dow', time)"),
    ("dayofyear", "date_part('doy', time)"),
    ("epoch", "date_part('epoch', time)"),
    ("epoch_ms", "CAST(date_part('epoch', time) * 1000 AS BIGINT)"),
    ("format_datetime", "to_char(time, format)"),
    ("get_json_object", "json_extract_string(json, path)"),
    ("hex_decode", "decode(text, 'hex')"),
    ("hour", "date_part('hour', time)"),
    ("if", "CASE WHEN condition THEN a ELSE b END"),
    ("iff", "CASE WHEN condition THEN a ELSE b END"),
    ("isnull", "value IS NULL"),
    ("json_extract_path", "json_extract(json, path)"),
    ("json_extract_path_text", "json_extract_string(json, path)"),
    ("json_extract_scalar", "json_extract_string(json, path)"),
    ("json_query", "json_extract(json, path)"),
    ("json_value", "json_extract_string(json, path)"),
    ("jsonb_array_length", "json_array_length(json)"),
    ("jsonb_extract_path", "json_extract(json, path)"),
    ("jsonb_typeof", "json_type(json)"),
    ("json_typeof", "json_type(json)"),
    ("json_object_keys", "json_keys(json)"),
    ("len", "length(text), or array_length(list)"),
    ("list_value", "[a, b]"),
    ("minute", "date_part('minute', time)"),
    ("month", "date_part('month', time)"),
    ("quarter", "date_part('quarter', time)"),
    ("second", "date_part('second', time)"),
    ("sha2", "sha256(value)"),
    ("startswith", "starts_with(text, part)"),
    ("strftime", "to_char(time, format)"),
    ("string_split", "string_to_array(text, separator)"),
    ("strptime", "to_timestamp(text, format)"),
    ("struct_pack", "named_struct('name', value)"),
    ("unix_timestamp", "to_unixtime(time)"),
    ("week", "date_part('week', time)"),
    ("year", "date_part('year', time)"),
];

/// The most functions in a hint.
const NAMES_MAX: usize = 8;

/// The error for a call of a function that does not exist.
pub(crate) fn unknown(name: &str, state: &SessionState) -> Error {
    let error = Error::new(format!("function \"{name}\" not found"));
    if let Some((_, instead)) = ELSEWHERE.iter().find(|(elsewhere, _)| elsewhere.eq_ignore_ascii_case(name)) {
        return error.with_hint(format!("write `{instead}`"));
    }
    let operators = descriptors().map(|descriptor| descriptor.name);
    let mut functions: Vec<&str> = state.scalar_functions().keys().map(String::as_str).collect();
    functions.sort_unstable();
    // Operators come first, so that they win ties.
    let all: Vec<&str> = operators.chain(functions).collect();
    if let Some(near) = nearest(name, all.iter().copied().filter(|other| is_alike(name, other))) {
        return error.with_hint(format!("did you mean \"{near}\"?"));
    }
    let words: Vec<String> = words(name);
    let mut related: Vec<&str> =
        all.into_iter().filter(|other| self::words(other).iter().any(|word| words.contains(word))).collect();
    related.dedup();
    match related.len() {
        0 => error
            .with_hint("`forebay operators` lists the operators; all other functions are those of DataFusion's SQL"),
        _ => error.with_hint(format!("similar names: {}", related[..related.len().min(NAMES_MAX)].join(", "))),
    }
}

/// The words of a name that say what a function is for.
fn words(name: &str) -> Vec<String> {
    name.to_lowercase().split('_').filter(|word| word.len() > 2).map(str::to_owned).collect()
}

/// Whether two names may mean the same: word by word, if they have as many. `json_extract` is no misspelling of
/// `union_extract`.
fn is_alike(name: &str, other: &str) -> bool {
    let (name, other) = (name.to_lowercase(), other.to_lowercase());
    let words = |name: &str| name.split('_').filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>();
    let (name, other) = (words(&name), words(&other));
    let is_near = |a: &str, b: &str| a.starts_with(b) || b.starts_with(a) || nearest(a, [b]).is_some();
    name.len() != other.len() || name.iter().zip(&other).all(|(a, b)| is_near(a, b))
}

/// The error for a call with arguments that its function does not take, of DataFusion's message.
pub(crate) fn wrong_arguments(message: &str) -> Option<Error> {
    let (lead, call) = message.split_once("No function matches the given name and argument types '")?;
    let (call, rest) = call.split_once("'. ")?;
    let (name, types) = call.strip_suffix(')')?.split_once('(')?;
    // A function with one signature says what does not fit, some with the words of a bug report around it.
    let lead = lead.rsplit("coercion failed with: ").next().unwrap_or(lead);
    let lead = plain_message(lead.trim().trim_end_matches('.'));
    let error = Error::new(match types {
        _ if says_why(&lead) => lead,
        "" => format!("\"{name}\" needs arguments"),
        types => format!("\"{name}\" does not take ({types})"),
    });
    // Wrapped errors list the same function twice.
    let rest = rest.split("No function matches").next().unwrap_or(rest);
    let signatures = rest.split_once("Candidate functions:").map_or("", |(_, signatures)| signatures);
    let signatures = signatures.lines().map(str::trim).filter(|line| line.contains('('));
    // Some are data structures of DataFusion.
    let signatures: Vec<&str> = signatures.filter(|line| !line.contains('{')).take(3).collect();
    Some(match signatures.is_empty() {
        true => error.with_hint("CAST(… AS …) changes a type"),
        false => error.with_hint(format!("it is called as {}; CAST(… AS …) changes a type", signatures.join(" or "))),
    })
}

/// Whether a message of DataFusion says which argument does not fit, and not only that none of its signatures does.
fn says_why(lead: &str) -> bool {
    [" expects ", "does not support"].iter().any(|why| lead.contains(why)) && !lead.contains("ignature")
}

#[cfg(test)]
mod tests {
    use datafusion::prelude::SessionContext;

    use super::*;

    #[test]
    fn suggestions_are_of_the_same_kind() {
        let context = SessionContext::new();
        forebay_operators::scalar_udfs().into_iter().for_each(|function| context.register_udf(function));
        let hint = |name: &str| unknown(name, &context.state()).hint().unwrap_or_default().to_owned();
        assert_eq!(hint("rezise"), "did you mean \"resize\"?");
        assert_eq!(hint("json_extrct"), "did you mean \"json_extract\"?");
        assert_eq!(hint("epoch"), "write `date_part('epoch', time)`");
        assert_eq!(hint("json_extract_path_text"), "write `json_extract_string(json, path)`");
        assert!(
            hint("json_each").starts_with("similar names: json_array_length, json_extract, "),
            "{}",
            hint("json_each")
        );
        assert!(hint("transmogrify").starts_with("`forebay operators` lists"), "{}", hint("transmogrify"));
        assert_eq!(hint("md4"), "did you mean \"md5\"?");
    }

    #[test]
    fn functions_of_other_databases_do_not_exist_here() {
        let context = SessionContext::new();
        for (name, _) in ELSEWHERE {
            assert!(!context.state().scalar_functions().contains_key(*name), "{name}");
            assert!(forebay_operators::find(name).is_none(), "{name}");
        }
    }
}
