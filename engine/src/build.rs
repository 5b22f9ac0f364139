//! The identity of a build: two builds with equal identities compute equal bytes.
//!
//! A version kept by hand says too little: two commits, or two patch releases of a dependency, share it, and the same
//! program may compute other bytes on another processor. So a build has three parts: its version, the versions of the
//! packages that compute, and a digest of results.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use arrow::array::{ArrayRef, BinaryArray, Float32Array, Float64Array, RecordBatch, StringArray};
use arrow::datatypes::{Field, Schema};
use arrow::error::ArrowError;
use datafusion::common::{DFSchema, DataFusionError};
use forebay_arrays::digest;
use forebay_protocol::{Build, version};

use crate::error::{Error, Result};
use crate::planner::planner;

/// Packages whose code determines the values of samples.
const COMPUTING: &[&str] = &[
    "arrow",
    "bitcannon",
    "chrono",
    "chrono-tz",
    "csv-core",
    "datafusion",
    "fancy-regex",
    "fast_image_resize",
    "gif",
    "half",
    "image",
    "image-webp",
    "jpeg-encoder",
    "lexical-core",
    "libm",
    "md-5",
    "minijinja",
    "minijinja-contrib",
    "moxcms",
    "parquet",
    "png",
    "regex",
    "regex-automata",
    "regex-syntax",
    "ryu",
    "serde_json",
    "sha2",
    "tiff",
    "tk-encode",
    "tokenizers",
    "unicode-normalization",
    "unicode-segmentation",
    "weezl",
    "xxhash-rust",
    "zune-jpeg",
];

/// Expressions over the columns of [`rows`] whose results identify the machine's arithmetic.
const PROBES: &[&str] = &[
    "ln(abs(x))",
    "exp(x / 100)",
    "sin(x)",
    "cos(f)",
    "tanh(x / 10)",
    "power(abs(x), 0.3)",
    "sqrt(abs(f))",
    "round(x, 2)",
    "x / 3.7 + f * 0.1",
    "x % 0.7",
    "CAST(x AS VARCHAR)",
    "CAST(CAST(x AS DECIMAL(18, 4)) AS VARCHAR)",
    "log1p(abs(f))",
    "upper(text)",
    "regexp_replace(text, '[aä]+', '-')",
    "normalize(resize(decode_image(image, false), 2, 5, 'bilinear', true), \
     [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])",
    "resize(decode_image(photo, false), 5, 7, 'bilinear', true)",
];

/// A PNG of 4 x 3 pixels.
const IMAGE: &[u8] = b"\
    \x89\x50\x4e\x47\x0d\x0a\x1a\x0a\x00\x00\x00\x0d\x49\x48\x44\x52\x00\x00\x00\x04\x00\x00\x00\x03\
    \x08\x02\x00\x00\x00\x3b\x96\x39\x91\x00\x00\x00\x32\x49\x44\x41\x54\x78\xda\x01\x27\x00\xd8\xff\
    \x00\x00\x11\x22\x3c\x4d\x5e\x78\x89\x9a\xb4\xc5\xd6\x00\x28\x39\x4a\x64\x75\x86\xa0\xb1\xc2\xdc\
    \xed\xfe\x00\x50\x61\x72\x8c\x9d\xae\xc8\xd9\xea\x04\x15\x26\x3b\x54\x11\xad\x2b\x24\x53\xe9\x00\
    \x00\x00\x00\x49\x45\x4e\x44\xae\x42\x60\x82";

/// A JPEG in progressive scans.
const PHOTO: &[u8] = include_bytes!(concat!(env!("CARGO_MANIFEST_DIR"), "/../operators/testdata/progressive.jpg"));

/// This process's build. Computes the probe the first time.
///
/// # Errors
/// `Internal` if the probe cannot be computed.
pub fn build() -> Result<&'static Build> {
    static HERE: OnceLock<Build> = OnceLock::new();
    if let Some(build) = HERE.get() {
        return Ok(build);
    }
    let probe = probe()?;
    Ok(HERE.get_or_init(|| Build { version: version().to_owned(), packages: packages(), probe }))
}

