//! Which callbacks QEMU has to make while a block is executed.

use crate::access_groups::{Accesses, Member};
use crate::blocks::BlockId;
use crate::group_word::GroupWord;

/// What a callback for an access stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Covers {
    /// This access only.
    Access,
    /// A whole group of accesses.
    Group(GroupWord),
}

/// A callback for the accesses of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessCallback {
    /// The instruction's number in its block.
    pub instruction: usize,
    /// Whether the callback is for writes, else for reads.
    pub write: bool,
    /// What it stands for.
    pub covers: Covers,
}

/// The callbacks of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instrumentation {
    /// The block, if it needs a callback for its execution; otherwise its first group begins it.
    pub block: Option<BlockId>,
    /// The callbacks for its accesses.
    pub accesses: Vec<AccessCallback>,
}

/// The callbacks of a block with these accesses. With `own_callback` the block has a callback for its execution in any case.
/// `index` stores members that do not fit in a word, and returns their index. With `calls` the word of the group that has the
/// slot of a return address says so.
pub fn instrument(
    block: BlockId,
    accesses: &Accesses,
    (own_callback, calls): (bool, bool),
    mut index: impl FnMut(Box<[Member]>) -> usize,
) -> Instrumentation {
    let first = accesses.groups.first().map(|group| group.instruction);
    // A group begins the block if no other access comes first.
    let group_begins = match (first, accesses.others.first()) {
        (Some(first), Some(other)) => first < *other,
        (Some(_), None) => true,
        (None, _) => false,
    } && !own_callback;
    let groups = accesses.groups.iter().enumerate().map(|(number, group)| {
        let word = GroupWord::of(block, group).unwrap_or_else(|| {
            let number = index(group.members.clone().into());
            GroupWord::indexed(u32::try_from(number).unwrap_or(u32::MAX), group)
        });
        let slot = accesses.return_slot.filter(|(slot, _)| calls && *slot == number);
        let word = if slot.is_some() { word.with_slot() } else { word };
        let word = if group_begins && number == 0 { word.beginning_block() } else { word };
        let (instruction, write) = (group.instruction, group.begins_with_write());
        AccessCallback { instruction, write, covers: Covers::Group(word) }
    });
    let others = accesses.others.iter().flat_map(|instruction| {
        let instruction = *instruction;
        [false, true].map(|write| AccessCallback { instruction, write, covers: Covers::Access })
    });
    Instrumentation {
        block: (!group_begins).then_some(block),
        accesses: groups.chain(others).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access_groups::Group;

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

    fn words(instrumentation: &Instrumentation) -> Vec<GroupWord> {
        let words = instrumentation.accesses.iter().filter_map(|callback| match callback.covers {
            Covers::Group(word) => Some(word),
            Covers::Access => None,
        });
        words.collect()
    }

    #[test]
    fn near_accesses_of_one_kind_fit_in_a_word() {
        let near = group(1, &[(0, 8, true), (-16, 8, true), (8, 4, true)]);
        let accesses = Accesses { groups: vec![near], ..Accesses::default() };
        let instrumentation = instrument(BlockId(7), &accesses, (false, false), none);
        assert_eq!(instrumentation.block, None);
        let [word] = words(&instrumentation)[..] else { panic!("{instrumentation:?}") };
        assert!(word.begins_block() && word.writes() && !word.is_indexed());
        assert_eq!((word.number(), word.lowest(0x1000), word.length()), (7, 0xff0, 0x1b));
        let executed = word.at(word.lowest(0xffff_ffff_ff00_0000));
        assert_eq!(
            (executed.number(), executed.address(), executed.length()),
            (7, 0x3f_fff0, 0x1b)
        );
    }

    #[test]
    fn far_or_mixed_accesses_are_indexed() {
        let mut indexed = Vec::new();
        let far = group(0, &[(0, 8, false), (64, 1, false)]);
        let mixed = group(1, &[(0, 8, true), (0, 8, false)]);
        let accesses =
            Accesses { groups: vec![far, mixed], others: vec![2], ..Accesses::default() };
        let instrumentation = instrument(BlockId(7), &accesses, (false, false), |members| {
            indexed.push(members);
            indexed.len() - 1
        });
        let words = words(&instrumentation);
        assert!(words.iter().all(|word| word.is_indexed()));
        assert_eq!(words.iter().map(|word| word.begins_block()).collect::<Vec<_>>(), [true, false]);
        let members = words.iter().map(|word| indexed[word.number() as usize].len());
        assert_eq!(members.sum::<usize>(), 4);
        assert_eq!(instrumentation.accesses.len(), 4);
    }

    #[test]
    fn a_block_whose_groups_come_late_has_its_own_callback() {
        let no_others = Accesses::default;
        let late =
            Accesses { groups: vec![group(3, &[(0, 8, false)])], others: vec![1], ..no_others() };
        let empty = Accesses::default();
        let early = Accesses { groups: vec![group(0, &[(0, 8, false)])], ..no_others() };
        for (accesses, own_callback) in [(late, false), (empty, false), (early, true)] {
            let instrumentation = instrument(BlockId(7), &accesses, (own_callback, false), none);
            assert_eq!(instrumentation.block, Some(BlockId(7)));
            assert!(words(&instrumentation).iter().all(|word| !word.begins_block()));
        }
    }
}
