//! Tickets and commands of Flight.

use std::sync::{Arc, LazyLock};

use forebay_flight_server::fuzzing::Service;

use crate::engine::session;
use crate::runtime::block_on;

/// Gives a server a Flight ticket or command: a request as JSON, a Flight SQL command, or the content of a signed
/// ticket. The first byte says which; the server never sees it.
pub fn ticket(data: &[u8]) -> bool {
    static SERVICE: LazyLock<Service> =
        LazyLock::new(|| Service::new(Arc::clone(session())).expect("a service starts"));
    let Some((&kind, bytes)) = data.split_first() else { return false };
    match kind {
        b't' => block_on(SERVICE.window(bytes)),
        b'd' => block_on(SERVICE.command(bytes)),
        b's' => Service::signed(bytes),
        _ => {
            let text = String::from_utf8_lossy(bytes);
            assert!(!Service::text(&text), "no one signed {text}");
            true
        }
    }
}
