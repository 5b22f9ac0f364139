//! A feed's id: a hash of everything that decides its samples and their order.

use forebay_protocol::FeedSettings;

use crate::pipeline::Pipeline;

/// Raised whenever equal inputs would give another order, key, cut or id: tokens of older feeds are then refused.
///
/// 2: a query is identified by its plan in a form of our own (decision 31).
const FEED_FORMAT: u32 = 2;

/// The id of the feed of `pipeline` with `settings`.
pub(super) fn feed_id(pipeline: &Pipeline, settings: &FeedSettings) -> String {
    let mut identity = serde_json::json!({
        "format": FEED_FORMAT,
        "query": pipeline.fingerprint(),
        "snapshot": pipeline.dataset.snapshot().id(),
        "settings": settings,
    });
    let lookups: Vec<&str> = pipeline.stage.lookups().map(|lookup| lookup.dataset.snapshot().id()).collect();
    // Left out where there are none: ids stay what they were.
    if !lookups.is_empty() {
        identity["lookups"] = serde_json::json!(lookups);
    }
    blake3::hash(identity.to_string().as_bytes()).to_hex()[..16].to_owned()
}
