//! The nearest known name to a misspelt one.
//!
//! Distance is the number of characters to insert, delete, replace or swap with their neighbour. A third of the longer
//! name may differ: more than that suggests names nobody meant.

/// The candidate nearest to `name`, if one is near enough to have been meant. The first of equals wins.
///
/// Case does not count as a difference, so a name that differs only in case is always found.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name = folded(name);
    candidates
        .into_iter()
        .map(|candidate| {
            let lower = folded(candidate);
            // "a" is no misspelling of "b", nor of "ab".
            let (a, b) = (name.chars().count(), lower.chars().count());
            let (shorter, longer) = (a.min(b), a.max(b));
            let distance = strsim::osa_distance(&name, &lower);
            let near = distance < shorter && distance <= (longer / 3).max(1);
            (if near { distance } else { usize::MAX }, candidate)
        })
        .filter(|(distance, _)| *distance < usize::MAX)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer names are compared by their first characters only: the work grows with the square of the length.
const NAME_CHARS_MAX: usize = 64;

fn folded(name: &str) -> String {
    name.to_lowercase().chars().take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_finds_typos_and_nothing_else() {
        let names = ["decode_jpeg", "resize", "normalize", "label", "path"];
        for (name, expected) in [
            ("resise", Some("resize")),
            ("RESIZE", Some("resize")),
            ("reszie", Some("resize")),
            ("decode_jpg", Some("decode_jpeg")),
            ("lable", Some("label")),
            ("pth", Some("path")),
            ("crop", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, names), expected, "{name}");
        }
        let operators = || ["center_crop", "decode_image", "normalize", "random_hflip", "resize"];
        assert_eq!(nearest("rezise", operators()), Some("resize"));
        assert_eq!(nearest("decode_images", operators()), Some("decode_image"));
        assert_eq!(nearest("transmogrify", operators()), None);
        assert_eq!(nearest("a", ["b", "ab", "A"]), Some("A"));
        assert_eq!(nearest("fotos", ["scans", "photos"]), Some("photos"));
    }
}
