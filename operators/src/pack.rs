//! `pack`: token lists of any length to sequences of one length, for a whole window at a time.
//!
//! It is a table operator, called in FROM. [`Layout`] is the decision which run of which document goes where, made from
//! lengths alone; the sequences' tokens are put together from that, and what a trainer sees of them ([`columns`]) is
//! computed later, row by row, for the rows that are asked for.

pub mod columns;

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, ListArray};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, FieldRef};

use crate::descriptor::{Commutes, ConstantKind, Descriptor, Determinism, Example, Nulls, Parameter, Rows, TypeClass};

/// What `pack` declares about itself.
pub static DESCRIPTOR: Descriptor = Descriptor {
    name: "pack",
    version: 1,
    category: "list",
    summary: "Packs token lists into sequences of one length",
    parameters: &[
        Parameter::input("rows", TypeClass::NumberList, "A subquery or a table with a list of integers in each row"),
        Parameter::constant("length", ConstantKind::PositiveInteger, "Tokens of a sequence"),
        Parameter::constant("strategy", ConstantKind::Text, "'concat' or 'best_fit'").or("'concat'"),
        Parameter::constant("column", ConstantKind::Text, "The column of the lists, where there are several")
            .or("NULL"),
        Parameter::constant("separator", ConstantKind::Integer, "A token put behind each document").or("NULL"),
        Parameter::constant("pad_id", ConstantKind::Integer, "The token behind the last document of a sequence")
            .or("0"),
        Parameter::constant("ignore_index", ConstantKind::Integer, "The label of tokens that are not to be predicted")
            .or("-100"),
    ],
    returns: "input_ids, labels and position_ids, tensors of length; cu_seq_lens, a list; tokens, an integer",
    nulls: Nulls::Kept,
    determinism: Determinism::KeyedRandom,
    rows: Rows::Grows,
    size_ratio: 1.0,
    commutes: Commutes::NONE,
    docs: "The documents of a window are shuffled, where the feed is, and packed. 'concat' joins them and cuts every \
           length tokens, so only the last sequence of a window is padded. 'best_fit' (best-fit decreasing) cuts no \
           document that fits a sequence; longer ones are cut into pieces.",
    source: "Ding et al., Fewer Truncations Improve Language Modeling (2024), for 'best_fit'",
    examples: &[Example {
        sql: "SELECT input_ids FROM pack((SELECT tokens FROM texts), length => 2048)",
        result: "sequences of 2048 tokens",
    }],
};

/// How documents are put into sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Hash)]
pub enum Strategy {
    /// Joined, and cut every length tokens.
    Concat,
    /// Documents whole, where they fit a sequence.
    BestFit,
}

/// A call of `pack`, without its input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Hash)]
pub struct Pack {
    /// Tokens of a sequence.
    pub length: usize,
    /// How documents are put into sequences.
    pub strategy: Strategy,
    /// The token behind each document.
    pub separator: Option<i32>,
    /// The token behind the last document of a sequence.
    pub pad_id: i32,
    /// The label of tokens that are not to be predicted.
    pub ignore_index: i32,
}

/// A run of a document's tokens, its separator among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which document.
    pub document: usize,
    /// Its first token in the document.
    pub start: usize,
    /// How many.
    pub len: usize,
}

/// Which pieces make which sequence.
#[derive(Debug)]
pub struct Layout {
    pieces: Vec<Piece>,
    /// Where the pieces of each sequence end.
    ends: Vec<usize>,
}

impl Layout {
    /// Lays out documents of these lengths. Documents without tokens are in no sequence.
    pub fn new(pack: &Pack, lengths: impl Iterator<Item = usize>) -> Self {
        let separator = usize::from(pack.separator.is_some());
        let documents =
            lengths.enumerate().filter(|(_, len)| *len > 0).map(|(document, len)| (document, len + separator));
        match pack.strategy {
            Strategy::Concat => Self::concat(pack.length, documents),
            Strategy::BestFit => Self::best_fit(pack.length, documents),
        }
    }

