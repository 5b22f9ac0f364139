//! A snapshot as text in pieces, for sending: even with many files it needs no large message and no large buffer.
//!
//! The text is the snapshot's JSON with each file on its own line, so that a reader needs only the current line. Pieces
//! may be cut anywhere.

use std::sync::Arc;

use bytes::Bytes;
use serde::Serialize;

use crate::snapshot::{FilesChecked, Snapshot, Written, WrittenFile};
use crate::{Error, Result};

/// Bytes of a piece; the last piece is smaller.
const PIECE_BYTES: usize = 256 << 10;
/// The end of the text.
const END: &[u8] = b"]}";
/// Maximum length of a line. A file with such a line would have about a million row groups.
const LINE_BYTES_MAX: usize = 1 << 28;

/// The text of a snapshot in pieces of 256 KiB, generated on demand.
#[derive(Debug)]
pub struct SnapshotText {
    snapshot: Arc<Snapshot>,
    /// The number of files written.
    written: usize,
    text: Vec<u8>,
    state: SnapshotSection,
}

/// The next part to write.
#[derive(Debug)]
enum SnapshotSection {
    Head,
    Files,
    End,
}

impl SnapshotText {
    /// The text of `snapshot`.
    pub fn new(snapshot: Arc<Snapshot>) -> Self {
        Self { snapshot, written: 0, text: Vec::with_capacity(2 * PIECE_BYTES), state: SnapshotSection::Head }
    }

    fn write(&mut self, part: &impl Serialize) {
        serde_json::to_writer(&mut self.text, part).expect("plain data becomes JSON");
    }
}

impl Iterator for SnapshotText {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let snapshot = Arc::clone(&self.snapshot);
        let folder = snapshot.folder();
        while self.text.len() < PIECE_BYTES {
            match self.state {
                SnapshotSection::Head => {
                    self.write(&Written { id: snapshot.id().into(), folder: folder.into(), files: Vec::new() });
                    // Remove the end of the list and of the object.
                    self.text.truncate(self.text.len() - END.len());
                    self.state = SnapshotSection::Files;
                }
                SnapshotSection::Files => match snapshot.files().get(self.written) {
                    Some(file) => {
                        self.text.extend_from_slice(if self.written == 0 { b"\n" } else { b",\n" });
                        self.write(&file.written(folder));
                        self.written += 1;
                    }
                    None => {
                        self.text.push(b'\n');
                        self.text.extend_from_slice(END);
                        self.state = SnapshotSection::End;
                    }
                },
                SnapshotSection::End if self.text.is_empty() => return None,
                SnapshotSection::End => return Some(std::mem::take(&mut self.text).into()),
            }
        }
        let rest = self.text.split_off(PIECE_BYTES);
        Some(std::mem::replace(&mut self.text, rest).into())
    }
}

/// Reads the text of a snapshot as its pieces arrive.
#[derive(Debug, Default)]
pub struct SnapshotReader {
    /// The last line so far, which may be incomplete.
    line: Vec<u8>,
    /// The id and the folder of the first line.
    head: Option<(String, String)>,
    files: FilesChecked,
}

impl SnapshotReader {
    /// Reads the next piece.
    ///
    /// # Errors
    /// `Invalid` for a text that is not a snapshot's.
    pub fn push(&mut self, piece: &[u8]) -> Result<()> {
        let mut rest = piece;
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end);
            match self.line.is_empty() {
                true => self.read(line)?,
                false => {
                    self.line.extend_from_slice(line);
                    let line = std::mem::take(&mut self.line);
                    self.read(&line)?;
                }
            }
            rest = &after[1..];
        }
        if self.line.len() + rest.len() > LINE_BYTES_MAX {
            return Err(damaged("a line is too long"));
        }
        self.line.extend_from_slice(rest);
        Ok(())
    }

    /// The snapshot. Its id is unverified until [`Dataset::pinned`](crate::Dataset::pinned) has checked it.
    ///
    /// # Errors
    /// `Invalid` if the text ended early.
    pub fn finish(self) -> Result<Snapshot> {
        match self.head {
            Some((id, _)) if self.line == END => Ok(self.files.snapshot(id)),
            _ => Err(damaged("it ended early")),
        }
    }

    fn read(&mut self, line: &[u8]) -> Result<()> {
        match &self.head {
            None => {
                let head = [line, END].concat();
                let Written { id, folder, .. } = parse(&head)?;
                self.head = Some((id.into_owned(), folder.into_owned()));
                Ok(())
            }
            Some((_, folder)) => {
                let file: WrittenFile<'_> = parse(line.strip_suffix(b",").unwrap_or(line))?;
                self.files.add(folder, file)
            }
        }
    }
}

