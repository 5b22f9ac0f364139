//! What users and clients say to a session: options and requests.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use forebay_delivery::{Plan, WindowId};
use forebay_engine::{Session, WindowPlan};
use forebay_protocol::wire::StreamRequest;

use crate::runtime::block_on;

/// Tables and pipelines that the inputs may name.
const SCRIPT: &str = "
    CREATE EXTERNAL TABLE clicks STORED AS JSONL LOCATION 'clicks.jsonl';
    CREATE PIPELINE p AS SELECT price, name FROM clicks;
    CREATE PIPELINE shuffled WITH (shuffle = true, seed = 3, batch_size = 2) AS SELECT score FROM clicks WHERE score > 0;
    CREATE PIPELINE texts AS SELECT name, tags FROM clicks;
";

/// The session of all inputs.
pub(crate) fn session() -> &'static Arc<Session> {
    static SESSION: LazyLock<Arc<Session>> = LazyLock::new(|| {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("table");
        let session = Session::builder().base(&folder).root("memory:///fuzz").threads(1).build();
        let session = session.expect("a session starts");
        block_on(session.execute("fuzz.sql", SCRIPT)).expect("the script has no errors");
        Arc::new(session)
    });
    &SESSION
}

/// Waits for the only use of the session that creates pipelines: all targets create one of the same name.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Opens a feed by a request, or creates a pipeline with options. A request is JSON; other text is the inside of
/// `WITH`.
///
/// Options that are accepted must print as a text that says the same, and must give a plan of windows.
pub fn request(data: &[u8]) -> bool {
    let Ok(request) = serde_json::from_slice::<StreamRequest>(data) else {
        let Ok(options) = std::str::from_utf8(data) else { return false };
        return open(&format!("CREATE OR REPLACE PIPELINE q WITH ({options}) AS SELECT price, tags FROM clicks"));
    };
    let text = serde_json::to_string(&request).expect("plain data becomes JSON");
    assert_eq!(serde_json::from_str::<StreamRequest>(&text).expect("its own JSON can be read"), request, "{text}");
    check(&request)
}

/// Creates the pipeline `q`, and opens it.
fn open(statement: &str) -> bool {
    let _alone = alone();
    if !is_one_pipeline(statement) || block_on(session().execute("fuzz.sql", statement)).is_err() {
        return false;
    }
    let is_open = check(&StreamRequest { pipeline: "q".to_owned(), ..StreamRequest::default() });
    session().undefine("q");
    is_open
}

/// Whether a text is a pipeline and nothing else. Statements about tables read files.
fn is_one_pipeline(text: &str) -> bool {
    let parsed = forebay_sql::parse(text).unwrap_or_default();
    matches!(&parsed[..], [forebay_sql::Statement::CreatePipeline(pipeline)] if pipeline.name == "q")
}

fn check(request: &StreamRequest) -> bool {
    let Ok(feed) = session().open(&request.pipeline, &request.feed_options()) else { return false };
    let read = request.read_options();
    let Ok((settings, _)) = feed.resolve(&read) else { return false };
    assert!(settings.batch_size > 0 && settings.rank < settings.world_size, "{settings:?}");
    let _ = (feed.expected_samples(&read), feed.identity(), feed.spec());
    let plan: WindowPlan = feed.plan();
    for epoch in [0, 1, settings.epochs.saturating_sub(1)] {
        let windows = plan.windows(epoch);
        assert!(windows > 0);
        let _ = plan.bytes(WindowId { epoch, index: windows - 1 });
    }
    true
}
