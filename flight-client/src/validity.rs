//! When a certificate is valid.
//!
//! The verifier of certificates does not tell, and a parser of X.509 would be eight crates for two dates. So this
//! module walks over the fields before them. Bytes that it does not understand have no dates, and are the verifier's
//! business.

/// A tag of DER, the encoding of certificates.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The first and the last second of a certificate's validity, in seconds since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    /// Before this, the certificate is not valid yet.
    pub not_before_unix_seconds: u64,
    /// After this, the certificate has expired.
    pub not_after_unix_seconds: u64,
}

impl Validity {
    /// The validity of a certificate in DER, if the bytes are one.
    pub fn of(certificate: &[u8]) -> Option<Self> {
        let (certificate, _) = value(certificate, SEQUENCE)?;
        let (mut fields, _) = value(certificate, SEQUENCE)?;
        if fields.first() == Some(&VERSION) {
            (_, _, fields) = element(fields)?;
        }
        // The serial number, the signature's algorithm, and the issuer.
        for _ in 0..3 {
            (_, _, fields) = element(fields)?;
        }
        let (validity, _) = value(fields, SEQUENCE)?;
        let (tag, text, rest) = element(validity)?;
        let not_before_unix_seconds = time(tag, std::str::from_utf8(text).ok()?)?;
        let (tag, text, _) = element(rest)?;
        let not_after_unix_seconds = time(tag, std::str::from_utf8(text).ok()?)?;
        Some(Self { not_before_unix_seconds, not_after_unix_seconds })
    }

    /// What a chain of both is valid for.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            not_before_unix_seconds: self.not_before_unix_seconds.max(other.not_before_unix_seconds),
            not_after_unix_seconds: self.not_after_unix_seconds.min(other.not_after_unix_seconds),
        }
    }

    /// When one or the other is valid, such as two CAs of which one replaces the other.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            not_before_unix_seconds: self.not_before_unix_seconds.min(other.not_before_unix_seconds),
            not_after_unix_seconds: self.not_after_unix_seconds.max(other.not_after_unix_seconds),
        }
    }

    /// Why a certificate cannot be used now, such as `expired at 2026-11-24 00:30:00 UTC`.
    pub fn refusal(self, now_unix_seconds: u64) -> Option<String> {
        if now_unix_seconds > self.not_after_unix_seconds {
            return Some(format!("expired at {}", text(self.not_after_unix_seconds)));
        }
        (now_unix_seconds < self.not_before_unix_seconds)
            .then(|| format!("is not valid before {}", text(self.not_before_unix_seconds)))
    }
}

/// Splits off the first element: its tag, its value, and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&short, bytes) = bytes.split_first()?;
    let (length, bytes) = match short {
        0..=0x7f => (usize::from(short), bytes),
        // A length of up to four bytes.
        0x81..=0x84 => {
            let (long, bytes) = bytes.split_at_checked(usize::from(short - 0x80))?;
            (long.iter().fold(0, |length, &byte| length << 8 | usize::from(byte)), bytes)
        }
        _ => return None,
    };
    let (value, rest) = bytes.split_at_checked(length)?;
    Some((tag, value, rest))
}

/// The value of the first element and the rest, if the element has this tag.
fn value(bytes: &[u8], expected: u8) -> Option<(&[u8], &[u8])> {
    let (tag, value, rest) = element(bytes)?;
    (tag == expected).then_some((value, rest))
}

