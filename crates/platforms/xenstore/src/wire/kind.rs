//! Message types.

named::each! {
    /// What a message asks or answers (`enum xsd_sockmsg_type`).
    ///
    /// 0 (CONTROL) and 20 (RESTRICT, withdrawn) are left out, as this project neither sends nor serves
    /// them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[repr(u32)]
    pub enum Kind {
        /// The names of a node's children.
        Directory = 1,
        /// A node's value.
        Read = 2,
        /// A node's permissions.
        GetPerms = 3,
        /// Registers a watch.
        Watch = 4,
        /// Removes a watch.
        Unwatch = 5,
        /// Starts a transaction.
        TransactionStart = 6,
        /// Commits or discards a transaction.
        TransactionEnd = 7,
        /// Makes a domain known to the store.
        Introduce = 8,
        /// Makes the store forget a domain.
        Release = 9,
        /// Where a domain's relative paths start.
        GetDomainPath = 10,
        /// Writes a node's value.
        Write = 11,
        /// Makes a node.
        Mkdir = 12,
        /// Removes a node and all below it.
        Rm = 13,
        /// Changes a node's permissions.
        SetPerms = 14,
        /// Unasked, from the store: a watch fired.
        WatchEvent = 15,
        /// From the store: the request failed.
        Error = 16,
        /// Whether a domain is known to the store.
        IsDomainIntroduced = 17,
        /// Arms `@releaseDomain` again for a domain.
        Resume = 18,
        /// Gives one domain the rights of another.
        SetTarget = 19,
        /// Drops all watches and transactions of the caller.
        ResetWatches = 21,
        /// A part of a list of children too long for one message.
        DirectoryPart = 22,
    }
}

impl Kind {
    /// The type with this number; none if it is unknown.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.number() == number)
    }

    /// The number on the wire.
    #[must_use]
    pub fn number(self) -> u32 {
        self as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_xs_wire_h() {
        let numbers: Vec<u32> = Kind::ALL.into_iter().map(Kind::number).collect();
        let expected: Vec<u32> = (1..=19).chain(21..=22).collect();
        assert_eq!(numbers, expected);
        assert_eq!(Kind::from_number(Kind::Rm.number()), Some(Kind::Rm));
        for unknown in [0, 20, 23, 0xffff, u32::MAX] {
            assert_eq!(Kind::from_number(unknown), None);
        }
    }
}
