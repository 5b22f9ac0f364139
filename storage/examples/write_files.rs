//! Writes the rows of an Arrow IPC file as data files of a format, for `tests/python/test_written_files.py`, in which
//! other tools read them.
//!
//! ```console
//! $ cargo run -p forebay-storage --example write_files -- rows.arrow folder 1000 mds compression=zstd
//! ```

use std::error::Error;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;

use arrow::array::RecordBatch;
use arrow_ipc::reader::FileReader;
use forebay_storage::writers::{DataFile, FileWriter, OutputFormat};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [input, folder, rows_per_file, format, options @ ..] = &arguments[..] else {
        return Err("usage: write_files INPUT FOLDER ROWS_PER_FILE FORMAT [OPTION=VALUE …]".into());
    };
    let options = options.iter().filter_map(|option| option.split_once('='));
    let options: Vec<_> = options.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    write_files(
        FileReader::try_new(BufReader::new(File::open(input)?), None)?,
        Path::new(folder),
        rows_per_file.parse()?,
        &OutputFormat::new(format, &options)?,
    )
}

/// Writes files of `rows_per_file` rows, and what readers need beside them.
fn write_files(
    rows: FileReader<BufReader<File>>,
    folder: &Path,
    rows_per_file: usize,
    format: &OutputFormat,
) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let schema = rows.schema();
    let begin = |number: usize| -> Result<OpenFile, Box<dyn Error>> {
        let name = format!("shard.{number:05}.{}", format.extension());
        let writer = format.writer(&schema, &format!("{number:05}-"))?;
        Ok(OpenFile { writer, file: File::create(folder.join(&name))?, name, rows: 0 })
    };
    let (mut open, mut written) = (begin(0)?, Vec::new());
    for batch in rows {
        let mut batch = batch?;
        while batch.num_rows() > 0 {
            if open.rows == rows_per_file {
                written.push(open.finish()?);
                open = begin(written.len())?;
            }
            let rows = batch.num_rows().min(rows_per_file - open.rows);
            open.write(&batch.slice(0, rows))?;
            batch = batch.slice(rows, batch.num_rows() - rows);
        }
    }
    written.push(open.finish()?);
    for index in format.index(&written)? {
        std::fs::write(folder.join(index.name), index.bytes)?;
    }
    Ok(())
}

/// A file that is being written.
struct OpenFile {
    name: String,
    file: File,
    writer: Box<dyn FileWriter>,
    rows: usize,
}

impl OpenFile {
    fn write(&mut self, rows: &RecordBatch) -> Result<(), Box<dyn Error>> {
        self.rows += rows.num_rows();
        self.writer.write(rows)?;
        self.take()
    }

    fn take(&mut self) -> Result<(), Box<dyn Error>> {
        while let Some(bytes) = self.writer.take()? {
            self.file.write_all(&bytes)?;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<DataFile, Box<dyn Error>> {
        self.writer.finish()?;
        self.take()?;
        Ok(DataFile { name: self.name, rows: self.rows as u64, facts: self.writer.facts() })
    }
}
