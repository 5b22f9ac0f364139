//! The nearest known name to a misspelt one.
//!
//! Distance is the number of characters to insert, delete, replace or swap with their neighbour. A third of the longer
//! name may differ: more than that suggests names nobody meant.

/// The candidate nearest to `name`, if one is near enough to have been meant. The first of equals wins.
///
/// Case does not count as a difference, so a name that differs only in case is always found.
pub fn nearest<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let name: Vec<char> = name.to_lowercase().chars().take(NAME_CHARS_MAX).collect();
    candidates
        .into_iter()
        .map(|candidate| {
            let lower: Vec<char> = candidate.to_lowercase().chars().take(NAME_CHARS_MAX).collect();
            // "a" is no misspelling of "b", nor of "ab".
            let (shorter, longer) = (name.len().min(lower.len()), name.len().max(lower.len()));
            let distance = distance(&name, &lower);
            let near = distance < shorter && distance <= (longer / 3).max(1);
            (if near { distance } else { usize::MAX }, candidate)
        })
        .filter(|(distance, _)| *distance < usize::MAX)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Longer names are compared by their first characters only: the work grows with the square of the length.
const NAME_CHARS_MAX: usize = 64;

/// Edit distance with swaps of neighbours (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replace = last[j] + usize::from(from != to);
            let mut best = replace.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(before_last[j - 1] + 1);
            }
            row.push(best);
        }
        before_last = std::mem::replace(&mut last, row);
    }
    last[b.len()]
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
        assert_eq!(nearest("a", ["b", "ab", "A"]), Some("A"));
        assert_eq!(nearest("fotos", ["scans", "photos"]), Some("photos"));
    }
}
