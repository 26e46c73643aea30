//! What QEMU is to tell of while a block is executed.

use scope_model::Line;

use crate::accesses::{Accesses, Group, Member, Reach};
use crate::code::BlockId;

/// What a callback is for, in 64 bits, which QEMU carries about: so nothing is looked up for most of them.
///
/// ```text
///  63  62  61  60  59…54   53…32    31…0
///  ┌───┬───┬───┬───┬──────┬────────┬────────┐
///  │beg│wri│man│ 0 │length│ offset │ number │
///  └───┴───┴───┴───┴──────┴────────┴────────┘
/// ```
///
/// With it the block is begun, if `beg` says so. Of a group whose accesses are alike and near each
/// other, `offset` is from the first to the lowest byte and `length` the bytes' number less one;
/// of others (`man`), `number` is that by which its members and its block are looked up, else the block's.
///
/// When it happens the lower bits of the address take the offset's place: those that a line of a page that
/// was told of is [named](scope_model::Line) by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told(pub u64);

const BEGINS: u64 = 1 << 63;
const WRITES: u64 = 1 << 62;
const MANY: u64 = 1 << 61;
/// What no group has.
pub const OTHER: u64 = 1 << 60;
const LENGTH_AT: u32 = 54;
const LENGTH_BITS: u32 = 6;
const OFFSET_AT: u32 = 32;
const OFFSET_BITS: u32 = 22;
const OFFSET: u64 = (1 << OFFSET_BITS) - 1;
const _: () = assert!(OFFSET_BITS == Line::ADDRESS_BITS, "an address takes the offset's place");

/// What an access of QEMU's stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Itself.
    Access,
    /// A group.
    Group(Told),
}

/// What QEMU is to tell of, of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watch {
    /// The instruction's number in its block.
    pub instruction: usize,
    /// Whether what it writes, else what it reads.
    pub write: bool,
    /// What that stands for.
    pub what: What,
}

/// What QEMU is to tell of, of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The block, if it has to be told of by itself: nothing else of it says that it is begun.
    pub block: Option<BlockId>,
    /// Its accesses.
    pub watches: Vec<Watch>,
}

impl Told {
    /// Whether a block is begun with it.
    #[inline]
    pub(crate) fn begins(self) -> bool {
        self.0 & BEGINS != 0
    }

    /// Whether the group begins with what is written; all of it is, unless there are [many](Self::is_many).
    #[inline]
    pub(crate) fn writes(self) -> bool {
        self.0 & WRITES != 0
    }

    /// Whether it is none: the bit is for other things that [happen](crate::Step).
    #[inline]
    pub(crate) fn is_other(self) -> bool {
        self.0 & OTHER != 0
    }

    /// Whether it is a group that nothing is looked up for, or a [block](crate::Step::Block).
    #[inline]
    pub(crate) fn is_plain(self) -> bool {
        const PLAIN: u64 = 1 << 0b0000 | 1 << 0b0100 | 1 << 0b1000 | 1 << 0b1100 | 1 << 0b1001;
        PLAIN >> (self.0 >> 60) & 1 != 0
    }

    /// Whether its members are to be looked up.
    #[inline]
    pub(crate) fn is_many(self) -> bool {
        self.0 & MANY != 0
    }

    /// The block's number, or that of the members.
    #[inline]
    pub(crate) fn number(self) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "these 32 bits")]
        let number = self.0 as u32;
        number
    }

    /// The bytes of the group after its first.
    #[inline]
    pub(crate) fn length(self) -> u64 {
        self.0 >> LENGTH_AT & ((1 << LENGTH_BITS) - 1)
    }

    /// The first byte of the group whose first access is at `address`.
    #[inline]
    pub(crate) fn first(self, address: u64) -> u64 {
        let offset = (self.0 << (64 - OFFSET_AT - OFFSET_BITS)).cast_signed() >> (64 - OFFSET_BITS);
        address.wrapping_add(offset.cast_unsigned())
    }

    /// That it happens, at an address: the [first](Self::first) byte's.
    #[inline]
    #[must_use]
    pub(crate) fn at(self, address: u64) -> Self {
        Self(self.0 & !(OFFSET << OFFSET_AT) | (address & OFFSET) << OFFSET_AT)
    }

    /// The lower bits of the address that it happens [at](Self::at).
    #[inline]
    pub(crate) fn address(self) -> u64 {
        self.0 >> OFFSET_AT & OFFSET
    }

    /// What a group comes to, without more looking up; none if that can not be said in 64 bits.
    fn near(block: BlockId, group: &Group) -> Option<Self> {
        /// With no more than a line, both ends say which lines there are.
        const LENGTH: usize = scope_model::LINE;
        let reach = Reach::of(&group.members);
        let alike = |member: &Member| member.write == group.begins_with_write();
        let length = usize::try_from(reach.bytes()).ok()?;
        if length > LENGTH || !group.members.iter().all(alike) {
            return None;
        }
        let offset = i64::from(reach.first()).cast_unsigned() & OFFSET;
        let writes = if group.begins_with_write() { WRITES } else { 0 };
        let place = (length as u64 - 1) << LENGTH_AT | offset << OFFSET_AT | u64::from(block.0);
        Some(Self(writes | place))
    }
}

