//! An XDP program that drops ICMP and passes everything else, as an object file for `ip link`.

use std::ops::Range;

/// An instruction of `linux/bpf.h`: code, destination register, source register, offset and immediate.
type Instruction = (u8, u8, u8, i16, i32);

const PROGRAM: [Instruction; 12] = [
    // r2 = data, r3 = data_end
    (0x61, 2, 1, 0, 0),
    (0x61, 3, 1, 4, 0),
    // r0 = XDP_PASS
    (0xb7, 0, 0, 0, 2),
    // A frame that is shorter than its headers passes.
    (0xbf, 4, 2, 0, 0),
    (0x07, 4, 0, 0, 34),
    (0x2d, 4, 3, 5, 0),
    // So does a frame that is not IPv4. This is the EtherType as a little-endian load gives it.
    (0x69, 5, 2, 12, 0),
    (0x55, 5, 0, 3, 0x0008),
    // So does a packet that is not ICMP.
    (0x71, 5, 2, 23, 0),
    (0x55, 5, 0, 1, 1),
    // r0 = XDP_DROP
    (0xb7, 0, 0, 0, 1),
    (0x95, 0, 0, 0, 0),
];

/// The name of [`drop_icmp`]'s section, by which `ip link` finds the program and its type.
pub const SECTION: &str = "xdp";
/// The names of the sections and of the program; below, the offset of each name.
const NAMES: &[u8] = b"\0xdp\0.symtab\0.strtab\0drop_icmp\0";
const XDP: u32 = 1;
const SYMTAB: u32 = 5;
const STRTAB: u32 = 13;
const DROP_ICMP: u32 = 21;

/// Bytes of the file's header, of a section's and of a symbol.
const HEADER: usize = 64;
const SECTION_HEADER: u16 = 64;
const SYMBOL: usize = 24;
const EM_BPF: u16 = 247;

/// The program as a relocatable ELF file: header, program, symbols, names, and a table with an empty section and these three.
pub fn drop_icmp() -> Vec<u8> {
    let text: Vec<u8> = PROGRAM.into_iter().flat_map(instruction).collect();
    let symbols = [vec![0; SYMBOL], symbol(text.len())].concat();
    let (symtab, strtab) = (HEADER + text.len(), HEADER + text.len() + symbols.len());
    let end = strtab + NAMES.len();
    let table = end.next_multiple_of(8);
    let section = |name, kind, place| Section { name, kind, place, ..Section::default() };
    let sections = [
        vec![0; SECTION_HEADER.into()],
        // PROGBITS, to be executed.
        Section { flags: 6, ..section(XDP, 1, HEADER..symtab) }.bytes(),
        // SYMTAB: its names are in section 3, and its first global symbol is number 1.
        Section { link: 3, info: 1, entry: SYMBOL, ..section(SYMTAB, 2, symtab..strtab) }.bytes(),
        section(STRTAB, 3, strtab..end).bytes(),
    ];
    let mut file = header(table);
    file.extend([&text, &symbols, NAMES].concat());
    file.resize(table, 0);
    file.extend(sections.concat());
    file
}

fn instruction((code, to, from, offset, immediate): Instruction) -> Vec<u8> {
    let registers = to | from << 4;
    [&[code, registers][..], &offset.to_le_bytes(), &immediate.to_le_bytes()].concat()
}

/// `Elf64_Ehdr` of a file with four sections. Section 3 has the names of sections.
fn header(table: usize) -> Vec<u8> {
    let half = |value: u16| value.to_le_bytes().to_vec();
    [
        // 64 bits, little-endian, version 1; relocatable.
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".to_vec(),
        half(1),
        half(EM_BPF),
        1_u32.to_le_bytes().to_vec(),
        vec![0; 16],
        (table as u64).to_le_bytes().to_vec(),
        vec![0; 4],
        half(SECTION_HEADER),
        vec![0; 4],
        half(SECTION_HEADER),
        half(4),
        half(3),
    ]
    .concat()
}

/// `Elf64_Shdr`: a section's place in the file.
#[derive(Default)]
struct Section {
    name: u32,
    kind: u32,
    flags: u64,
    place: Range<usize>,
    link: u32,
    info: u32,
    entry: usize,
}

impl Section {
    fn bytes(self) -> Vec<u8> {
        let word = |value: u32| value.to_le_bytes().to_vec();
        let long = |value: u64| value.to_le_bytes().to_vec();
        let [start, len, entry] =
            [self.place.start, self.place.len(), self.entry].map(|value| long(value as u64));
        let (kind, place) = ([word(self.name), word(self.kind)], [long(0), start, len]);
        let rest = [word(self.link), word(self.info), long(1), entry];
        [kind.concat(), long(self.flags), place.concat(), rest.concat()].concat()
    }
}

/// `Elf64_Sym` of the program: a global function in section 1.
fn symbol(len: usize) -> Vec<u8> {
    let (name, size) = (DROP_ICMP.to_le_bytes(), (len as u64).to_le_bytes());
    [&name[..], &[0x12, 0, 1, 0], &[0; 8], &size].concat()
}

#[cfg(test)]
mod tests {
    use object::read::elf::ElfFile64;
    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};

    use super::*;

    #[test]
    fn the_object_has_the_program_in_its_section() {
        let bytes = drop_icmp();
        let file: ElfFile64<'_> = ElfFile64::parse(&bytes[..]).expect("an ELF file");
        let section = file.section_by_name(SECTION).expect("the section");
        assert_eq!(section.data().expect("in the file").len(), 8 * PROGRAM.len());
        let symbol = file.symbols().next().expect("the program");
        assert_eq!(symbol.name(), Ok("drop_icmp"));
        assert_eq!((symbol.section_index(), symbol.size()), (Some(section.index()), 96));
        assert!(symbol.is_global() && symbol.is_definition());
    }
}
