//! The connections' bytes, and which connections are ahead of the others.

use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes that each connection has carried. All threads share it.
#[derive(Debug)]
pub struct Balance {
    bytes: Box<[AtomicU64]>,
    /// A connection this far ahead of the slowest waits; none waits if absent.
    lead: Option<u64>,
}

impl Balance {
    /// So many connections. With a lead, no connection gets further ahead of the slowest.
    pub fn new(connections: usize, lead: Option<u64>) -> Self {
        Self { bytes: (0..connections).map(|_| AtomicU64::new(0)).collect(), lead }
    }

    /// Counts bytes of a connection.
    pub fn add(&self, connection: usize, bytes: usize) {
        if let Some(sum) = self.bytes.get(connection) {
            sum.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// The bytes that a connection may have carried before it has to wait for others.
    pub fn bound(&self) -> u64 {
        let slowest = || self.snapshot().into_iter().min().unwrap_or(0);
        self.lead.map_or(u64::MAX, |lead| slowest().saturating_add(lead))
    }

    /// Whether a connection is ahead of a [bound](Self::bound).
    pub fn is_ahead(&self, connection: usize, bound: u64) -> bool {
        self.bytes.get(connection).is_some_and(|bytes| bytes.load(Ordering::Relaxed) >= bound)
    }

    /// The bytes of all connections.
    pub fn snapshot(&self) -> Vec<u64> {
        self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_ahead_of_the_slowest_waits_until_that_has_caught_up() {
        let balance = Balance::new(2, Some(100));
        balance.add(0, 100);
        assert!(balance.is_ahead(0, balance.bound()) && !balance.is_ahead(1, balance.bound()));
        balance.add(1, 1);
        assert!(!balance.is_ahead(0, balance.bound()));
        assert_eq!(balance.snapshot(), [100, 1]);
    }

    #[test]
    fn without_a_lead_no_connection_waits() {
        let balance = Balance::new(2, None);
        balance.add(0, 1 << 40);
        assert!(!balance.is_ahead(0, balance.bound()));
    }
}
