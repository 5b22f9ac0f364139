//! Artifacts: rows that a job has computed, as files that any process finds, verifies and reads as a table.
//!
//! An artifact is a folder of data files. Its manifest lists them with their rows and digests, and says where they come
//! from. [`Job`] writes one: each part is complete once it is [recorded](Job::record), the records are all that is
//! known of a job, and any process may continue it. [`Job::commit`] writes the manifest as one object that can be
//! created only once: the next [generation](Job::generation) of the folder. To give a job up, or to remove an artifact,
//! is to write a generation too, so of commit and abort one happens, and nothing that arrives late is taken for
//! anything else.
//!
//! A [`Dataset`](crate::Dataset) of the folder takes its files from the manifest. Every block that is read is verified,
//! footers included, and its snapshot follows from the digests: a copied, moved or rewritten artifact is the same
//! dataset. [`Catalog`] finds artifacts by meaning, and [`gc`] removes those that no entry names.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::sync::Arc;
//!
//! use arrow::datatypes::{DataType, Field, Schema};
//! use forebay_storage::artifact::{Artifact, Job, JobState, Lineage, Part};
//! use forebay_storage::Stores;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> forebay_storage::Result<()> {
//! let stores = Stores::new();
//! let JobState::Open(job) = Job::open(&stores, "memory:///numbers", "job1").await? else { return Ok(()) };
//! for number in 0..2 {
//!     if job.parts().await?.contains_key(&number) {
//!         continue; // An earlier run has written it.
//!     }
//!     let mut file = job.create(&format!("part-{number:06}"), "csv")?;
//!     file.write("n\n1\n2\n".into()).await?;
//!     let files = vec![job.complete(0, file, 2).await?];
//!     let rest = serde_json::Value::Null;
//!     let (costs, facts) = (rest.clone(), rest);
//!     job.record(number, Part { files, rows_in: 2, bad_rows: 0, bad_reasons: BTreeMap::new(), costs, facts }).await?;
//! }
//! let lineage = Lineage {
//!     fingerprint: "f00d".to_owned(),
//!     schema: Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)])),
//!     folders: Arc::new(Schema::empty()),
//!     sources: BTreeMap::new(),
//!     costs: serde_json::Value::Null,
//! };
//! job.commit(job.manifest(&job.parts().await?, lineage)?, Vec::new()).await?;
//! assert_eq!(Artifact::open(&stores, "memory:///numbers").await?.manifest().rows_out, 4);
//! # Ok(())
//! # }
//! ```

mod catalog;
mod claim;
mod digests;
mod files;
mod gc;
mod generations;
mod holder;
mod index;
mod job;
mod layout;
mod manifest;
mod names;
mod open;
mod part;
mod sealed;
mod sweep;
mod verified;

pub use catalog::{Catalog, Entry};
pub use claim::{BEAT, Claim, SILENCE, Wait};
pub use digests::ContentDigest;
pub(crate) use files::{ArtifactColumns, artifact_files};
pub use gc::{Garbage, gc};
pub use holder::holder_name;
pub use job::{Job, JobState, Lineage};
pub use manifest::{ArtifactFile, ArtifactIndex, Manifest};
pub use names::LatestVersion;
pub use open::Artifact;
pub use part::{DataFile, Part};
pub(crate) use verified::{KeptBlocks, Verifier};
