//! The trainer's side of Arrow Flight: connect, open a feed, read batches.
//!
//! [`Client::connect`] connects to a server, [`Client::open`] plans one rank's stream from a [`StreamRequest`], and the
//! resulting [`RemoteReader`] delivers the same [`Batch`](forebay_protocol::Batch)es as a reader in process. Use
//! [`Client::connect_with`] for a server that requires a token or TLS.
//!
//! ```no_run
//! use forebay_flight_client::{Client, StreamRequest};
//! # async fn example() -> forebay_protocol::Result<()> {
//! let mut client = Client::connect("grpc://127.0.0.1:7070").await?;
//! let request = StreamRequest { pipeline: "train".into(), world_size: 2, rank: 1, ..StreamRequest::default() };
//! let mut reader = client.open(&request).await?.read()?;
//! while let Some(batch) = reader.next().await {
//!     let batch = batch?;
//!     println!("epoch {} step {}: {} rows", batch.epoch, batch.step, batch.records.num_rows());
//! }
//! # Ok(()) }
//! ```
//!
//! This crate does not plan, compute or cut batches. It shares the vocabulary of `forebay-protocol` with the engine.

mod client;
mod clock;
mod connect;
mod dispatcher;
mod dynamic;
mod follow;
mod followed;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod job;
mod last_read;
pub mod local;
mod messages;
pub mod pem;
mod piece;
mod probe;
mod process_number;
mod read_plan;
mod reader;
mod receive;
mod remote;
pub mod secret;
mod snapshots;
mod status;
mod streams;
pub mod token_file;
mod transport;
pub mod validity;
mod waiting;
pub mod wall_clock;

pub use client::{Client, PipelineInfo, RemoteFeed};
pub use connect::{ClientTls, ConnectOptions};
pub use dispatcher::{Dispatch, DispatcherClient, addresses};
pub use forebay_protocol::wire;
pub use forebay_protocol::wire::{BatchMetadata, FeedMetadata, StreamRequest};
pub use last_read::LastRead;
pub use read_plan::ReadPlan;
pub use remote::RemoteReader;
pub use transport::{SliceError, SliceRows, SliceStream, SliceTransport};

/// The result of [`Client::status`].
pub use forebay_delivery::messages::StoreWait;
pub use forebay_delivery::{JobStatus, Status as ClusterStatus};
