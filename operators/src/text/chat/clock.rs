//! `strftime_now` for a date that the call gives.

/// A date, at midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Date {
    year: u32,
    month: u32,
    day: u32,
}

const MONTHS: [(&str, u32); 12] = [
    ("January", 31),
    ("February", 28),
    ("March", 31),
    ("April", 30),
    ("May", 31),
    ("June", 30),
    ("July", 31),
    ("August", 31),
    ("September", 30),
    ("October", 31),
    ("November", 30),
    ("December", 31),
];
const DAYS: [&str; 7] = ["Saturday", "Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday"];

impl Date {
    /// Reads a date like `2024-07-26`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-').map(|part| part.parse::<u32>().ok());
        let date = Self { year: parts.next()??, month: parts.next()??, day: parts.next()?? };
        let fits = parts.next().is_none()
            && text.len() == 10
            && (1..=9999).contains(&date.year)
            && (1..=12).contains(&date.month)
            && (1..=date.days(date.month)).contains(&date.day);
        fits.then_some(date)
    }

    fn days(self, month: u32) -> u32 {
        let is_leap = self.year.is_multiple_of(4) && (!self.year.is_multiple_of(100) || self.year.is_multiple_of(400));
        MONTHS[month as usize - 1].1 + u32::from(month == 2 && is_leap)
    }

    /// Writes the date as Python's `strftime` does in the locale C. The error is the code that it does not know.
    pub(super) fn format(self, format: &str) -> Result<String, String> {
        let month = MONTHS[self.month as usize - 1].0;
        let weekday = DAYS[self.weekday()];
        let day_of_year = (1..self.month).map(|month| self.days(month)).sum::<u32>() + self.day;
        let mut text = String::new();
        let mut characters = format.chars();
        while let Some(character) = characters.next() {
            if character != '%' {
                text.push(character);
                continue;
            }
            match characters.next() {
                Some('Y') => text += &self.year.to_string(),
                Some('y') => text += &format!("{:02}", self.year % 100),
                Some('m') => text += &format!("{:02}", self.month),
                Some('d') => text += &format!("{:02}", self.day),
                Some('j') => text += &format!("{day_of_year:03}"),
                Some('B') => text += month,
                Some('b') => text += &month[..3],
                Some('A') => text += weekday,
                Some('a') => text += &weekday[..3],
                Some('H' | 'M' | 'S') => text += "00",
                Some('%') => text.push('%'),
                other => return Err(other.map_or("%".to_owned(), |code| format!("%{code}"))),
            }
        }
        Ok(text)
    }

    /// Zeller's congruence: 0 is Saturday.
    fn weekday(self) -> usize {
        let (year, month) = if self.month < 3 { (self.year - 1, self.month + 12) } else { (self.year, self.month) };
        let (century, year) = (year / 100, year % 100);
        ((self.day + 13 * (month + 1) / 5 + year + year / 4 + century / 4 + 5 * century) % 7) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::Date;

    // The texts are those of Python's date.strftime.
    #[test]
    fn dates_are_written_as_in_python() {
        let check = |date: &str, expect: &str| {
            assert_eq!(Date::parse(date).unwrap().format("%d %b %Y, %A %a %B %j %y %m %H:%M %%").unwrap(), expect);
        };
        check("2024-07-26", "26 Jul 2024, Friday Fri July 208 24 07 00:00 %");
        check("2000-02-29", "29 Feb 2000, Tuesday Tue February 060 00 02 00:00 %");
        check("1999-01-01", "01 Jan 1999, Friday Fri January 001 99 01 00:00 %");
        assert_eq!(Date::parse("2024-12-31").unwrap().format("%j %A").unwrap(), "366 Tuesday");
        assert_eq!(Date::parse("2024-12-31").unwrap().format("%Q"), Err("%Q".to_owned()));
        for bad in ["2023-02-29", "2024-13-01", "2024-00-01", "24-07-26", "2024-7-26", "2024-07-26-1", "now"] {
            assert_eq!(Date::parse(bad), None, "{bad}");
        }
    }
}
