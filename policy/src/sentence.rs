//! A plan in plain English.

use std::fmt;

use crate::decision::{Grouped, counted};
use crate::{Bottleneck, Choice, Place, Plan};

impl fmt::Display for Plan {
    /// One line: what is chosen, why, what it costs, what something else would cost, and what would change it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = &self.chosen;
        write!(f, "{}: trainers take {} samples/s", Short(chosen), Grouped(self.demand))?;
        if chosen.configuration.workers > 0 {
            write!(f, ", a worker gives {}", Grouped(self.per_worker))?;
        }
        if chosen.waited >= 0.0005 {
            write!(f, "; trainers lose {} of their time", Percent(chosen.waited))?;
            write!(f, " to {}", chosen.bottleneck)?;
        }
        if let Some(other) = &self.runner_up {
            write!(f, "; {} instead would ", Short(other))?;
            match (chosen.money, other.money) {
                (Some(ours), Some(theirs)) if (theirs / ours - 1.0).abs() < 0.005 => f.write_str("cost as much")?,
                (Some(ours), Some(theirs)) => write!(f, "cost {} and not {}", Grouped(theirs), Grouped(ours))?,
                _ if (other.total_seconds / chosen.total_seconds - 1.0).abs() < 0.01 => f.write_str("take as long")?,
                _ => write!(f, "take {} and not {}", Time(other.total_seconds), Time(chosen.total_seconds))?,
            }
        }
        if let Some(seconds) = self.changes.more_workers_below_step_seconds {
            write!(f, "; another worker is needed if a step takes less than {}", Time(seconds))?;
        }
        if let (Some((low, high)), Some(sureness)) = (self.workers_range, self.sureness) {
            let (samples, error) = (Grouped(sureness.samples.round()), Percent(sureness.error));
            match low == high {
                true => write!(f, "; sure within {error}, by {samples} samples")?,
                false => write!(f, "; between {low} and {high} workers within {error}, by {samples} samples")?,
            }
        }
        Ok(())
    }
}

/// A choice as a phrase: `4 workers and 2 local cores, keeping 41.0 GB at "decode", 1 worker from epoch 2`.
struct Short<'a>(&'a Choice);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let configuration = &self.0.configuration;
        let first = match &configuration.cut {
            Some(_) => configuration.first_workers,
            None => configuration.workers,
        };
        match (first, configuration.local_cores) {
            (workers, 0) => f.write_str(&counted(workers))?,
            (0, cores) => write!(f, "{cores} local {}", if cores == 1 { "core" } else { "cores" })?,
            (workers, cores) => {
                write!(f, "{} and {cores} local {}", counted(workers), if cores == 1 { "core" } else { "cores" })?;
            }
        }
        if let Some(cut) = &configuration.cut {
            write!(f, ", keeping {} at \"{cut}\"", Bytes(self.0.kept_bytes))?;
            if configuration.share < 0.9995 {
                write!(f, " ({} of it)", Percent(configuration.share))?;
            }
            match configuration.workers {
                workers if workers == first => {}
                0 => f.write_str(", no workers from epoch 2")?,
                workers => write!(f, ", {} from epoch 2", counted(workers))?,
            }
        }
        if configuration.finish_at == Place::Trainer {
            f.write_str(", finishing at the trainers")?;
        }
        if configuration.order != "exact" {
            write!(f, ", in the order \"{}\"", configuration.order)?;
        }
        Ok(())
    }
}

impl fmt::Display for Bottleneck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Trainers => "the trainers",
            Self::Workers => "the workers",
            Self::LocalCores => "the local cores",
            Self::Wire => "the wire",
            Self::TrainerHosts => "the trainers' hosts",
            Self::Source => "the source",
            Self::Cache => "the cache",
        })
    }
}

struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 * 100.0 {
            percent if percent < 10.0 => write!(f, "{percent:.1} %"),
            percent => write!(f, "{percent:.0} %"),
        }
    }
}

