//! The scripts of a server, which it can open again while it runs. Where they are is the program's business.

use forebay_flight_client::wire::ScriptReport;

/// The scripts behind a server's session.
#[tonic::async_trait]
pub trait Scripts: Send + Sync {
    /// Opens the scripts that changed, or `all`, and says what became of each. New readers get their pipelines; the
    /// feeds that are read continue.
    async fn reload(&self, all: bool) -> Vec<ScriptReport>;

    /// The scripts that could not be opened the last time, with the error.
    fn failures(&self) -> Vec<(String, String)>;
}
