//! The Arrow Flight service of feeds: dispatcher and worker in one process.
//!
//! [`Server::bind`] binds a port and [`Server::serve`] serves the pipelines of a [`Session`](forebay_engine::Session)
//! on it. Any Flight client can list pipelines (`ListFlights`), plan one rank's stream (`GetFlightInfo` with a JSON
//! [`StreamRequest`](forebay_flight_client::StreamRequest) as command; computes nothing) and read it (`DoGet`). Each
//! batch's `app_metadata` holds its position in the log.
//!
//! [`Server::secure`] sets who may connect: TLS, client certificates, tokens. Without tokens and certificates, a server
//! on loopback serves only its own user. [`Server::measured`] adds a port for metrics.
//!
//! ```
//! use std::sync::Arc;
//! use forebay_engine::Session;
//! use forebay_flight_client::{Client, StreamRequest};
//! use forebay_flight_server::Server;
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let folder = tempfile::tempdir()?;
//! std::fs::write(folder.path().join("clicks.csv"), "price\n1\n2\n3\n")?;
//! let session = Session::builder().base(folder.path()).build()?;
//! session.execute("example.sql", "
//!     CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
//!     CREATE PIPELINE train AS SELECT log1p(price) AS price FROM clicks;
//! ").await?;
//! let server = Server::bind(([127, 0, 0, 1], 0).into()).await?;
//! let uri = server.uri();
//! let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
//! let trainer = async {
//!     let request = StreamRequest { pipeline: "train".into(), world_size: 1, ..StreamRequest::default() };
//!     let mut reader = Client::connect(&uri).await?.open(&request).await?.read()?;
//!     let batch = reader.next().await.expect("one batch")?;
//!     assert_eq!((batch.offset, batch.records.num_rows()), (0, 3));
//!     drop((reader, stop));
//!     Ok::<_, forebay_engine::Error>(())
//! };
//! let stopped = async { let _ = stopped.await; };
//! let (served, read) = tokio::join!(server.serve(Arc::new(session), stopped), trainer);
//! served?;
//! read?;
//! # Ok::<_, Box<dyn std::error::Error>>(()) }).unwrap();
//! ```
//!
//! This crate computes nothing itself: a stream is an engine's reader whose batches are encoded as they are read.

mod auth;
mod caller;
mod calls;
mod certificate;
mod crash_record;
mod dispatcher;
mod encode;
mod file_tasks;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod health_service;
mod in_process;
mod jobs;
mod journal;
mod limits;
mod listen;
mod logins;
mod metrics;
mod peer_user;
mod redacted;
mod rotation;
mod scaling;
mod scripts;
mod server;
mod service;
mod slots;
mod snapshots;
mod sql;
mod status;
mod ticket;
mod tls;
mod transport;
mod user_secret;
mod worker;

pub use auth::{Access, AccessTokens};
pub use certificate::CertificateRoles;
pub use metrics::MetricsEndpoint;
pub use rotation::Reload;
pub use scaling::{Scaler, Scaling};
pub use scripts::Scripts;
pub use server::{Roles, Security, Server};
pub use tls::ServerTls;