fn parse<'a, T: serde::Deserialize<'a>>(line: &'a [u8]) -> Result<T> {
    serde_json::from_slice(line).map_err(|error| damaged(&error.to_string()).with_source(error))
}

fn damaged(why: &str) -> Error {
    Error::invalid(format!("the snapshot is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An artificial snapshot of `files` files.
    fn snapshot(files: usize) -> Snapshot {
        let file = |at: usize| {
            format!(
                "[\"n{:05}/{at:09}.jpg\",150000,1700000000000,\"{:032x}\",[[1,150000,0,150000,false]]]",
                at / 1000,
                at
            )
        };
        let files: Vec<String> = (0..files).map(file).collect();
        let text = format!("{{\"id\":\"x\",\"folder\":\"s3://images/train/\",\"files\":[{}]}}", files.join(","));
        serde_json::from_str(&text).expect("a snapshot's JSON")
    }

    fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Snapshot> {
        let mut reader = SnapshotReader::default();
        pieces.into_iter().try_for_each(|piece| reader.push(piece))?;
        reader.finish()
    }

    #[test]
    fn a_snapshot_is_read_as_it_was_written() {
        for files in [0, 1, 2, 3000, 100_000] {
            let snapshot = Arc::new(snapshot(files));
            let pieces: Vec<Bytes> = SnapshotText::new(Arc::clone(&snapshot)).collect();
            let (last, others) = pieces.split_last().expect("some text");
            assert!(others.iter().all(|piece| piece.len() == PIECE_BYTES) && (1..=PIECE_BYTES).contains(&last.len()));
            assert_eq!(read(pieces.iter().map(|piece| &**piece)).expect("a snapshot"), *snapshot);
            let text = pieces.concat();
            assert_eq!(serde_json::from_slice::<Snapshot>(&text).expect("JSON"), *snapshot);
            // The cuts do not matter.
            assert_eq!(read(text.chunks(7)).expect("a snapshot"), *snapshot);
        }
    }

    #[test]
    fn a_text_that_is_cut_off_or_damaged_is_refused() {
        let text = SnapshotText::new(Arc::new(snapshot(20))).collect::<Vec<_>>().concat();
        for length in 0..text.len() {
            let error = read([&text[..length]]).expect_err("it is cut off");
            assert!(error.to_string().starts_with("the snapshot is damaged: "), "{error}");
        }
        for line in [&b"\n"[..], b"\n[]", b"\n]}\n]}", b"\n{}", b"x"] {
            assert!(read([&text[..], line]).is_err(), "{line:?}");
        }
        let text = String::from_utf8(text).expect("JSON");
        for (from, to, why) in [
            ("000000003.jpg", "000000002.jpg", "is out of order"),
            ("[[1,150000,", "[[18446744073709551615,150000,", "its files are too large"),
            ("150000,1700000000000", "-1,1700000000000", "u64"),
            ("\"folder\"", "\"holder\"", "unknown field"),
        ] {
            let error = read([text.replacen(from, to, 1).as_bytes()]).expect_err(why).to_string();
            assert!(error.starts_with("the snapshot is damaged: ") && error.contains(why), "{error}");
        }
    }

    /// `cargo test --release -p forebay-storage --lib -- --ignored --nocapture a_million_files`
    #[test]
    #[ignore = "takes a gigabyte; prints what a large snapshot costs"]
    #[expect(clippy::print_stdout, reason = "it is run by hand, for what it prints")]
    fn a_million_files() {
        let snapshot = Arc::new(snapshot(1_000_000));
        let began = std::time::Instant::now();
        let pieces: Vec<Bytes> = SnapshotText::new(Arc::clone(&snapshot)).collect();
        let written = began.elapsed();
        let bytes: usize = pieces.iter().map(Bytes::len).sum();
        let began = std::time::Instant::now();
        let again = read(pieces.iter().map(|piece| &**piece)).expect("a snapshot");
        println!("{bytes} bytes in {} pieces; written in {written:?}, read in {:?}", pieces.len(), began.elapsed());
        assert_eq!(again.rows(), 1_000_000);
    }
}
