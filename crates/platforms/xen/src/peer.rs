//! Other domains.

use hypervisor::{DomId, Error};

/// The first reserved number (`DOMID_FIRST_RESERVED`). Numbers from here on mean the caller itself,
/// Xen, or no domain.
const FIRST_RESERVED: u16 = 0x7FF0;

/// Another domain, by its number. Xen looks it up at each use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(DomId);

impl Peer {
    /// The domain with this number, which need not exist.
    pub(crate) fn new(domain: DomId) -> Result<Self, Error> {
        if domain.0 >= FIRST_RESERVED {
            return Err(Error::NoDomain(domain));
        }
        Ok(Self(domain))
    }

    /// Its number.
    #[must_use]
    pub fn domain(self) -> DomId {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_domain_numbers_are_refused() {
        for domain in [0, 1, 0x7FEF] {
            assert_eq!(Peer::new(DomId(domain)).unwrap().domain(), DomId(domain));
        }
        for domain in [0x7FF0, 0x7FF1, 0x7FFF, u16::MAX] {
            assert!(matches!(Peer::new(DomId(domain)), Err(Error::NoDomain(_))));
        }
    }
}
