//! Traces: what was decided is decided again, and damage is named.

use forebay_policy::trace::{header, lines, replay};
use forebay_policy::{WorkerPolicy, WorkerSettings};

use crate::simulation::{FeedSetup, Setup};
use crate::workers::Run;

fn recorded() -> (WorkerSettings, Vec<String>) {
    let feed = FeedSetup { noise: 0.2, pause: (1_000.0, 2_000.0), ..FeedSetup::new(0.2, 1.3) };
    let settings = WorkerSettings { max: 50, ..WorkerSettings::default() };
    let mut run = Run::new(&Setup { slow: (0.2, 2.0), ..Setup::new(3, vec![feed]) }, settings);
    run.go_on(3_000.0);
    let mut text = vec![header(&settings)];
    text.extend(run.decisions.iter().flat_map(|(seen, decision)| {
        let lines = lines(seen, decision);
        lines.lines().map(str::to_owned).collect::<Vec<_>>()
    }));
    (settings, text)
}

fn error(lines: &[String]) -> String {
    replay(lines.join("\n").as_bytes()).expect_err("a damaged trace").to_string()
}

#[test]
fn a_replay_decides_what_was_decided() {
    let (settings, text) = recorded();
    let replayed = replay(text.join("\n").as_bytes()).expect("a whole trace");
    assert_eq!(replayed.len(), (text.len() - 1) / 2);
    assert!(replayed.iter().all(|decision| decision.is_equal()));
    assert!(replayed.iter().any(|decision| !decision.recorded.drain.is_empty()));
    assert!(replayed.iter().any(|decision| decision.recorded.workers > 5));
    // Other settings decide otherwise, and it shows.
    let mut other = text.clone();
    other[0] = header(&WorkerSettings { max: 2, ..settings });
    let replayed = replay(other.join("\n").as_bytes()).expect("a whole trace");
    assert!(replayed.iter().any(|decision| !decision.is_equal()));
}

#[test]
fn damaged_traces_are_errors_with_the_line_and_what_to_do() {
    let (_, text) = recorded();
    let with = |line: usize, damaged: &str| {
        let mut lines = text.clone();
        lines[line] = damaged.to_owned();
        error(&lines)
    };
    for (found, phrases) in [
        (error(&[]), ["line 1 of the trace: the file is empty", "give a file that a policy wrote"]),
        (with(0, "{}"), ["line 1 of the trace: no trace begins like this", "whole from its first line"]),
        (
            with(0, r#"{"forebay_policy_trace":2,"new":1}"#),
            ["has version 2, this build reads version 1", "the build that wrote it"],
        ),
        (with(0, r#"{"forebay_policy_trace":1,"settings":{"min":5,"max":2}}"#), ["got 5..2", "write 0..8"]),
        (with(0, r#"{"forebay_policy_trace":1,"settings":{"most":2}}"#), ["settings are damaged", "unknown field"]),
        (with(7, "{\"observ"), ["line 8 of the trace: the line is damaged", "replay what is before"]),
        (with(7, r#"{"decision":{"workers":-1}}"#), ["line 8 of the trace", "invalid value"]),
        (with(1, &text[2]), ["line 2 of the trace", "a decision without its observation"]),
    ] {
        assert!(phrases.iter().all(|phrase| found.contains(phrase)), "{found}\n{phrases:?}");
    }
    let mut binary = text.join("\n").into_bytes();
    binary.extend(b"\n\xff\xfe");
    assert!(replay(binary.as_slice()).expect_err("no text").to_string().contains("the line is damaged"));
}

#[test]
fn a_trace_that_ends_early_replays_what_it_has() {
    let (_, text) = recorded();
    assert_eq!(replay(text[..6].join("\n").as_bytes()).expect("five lines").len(), 2);
    let settings = WorkerSettings { max: 0, ..WorkerSettings::default() };
    assert!(WorkerPolicy::new(settings).is_err());
}
