//! Every registered format passes the conformance suite.
//!
//! The suite bounds the memory of its whole process, so this test runs in a separate process.

use forebay_storage::formats::FORMATS;
use forebay_storage::{Stores, conformance};

#[tokio::test]
async fn every_format_conforms() {
    let stores = Stores::new();
    for format in FORMATS {
        if let Err(problem) = conformance::check(*format, &stores, "memory:///conformance", 1).await {
            panic!("{problem}");
        }
    }
}
