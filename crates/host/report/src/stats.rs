//! The summary of repeated measurements: median, extremes and their number.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Measurements of one quantity, all in one unit, in the order they were taken.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// No samples yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one measurement. A value that is not finite is refused (`false`): it has no place in an order, and JSON
    /// cannot carry it.
    pub fn push(&mut self, value: f64) -> bool {
        let finite = value.is_finite();
        if finite {
            self.0.push(value);
        }
        finite
    }

    /// The measurements, in the order they were taken.
    #[must_use]
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// Median, extremes and number; `None` while there are no samples.
    #[must_use]
    pub fn stats(&self) -> Option<Stats> {
        let sorted = self.sorted();
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let upper = sorted[sorted.len() / 2];
        let lower = sorted[(sorted.len() - 1) / 2];
        // Halving first keeps the sum of two huge samples finite.
        Some(Stats { median: lower / 2.0 + upper / 2.0, min, max, n: sorted.len() })
    }

    /// The smallest sample that at least `percent` (0–100) of all samples do not exceed (nearest rank); `None` while
    /// there are no samples.
    #[must_use]
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let sorted = self.sorted();
        let n = sorted.len();
        // The first rank whose share reaches the percentage; counting ranks avoids a cast from float to index.
        let below = |rank: &usize| as_f64(*rank) * 100.0 < percent * as_f64(n) - 1e-9;
        let rank = (1..=n).take_while(below).count();
        sorted.get(rank.min(n.checked_sub(1)?)).copied()
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

/// Takes over every finite value.
impl FromIterator<f64> for Samples {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        Self(values.into_iter().filter(|value| value.is_finite()).collect())
    }
}

/// What is kept of the samples. The unit is that of the samples, named beside it (see [`crate::Row`]).
#[derive(Clone, Copy, Debug, PartialEq, JsonSchema, Serialize, Deserialize)]
pub struct Stats {
    /// The middle sample, or the mean of the two middle ones.
    pub median: f64,
    /// The smallest sample.
    pub min: f64,
    /// The largest sample.
    pub max: f64,
    /// How many samples there were.
    pub n: usize,
}

impl Stats {
    /// A value that was measured once.
    #[must_use]
    pub fn single(value: f64) -> Self {
        Self { median: value, min: value, max: value, n: 1 }
    }

    /// The median with minimum and maximum, for people: `9,410 (9,377–9,433)`. A single value has no extremes.
    #[must_use]
    pub fn spread(&self) -> String {
        match self.n {
            1 => human(self.median),
            _ => format!("{} ({}–{})", human(self.median), human(self.min), human(self.max)),
        }
    }

    /// Whether the numbers can be those of a sample set: at least one sample, finite, and in order.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let finite = [self.min, self.median, self.max].iter().all(|value| value.is_finite());
        finite && self.n > 0 && self.min <= self.median && self.median <= self.max
    }
}

/// The nearest `f64` of a count.
pub(crate) fn as_f64(count: usize) -> f64 {
    count as f64
}

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

/// The number at a tick of an axis, without trailing zeros.
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
    use proptest::prelude::*;

    use super::*;

    fn stats(values: &[f64]) -> Option<Stats> {
        values.iter().copied().collect::<Samples>().stats()
    }

    #[test]
    fn the_median_of_an_odd_number_is_the_middle_sample() {
        assert_eq!(stats(&[3.0, 1.0, 9.0]), Some(Stats { median: 3.0, min: 1.0, max: 9.0, n: 3 }));
    }

    #[test]
    fn the_median_of_an_even_number_is_the_mean_of_the_middle_two() {
        assert_eq!(
            stats(&[4.0, 1.0, 2.0, 9.0]),
            Some(Stats { median: 3.0, min: 1.0, max: 9.0, n: 4 })
        );
    }

    #[test]
    fn a_spread_is_the_median_and_the_extremes() {
        let spread = |values: &[f64]| stats(values).map(|stats| stats.spread());
        assert_eq!(spread(&[1000.0, 2000.0, 3000.0]).as_deref(), Some("2,000 (1,000–3,000)"));
        assert_eq!(spread(&[0.5]).as_deref(), Some("0.500"));
    }

    #[test]
    fn no_samples_have_no_statistics() {
        assert_eq!(stats(&[]), None);
        assert_eq!(Samples::new().percentile(50.0), None);
    }

    #[test]
    fn what_is_not_a_number_is_refused() {
        let mut samples = Samples::new();
        assert!(!samples.push(f64::NAN));
        assert!(!samples.push(f64::INFINITY));
        assert!(samples.push(1.0));
        assert_eq!(samples.stats(), Some(Stats::single(1.0)));
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let samples: Samples = (1..=100).rev().map(f64::from).collect();
        for (percent, expected) in
            [(0.0, 1.0), (1.0, 1.0), (50.0, 50.0), (99.0, 99.0), (99.5, 100.0), (100.0, 100.0)]
        {
            assert_eq!(samples.percentile(percent), Some(expected), "p{percent}");
        }
    }

    proptest! {
        #[test]
        fn statistics_are_consistent_and_blind_to_order(mut values in prop::collection::vec(-1e12..1e12f64, 1..40)) {
            let forwards = stats(&values).expect("there are samples");
            values.reverse();
            prop_assert_eq!(stats(&values), Some(forwards));
            prop_assert!(forwards.is_consistent());
            let below = values.iter().filter(|value| **value <= forwards.median).count();
            let above = values.iter().filter(|value| **value >= forwards.median).count();
            prop_assert!(below * 2 >= values.len() && above * 2 >= values.len());
        }

        #[test]
        fn percentiles_are_samples_and_never_fall(
            values in prop::collection::vec(-1e6..1e6f64, 1..40),
            p in 0.0..100.0f64,
        ) {
            let samples: Samples = values.iter().copied().collect();
            let (low, high) = (samples.percentile(p).expect("some"), samples.percentile(100.0).expect("some"));
            prop_assert!(values.contains(&low));
            prop_assert!(low <= high);
        }
    }

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
