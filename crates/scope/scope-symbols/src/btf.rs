//! The layout of the kernel's structures, from the table (BTF) that it carries for BPF programs.

use object::Endianness;
use object::read::elf::ElfFile64;
use object::read::{Object as _, ObjectSection as _};

use crate::bytes::{size_at, u16_at, u32_at};

const MAGIC: u16 = 0xeb9f;
/// The deepest nesting of anonymous structures.
const DEEPEST: u32 = 8;
/// Bytes of a type's fixed part, and of a member.
const TYPE: usize = 12;
const MEMBER: usize = 12;
/// The kinds of types that have members.
const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// The types of a kernel (`Documentation/bpf/btf.rst`).
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type begins, from type 1 on.
    starts: Vec<usize>,
}

impl<'a> Btf<'a> {
    /// The types in a kernel's uncompressed ELF file. None if it has none, as kernels without `CONFIG_DEBUG_INFO_BTF`.
    #[must_use]
    pub fn of_kernel(vmlinux: &'a [u8]) -> Option<Self> {
        let file = ElfFile64::<Endianness>::parse(vmlinux).ok()?;
        Self::parse(file.section_by_name(".BTF")?.data().ok()?)
    }

    /// The types in such a section.
    #[must_use]
    pub fn parse(section: &'a [u8]) -> Option<Self> {
        if u16_at(section, 0)? != MAGIC {
            return None;
        }
        let body = section.get(size_at(section, 4)?..)?;
        let part = |at: usize| {
            let (first, length) = (size_at(section, at)?, size_at(section, at + 4)?);
            body.get(first..first.checked_add(length)?)
        };
        let (types, strings) = (part(8)?, part(16)?);
        let (mut starts, mut at) = (Vec::new(), 0);
        while at < types.len() {
            starts.push(at);
            let info = u32_at(types, at + 4)?;
            let count = (info & 0xffff) as usize;
            at += TYPE
                + match info >> 24 & 0x1f {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => count * 12,
                    6 | 13 => count * 8,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        Some(Self { types, strings, starts })
    }

    /// The offset of a structure's member, in bytes. Members of anonymous structures within it count as its own.
    #[must_use]
    pub fn offset_of(&self, structure: &str, member: &str) -> Option<u32> {
        let named = |at: &&usize| {
            let is_struct =
                u32_at(self.types, **at + 4).is_some_and(|info| info >> 24 & 0x1f == STRUCT);
            is_struct && self.is_named(**at, structure)
        };
        let at = self.starts.iter().find(named)?;
        let bits = self.bits_to(*at, member, DEEPEST)?;
        (bits % 8 == 0).then_some(bits / 8)
    }

    fn bits_to(&self, at: usize, member: &str, deepest: u32) -> Option<u32> {
        let info = u32_at(self.types, at + 4)?;
        if !matches!(info >> 24 & 0x1f, STRUCT | UNION) || deepest == 0 {
            return None;
        }
        // In a structure with bit fields, the upper 8 bits of an offset are the field's length.
        let mask = if info >> 31 == 0 { u32::MAX } else { 0xff_ffff };
        (0..(info & 0xffff) as usize).find_map(|number| {
            let place = at + TYPE + number * MEMBER;
            let bits = u32_at(self.types, place + 8)? & mask;
            if self.is_named(place, member) {
                return Some(bits);
            }
            let within = self.starts.get(size_at(self.types, place + 4)?.checked_sub(1)?)?;
            let deeper = || {
                self.bits_to(*within, member, deepest - 1).and_then(|more| bits.checked_add(more))
            };
            self.is_named(place, "").then(deeper)?
        })
    }

    /// Whether the name at a place of the table is this one.
    fn is_named(&self, place: usize, name: &str) -> bool {
        let rest = size_at(self.types, place).and_then(|at| self.strings.get(at..));
        rest.and_then(|rest| rest.strip_prefix(name.as_bytes()))
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// `struct outer { int a; union { struct { int b; int c; }; }; int d : 3; }`, and a forward declaration.
    fn section() -> Vec<u8> {
        let strings = b"\0outer\0a\0b\0c\0d\0int\0";
        let name = |name: &[u8]| {
            let with_end = [name, b"\0"].concat();
            let at = strings.windows(with_end.len()).position(|part| part == with_end);
            u32::try_from(at.expect("a string")).expect("small")
        };
        let words: Vec<u32> = [
            // 1: int
            vec![name(b"int"), 1 << 24, 4, 32],
            // 2: struct { int b; int c; }
            vec![0, STRUCT << 24 | 2, 8, name(b"b"), 1, 0, name(b"c"), 1, 32],
            // 3: union of it
            vec![0, UNION << 24 | 1, 8, 0, 2, 0],
            // 4: a forward declaration of the same name
            vec![name(b"outer"), 7 << 24, 0],
            // 5: the structure, with lengths of bit fields in offsets
            vec![name(b"outer"), 1 << 31 | STRUCT << 24 | 3, 16],
            vec![name(b"a"), 1, 0, 0, 3, 32, name(b"d"), 1, 3 << 24 | 97],
        ]
        .concat();
        let types: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let length = |bytes: &[u8]| u32::try_from(bytes.len()).expect("small");
        let (types_len, strings_len) = (length(&types), length(strings));
        let head = [MAGIC.to_le_bytes(), [1, 0]].concat();
        let sizes = [24, 0, types_len, types_len, strings_len].map(u32::to_le_bytes).concat();
        [&head[..], &sizes, &types, strings].concat()
    }

    #[test]
    fn members_are_found_in_anonymous_structures_too() {
        let section = section();
        let btf = Btf::parse(&section).expect("valid");
        for (member, offset) in
            [("a", Some(0)), ("b", Some(4)), ("c", Some(8)), ("d", None), ("e", None)]
        {
            assert_eq!(btf.offset_of("outer", member), offset, "{member}");
        }
        assert_eq!(btf.offset_of("inner", "a"), None);
        assert_eq!(btf.offset_of("", "b"), Some(0));
    }

    proptest! {
        #[test]
        fn damaged_tables_give_no_panic(at in 0usize..200, to: u8, length in 0usize..250) {
            let mut section = section();
            let place = at % section.len();
            section[place] = to;
            section.truncate(length);
            if let Some(btf) = Btf::parse(&section) {
                let _ = btf.offset_of("outer", "c");
            }
        }
    }
}
