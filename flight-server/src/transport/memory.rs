//! Slices within one process, without sockets: a transport for tests, and the smallest example of a transport.

use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use forebay_delivery::WorkerId;
use forebay_engine::arrays::joined;
use forebay_engine::{Error, ErrorKind, WindowRows};
use forebay_flight_client::wire::{PieceMetadata, WindowRequest};
use forebay_flight_client::{SliceError, SliceRows, SliceStream, SliceTransport};
use futures::{StreamExt, TryStreamExt};

use super::{SliceSender, WindowSlice};
use crate::worker::WorkerService;

/// Opens slices from workers of this process.
struct MemoryTransport(Vec<Arc<WorkerService>>);

#[tonic::async_trait]
impl SliceTransport for MemoryTransport {
    async fn open(&self, worker: WorkerId, address: &str, request: WindowRequest) -> Result<SliceStream, SliceError> {
        let Some(worker) = self.0.iter().find(|it| it.id() == worker) else {
            let error = Error::new(ErrorKind::Unavailable, format!("no worker is at {address}"));
            return Err(SliceError::Unreachable(error));
        };
        worker.serve(&request, &MemorySender).await
    }
}

/// Passes rows on without encoding them.
struct MemorySender;

impl SliceSender for MemorySender {
    type Answer = Result<SliceStream, SliceError>;

    fn send(&self, slice: WindowSlice) -> Self::Answer {
        let WindowSlice { schema, pieces } = slice;
        Ok(pieces.map_err(SliceError::Failed).and_then(move |piece| rows(piece, schema.clone())).boxed())
    }

    fn refuse(&self, why: &Error) -> Self::Answer {
        Err(match why.kind() {
            ErrorKind::NotFound => SliceError::Missing,
            ErrorKind::Denied => SliceError::TicketRefused(why.clone()),
            _ => SliceError::Failed(why.clone()),
        })
    }
}

async fn rows(piece: WindowRows, schema: SchemaRef) -> Result<SliceRows, SliceError> {
    let metadata = PieceMetadata { rows: (piece.rows.start, piece.rows.end), gaps: piece.gaps };
    let records = match piece.records.is_empty() {
        // All of the rows may have been bad.
        true => RecordBatch::new_empty(schema),
        false => joined(&schema, &piece.records).map_err(|error| {
            SliceError::Failed(Error::new(ErrorKind::Exhausted, format!("cannot put a batch together: {error}")))
        })?,
    };
    let bytes = records.get_array_memory_size() as u64;
    Ok(SliceRows { records, metadata, bytes })
}

mod tests {
    use std::path::Path;

    use forebay_engine::{Batch, DeliveryMode, Session};
    use forebay_flight_client::{ConnectOptions, ReadPlan, RemoteReader, StreamRequest};
    use tokio::task::JoinSet;

    use super::*;
    use crate::dispatcher::DispatcherService;
    use crate::in_process::{Here, metadata};
    use crate::worker::Link;

    const ROWS: u64 = 100;

    async fn session(folder: &Path) -> Arc<Session> {
        let rows: String = (0..ROWS).map(|row| format!("{row}\n")).collect();
        std::fs::write(folder.join("clicks.csv"), format!("price\n{rows}")).unwrap();
        let session = Session::builder().base(folder).root(folder.to_str().unwrap()).build().unwrap();
        let script = "CREATE EXTERNAL TABLE clicks STORED AS CSV LOCATION 'clicks.csv';
            CREATE PIPELINE train AS SELECT price FROM clicks;";
        session.execute("test.sql", script).await.unwrap();
        Arc::new(session)
    }

    /// A dispatcher and a worker that run until this is dropped, and the transport to the worker.
    struct Cluster {
        session: Arc<Session>,
        dispatcher: Arc<DispatcherService>,
        transport: Arc<MemoryTransport>,
        _tasks: JoinSet<()>,
    }

    impl Cluster {
        fn start(session: Arc<Session>) -> Self {
            let dispatcher = Arc::new(DispatcherService::new(Arc::clone(&session)).unwrap());
            let address = "memory".to_owned();
            let worker = Arc::new(
                WorkerService::new(Arc::clone(&session), address.clone(), 1 << 20, std::time::Duration::ZERO).unwrap(),
            );
            dispatcher.set_own(Some(worker.id()), &address);
            let transport = Arc::new(MemoryTransport(vec![Arc::clone(&worker)]));
            let mut tasks = JoinSet::new();
            let link = Arc::new(Link::Here(Arc::clone(&dispatcher)));
            tasks.spawn(async move { worker.run(link).await.unwrap() });
            let watched = Arc::clone(&dispatcher);
            tasks.spawn(async move { watched.watch(|| {}).await });
            Self { session, dispatcher, transport, _tasks: tasks }
        }

        fn reader(&self, request: &StreamRequest) -> RemoteReader {
            let feed = self.session.open("train", &request.feed_options()).unwrap();
            let plan = ReadPlan {
                request: StreamRequest { feed: Some(feed.id().to_owned()), ..request.clone() },
                metadata: metadata(&feed, request).unwrap(),
                schema: feed.schema(),
            };
            let dispatch = Arc::new(Here(Arc::clone(&self.dispatcher)));
            RemoteReader::over(self.transport.clone(), dispatch, plan, &ConnectOptions::default()).unwrap()
        }
    }

    fn request(rank: u64) -> StreamRequest {
        let defaults = StreamRequest::default();
        StreamRequest {
            pipeline: "train".into(),
            window_rows: Some(16),
            batch_size: Some(3),
            rank,
            world_size: 2,
            ..defaults
        }
    }

    async fn all(mut reader: RemoteReader) -> Vec<Batch> {
        let mut batches = Vec::new();
        while let Some(batch) = reader.next().await {
            batches.push(batch.unwrap());
        }
        batches
    }

    #[tokio::test]
    async fn a_rank_reads_from_a_worker_without_a_socket_what_it_reads_in_process() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(session(folder.path()).await);
        let feed = cluster.session.open("train", &request(0).feed_options()).unwrap();
        for rank in 0..2 {
            let got = all(cluster.reader(&request(rank))).await;
            let expected: Vec<Batch> =
                feed.read(&request(rank).read_options()).unwrap().into_stream().try_collect().await.unwrap();
            assert_eq!(got.len(), expected.len());
            for (got, expected) in got.iter().zip(&expected) {
                assert_eq!(
                    (got.offset, &got.token, &got.records),
                    (expected.offset, &expected.token, &expected.records)
                );
            }
        }
    }

    #[tokio::test]
    async fn ranks_share_a_feed_dynamically_without_a_socket() {
        let folder = tempfile::tempdir().unwrap();
        let cluster = Cluster::start(session(folder.path()).await);
        let delivery = Some(DeliveryMode::Dynamic);
        let dynamic = |rank| StreamRequest { delivery, job: Some("j".into()), ..request(rank) };
        let (first, second) = tokio::join!(all(cluster.reader(&dynamic(0))), all(cluster.reader(&dynamic(1))));
        let mut offsets: Vec<u64> =
            first.iter().chain(&second).flat_map(|batch| batch.offset..batch.offset + batch.positions).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, (0..ROWS).collect::<Vec<_>>(), "each sample is taken once");
    }
}