/// Bytes in the unit that suits them: `41 GB`.
pub struct Bytes(pub f64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")]
            .into_iter()
            .find(|(unit, _)| self.0 >= *unit)
            .unwrap_or((1.0, "bytes"));
        write!(f, "{} {name}", Grouped((self.0 / unit * 10.0).round() / 10.0))
    }
}

/// Seconds in the unit that suits them.
struct Time(f64);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, name) =
            [(86_400.0 * 2.0, 86_400.0, "days"), (7_200.0, 3_600.0, "h"), (120.0, 60.0, "min"), (1.0, 1.0, "s")]
                .into_iter()
                .find(|(from, _, _)| self.0 >= *from)
                .map_or((1e-3, "ms"), |(_, unit, name)| (unit, name));
        let digits = if self.0 / unit < 9.95 { 2 } else { 0 };
        write!(f, "{:.digits$} {name}", self.0 / unit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Changes, Configuration, Sureness};

    fn choice(cut: Option<&str>, local_cores: u32, first_workers: u32, workers: u32) -> Choice {
        Choice {
            configuration: Configuration {
                order: "exact".to_owned(),
                cut: cut.map(str::to_owned),
                share: if cut.is_some() { 0.75 } else { 0.0 },
                finish_at: Place::Worker,
                local_cores,
                first_workers,
                workers,
            },
            seconds_per_step: 0.1,
            waited: 0.0,
            local_share: 0.0,
            worker_cpu_seconds: 0.0,
            host_cpu_seconds: 0.0,
            source_bytes: 0.0,
            cache_bytes: 0.0,
            wire_bytes: 0.0,
            kept_bytes: if cut.is_some() { 41e9 } else { 0.0 },
            first_epoch_seconds: 600.0,
            epoch_seconds: 500.0,
            total_seconds: 5_100.0,
            worker_seconds: 0.0,
            money: None,
            bottleneck: Bottleneck::Trainers,
        }
    }

    #[test]
    fn plans_are_one_line_of_plain_english() {
        let changes = Changes { more_workers_below_step_seconds: Some(0.0123), ..Changes::default() };
        let mut plan = Plan {
            chosen: choice(None, 0, 4, 4),
            runner_up: Some(choice(Some("decode"), 0, 4, 1)),
            demand: 1900.0,
            per_worker: 540.2,
            changes,
            workers_range: Some((3, 5)),
            sureness: Some(Sureness { samples: 2000.0, error: 0.08 }),
        };
        assert_eq!(
            plan.to_string(),
            "4 workers: trainers take 1,900 samples/s, a worker gives 540; 4 workers, keeping 41 GB at \"decode\" (75 \
             % of it), 1 worker from epoch 2 instead would take as long; another worker is needed if a step takes less \
             than 12 ms; between 3 and 5 workers within 8.0 %, by 2,000 samples"
        );
        plan.chosen = Choice { waited: 0.25, money: Some(12.5), ..choice(Some("source"), 2, 0, 0) };
        plan.chosen.configuration.finish_at = Place::Trainer;
        plan.runner_up = Some(Choice { money: Some(13.0), ..choice(None, 1, 2, 2) });
        plan.changes = Changes::default();
        plan.workers_range = Some((0, 0));
        assert_eq!(
            plan.to_string(),
            "2 local cores, keeping 41 GB at \"source\" (75 % of it), finishing at the trainers: trainers take 1,900 \
             samples/s; trainers lose 25 % of their time to the trainers; 2 workers and 1 local core instead would \
             cost 13 and not 12.5; sure within 8.0 %, by 2,000 samples"
        );
    }

    #[test]
    fn amounts_have_units_that_suit_them() {
        for (seconds, text) in
            [(0.0123, "12 ms"), (1.5, "1.50 s"), (300.0, "5.00 min"), (9e4, "25 h"), (1e6, "12 days")]
        {
            assert_eq!(Time(seconds).to_string(), text);
        }
        for (bytes, text) in [(12.0, "12 bytes"), (1.26e6, "1.3 MB"), (2e13, "20 TB")] {
            assert_eq!(Bytes(bytes).to_string(), text);
        }
    }
}
