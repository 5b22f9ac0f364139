//! Records that are lines.

use super::record_text::Records;

/// Finds the ends of lines that are not blank.
#[derive(Default)]
pub(crate) struct LineEnds {
    at: u64,
    has_text: bool,
}

impl Records for LineEnds {
    fn push(&mut self, mut piece: &[u8], record_ends: &mut dyn FnMut(u64)) {
        while let Some(newline) = piece.iter().position(|b| *b == b'\n') {
            let line = &piece[..newline];
            self.at += newline as u64 + 1;
            if std::mem::take(&mut self.has_text) || !line.trim_ascii().is_empty() {
                record_ends(self.at);
            }
            piece = &piece[newline + 1..];
        }
        self.at += piece.len() as u64;
        self.has_text |= !piece.trim_ascii().is_empty();
    }

    fn finish(&mut self, record_ends: &mut dyn FnMut(u64)) -> bool {
        if std::mem::take(&mut self.has_text) {
            record_ends(self.at);
        }
        // A newline always ends a line.
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::formats::text::record_text::record_ends;

    #[test]
    fn records_are_lines_with_text() {
        let check = |text: &str, expect: &[u64]| {
            for piece_bytes in [1, 2, 1000] {
                assert_eq!(record_ends(LineEnds::default(), text, piece_bytes), expect, "{text:?}");
            }
        };
        check("", &[]);
        check("\n \r\n\t", &[]);
        check("{}\n{}", &[3, 5]);
        check("{}\r\n\r\n{} \n", &[4, 10]);
    }
}
