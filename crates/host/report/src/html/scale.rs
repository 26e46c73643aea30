//! Axes: from values to positions, and where the ticks stand.

/// A value axis drawn between two positions of the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl Scale {
    /// Values `from..=to` at positions `start..=end` (`end` may be the smaller one: SVG's y axis points down).
    pub(super) fn linear((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        Self { from, to, start, end, logarithmic: false }
    }

    /// The same for values above zero, every factor of ten equally long.
    pub(super) fn logarithmic((from, to): (f64, f64), (start, end): (f64, f64)) -> Self {
        Self { from, to, start, end, logarithmic: true }
    }

    /// Where a value lies; values outside of the axis lie on its ends.
    pub(super) fn at(&self, value: f64) -> f64 {
        let measure = |value: f64| {
            if self.logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value }
        };
        let length = measure(self.to) - measure(self.from);
        let share = if length > 0.0 { (measure(value) - measure(self.from)) / length } else { 0.0 };
        self.start + share.clamp(0.0, 1.0) * (self.end - self.start)
    }
}

/// Round values from 0 to at least `max`, at most `intervals` apart; the last one is the end of the axis.
pub(super) fn linear_ticks(max: f64, intervals: u32) -> Vec<f64> {
    let max = if max > 0.0 { max } else { 1.0 };
    let rough = max / f64::from(intervals);
    let magnitude = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * magnitude);
    let step =
        steps.into_iter().find(|step| *step >= rough * (1.0 - 1e-9)).unwrap_or(10.0 * magnitude);
    let needed = (0..=intervals).map(f64::from).find(|count| count * step >= max * (1.0 - 1e-9));
    let needed = needed.unwrap_or(f64::from(intervals));
    (0..=intervals)
        .map(f64::from)
        .take_while(|count| *count <= needed)
        .map(|count| count * step)
        .collect()
}

/// The ends of a logarithmic axis and the round values on it: powers of ten round `min..=max`, with 2 and 5 between
/// them while the axis is short.
pub(super) fn logarithmic_ticks(min: f64, max: f64) -> Vec<f64> {
    const MANTISSAS: [f64; 3] = [1.0, 2.0, 5.0];
    let decades = (max / min).log10();
    let mantissas = if decades < 3.0 { &MANTISSAS[..] } else { &MANTISSAS[..1] };
    let first = 10f64.powf(min.log10().floor());
    let mut all = Vec::new();
    let mut decade = first;
    while decade <= max * 10.0 {
        all.extend(mantissas.iter().map(|mantissa| mantissa * decade));
        decade *= 10.0;
    }
    let start = all.iter().rposition(|tick| *tick <= min * (1.0 + 1e-9)).unwrap_or(0);
    let end = all.iter().position(|tick| *tick >= max * (1.0 - 1e-9)).unwrap_or(all.len() - 1);
    // A single value still needs an axis with two ends.
    all[start..=end.max(start + 1).min(all.len() - 1)].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn round_ticks() {
        assert_eq!(linear_ticks(10_000.0, 5), [0.0, 2000.0, 4000.0, 6000.0, 8000.0, 10_000.0]);
        assert_eq!(linear_ticks(12.0, 5), [0.0, 2.5, 5.0, 7.5, 10.0, 12.5]);
        assert_eq!(linear_ticks(0.0, 4), [0.0, 0.25, 0.5, 0.75, 1.0]);
        assert_eq!(logarithmic_ticks(30.0, 400.0), [20.0, 50.0, 100.0, 200.0, 500.0]);
        assert_eq!(
            logarithmic_ticks(3.0, 40_000.0),
            [1.0, 10.0, 100.0, 1000.0, 10_000.0, 100_000.0]
        );
        assert_eq!(logarithmic_ticks(10.0, 10.0).len(), 2);
    }

    #[test]
    fn ends_map_to_ends() {
        let down = Scale::linear((0.0, 10.0), (200.0, 0.0));
        assert_eq!(
            [down.at(0.0), down.at(5.0), down.at(10.0), down.at(99.0)],
            [200.0, 100.0, 0.0, 0.0]
        );
        let log = Scale::logarithmic((1.0, 100.0), (0.0, 200.0));
        assert_eq!(
            [log.at(1.0), log.at(10.0), log.at(100.0), log.at(0.0)],
            [0.0, 100.0, 200.0, 0.0]
        );
    }

    proptest! {
        #[test]
        fn linear_ticks_cover_the_data_without_waste(max in 1e-6..1e12f64, intervals in 2..9u32) {
            let ticks = linear_ticks(max, intervals);
            let (step, last) = (ticks[1], ticks[ticks.len() - 1]);
            prop_assert!(last >= max * (1.0 - 1e-6));
            prop_assert!(last - step <= max * (1.0 + 1e-6));
            prop_assert!(ticks.len() <= intervals as usize + 1);
        }

        #[test]
        fn logarithmic_ticks_enclose_the_data(min in 1e-6..1e6f64, factor in 1.0..1e6f64) {
            let ticks = logarithmic_ticks(min, min * factor);
            prop_assert!(ticks.len() >= 2);
            prop_assert!(ticks[0] <= min * (1.0 + 1e-6));
            prop_assert!(ticks[ticks.len() - 1] >= min * factor * (1.0 - 1e-6));
        }
    }
}
