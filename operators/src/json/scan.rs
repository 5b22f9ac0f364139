//! Finds values in the text of JSON, without building a tree.
//!
//! The text is valid, so a scan only counts brackets and skips strings. Values are slices of the text: numbers keep
//! their digits, however long, and members keep their order.

/// A value within the text of valid JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Json<'a>(&'a str);

impl<'a> Json<'a> {
    /// The value of a whole text, or the reason that the text is no JSON.
    pub(super) fn parse(text: &'a str) -> Result<Self, String> {
        match serde_json::from_str::<serde::de::IgnoredAny>(text) {
            Ok(_) => Ok(Self(text.trim_ascii())),
            Err(error) => Err(error.to_string()),
        }
    }

    /// The text of the value, with the white space in it.
    pub(super) fn text(self) -> &'a str {
        self.0
    }

    /// The first character, which determines the value's type.
    pub(super) fn first(self) -> u8 {
        self.0.as_bytes().first().copied().unwrap_or(b'n')
    }

    /// The value of the first member with this key, if the value is an object that has one.
    pub(super) fn member(self, key: &str) -> Option<Self> {
        self.members().find(|(name, _)| unescaped(name).as_deref() == Some(key)).map(|(_, value)| value)
    }

    /// The keys, as strings of JSON, and values of an object; nothing for other values.
    pub(super) fn members(self) -> impl Iterator<Item = (&'a str, Self)> {
        let parts = self.parts(b'{');
        parts.filter_map(|part| {
            let end = end_of_value(part);
            let (_, value) = part[end..].split_once(':')?;
            Some((&part[..end], Self(value.trim_ascii())))
        })
    }

    /// The items of an array; nothing for other values.
    pub(super) fn items(self) -> impl Iterator<Item = Self> {
        self.parts(b'[').map(Self)
    }

    /// The parts between the commas of an object or array that begins with `bracket`.
    fn parts(self, bracket: u8) -> impl Iterator<Item = &'a str> {
        let inside = match self.first() == bracket {
            true => self.0[1..self.0.len() - 1].trim_ascii(),
            false => "",
        };
        let mut rest = Some(inside).filter(|inside| !inside.is_empty());
        std::iter::from_fn(move || {
            let text = rest.take()?;
            let end = end_of_part(text);
            rest = text.get(end + 1..);
            Some(text[..end].trim_ascii())
        })
    }

    /// Appends the value without white space outside strings.
    pub(super) fn write_to(self, text: &mut String) {
        let (mut start, mut is_string, mut is_escaped) = (0, false, false);
        for (at, byte) in self.0.bytes().enumerate() {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' if is_string => is_escaped = true,
                b'"' => is_string = !is_string,
                b' ' | b'\t' | b'\n' | b'\r' if !is_string => {
                    text.push_str(&self.0[start..at]);
                    start = at + 1;
                }
                _ => {}
            }
        }
        text.push_str(&self.0[start..]);
    }
}

/// The text of a string of JSON. `None` if it is no string, or has half of a surrogate pair.
pub(super) fn unescaped(string: &str) -> Option<std::borrow::Cow<'_, str>> {
    let inside = string.strip_prefix('"')?.strip_suffix('"')?;
    match inside.contains('\\') {
        true => serde_json::from_str::<String>(string).ok().map(Into::into),
        false => Some(inside.into()),
    }
}

/// The end of the value at the beginning of `text`.
fn end_of_value(text: &str) -> usize {
    scan(text, |byte, depth| depth == 0 && matches!(byte, b':' | b',' | b' ' | b'\t' | b'\n' | b'\r'))
}

/// The position of the first comma outside brackets and strings, or the end.
fn end_of_part(text: &str) -> usize {
    scan(text, |byte, depth| depth == 0 && byte == b',')
}

/// The position of the first byte outside strings at which `is_end`, or the end.
fn scan(text: &str, is_end: impl Fn(u8, usize) -> bool) -> usize {
    let (mut depth, mut is_string, mut is_escaped) = (0_usize, false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_string => is_escaped = true,
            b'"' => is_string = !is_string,
            _ if is_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            byte if is_end(byte, depth) => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_and_items_are_slices_of_the_text() {
        let json = Json::parse(" {\"a\" : [1.50, {\"b\": \"},\\\"\"}] ,\"\\u0061b\":null, \"a\": 2}\n").unwrap();
        let keys: Vec<&str> = json.members().map(|(key, _)| key).collect();
        assert_eq!(keys, ["\"a\"", "\"\\u0061b\"", "\"a\""]);
        let a = json.member("a").unwrap();
        assert_eq!(a.items().map(Json::text).collect::<Vec<_>>(), ["1.50", "{\"b\": \"},\\\"\"}"]);
        assert_eq!(json.member("ab").map(Json::text), Some("null"));
        assert_eq!(json.member("c"), None);
        assert_eq!(Json::parse("[]").unwrap().items().count(), 0);
        assert_eq!(Json::parse("{ }").unwrap().members().count(), 0);
        assert_eq!(Json::parse("\"[1]\"").unwrap().items().count(), 0);
        let mut text = String::new();
        json.write_to(&mut text);
        assert_eq!(text, "{\"a\":[1.50,{\"b\":\"},\\\"\"}],\"\\u0061b\":null,\"a\":2}");
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["", "x", "{", "[1,]", "1 2", "{\"a\":}", "'a'"] {
            assert!(Json::parse(text).is_err(), "{text}");
        }
    }
}