/// Parses a date such as `261124003000Z`, or with a year of four digits. Years before 1970 become 1970.
fn time(tag: u8, text: &str) -> Option<u64> {
    let digits = text.strip_suffix('Z').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    let year_digits = match tag {
        UTC_TIME => 2,
        GENERALIZED_TIME => 4,
        _ => return None,
    };
    let (year, rest) = digits.split_at_checked(year_digits)?;
    if rest.len() != 10 {
        return None;
    }
    let year: u64 = year.parse().ok()?;
    let year = match tag {
        UTC_TIME if year < 50 => year + 2000,
        UTC_TIME => year + 1900,
        _ => year,
    };
    let pair = |index: usize| rest[2 * index..2 * index + 2].parse::<u64>().ok();
    let (month, day, hour, minute, second) = (pair(0)?, pair(1)?, pair(2)?, pair(3)?, pair(4)?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) {
        return None;
    }
    if year < 1970 {
        return Some(0);
    }
    Some(((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// The days of the Gregorian calendar up to 1 January 1970. Years begin in March here, so that the leap day is the
/// last.
const DAYS_TO_1970: u64 = 719_468;
const DAYS_OF_400_YEARS: u64 = 146_097;

fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - DAYS_TO_1970
}

/// A moment as text, such as `2026-11-24 00:30:00 UTC`.
fn text(unix_seconds: u64) -> String {
    let (days, seconds) = (unix_seconds / 86_400 + DAYS_TO_1970, unix_seconds % 86_400);
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / (DAYS_OF_400_YEARS - 1)) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = if month < 10 { (era * 400 + year, month + 3) } else { (era * 400 + year + 1, month - 9) };
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn dates_are_read() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
            (UTC_TIME, "690101000000Z", Some(0)),
            (UTC_TIME, "000229120000Z", Some(951_825_600)),
            (UTC_TIME, "261124003000Z", Some(1_795_480_200)),
            (GENERALIZED_TIME, "20501231235959Z", Some(2_556_143_999)),
            (UTC_TIME, "20501231235959Z", None),
            (UTC_TIME, "2611240030Z", None),
            (UTC_TIME, "261324003000Z", None),
            (UTC_TIME, "261124003000", None),
            (0x02, "261124003000Z", None),
        ] {
            assert_eq!(time(tag, text), expected, "{text}");
        }
    }

    #[test]
    fn dates_are_written() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_825_600, "2000-02-29 12:00:00 UTC"),
            (1_795_480_200, "2026-11-24 00:30:00 UTC"),
            (2_556_143_999, "2050-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(text(seconds), expected);
        }
        for day in 0..200_000 {
            let written = text(day * 86_400);
            let [year, month, date] = [0..4, 5..7, 8..10].map(|digits| written[digits].parse().unwrap());
            assert_eq!(days_since_1970(year, month, date), day, "{written}");
        }
    }

    #[test]
    fn a_certificate_says_when_it_is_valid() {
        for (year, not_after_unix_seconds) in [(2030, 1_893_456_000), (2060, 2_840_140_800)] {
            let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
            parameters.not_before = date_time_ymd(2020, 1, 1);
            parameters.not_after = date_time_ymd(year, 1, 1);
            let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let bytes = certificate.der();
            let expected = Validity { not_before_unix_seconds: 1_577_836_800, not_after_unix_seconds };
            assert_eq!(Validity::of(bytes), Some(expected));
            for length in 0..bytes.len() {
                // A certificate that was cut off has no dates, or its own.
                assert!(Validity::of(&bytes[..length]).is_none_or(|validity| validity == expected), "{length}");
            }
        }
        assert_eq!(Validity::of(b""), None);
        assert_eq!(Validity::of(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    #[test]
    fn outside_its_dates_a_certificate_is_refused() {
        let validity = |from, to| Validity { not_before_unix_seconds: from, not_after_unix_seconds: to };
        let (first, second) = (validity(100, 200), validity(150, 300));
        assert_eq!((first.and(second), first.or(second)), (validity(150, 200), validity(100, 300)));
        assert_eq!((first.refusal(100), first.refusal(200)), (None, None));
        assert_eq!(first.refusal(201).unwrap(), "expired at 1970-01-01 00:03:20 UTC");
        assert_eq!(first.refusal(99).unwrap(), "is not valid before 1970-01-01 00:01:40 UTC");
    }
}
