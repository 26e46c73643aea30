//! Numbers as a reader wants them: few digits, thousands apart.

/// `value` with about three significant digits and commas between the thousands: `0.0123`, `9.41`, `93.8`,
/// `941`, `12,345`.
#[must_use]
pub fn human(value: f64) -> String {
    let decimals = match value.abs() {
        0.0 => 0,
        magnitude if magnitude >= 99.95 => 0,
        magnitude if magnitude >= 9.995 => 1,
        magnitude if magnitude >= 0.9995 => 2,
        magnitude if magnitude >= 0.09995 => 3,
        _ => 4,
    };
    group(&format!("{value:.decimals$}"))
}

/// A count, exactly, with commas between the thousands: `38`, `207,942,719`.
#[must_use]
pub fn count(value: u64) -> String {
    group(&value.to_string())
}

/// A tick of an axis: no digits that every other tick shares as zeros.
pub(crate) fn tick(value: f64) -> String {
    let exact = format!("{value:.4}");
    group(exact.trim_end_matches('0').trim_end_matches('.'))
}

/// Commas between the thousands of a plain decimal number.
fn group(number: &str) -> String {
    let (sign, digits) = number.strip_prefix('-').map_or(("", number), |rest| ("-", rest));
    let (integer, fraction) = digits.split_at(digits.find('.').unwrap_or(digits.len()));
    let mut grouped = String::from(sign);
    for (index, digit) in integer.char_indices() {
        if index > 0 && (integer.len() - index).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_say_enough() {
        let cases = [
            (0.0, "0"),
            (0.012_34, "0.0123"),
            (0.5, "0.500"),
            (9.412, "9.41"),
            (9.999, "10.0"),
            (93.84, "93.8"),
            (941.4, "941"),
            (12_345.6, "12,346"),
            (1_234_567.0, "1,234,567"),
            (-4321.0, "-4,321"),
        ];
        for (value, text) in cases {
            assert_eq!(human(value), text);
        }
    }

    #[test]
    fn counts_are_exact() {
        assert_eq!([0, 38, 1325, 207_942_719].map(count), ["0", "38", "1,325", "207,942,719"]);
    }

    #[test]
    fn ticks_carry_no_idle_zeros() {
        for (value, text) in
            [(0.0, "0"), (0.25, "0.25"), (10.0, "10"), (2500.0, "2,500"), (20_000.0, "20,000")]
        {
            assert_eq!(tick(value), text);
        }
    }
}
