//! Prices of workers, trainers and storage, as a user writes them: `worker=0.31/h,trainer=8/h,storage=0.02/GB-month`.
//!
//! The currency is the user's own: prices are only compared with each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::Error;

/// Seconds of a month of 30 days, the unit in which storage is sold.
pub(crate) const SECONDS_PER_MONTH: f64 = 30.0 * 24.0 * 3600.0;

/// What things cost. A price that was not given is `None`.
///
/// ```
/// let prices: forebay_policy::Prices = "worker=0.31/h, trainer=8/h".parse()?;
/// assert!((prices.worker()? * 3600.0 - 0.31).abs() < 1e-12);
/// assert!(prices.storage().unwrap_err().to_string().contains("storage=0.02/GB-month"));
/// # Ok::<(), forebay_policy::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Prices {
    /// Of one worker for a second.
    pub worker_per_second: Option<f64>,
    /// Of one trainer (one reader of a feed) for a second.
    pub trainer_per_second: Option<f64>,
    /// Of keeping 10^9 bytes for a month of 30 days.
    pub storage_per_gb_month: Option<f64>,
}

/// The names of prices, and how to write each.
const KINDS: [(&str, &str); 3] =
    [("worker", "worker=0.31/h"), ("trainer", "trainer=8/h"), ("storage", "storage=0.02/GB-month")];

impl Prices {
    /// The price of one worker for a second.
    ///
    /// # Errors
    ///
    /// The price was not given.
    pub fn worker(&self) -> Result<f64, Error> {
        given(self.worker_per_second, 0)
    }

    /// The price of one trainer for a second.
    ///
    /// # Errors
    ///
    /// The price was not given.
    pub fn trainer(&self) -> Result<f64, Error> {
        given(self.trainer_per_second, 1)
    }

    /// The price of keeping 10^9 bytes for a month.
    ///
    /// # Errors
    ///
    /// The price was not given.
    pub fn storage(&self) -> Result<f64, Error> {
        given(self.storage_per_gb_month, 2)
    }
}

/// The price, which must also be valid: one that was read from a trace was never parsed.
fn given(price: Option<f64>, kind: usize) -> Result<f64, Error> {
    let (name, example) = KINDS[kind];
    let missing = || Error::new(format!("the price of \"{name}\" is missing"), format!("write {example}"));
    crate::error::at_least(0.0, name, price.ok_or_else(missing)?)
}

impl FromStr for Prices {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut prices = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (name, price) = part.split_once('=').map_or((part, ""), |(name, price)| (name.trim(), price.trim()));
            let Some((_, example)) = KINDS.into_iter().find(|(known, _)| *known == name) else {
                let name = forebay_diagnostics::shortened(name, 40);
                let nearest = forebay_diagnostics::nearest(&name, KINDS.map(|(known, _)| known));
                let hint = nearest
                    .map_or("the prices are \"worker\", \"trainer\" and \"storage\"".to_owned(), |known| {
                        format!("did you mean \"{known}\"?")
                    });
                return Err(Error::new(format!("unknown price \"{name}\""), hint));
            };
            let slot = match name {
                "worker" => &mut prices.worker_per_second,
                "trainer" => &mut prices.trainer_per_second,
                _ => &mut prices.storage_per_gb_month,
            };
            let wrong = |what: &str| Error::new(format!("price of \"{name}\": {what}"), format!("write {example}"));
            let (amount, unit) = price.split_once('/').ok_or_else(|| wrong("the unit is missing"))?;
            let amount: f64 = amount.trim().parse().map_err(|_| wrong("the amount is not a number"))?;
            if !amount.is_finite() || amount < 0.0 {
                return Err(wrong("the amount must be a finite number that is not negative"));
            }
            let unit: String = unit.split_whitespace().collect();
            let price = match (name, unit.as_str()) {
                ("storage", "GB-month") => amount,
                ("worker" | "trainer", "h") => amount / 3600.0,
                ("worker" | "trainer", "s") => amount,
                ("storage", _) => return Err(wrong("the unit must be \"GB-month\"")),
                _ => return Err(wrong("the unit must be \"h\" or \"s\"")),
            };
            if slot.replace(price).is_some() {
                return Err(Error::new(format!("the price of \"{name}\" is given twice"), "keep one of the two"));
            }
        }
        Ok(prices)
    }
}

impl fmt::Display for Prices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.worker_per_second.map(|price| format!("worker={}/s", price)),
            self.trainer_per_second.map(|price| format!("trainer={}/s", price)),
            self.storage_per_gb_month.map(|price| format!("storage={price}/GB-month")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prices_are_read_in_each_unit() {
        let prices: Prices = " worker = 3.6 / h, trainer=2/s,storage=0.02/GB-month, ".parse().unwrap();
        assert_eq!(prices.worker_per_second, Some(0.001));
        assert_eq!(prices.trainer_per_second, Some(2.0));
        assert_eq!(prices.storage_per_gb_month, Some(0.02));
        assert_eq!(prices.to_string().parse(), Ok(prices));
        assert_eq!("".parse(), Ok(Prices::default()));
    }

    #[test]
    fn wrong_prices_are_refused_with_what_to_write() {
        for (text, phrases) in [
            ("wroker=1/h", ["unknown price \"wroker\"", "did you mean \"worker\"?"]),
            ("gpu=1/h", ["unknown price \"gpu\"", "\"worker\", \"trainer\" and \"storage\""]),
            ("worker", ["unit is missing", "write worker=0.31/h"]),
            ("worker=1", ["unit is missing", "write worker=0.31/h"]),
            ("worker=-1/h", ["not negative", "write worker=0.31/h"]),
            ("trainer=NaN/h", ["not negative", "write trainer=8/h"]),
            ("trainer=inf/h", ["not negative", "write trainer=8/h"]),
            ("trainer=x/h", ["not a number", "write trainer=8/h"]),
            ("trainer=1/d", ["must be \"h\" or \"s\"", "write trainer=8/h"]),
            ("storage=1/h", ["must be \"GB-month\"", "write storage=0.02/GB-month"]),
            ("worker=1/h,worker=2/h", ["given twice", "keep one"]),
        ] {
            let error = text.parse::<Prices>().expect_err(text).to_string();
            assert!(phrases.iter().all(|phrase| error.contains(phrase)), "{text}: {error}");
        }
        let error = Prices::default().worker().expect_err("missing").to_string();
        assert_eq!(error, "the price of \"worker\" is missing\nhint: write worker=0.31/h");
        assert!(Prices { trainer_per_second: Some(-1.0), ..Prices::default() }.trainer().is_err());
    }
}
