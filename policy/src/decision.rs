//! A decision and its reason, for operators to read.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How many workers there should be.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The number that is wanted, without workers that are draining.
    pub workers: u32,
    /// Workers to drain because there are more than that: the slowest first. Workers have one price, so these are the
    /// slowest for their price.
    pub drain: Vec<String>,
    /// Why.
    pub reason: Reason,
}

/// Why a number of workers is wanted. It displays as one line of plain English.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// What decided.
    pub why: Why,
    /// What it decided.
    pub workers: u32,
    /// Workers that are there and not draining.
    pub live: u32,
    /// Workers beside them that come and go by themselves.
    #[serde(default)]
    pub others: u32,
    /// Whether the wanted number did not come within the time that is waited for it.
    pub is_short: bool,
    /// What was measured, if anything was.
    pub evidence: Option<Evidence>,
}

/// What decided the number of workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// No trainer has read for a while.
    Idle,
    /// The rates are not yet known well enough.
    Measuring,
    /// Workers that were asked for have not all come.
    Starting,
    /// The number has just changed.
    Settling,
    /// The rates ask for this number.
    Rates,
    /// Trainers waited longer than the rates explain.
    Waits,
    /// Jobs have files to write.
    Jobs,
}

/// The measurements behind a decision.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Samples per second that trainers would take if they never waited, over all feeds.
    pub demand: f64,
    /// Samples per second that a usual worker computes, in the mixture of feeds that is read.
    pub per_worker: f64,
    /// Half the width of the 95 % interval of demand / per_worker, relative to it, if it is known.
    pub error: Option<f64>,
    /// The estimated share of their time that trainers wait with the wanted number of workers.
    pub wait: f64,
    /// More workers are wanted above this demand, in samples per second.
    pub more_above: Option<f64>,
    /// Fewer workers are wanted below this demand, in samples per second.
    pub fewer_below: Option<f64>,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", counted(self.workers))?;
        if self.others > 0 {
            write!(f, " beside {} that others run", Grouped(f64::from(self.others)))?;
        }
        f.write_str(": ")?;
        if self.is_short {
            write!(f, "asked for {}, {} came; ", counted(self.workers), self.live)?;
        }
        f.write_str(match self.why {
            Why::Idle => return f.write_str("no trainer reads; this changes when one does"),
            Why::Measuring => "the rates are not sure yet",
            Why::Starting => "waiting for workers to start or leave",
            Why::Settling => "watching the last change",
            Why::Rates => "",
            Why::Waits => "trainers waited longer than the rates explain",
            Why::Jobs => "jobs have files to write",
        })?;
        let Some(seen) = &self.evidence else { return Ok(()) };
        if self.why != Why::Rates {
            f.write_str("; ")?;
        }
        let (demand, worker) = (Grouped(seen.demand), Grouped(seen.per_worker));
        write!(f, "trainers take {demand} samples/s, a worker computes {worker} samples/s")?;
        if let Some(error) = seen.error {
            write!(f, " (within {:.0} %)", (error * 100.0).ceil())?;
        }
        if let Some(demand) = seen.more_above {
            write!(f, "; more above {} samples/s", Grouped(demand))?;
        }
        if let Some(demand) = seen.fewer_below {
            write!(f, "; fewer below {} samples/s", Grouped(demand))?;
        }
        Ok(())
    }
}

pub(crate) fn counted(workers: u32) -> String {
    match workers {
        1 => "1 worker".to_owned(),
        _ => format!("{} workers", Grouped(f64::from(workers))),
    }
}

/// A number with three significant digits or more, and commas between thousands.
pub struct Grouped(pub f64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0 {
            number if number.fract() == 0.0 || number >= 100.0 => 0,
            number if number >= 1.0 => 1,
            _ => 3,
        };
        let text = format!("{:.digits$}", self.0);
        let (whole, fraction) = text.split_once('.').map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
        for (at, digit) in whole.char_indices() {
            if at > 0 && (whole.len() - at) % 3 == 0 {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        fraction.map_or(Ok(()), |fraction| write!(f, ".{fraction}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_one_line_of_plain_english() {
        let evidence = Evidence {
            demand: 1900.0,
            per_worker: 540.2,
            error: Some(0.031),
            wait: 0.001,
            more_above: Some(2155.0),
            fewer_below: Some(1500.0),
        };
        let reason =
            |why, is_short, evidence| Reason { why, workers: 4, live: 3, others: 0, is_short, evidence }.to_string();
        assert_eq!(
            reason(Why::Rates, false, Some(evidence)),
            "4 workers: trainers take 1,900 samples/s, a worker computes 540 samples/s (within 4 %); \
             more above 2,155 samples/s; fewer below 1,500 samples/s"
        );
        assert_eq!(
            reason(Why::Measuring, true, None),
            "4 workers: asked for 4 workers, 3 came; the rates are not sure yet"
        );
        let beside = Reason { why: Why::Measuring, workers: 0, live: 0, others: 2, is_short: false, evidence: None };
        assert_eq!(beside.to_string(), "0 workers beside 2 that others run: the rates are not sure yet");
        assert_eq!(reason(Why::Idle, false, None), "4 workers: no trainer reads; this changes when one does");
    }

    #[test]
    fn numbers_are_grouped() {
        for (number, text) in [(0.0, "0"), (0.25, "0.250"), (2.5, "2.5"), (999.6, "1,000"), (1234567.0, "1,234,567")] {
            assert_eq!(Grouped(number).to_string(), text);
        }
    }
}
