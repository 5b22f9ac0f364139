//! Long texts in messages.

use std::borrow::Cow;

/// Returns a text of at most `chars_max` characters: a longer one loses its middle.
///
/// The end of a message often has the type that was expected, and its hint, so a third of the characters are kept
/// there.
pub fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    let chars = match text.len() <= chars_max {
        true => return text.into(),
        false => text.chars().count(),
    };
    if chars <= chars_max {
        return text.into();
    }
    let tail = chars_max / 3;
    let head = chars_max.saturating_sub(tail + 1);
    let at = |char: usize| text.char_indices().nth(char).map_or(text.len(), |(at, _)| at);
    format!("{}…{}", &text[..at(head)], &text[at(chars - tail)..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_lose_their_middle() {
        assert_eq!(shortened("12345", 5), "12345");
        assert_eq!(shortened("äöüäö", 5), "äöüäö");
        assert_eq!(shortened("123456789", 6), "123…89");
        assert_eq!(shortened("ääääöööööü", 4), "ää…ü");
        assert_eq!(shortened("12345", 0).chars().count(), 1);
    }
}
