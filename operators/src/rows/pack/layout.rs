//! The assignment of runs of documents to sequences, computed from lengths alone.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};

/// The way documents are packed into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum PackStrategy {
    /// Joins all documents and splits them every `length` tokens.
    Concat,
    /// Keeps documents whole if they fit a sequence.
    BestFit,
}

/// A call of `pack`, without its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Pack {
    /// Tokens in a sequence.
    pub(super) length: usize,
    /// The way documents are packed into sequences.
    pub(super) strategy: PackStrategy,
    /// The token after each document.
    pub(super) separator: Option<i32>,
    /// The token that pads a sequence.
    pub(super) pad_id: i32,
    /// The label of tokens without a prediction.
    pub(super) ignore_index: i32,
    /// Whether tokens, labels and positions are int64.
    pub(super) wide: bool,
}

/// A run of a document's tokens, including its separator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DocumentPiece {
    /// The document's index.
    pub(super) document: usize,
    /// Index of the first token in the document.
    pub(super) start: usize,
    /// Number of tokens.
    pub(super) len: usize,
}

/// The pieces of each sequence.
#[derive(Debug)]
pub(super) struct PackLayout {
    pieces: Vec<DocumentPiece>,
    /// The end of each sequence among the pieces.
    ends: Vec<usize>,
}

impl PackLayout {
    /// Lays out documents of these lengths. Empty documents are in no sequence.
    pub(super) fn new(pack: &Pack, lengths: impl Iterator<Item = usize>) -> Self {
        let separator = usize::from(pack.separator.is_some());
        let documents =
            lengths.enumerate().filter(|(_, len)| *len > 0).map(|(document, len)| (document, len + separator));
        match pack.strategy {
            PackStrategy::Concat => Self::concat(pack.length, documents),
            PackStrategy::BestFit => Self::best_fit(pack.length, documents),
        }
    }

    fn concat(length: usize, documents: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut layout = Self { pieces: Vec::new(), ends: Vec::new() };
        let mut room = length;
        for (document, tokens) in documents {
            let mut start = 0;
            while start < tokens {
                let len = room.min(tokens - start);
                layout.pieces.push(DocumentPiece { document, start, len });
                start += len;
                room -= len;
                if room == 0 {
                    layout.ends.push(layout.pieces.len());
                    room = length;
                }
            }
        }
        if room < length {
            layout.ends.push(layout.pieces.len());
        }
        layout
    }

    /// Places the longest pieces first, each in the fullest sequence that it fits.
    fn best_fit(length: usize, documents: impl Iterator<Item = (usize, usize)>) -> Self {
        let cut = |(document, tokens): (usize, usize)| {
            let piece = move |start| DocumentPiece { document, start, len: length.min(tokens - start) };
            (0..tokens).step_by(length).map(piece)
        };
        let mut pieces: Vec<DocumentPiece> = documents.flat_map(cut).collect();
        // The sort is stable: of documents with equal lengths, the first goes first.
        pieces.sort_by_key(|piece| Reverse(piece.len));
        let mut sequences: Vec<Vec<DocumentPiece>> = Vec::new();
        // Sequences by remaining room.
        let mut open: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for piece in pieces {
            let (room, sequence) = match open.range_mut(piece.len..).next() {
                Some((&room, sequences)) => {
                    let sequence = sequences.pop().expect("rooms without sequences are removed");
                    if sequences.is_empty() {
                        open.remove(&room);
                    }
                    (room, sequence)
                }
                None => {
                    sequences.push(Vec::new());
                    (length, sequences.len() - 1)
                }
            };
            sequences[sequence].push(piece);
            if room > piece.len {
                open.entry(room - piece.len).or_default().push(sequence);
            }
        }
        let mut end = 0;
        let ends = sequences.iter().map(|pieces| {
            end += pieces.len();
            end
        });
        Self { ends: ends.collect(), pieces: sequences.concat() }
    }

    /// Returns the number of sequences.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns the pieces of a sequence, at least one.
    pub(super) fn pieces(&self, sequence: usize) -> &[DocumentPiece] {
        &self.pieces[self.pieces_of(&(sequence..sequence + 1))]
    }

    fn pieces_of(&self, sequences: &Range<usize>) -> Range<usize> {
        let end = |sequence: usize| if sequence == 0 { 0 } else { self.ends[sequence - 1] };
        end(sequences.start)..end(sequences.end)
    }

    /// Returns the tokens of some sequences, without padding, as a column of [`list_field`]'s type. `document` returns
    /// the tokens of a document, or its labels, which are as many.
    pub(super) fn tokens<'a>(
        &self,
        pack: &Pack,
        document: impl Fn(usize) -> &'a [i32],
        sequences: Range<usize>,
    ) -> ArrayRef {
        let pieces = &self.pieces[self.pieces_of(&sequences)];
        let mut tokens: Vec<i32> = Vec::with_capacity(pieces.iter().map(|piece| piece.len).sum());
        for piece in pieces {
            let (document, end) = (document(piece.document), piece.start + piece.len);
            tokens.extend_from_slice(&document[piece.start.min(document.len())..end.min(document.len())]);
            if let Some(separator) = pack.separator.filter(|_| end > document.len()) {
                tokens.push(separator);
            }
        }
        let lengths = sequences.map(|sequence| self.pieces(sequence).iter().map(|piece| piece.len).sum());
        list(lengths, tokens)
    }

    /// Returns the starts of the pieces of some sequences, and the end of the last piece, as a column of
    /// [`list_field`]'s type.
    pub(super) fn bounds(&self, sequences: Range<usize>) -> ArrayRef {
        let mut bounds: Vec<i32> = Vec::new();
        for sequence in sequences.clone() {
            let mut end = 0;
            bounds.push(end);
            bounds.extend(self.pieces(sequence).iter().map(|piece| {
                end += piece.len as i32;
                end
            }));
        }
        list(sequences.map(|sequence| self.pieces(sequence).len() + 1), bounds)
    }
}

