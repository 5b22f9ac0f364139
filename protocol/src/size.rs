//! Sizes in human notation: `64MiB`, `100gb`, `4096`.

use crate::error::{Error, Result};

/// Parses a size: a number and an optional unit. `k`, `kb` and so on count by 1000, `kib` by 1024.
///
/// # Errors
/// `Invalid` for any other text.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let trimmed = text.trim();
    let digits = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits);
    let unit: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "tib" => 1 << 40,
        _ => 0,
    };
    match number.parse::<f64>() {
        Ok(number) if unit > 0 && number.is_finite() => Ok((number * unit as f64) as u64),
        _ => Err(Error::invalid(format!("\"{text}\" is not a size"))
            .with_hint("write a number and a unit, such as 64MiB or 100gb")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in
            [("0", 0), ("17", 17), ("64MiB", 64 << 20), ("100gb", 100_000_000_000), ("1.5 KiB", 1536), ("2k", 2000)]
        {
            assert_eq!(parse_bytes(text).expect("a size"), bytes, "{text}");
        }
        for wrong in ["", "MiB", "-1", "1.2.3", "5 parsecs", "inf"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
