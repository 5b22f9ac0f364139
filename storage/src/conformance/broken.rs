//! Tests the suite itself with formats that each break one rule.

use std::ops::Range;

use futures::future::{BoxFuture, FutureExt};

use super::check;
use crate::formats::csv::Csv;
use crate::formats::format::{
    Decoded, Format, FormatDescriptor, FormatReader, OpenRequest, Opened, ReadRequest, ReaderRequest, SampleFile,
};
use crate::formats::options::OptionValues;
use crate::source_file::{RowGroup, SourceFile};
use crate::{Error, Result, Stores};

/// A defect: maps a request and CSV's result to a wrong result.
type Break = fn(&ReadRequest<'_>, Decoded) -> Result<Decoded>;

/// CSV with a reader that violates a rule.
#[derive(Debug)]
struct BrokenFormat(Break);

#[derive(Debug)]
struct BrokenReader(Break, Box<dyn FormatReader>);

impl Format for BrokenFormat {
    fn descriptor(&self) -> &'static FormatDescriptor {
        Csv.descriptor()
    }

    fn open<'a>(&'a self, request: OpenRequest<'a>) -> BoxFuture<'a, Result<Opened>> {
        async move {
            let opened = Csv.open(request).await?;
            Ok(Opened { reader: Box::new(BrokenReader(self.0, opened.reader)), ..opened })
        }
        .boxed()
    }

    fn reader(&self, request: ReaderRequest<'_>) -> Result<Box<dyn FormatReader>> {
        Ok(Box::new(BrokenReader(self.0, Csv.reader(request)?)))
    }

    fn misfit(&self, file: &SourceFile, group: &RowGroup) -> Option<String> {
        Csv.misfit(file, group)
    }

    fn sample(&self, name: &str, numbers: Range<u64>, options: &OptionValues) -> SampleFile {
        Csv.sample(name, numbers, options)
    }
}

impl FormatReader for BrokenReader {
    fn read<'a>(&'a self, request: ReadRequest<'a>) -> BoxFuture<'a, Result<Decoded>> {
        async move { self.0(&request, self.1.read(request).await?) }.boxed()
    }
}

/// Whether the suite has damaged the file.
fn is_damaged(request: &ReadRequest<'_>) -> bool {
    request.file.path().contains("damage/")
}

#[tokio::test]
async fn a_broken_format_is_found() {
    let checked = async |number: usize, rule: Break| {
        let format = Box::leak(Box::new(BrokenFormat(rule)));
        check(format, &Stores::new(), &format!("memory:///broken/{number}"), 1).await
    };
    assert_eq!(checked(0, |_, decoded| Ok(decoded)).await, Ok(()));
    let broken: [(Break, &str); 7] = [
        (|_, decoded| Ok(Decoded { batches: vec![decoded.batches[0].slice(1, 1)], ..decoded }), "was read as"),
        (
            |request, decoded| match request.range.first_row {
                0 => Ok(decoded),
                _ => request.all_good(decoded.batches[0].columns().iter().map(|c| arrow_reversed(c)).collect()),
            },
            "differs",
        ),
        (
            |_, decoded| {
                Ok(Decoded { bad: decoded.bad.into_iter().map(|(row, _)| (row, String::new())).collect(), ..decoded })
            },
            "which lacks",
        ),
        (|request, decoded| if is_damaged(request) { panic!("the file is damaged") } else { Ok(decoded) }, "panicked"),
        (
            |request, decoded| {
                let bytes = if is_damaged(request) { 2 << 30 } else { 0 };
                std::hint::black_box(Vec::<u8>::with_capacity(bytes));
                Ok(decoded)
            },
            "bytes of memory",
        ),
        (
            |request, decoded| if is_damaged(request) { Err(Error::data("it is damaged")) } else { Ok(decoded) },
            "does not name the file",
        ),
        (
            |request, decoded| if is_damaged(request) { Err(Error::internal("it is damaged")) } else { Ok(decoded) },
            "of kind Internal",
        ),
    ];
    for (number, (rule, expect)) in broken.into_iter().enumerate() {
        let problem = checked(number + 1, rule).await.unwrap_err();
        assert!(problem.contains(expect), "{expect}: {problem}");
    }
}

fn arrow_reversed(column: &arrow::array::ArrayRef) -> arrow::array::ArrayRef {
    let last_first = arrow::array::UInt64Array::from_iter_values((0..column.len() as u64).rev());
    arrow::compute::take(column, &last_first, None).expect("these are its rows")
}
