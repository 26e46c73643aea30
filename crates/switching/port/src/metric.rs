//! What operators see of a number that is counted at ports.

/// A metric of ports, whose value is in a status `S`.
pub struct Metric<S: ?Sized> {
    /// Its name, without the `_total` that a counter gets.
    pub name: &'static str,
    /// What it is, for operators.
    pub help: &'static str,
    /// Whether it only grows.
    pub is_counter: bool,
    /// Its values, each with a direction, which is empty for one of both together. None where there is nothing to say.
    pub values: fn(&S) -> Vec<(&'static str, u64)>,
}

impl<S: ?Sized> Metric<S> {
    /// A number that only grows.
    pub const fn counter(
        name: &'static str,
        help: &'static str,
        values: fn(&S) -> Vec<(&'static str, u64)>,
    ) -> Self {
        Self { name, help, is_counter: true, values }
    }

    /// A number that may fall.
    pub const fn gauge(
        name: &'static str,
        help: &'static str,
        values: fn(&S) -> Vec<(&'static str, u64)>,
    ) -> Self {
        Self { name, help, is_counter: false, values }
    }
}

/// The value of both directions together.
#[must_use]
pub fn whole(value: u64) -> Vec<(&'static str, u64)> {
    vec![("", value)]
}
