//! Dates as RFC 3339 writes them, in UTC, from the system's clock.

use std::time::{SystemTime, UNIX_EPOCH};

const DAY: u64 = 24 * 60 * 60;
/// Days in 400 Gregorian years: the calendar repeats after them.
const ERA: u64 = 400 * 365 + 97;
const CENTURY: u64 = 100 * 365 + 24;
const FOUR_YEARS: u64 = 4 * 365 + 1;
/// Days from 1600-03-01, the start of an era, to 1970-01-01.
const EPOCH: u64 = 135_080;

/// `time` as RFC 3339 in UTC to the second, such as `2026-11-21T01:05:09Z`. Times before 1970 read as 1970.
#[must_use]
pub fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (year, month, day) = civil(seconds / DAY);
    let (hour, minute, second) = (seconds % DAY / 3600, seconds % 3600 / 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// The Gregorian date `days` after 1970-01-01.
///
/// Years are counted from the first of March, so that the leap day is the last day of a year and of every longer
/// cycle; `min` keeps that day in the cycle it ends.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + EPOCH;
    let (eras, days) = (days / ERA, days % ERA);
    let centuries = (days / CENTURY).min(3);
    let days = days - centuries * CENTURY;
    let (fours, days) = (days / FOUR_YEARS, days % FOUR_YEARS);
    let years = (days / 365).min(3);
    let mut day = days - years * 365;

    let months = [
        (3, 31),
        (4, 30),
        (5, 31),
        (6, 30),
        (7, 31),
        (8, 31),
        (9, 30),
        (10, 31),
        (11, 30),
        (12, 31),
        (1, 31),
    ];
    let year = 1600 + eras * 400 + centuries * 100 + fours * 4 + years;
    for (month, length) in months {
        if day < length {
            return (year + u64::from(month < 3), month, day + 1);
        }
        day -= length;
    }
    (year + 1, 2, day + 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> String {
        rfc3339(UNIX_EPOCH + Duration::from_secs(seconds))
    }

    #[test]
    fn known_moments() {
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(951_868_800), "2000-03-01T00:00:00Z");
        assert_eq!(at(1_709_164_800), "2024-02-29T00:00:00Z");
        // `date -u -d @1795223488` in the log of an iperf3 run.
        assert_eq!(at(1_795_223_488), "2026-11-21T01:11:28Z");
        assert_eq!(at(4_107_542_399), "2100-02-28T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn every_day_of_four_centuries_follows_the_one_before() {
        let mut expected = (1970, 1, 1);
        for days in 0..ERA {
            assert_eq!(civil(days), expected, "day {days}");
            expected = tomorrow(expected);
        }
    }

    /// The calendar's rules said the slow way.
    fn tomorrow((year, month, day): (u64, u64, u64)) -> (u64, u64, u64) {
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let length = match month {
            2 => 28 + u64::from(leap),
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        match (day < length, month < 12) {
            (true, _) => (year, month, day + 1),
            (false, true) => (year, month + 1, 1),
            (false, false) => (year + 1, 1, 1),
        }
    }
}
