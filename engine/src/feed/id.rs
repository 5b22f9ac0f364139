//! A feed's id: a hash of all inputs that determine its samples and their order.

use forebay_arrays::digest;
use forebay_protocol::FeedSettings;

use crate::pipeline::Pipeline;

/// Raise this when equal inputs would give a different order, key, cut or id. Tokens of older feeds are then refused.
///
/// Version 2: a canonical form of the plan identifies a query (decision 31).
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
    // Omitted if empty, so that existing ids stay the same.
    if !lookups.is_empty() {
        identity["lookups"] = serde_json::json!(lookups);
    }
    let values: Vec<String> = pipeline.values().map(|(name, value)| format!("{name} {}", digest(&value.row))).collect();
    if !values.is_empty() {
        identity["values"] = serde_json::json!(values);
    }
    blake3::hash(identity.to_string().as_bytes()).to_hex()[..16].to_owned()
}
