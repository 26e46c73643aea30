//! What the article reports: "XenServer 7.0 performance improvements part 2: Parallelised networking datapath", 2016.
//! Two Debian 8 guests with 8 virtual CPUs each on a Dell R730xd, iperf 2.0.5 with 8 streams. Its plot has no numbers;
//! its text has two.

/// Streams of its measurements.
pub const STREAMS: u32 = 8;
/// Virtual CPUs of each of its guests.
pub const GUEST_CPUS: usize = 8;
/// The number of queues where its plot falls.
pub const DIP: usize = 5;
/// The default number of queues, with 8 virtual CPUs on both sides.
pub const DEFAULT_QUEUES: usize = 8;
/// Mb/s with one queue: XenServer 6.5.
pub const ONE_QUEUE: f64 = 17_000.0;
/// Mb/s with the default number of queues.
pub const DEFAULT: f64 = 41_000.0;
/// The least factor from one queue to four.
pub const FOUR_QUEUES: f64 = 2.0;

/// Its rate in Mb/s with `queues` queues, where the text has one.
pub fn mbps(queues: usize) -> Option<f64> {
    match queues {
        1 => Some(ONE_QUEUE),
        DEFAULT_QUEUES => Some(DEFAULT),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_140_percent_more() {
        assert_eq!((DEFAULT / ONE_QUEUE * 10.0 - 10.0).round(), 14.0);
        assert_eq!((mbps(1), mbps(5)), (Some(ONE_QUEUE), None));
    }
}
