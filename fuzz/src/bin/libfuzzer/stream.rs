//! Searches for inputs that break the target `stream`.
#![no_main]

libfuzzer_sys::fuzz_target!(init: forebay_fuzz::catch_panics(), |data: &[u8]| {
    forebay_fuzz::run(forebay_fuzz::stream, data);
});
