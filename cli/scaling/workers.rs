//! Who starts and drains workers.

use forebay_engine::policy::Decision;

/// Starts and drains workers until it is dropped.
pub(crate) trait Workers: Send {
    /// Moves towards a decision. It is called every second, and must return at once.
    fn scale(&mut self, decision: &Decision);

    /// The server has stopped: ends what was started.
    fn end(self: Box<Self>);
}
