//! When a certificate expires.
//!
//! The verifier of certificates does not tell, and a parser of X.509 would be eight crates for two dates. So this module
//! walks over the fields before them. Bytes that it does not understand have no dates, and are the verifier's business.

/// A tag of DER, the encoding of certificates.
const SEQUENCE: u8 = 0x30;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// The end of a certificate's validity in seconds since 1970, if the bytes are a certificate's.
pub(crate) fn expires_unix_seconds(certificate: &[u8]) -> Option<u64> {
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
    let (_, _, not_after) = element(validity)?;
    let (tag, text, _) = element(not_after)?;
    time(tag, std::str::from_utf8(text).ok()?)
}

/// Splits off the first element: its tag, its value, and the rest.
fn element(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (&tag, bytes) = bytes.split_first()?;
    let (&short, bytes) = bytes.split_first()?;
    let (length, bytes) = match short {
        0..0x80 => (usize::from(short), bytes),
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

/// A date such as `261124003000Z`, or with a year of four digits.
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
    if !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970 {
        return None;
    }
    Some(((days_since_1970(year, month, day) * 24 + hour) * 60 + minute) * 60 + second)
}

/// Days of the Gregorian calendar. Years begin in March here, so that the leap day is the last.
fn days_since_1970(year: u64, month: u64, day: u64) -> u64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    // The days up to 1 January 1970, counted in the same way.
    days - 719_468
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn dates_are_read() {
        for (tag, text, expected) in [
            (UTC_TIME, "700101000000Z", Some(0)),
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
    fn a_certificate_says_when_it_expires() {
        for (year, expected) in [(2030, 1_893_456_000), (2060, 2_840_140_800)] {
            let mut parameters = CertificateParams::new(["localhost".to_owned()]).unwrap();
            parameters.not_after = date_time_ymd(year, 1, 1);
            let certificate = parameters.self_signed(&KeyPair::generate().unwrap()).unwrap();
            let bytes = certificate.der();
            assert_eq!(expires_unix_seconds(bytes), Some(expected));
            for length in 0..bytes.len() {
                // A certificate that was cut off has no date, or its own.
                assert!(expires_unix_seconds(&bytes[..length]).is_none_or(|date| date == expected), "{length}");
            }
        }
        assert_eq!(expires_unix_seconds(b""), None);
        assert_eq!(expires_unix_seconds(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }
}
