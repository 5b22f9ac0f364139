//! Tokens of checkpoints, which users store and pass back.

use forebay_delivery::{Claim, Claimer, Dispatcher, ReadSettings, Start};

use crate::messages::ThreeWindows;

/// Parses a text as a place to start. What can be parsed must print as a text that says the same, and a rank that
/// resumes there must be able to speak to a dispatcher.
///
/// Checksums of tokens are added, so that the input need not guess them.
pub fn token(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    check(text) | check(&text.split(',').map(with_checksum).collect::<Vec<_>>().join(","))
}

fn with_checksum(body: &str) -> String {
    format!("{body}.{}", &blake3::hash(body.as_bytes()).to_hex()[..6])
}

fn check(text: &str) -> bool {
    let Ok(start) = text.parse::<Start>() else { return false };
    let printed = start.to_string();
    assert_eq!(printed.parse::<Start>().expect("a printed start can be parsed"), start, "{text} became {printed}");
    let json = serde_json::to_string(&start).expect("a start becomes JSON");
    assert_eq!(serde_json::from_str::<Start>(&json).expect("its own JSON can be read"), start);
    if let Start::Token(token) = start {
        for (rank, world_size) in [(0, 1), (1, 2), (2, 3)] {
            let settings = ReadSettings { batch_size: 3, epochs: 5, drop_last: false, rank, world_size };
            let (feed, marks) = (token.feed.clone(), token.claims.as_deref());
            let begin = Claim { epoch: token.epoch, run: 0 };
            let Ok(mut claimer) = Claimer::new(feed.clone(), "job".to_owned(), 1 << 20, settings, begin, marks) else {
                continue;
            };
            let mut dispatcher = Dispatcher::new(Default::default(), 1, 0);
            dispatcher.open(&feed, ThreeWindows, 0);
            let message = claimer.sync();
            if dispatcher.claim_sync(&message, 1).is_ok()
                && let Ok(answer) = dispatcher.claim_answer(&message, 1)
            {
                claimer.reply(answer);
            }
            let again = Start::Token(claimer.token()).to_string();
            assert!(again.parse::<Start>().is_ok(), "a rank that resumed from {text} wrote {again}");
        }
    }
    true
}
