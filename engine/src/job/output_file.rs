//! One output file while it is written.

use std::time::Instant;

use arrow::array::RecordBatch;
use bytes::Bytes;
use forebay_storage::artifact::{self, DataFile};
use forebay_storage::writers::FileWriter;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::executor::Executor;
use crate::feed::{CostMeter, Step};

/// A file that is being written. Dropping it before it is complete gives it up.
pub(crate) struct OpenFile {
    /// `None` while it encodes, and after it has failed.
    writer: Option<Box<dyn FileWriter>>,
    /// `None` once it is complete.
    file: Option<DataFile>,
    rows: u64,
}

impl OpenFile {
    pub(crate) fn new(writer: Box<dyn FileWriter>, file: DataFile) -> Self {
        Self { writer: Some(writer), file: Some(file), rows: 0 }
    }

    /// Encodes rows on the executor's threads, and also the end of the file if `ends`. Stores the bytes, and returns
    /// their number.
    pub(crate) async fn write(
        &mut self,
        executor: &Executor,
        meter: &CostMeter,
        batches: Vec<RecordBatch>,
        ends: bool,
    ) -> Result<u64> {
        self.rows += batches.iter().map(|batch| batch.num_rows() as u64).sum::<u64>();
        let mut writer = self.writer.take().expect("nothing is written after an error");
        let of_task = meter.clone();
        let mut task = executor.spawn(async move {
            let begun = Instant::now();
            let mut encoded = Vec::new();
            for batch in &batches {
                writer.write(batch)?;
                encoded.extend(taken(&mut *writer)?);
            }
            if ends {
                writer.finish()?;
                encoded.extend(taken(&mut *writer)?);
            }
            of_task.count(Step::Encoding, begun);
            Ok::<_, Error>((writer, encoded))
        });
        let (writer, encoded) = task.join().await??;
        self.writer = Some(writer);
        let begun = Instant::now();
        let mut bytes = 0;
        for encoded in encoded {
            bytes += encoded.len() as u64;
            self.file.as_mut().expect("it is not complete").write(encoded).await?;
        }
        meter.count(Step::Storing, begun);
        Ok(bytes)
    }

    /// Facts about the rows for an index of all files.
    pub(crate) fn facts(&self) -> Value {
        self.writer.as_ref().map_or(Value::Null, |writer| writer.facts())
    }

    /// Completes the file, as a file of part `number`. Its end has been written.
    pub(crate) async fn complete(mut self, job: &artifact::Job, number: u64) -> Result<artifact::ArtifactFile> {
        let file = self.file.take().expect("it is completed once");
        Ok(job.complete(number, file, self.rows).await?)
    }

    /// Removes what is stored of the file.
    pub(crate) async fn abort(mut self) {
        if let Some(file) = self.file.take() {
            abort(file).await;
        }
    }
}

async fn abort(file: DataFile) {
    if let Err(error) = file.abort().await {
        tracing::debug!(%error, "an unfinished file could not be given up");
    }
}

impl Drop for OpenFile {
    /// Gives up an unfinished file whose task was cancelled.
    fn drop(&mut self) {
        let runtime = tokio::runtime::Handle::try_current();
        if let (Some(file), Ok(runtime)) = (self.file.take(), runtime) {
            runtime.spawn(abort(file));
        }
    }
}

/// The bytes that a writer has ready.
fn taken(writer: &mut dyn FileWriter) -> Result<Vec<Bytes>> {
    let mut ready = Vec::new();
    while let Some(bytes) = writer.take()? {
        ready.push(bytes);
    }
    Ok(ready)
}