/// The versions in the lock file that this build was made with.
fn packages() -> BTreeMap<String, String> {
    let lock = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"));
    let packages = lock.split("[[package]]").filter_map(|package| {
        let value = |key: &str| {
            let line = package.lines().find_map(|line| line.strip_prefix(key))?;
            Some(line.trim_start_matches(" = ").trim_matches('"').to_owned())
        };
        Some((value("name")?, value("version")?))
    });
    packages.filter(|(name, _)| COMPUTING.contains(&name.as_str())).collect()
}

/// A digest of the results of [`PROBES`].
fn probe() -> Result<String> {
    let results = results().map_err(|error| Error::internal(format!("the probe of this build failed: {error}")))?;
    Ok(digest(&results).to_string())
}

fn results() -> Result<RecordBatch, DataFusionError> {
    let (context, rows) = (planner(), rows()?);
    let schema = DFSchema::try_from(rows.schema().as_ref().clone())?;
    let compute = |sql: &&str| {
        let expression = context.parse_sql_expr(sql, &schema)?;
        context.create_physical_expr(expression, &schema)?.evaluate(&rows)?.into_array(rows.num_rows())
    };
    let columns: Vec<ArrayRef> = PROBES.iter().map(compute).collect::<Result<_, _>>()?;
    let fields = columns.iter().enumerate();
    let fields = fields.map(|(index, column)| Field::new(index.to_string(), column.data_type().clone(), true));
    Ok(RecordBatch::try_new(Arc::new(Schema::new(fields.collect::<Vec<_>>())), columns)?)
}

fn rows() -> Result<RecordBatch, ArrowError> {
    const ROWS: u64 = 64;
    // Numbers whose last bits differ between libraries: none is round.
    let number = |row: u64| (row.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 11) as f64 / (1_u64 << 46) as f64 - 64.0;
    let texts = (0..ROWS).map(|row| format!("aä{row}ßİ{}", number(row)));
    let columns: Vec<(&str, ArrayRef)> = vec![
        ("x", Arc::new(Float64Array::from_iter_values((0..ROWS).map(number)))),
        ("f", Arc::new(Float32Array::from_iter_values((0..ROWS).map(|row| number(row + ROWS) as f32)))),
        ("text", Arc::new(StringArray::from_iter_values(texts))),
        ("image", Arc::new(BinaryArray::from_iter_values((0..ROWS).map(|_| IMAGE)))),
        ("photo", Arc::new(BinaryArray::from_iter_values((0..ROWS).map(|_| PHOTO)))),
    ];
    RecordBatch::try_from_iter(columns)
}

#[cfg(test)]
mod tests {
    use arrow::array::Array;
    use arrow::datatypes::DataType;

    use super::*;

    #[test]
    fn a_build_names_the_versions_of_all_packages_that_compute() {
        let build = build().unwrap();
        assert_eq!(build.packages.keys().map(String::as_str).collect::<Vec<_>>(), COMPUTING);
        assert_eq!(probe().unwrap(), build.probe);
    }

    #[test]
    fn the_probe_decodes_its_images() {
        let results = results().unwrap();
        let is_of_images = |column: &&ArrayRef| matches!(column.data_type(), DataType::FixedSizeList(_, _));
        let images: Vec<_> = results.columns().iter().filter(is_of_images).collect();
        assert_eq!(images.len(), 2);
        assert!(images.iter().all(|image| image.null_count() == 0));
    }

    /// Another version of a decoder may return other pixels.
    #[test]
    fn a_build_names_all_decoders_of_images() {
        let lock = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.lock"));
        let image = lock.split("[[package]]").find(|package| package.contains("name = \"image\"\n")).unwrap();
        let decoders = ["gif", "image-webp", "moxcms", "png", "tiff", "zune-jpeg"];
        for dependency in image.lines().filter_map(|line| line.trim().strip_prefix('"')?.split(['"', ' ']).next()) {
            let is_helper = ["bytemuck", "byteorder-lite", "color_quant", "num-traits", "zune-core"];
            assert!(is_helper.contains(&dependency) || decoders.contains(&dependency), "{dependency}");
        }
        assert!(decoders.iter().all(|decoder| COMPUTING.contains(decoder)));
    }
}