    fn concat(length: usize, documents: impl Iterator<Item = (usize, usize)>) -> Self {
        let mut layout = Self { pieces: Vec::new(), ends: Vec::new() };
        let mut room = length;
        for (document, tokens) in documents {
            let mut start = 0;
            while start < tokens {
                let len = room.min(tokens - start);
                layout.pieces.push(Piece { document, start, len });
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

    /// Longest first, each into the fullest sequence that it fits.
    fn best_fit(length: usize, documents: impl Iterator<Item = (usize, usize)>) -> Self {
        let cut = |(document, tokens): (usize, usize)| {
            let piece = move |start| Piece { document, start, len: length.min(tokens - start) };
            (0..tokens).step_by(length).map(piece)
        };
        let mut pieces: Vec<Piece> = documents.flat_map(cut).collect();
        // Stable: of equal lengths the first document goes first.
        pieces.sort_by_key(|piece| Reverse(piece.len));
        let mut sequences: Vec<Vec<Piece>> = Vec::new();
        // Sequences by the room that is left in them.
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

    /// How many sequences there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The pieces of a sequence; it has at least one.
    pub fn pieces(&self, sequence: usize) -> &[Piece] {
        &self.pieces[self.pieces_of(&(sequence..sequence + 1))]
    }

    fn pieces_of(&self, sequences: &Range<usize>) -> Range<usize> {
        let end = |sequence: usize| if sequence == 0 { 0 } else { self.ends[sequence - 1] };
        end(sequences.start)..end(sequences.end)
    }

    /// The tokens of some sequences, without padding, as a column of [`list_field`]'s type.
    pub fn tokens(&self, pack: &Pack, documents: &[&[i32]], sequences: Range<usize>) -> ArrayRef {
        let pieces = &self.pieces[self.pieces_of(&sequences)];
        let mut tokens: Vec<i32> = Vec::with_capacity(pieces.iter().map(|piece| piece.len).sum());
        for piece in pieces {
            let (document, end) = (documents[piece.document], piece.start + piece.len);
            tokens.extend_from_slice(&document[piece.start.min(document.len())..end.min(document.len())]);
            if let Some(separator) = pack.separator.filter(|_| end > document.len()) {
                tokens.push(separator);
            }
        }
        let lengths = sequences.map(|sequence| self.pieces(sequence).iter().map(|piece| piece.len).sum());
        list(lengths, tokens)
    }

    /// Where the pieces of some sequences begin, and where the last ends, as a column of [`list_field`]'s type.
    pub fn bounds(&self, sequences: Range<usize>) -> ArrayRef {
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

/// A column of lists of tokens or of bounds.
pub fn list_field(name: &str) -> FieldRef {
    let item = Arc::new(Field::new_list_field(DataType::Int32, false));
    Arc::new(Field::new(name, DataType::List(item), false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::AsArray;
    use arrow::datatypes::Int32Type;

    fn pack(length: usize, strategy: Strategy, separator: Option<i32>) -> Pack {
        Pack { length, strategy, separator, pad_id: 0, ignore_index: -100 }
    }

    fn rows(array: &ArrayRef) -> Vec<Vec<i32>> {
        array.as_list::<i32>().iter().map(|row| row.unwrap().as_primitive::<Int32Type>().values().to_vec()).collect()
    }

    fn packed(pack: &Pack, documents: &[&[i32]]) -> (Vec<Vec<i32>>, Vec<Vec<i32>>) {
        let layout = Layout::new(pack, documents.iter().map(|document| document.len()));
        let all = 0..layout.len();
        (rows(&layout.tokens(pack, documents, all.clone())), rows(&layout.bounds(all)))
    }

    #[test]
    fn concat_joins_documents_and_cuts_them() {
        let documents: [&[i32]; 5] = [&[1, 2, 3], &[], &[4], &[5, 6, 7, 8, 9, 10], &[11]];
        let (tokens, bounds) = packed(&pack(4, Strategy::Concat, None), &documents);
        assert_eq!(tokens, [vec![1, 2, 3, 4], vec![5, 6, 7, 8], vec![9, 10, 11]]);
        assert_eq!(bounds, [vec![0, 3, 4], vec![0, 4], vec![0, 2, 3]]);
        let (tokens, bounds) = packed(&pack(4, Strategy::Concat, Some(99)), &documents);
        assert_eq!(tokens, [vec![1, 2, 3, 99], vec![4, 99, 5, 6], vec![7, 8, 9, 10], vec![99, 11, 99]]);
        assert_eq!(bounds, [vec![0, 4], vec![0, 2, 4], vec![0, 4], vec![0, 1, 3]]);
    }

    #[test]
    fn best_fit_cuts_only_what_fits_no_sequence() {
        let documents: [&[i32]; 6] = [&[1], &[2, 2, 2], &[3, 3], &[], &[4, 4, 4, 4, 4, 4], &[5, 5]];
        let (tokens, bounds) = packed(&pack(4, Strategy::BestFit, None), &documents);
        assert_eq!(tokens, [vec![4, 4, 4, 4], vec![2, 2, 2, 1], vec![3, 3, 4, 4], vec![5, 5]]);
        assert_eq!(bounds, [vec![0, 4], vec![0, 3, 4], vec![0, 2, 4], vec![0, 2]]);
        let (tokens, _) = packed(&pack(4, Strategy::BestFit, Some(9)), &documents);
        assert_eq!(
            tokens,
            [vec![2, 2, 2, 9], vec![4, 4, 4, 4], vec![3, 3, 9], vec![4, 4, 9], vec![5, 5, 9], vec![1, 9]]
        );
    }

    #[test]
    fn each_token_is_packed_once() {
        let documents: Vec<Vec<i32>> = (0..500).map(|n| (0..n * 7919 % 97).map(|at| n * 1000 + at).collect()).collect();
        let slices: Vec<&[i32]> = documents.iter().map(Vec::as_slice).collect();
        for strategy in [Strategy::Concat, Strategy::BestFit] {
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
                    assert!(strategy == Strategy::Concat || whole > 64 || run.len() == whole, "no document is cut");
                }
            }
        }
    }

    #[test]
    fn nothing_makes_no_sequence() {
        for strategy in [Strategy::Concat, Strategy::BestFit] {
            assert!(Layout::new(&pack(4, strategy, Some(1)), [0, 0].into_iter()).is_empty());
        }
    }
}
