//! Sets of modelled TLBs.

use crate::geometry::TLB_SIZES;
use crate::policy::Policy;

/// The number of TLBs for one page size of one side: every size under every policy.
pub const TLBS: usize = TLB_SIZES * Policy::ALL.len();

/// A set of TLBs, one bit each. The bits of a policy are neighbours, the smallest TLB first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlbSet(pub u64);

impl TlbSet {
    /// No TLB.
    pub const NONE: Self = Self(0);
    /// Every TLB.
    pub const ALL: Self = Self((1 << TLBS) - 1);

    /// All sizes under one policy.
    #[must_use]
    pub const fn of(policy: Policy) -> Self {
        Self(((1 << TLB_SIZES) - 1) << (policy as usize * TLB_SIZES))
    }

    /// One TLB; `size` is an index into [`TLB_ENTRIES`](crate::TLB_ENTRIES).
    #[must_use]
    pub const fn one(policy: Policy, size: usize) -> Self {
        Self(1 << (policy as usize * TLB_SIZES + size))
    }

    /// This set if `condition` holds, else none.
    #[inline]
    #[must_use]
    pub const fn only_if(self, condition: bool) -> Self {
        Self(self.0 & (condition as u64).wrapping_neg())
    }

    /// The TLBs of either set.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The TLBs of this set that `other` does not have.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether both sets have a TLB in common.
    #[must_use]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// The numbers of the TLBs, in ascending order.
    pub(crate) fn numbers(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            (left != 0).then(|| {
                let number = left.trailing_zeros() as usize;
                left &= left - 1;
                number
            })
        })
    }
}
