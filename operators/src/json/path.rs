//! Paths to values within JSON: `$.a[0].b`, in DuckDB's syntax, or the name of one member.

use super::scan::Json;

/// A path to one value.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Path(Vec<Step>);

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Item(usize),
    /// An item counted from the end; the last is 1.
    FromEnd(usize),
}

impl Path {
    /// Parses a path. The error continues the parameter's name.
    pub(super) fn parse(path: &str) -> Result<Self, String> {
        let refuse = |why: &str| {
            Err(format!("must be a path such as '$.a[0].b', or the name of a member: {why}, got \"{path}\""))
        };
        let Some(mut rest) = path.strip_prefix('$') else {
            return match path {
                "" => refuse("it is empty"),
                _ if path.starts_with('/') => refuse("pointers are not supported"),
                name => Ok(Self(vec![Step::Member(name.to_owned())])),
            };
        };
        let mut steps = Vec::new();
        while !rest.is_empty() {
            if let Some(quoted) = rest.strip_prefix(".\"") {
                let Some((name, after)) = quoted.split_once('"') else { return refuse("a quote does not end") };
                steps.push(Step::Member(name.to_owned()));
                rest = after;
            } else if let Some(name) = rest.strip_prefix('.') {
                let end = name.find(['.', '[']).unwrap_or(name.len());
                match &name[..end] {
                    "" => return refuse("a name is empty"),
                    "*" => return refuse("`*` stands for several values"),
                    name => steps.push(Step::Member(name.to_owned())),
                }
                rest = &name[end..];
            } else if let Some(index) = rest.strip_prefix('[') {
                let Some((index, after)) = index.split_once(']') else { return refuse("a bracket does not end") };
                let index = index.trim();
                let from_end = index.strip_prefix('#').unwrap_or(index).strip_prefix('-');
                let number = |text: &str| text.parse::<usize>().ok();
                steps.push(match (from_end.and_then(number), number(index)) {
                    (Some(back), _) if back > 0 => Step::FromEnd(back),
                    (None, Some(index)) => Step::Item(index),
                    _ if index == "*" => return refuse("`*` stands for several values"),
                    _ => return refuse("an index is a number, such as [0], or [#-1] for the last"),
                });
                rest = after;
            } else {
                return refuse("after `$` comes `.name` or `[index]`");
            }
        }
        Ok(Self(steps))
    }

    /// The value at the path, if there is one.
    pub(super) fn find<'a>(&self, json: Json<'a>) -> Option<Json<'a>> {
        self.0.iter().try_fold(json, |json, step| match step {
            Step::Member(name) => json.member(name),
            Step::Item(index) => json.items().nth(*index),
            Step::FromEnd(back) => json.items().nth(json.items().count().checked_sub(*back)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_find_values() {
        let json = Json::parse(r#"{"a": [{"b": 1}, {"b": 2}], "a.b": 3, "c d": {"": 4}}"#).unwrap();
        for (path, expected) in [
            ("$", Some(json.text())),
            ("$.a[0].b", Some("1")),
            ("$.a[#-1].b", Some("2")),
            ("$.a[-2].b", Some("1")),
            ("$.a[2]", None),
            ("$.a[-3]", None),
            ("$.a.b", None),
            ("a.b", Some("3")),
            ("$.\"c d\".\"\"", Some("4")),
            ("$.x.y", None),
        ] {
            assert_eq!(Path::parse(path).unwrap().find(json).map(Json::text), expected, "{path}");
        }
    }

    #[test]
    fn other_paths_are_refused_with_the_reason() {
        for (path, why) in [
            ("", "it is empty"),
            ("$.", "a name is empty"),
            ("$x", "after `$` comes"),
            ("$.a[*]", "several values"),
            ("$.*", "several values"),
            ("$[x]", "an index is a number"),
            ("$[#-0]", "an index is a number"),
            ("$[1", "a bracket does not end"),
            ("$.\"a", "a quote does not end"),
            ("/a/b", "pointers"),
        ] {
            let error = Path::parse(path).unwrap_err();
            assert!(error.contains(why), "{path}: {error}");
        }
    }
}