fn list(lengths: impl Iterator<Item = usize>, values: Vec<i32>) -> ArrayRef {
    let DataType::List(item) = list_field("").data_type().clone() else { unreachable!("made below") };
    Arc::new(ListArray::new(item, OffsetBuffer::from_lengths(lengths), Arc::new(Int32Array::from(values)), None))
}

/// Returns the field of a column of lists of tokens or of bounds.
pub(super) fn list_field(name: &str) -> FieldRef {
    let item = Arc::new(Field::new_list_field(DataType::Int32, false));
    Arc::new(Field::new(name, DataType::List(item), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::Int32Type;

    fn pack(length: usize, strategy: PackStrategy, separator: Option<i32>) -> Pack {
        Pack { length, strategy, separator, pad_id: 0, ignore_index: -100, wide: false }
    }

    fn rows(array: &ArrayRef) -> Vec<Vec<i32>> {
        array.as_list::<i32>().iter().map(|row| row.unwrap().as_primitive::<Int32Type>().values().to_vec()).collect()
    }

    fn packed(pack: &Pack, documents: &[&[i32]]) -> (Vec<Vec<i32>>, Vec<Vec<i32>>) {
        let layout = PackLayout::new(pack, documents.iter().map(|document| document.len()));
        let all = 0..layout.len();
        (rows(&layout.tokens(pack, |at| documents[at], all.clone())), rows(&layout.bounds(all)))
    }

    #[test]
    fn concat_joins_documents_and_cuts_them() {
        let documents: [&[i32]; 5] = [&[1, 2, 3], &[], &[4], &[5, 6, 7, 8, 9, 10], &[11]];
        let (tokens, bounds) = packed(&pack(4, PackStrategy::Concat, None), &documents);
        assert_eq!(tokens, [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10, 11]]);
        assert_eq!(bounds, [vec![0, 3, 4], vec![0, 4], vec![0, 2, 3]]);
        let (tokens, bounds) = packed(&pack(4, PackStrategy::Concat, Some(99)), &documents);
        assert_eq!(tokens, [vec![1, 2, 3, 99], vec![4, 99, 5, 6], vec![7, 8, 9, 10], vec![99, 11, 99]]);
        assert_eq!(bounds, [vec![0, 4], vec![0, 2, 4], vec![0, 4], vec![0, 1, 3]]);
    }

    #[test]
    fn best_fit_cuts_only_what_fits_no_sequence() {
        let documents: [&[i32]; 6] = [&[1], &[2, 2, 2], &[3, 3], &[], &[4, 4, 4, 4, 4, 4], &[5, 5]];
        let (tokens, bounds) = packed(&pack(4, PackStrategy::BestFit, None), &documents);
        assert_eq!(tokens, [vec![4, 4, 4, 4], vec![2, 2, 2, 1], vec![3, 3, 4, 4], vec![5, 5]]);
        assert_eq!(bounds, [vec![0, 4], vec![0, 3, 4], vec![0, 2, 4], vec![0, 2]]);
        let (tokens, _) = packed(&pack(4, PackStrategy::BestFit, Some(9)), &documents);
        assert_eq!(
            tokens,
            [vec![2, 2, 2, 9], vec![4, 4, 4, 4], vec![3, 3, 9], vec![4, 4, 9], vec![5, 5, 9], vec![1, 9]]
        );
    }

    #[test]
    fn each_token_is_packed_once() {
        let documents: Vec<Vec<i32>> = (0..500).map(|n| (0..n * 7919 % 97).map(|at| n * 1000 + at).collect()).collect();
        let slices: Vec<&[i32]> = documents.iter().map(Vec::as_slice).collect();
        for strategy in [PackStrategy::Concat, PackStrategy::BestFit] {
            let pack = pack(64, strategy, None);
            let (tokens, bounds) = packed(&pack, &slices);
            let mut all = tokens.concat();
            let efficiency = all.len() as f64 / (64 * tokens.len()) as f64;
            assert!(efficiency > 0.97, "{strategy:?}: {efficiency}");
            all.sort_unstable();
            assert_eq!(all, documents.concat());
            for (tokens, bounds) in tokens.iter().zip(bounds) {
                assert!(tokens.len() <= 64 && *bounds.last().unwrap() as usize == tokens.len());
                for run in bounds.windows(2) {
                    let run = &tokens[run[0] as usize..run[1] as usize];
                    assert!(run.windows(2).all(|pair| pair[1] == pair[0] + 1), "a piece is a run of a document");
                    let whole = documents[run[0] as usize / 1000].len();
                    assert!(strategy == PackStrategy::Concat || whole > 64 || run.len() == whole, "no document is cut");
                }
            }
        }
    }

    #[test]
    fn nothing_makes_no_sequence() {
        for strategy in [PackStrategy::Concat, PackStrategy::BestFit] {
            assert_eq!(PackLayout::new(&pack(4, strategy, Some(1)), [0, 0].into_iter()).len(), 0);
        }
    }
}
