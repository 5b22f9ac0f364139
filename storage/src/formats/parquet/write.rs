//! Writing one batch as a Parquet object.

use arrow::array::RecordBatch;
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;

use crate::{Error, Result, Stores};

/// Writes one batch as a Parquet object.
pub async fn write_parquet(stores: &Stores, url: &str, batch: &RecordBatch) -> Result<()> {
    let properties = WriterProperties::builder().set_compression(Compression::ZSTD(ZstdLevel::default())).build();
    let encode = || -> Result<Vec<u8>, ParquetError> {
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), Some(properties))?;
        writer.write(batch)?;
        writer.into_inner()
    };
    let bytes = encode()
        .map_err(|e| Error::invalid(format!("\"{url}\": these columns cannot be written: {e}")).with_source(e))?;
    stores.put(url, bytes.into()).await
}