/// What QEMU is to tell of, of a block with these accesses. `alone` says that the block has to be told of
/// by itself; `keep` keeps members that are to be looked up, and answers their number.
pub fn plan(
    block: BlockId,
    accesses: &Accesses,
    alone: bool,
    mut keep: impl FnMut(Box<[Member]>) -> usize,
) -> Plan {
    let first = accesses.groups.first().map(|group| group.instruction);
    // Whatever is told of first begins the block.
    let begins = match (first, accesses.others.first()) {
        (Some(first), Some(other)) => first < *other,
        (Some(_), None) => true,
        (None, _) => false,
    } && !alone;
    let groups = accesses.groups.iter().enumerate().map(|(number, group)| {
        let told = Told::near(block, group).unwrap_or_else(|| {
            let number = keep(group.members.clone().into());
            let writes = if group.begins_with_write() { WRITES } else { 0 };
            let number = u32::try_from(number).unwrap_or(u32::MAX);
            Told(MANY | writes | u64::from(number))
        });
        let told = if begins && number == 0 { Told(told.0 | BEGINS) } else { told };
        let write = group.begins_with_write();
        Watch { instruction: group.instruction, write, what: What::Group(told) }
    });
    let others = accesses.others.iter().flat_map(|instruction| {
        [false, true].map(|write| Watch { instruction: *instruction, write, what: What::Access })
    });
    Plan { block: (!begins).then_some(block), watches: groups.chain(others).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(instruction: usize, members: &[(i32, u8, bool)]) -> Group {
        let member = |(offset, bytes, write): &(i32, u8, bool)| Member {
            offset: *offset,
            bytes: *bytes,
            write: *write,
        };
        Group { instruction, members: members.iter().map(member).collect() }
    }

    fn none(_: Box<[Member]>) -> usize {
        unreachable!("all fit in a word")
    }

    fn told(plan: &Plan) -> Vec<Told> {
        let told = plan.watches.iter().filter_map(|watch| match watch.what {
            What::Group(told) => Some(told),
            What::Access => None,
        });
        told.collect()
    }

    #[test]
    fn what_is_near_and_alike_fits_in_a_word() {
        let near = group(1, &[(0, 8, true), (-16, 8, true), (8, 4, true)]);
        let accesses = Accesses { groups: vec![near], others: vec![] };
        let plan = plan(BlockId(7), &accesses, false, none);
        assert_eq!(plan.block, None);
        let [told] = told(&plan)[..] else { panic!("{plan:?}") };
        assert!(told.begins() && told.writes() && !told.is_many());
        assert_eq!((told.number(), told.first(0x1000), told.length()), (7, 0xff0, 0x1b));
        let happens = told.at(told.first(0xffff_ffff_ff00_0000));
        assert_eq!((happens.number(), happens.address(), happens.length()), (7, 0x3f_fff0, 0x1b));
    }

    #[test]
    fn what_is_far_or_mixed_is_looked_up() {
        let mut many = Vec::new();
        let far = group(0, &[(0, 8, false), (64, 1, false)]);
        let mixed = group(1, &[(0, 8, true), (0, 8, false)]);
        let accesses = Accesses { groups: vec![far, mixed], others: vec![2] };
        let plan = plan(BlockId(7), &accesses, false, |members| {
            many.push(members);
            many.len() - 1
        });
        let told = told(&plan);
        assert!(told.iter().all(|told| told.is_many()));
        assert_eq!(told.iter().map(|told| told.begins()).collect::<Vec<_>>(), [true, false]);
        assert_eq!(told.iter().map(|told| many[told.number() as usize].len()).sum::<usize>(), 4);
        assert_eq!(plan.watches.len(), 4);
    }

    #[test]
    fn a_block_whose_groups_come_late_is_told_of_by_itself() {
        let late = Accesses { groups: vec![group(3, &[(0, 8, false)])], others: vec![1] };
        let empty = Accesses::default();
        let early = Accesses { groups: vec![group(0, &[(0, 8, false)])], others: vec![] };
        for (accesses, alone) in [(late, false), (empty, false), (early, true)] {
            let plan = plan(BlockId(7), &accesses, alone, none);
            assert_eq!(plan.block, Some(BlockId(7)));
            assert!(told(&plan).iter().all(|told| !told.begins()));
        }
    }
}
