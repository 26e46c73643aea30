//! A group of accesses in 64 bits.

use scope_model::LineId;

use crate::access_groups::{Extent, Group, Member};
use crate::blocks::BlockId;

/// A group of accesses in 64 bits, which QEMU passes to the callback. Most groups therefore need no table.
///
/// ```text
///  63  62  61  60  59…54   53…32    31  30…0
///  ┌───┬───┬───┬───┬──────┬────────┬───┬────────┐
///  │beg│wri│ind│ 0 │length│ offset │ret│ number │
///  └───┴───┴───┴───┴──────┴────────┴───┴────────┘
/// ```
///
/// `beg` says that the group begins its block. If the accesses of a group are all reads or all writes and near each other,
/// `offset` is the distance from the first access to the lowest byte, `length` is the number of bytes less one, and `number`
/// is the block's. Otherwise (`ind`) `number` is an index to the group's members and its block. `ret` says that one of the
/// accesses is to a return address, and that the call graph follows it.
///
/// When the group is executed, the lower bits of its address replace the offset: those that a
/// [`LineId`](scope_model::LineId) depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GroupWord(pub u64);

const BEGINS_BLOCK: u64 = 1 << 63;
const WRITES: u64 = 1 << 62;
const INDEXED: u64 = 1 << 61;
/// The bit that no group has, and all other [events](crate::TraceEvent) have.
pub const NO_GROUP: u64 = 1 << 60;
/// The bit of groups with an access to a return address.
const HAS_SLOT: u64 = 1 << 31;
const NUMBER: u64 = HAS_SLOT - 1;
const LENGTH_AT: u32 = 54;
const LENGTH_BITS: u32 = 6;
const OFFSET_AT: u32 = 32;
const OFFSET_BITS: u32 = 22;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;
const _: () = assert!(OFFSET_BITS == LineId::ADDRESS_BITS, "an address replaces the offset");

impl GroupWord {
    /// The word of a group of `block`; none if the group needs more than 64 bits.
    pub(crate) fn of(block: BlockId, group: &Group) -> Option<Self> {
        /// In a group of no more than a line, the first and the last byte tell all lines.
        const LENGTH: usize = scope_model::LINE;
        let extent = Extent::of(&group.members);
        let alike = |member: &Member| member.write == group.begins_with_write();
        let length = usize::try_from(extent.bytes()).ok()?;
        if length > LENGTH || !group.members.iter().all(alike) {
            return None;
        }
        let offset = i64::from(extent.first()).cast_unsigned() & OFFSET;
        let writes = if group.begins_with_write() { WRITES } else { 0 };
        let place = (length as u64 - 1) << LENGTH_AT | offset << OFFSET_AT | u64::from(block.0);
        Some(Self(writes | place))
    }

    /// The word of a group whose members have the index `number`.
    pub(crate) fn indexed(number: u32, group: &Group) -> Self {
        let writes = if group.begins_with_write() { WRITES } else { 0 };
        Self(INDEXED | writes | u64::from(number))
    }

    /// The same group, which begins its block.
    #[must_use]
    pub(crate) fn beginning_block(self) -> Self {
        Self(self.0 | BEGINS_BLOCK)
    }

    /// The same group, with the slot of a return address.
    #[must_use]
    pub(crate) fn with_slot(self) -> Self {
        Self(self.0 | HAS_SLOT)
    }

    /// Whether the group begins its block, and whether its members have to be looked up.
    #[must_use]
    pub fn shape(self) -> (bool, bool) {
        (self.begins_block(), self.is_indexed())
    }

    /// Whether it has the slot of a return address.
    #[inline]
    pub(crate) fn has_slot(self) -> bool {
        self.0 & HAS_SLOT != 0
    }

    #[inline]
    pub(crate) fn begins_block(self) -> bool {
        self.0 & BEGINS_BLOCK != 0
    }

    /// Whether the first access is a write; all are alike, unless the group is [indexed](Self::is_indexed).
    #[inline]
    pub(crate) fn writes(self) -> bool {
        self.0 & WRITES != 0
    }

    /// Whether the word is no group but another [event](crate::TraceEvent).
    #[inline]
    pub(crate) fn is_no_group(self) -> bool {
        self.0 & NO_GROUP != 0
    }

    /// Whether the word is a group that is not indexed, or a [block](crate::TraceEvent::Block).
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        const PLAIN: u64 = 1 << 0b0000 | 1 << 0b0100 | 1 << 0b1000 | 1 << 0b1100 | 1 << 0b1001;
        PLAIN >> (self.0 >> 60) & 1 != 0
    }

    /// Whether the members have to be looked up.
    #[inline]
    pub(crate) fn is_indexed(self) -> bool {
        self.0 & INDEXED != 0
    }

    /// The block's number, or the index of the members.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        (self.0 & NUMBER) as u32
    }

    /// The number of bytes from the lowest to the highest, less one.
    #[inline]
    pub(crate) fn length(self) -> u64 {
        self.0 >> LENGTH_AT & ((1 << LENGTH_BITS) - 1)
    }

    /// The lowest byte of the group if its first access is at `address`.
    #[inline]
    pub(crate) fn lowest(self, address: u64) -> u64 {
        let offset = (self.0 << (64 - OFFSET_AT - OFFSET_BITS)).cast_signed() >> (64 - OFFSET_BITS);
        address.wrapping_add(offset.cast_unsigned())
    }

    /// The group, executed with its [lowest](Self::lowest) byte at `address`.
    #[inline]
    #[must_use]
    pub(crate) fn at(self, address: u64) -> Self {
        Self(self.0 & !(OFFSET << OFFSET_AT) | (address & OFFSET) << OFFSET_AT)
    }

    /// The lower bits of the address that it was executed [at](Self::at).
    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.0 >> OFFSET_AT & OFFSET
    }
}
