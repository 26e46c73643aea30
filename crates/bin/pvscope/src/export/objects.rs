//! Files with the code that ran, for tools that disassemble: KCachegrind has `objdump` read the file that callgrind's `ob=` names.
//!
//! The programs and kernels themselves do not serve: kernels are compressed and patched, and programs run at other addresses
//! than their files have.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::{
    EM_X86_64, ET_EXEC, SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS, STB_GLOBAL, STT_FUNC, SymbolOther,
    SymbolSection,
};
use object::write::elf::{FileHeader, SectionHeader, SectionIndex, Sym, Writer};
use scope_result::Block;

use crate::error::{Error, Result};
use crate::programs::absolute;

/// The most bytes of a file's name, without the number that makes it unique.
const NAME_MAX: usize = 200;

/// Bytes of code at consecutive addresses.
#[derive(Debug, PartialEq)]
pub struct Range {
    /// The address of the first byte.
    pub address: u64,
    pub bytes: Vec<u8>,
}

impl Range {
    /// The address after the last byte.
    fn end(&self) -> u64 {
        self.address + self.bytes.len() as u64
    }
}

/// The first block of a function, or of a part of it that lies after other functions.
#[derive(Debug, PartialEq)]
pub struct Symbol {
    /// The name of the function.
    pub name: String,
    /// The address of the block.
    pub address: u64,
    /// Its range: an index into [`Code::ranges`].
    pub range: usize,
}

/// The code of an object.
#[derive(Debug, Default, PartialEq)]
pub struct Code {
    /// The code, by address.
    pub ranges: Vec<Range>,
    /// The functions, by address.
    pub symbols: Vec<Symbol>,
}

impl Code {
    /// The code of blocks with the names of their functions. Where blocks differ in a byte, because processes have different
    /// code at an address or because it changed, the block that begins first has it, and of these the one that ran first.
    fn new(mut blocks: Vec<(&Block, &str)>) -> Self {
        // The sort is stable: blocks with the same address stay in the order in which they ran first.
        blocks.sort_by_key(|(block, _)| block.address);
        // The address after the last byte is a number too.
        blocks.retain(|(block, _)| !block.code.is_empty() && block.address < u64::MAX);
        let mut code = Self::default();
        for (block, function) in blocks {
            code.add(block);
            let last = code.symbols.last();
            if last.is_none_or(|last| last.name != function && last.address != block.address) {
                let (name, range) = (function.to_owned(), code.ranges.len() - 1);
                code.symbols.push(Symbol { name, address: block.address, range });
            }
        }
        code
    }

    /// Adds the bytes of a block that are not there yet. It begins no earlier than the blocks before.
    fn add(&mut self, block: &Block) {
        if self.ranges.last().is_none_or(|last| last.end() < block.address) {
            self.ranges.push(Range { address: block.address, bytes: Vec::new() });
        }
        let Some(range) = self.ranges.last_mut() else { return };
        let end = range.end();
        let as_index = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        let new = block.code.get(as_index(end - block.address)..).unwrap_or_default();
        range.bytes.extend(new.iter().take(as_index(u64::MAX - end)));
    }
}

/// The files of a recording's objects.
pub struct Objects {
    folder: PathBuf,
    /// The name of each object's file, and its code.
    files: BTreeMap<String, (String, Code)>,
}

impl Objects {
    /// The files beside `out`, in a folder of that name with `.objects`, of these blocks with the names of their objects and
    /// functions.
    pub fn new<'a>(
        out: &Path,
        blocks: impl Iterator<Item = (&'a Block, &'a str, &'a str)>,
    ) -> Result<Self> {
        let mut by_object = BTreeMap::<&str, Vec<(&Block, &str)>>::new();
        for (block, object, function) in blocks {
            by_object.entry(object).or_default().push((block, function));
        }
        let mut used = BTreeSet::new();
        let files = by_object.into_iter().map(|(object, blocks)| {
            let file = unused(&file_name(object), &mut used);
            (object.to_owned(), (file, Code::new(blocks)))
        });
        let mut folder = OsString::from(absolute(out)?);
        folder.push(".objects");
        Ok(Self { folder: folder.into(), files: files.collect() })
    }

    /// The path of an object's file.
    pub fn path(&self, object: &str) -> Option<PathBuf> {
        self.files.get(object).map(|(file, _)| self.folder.join(file))
    }

    /// Writes all files.
    pub fn write(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder).map_err(Error::path(&self.folder))?;
        for (file, code) in self.files.values() {
            let path = self.folder.join(file);
            let bytes = elf_file(code).map_err(Error::path(&path))?;
            ::report::write_atomic(&path, &bytes)?;
        }
        Ok(())
    }
}

fn file_name(object: &str) -> String {
    let plain = |character: char| {
        let keeps = character.is_ascii_alphanumeric() || "._+-[]".contains(character);
        if keeps { character } else { '-' }
    };
    object.chars().map(plain).take(NAME_MAX).collect()
}

/// The name, with a number if it is used already.
fn unused(name: &str, used: &mut BTreeSet<String>) -> String {
    let numbered = (2..).map(|number| format!("{name}.{number}"));
    let mut names = std::iter::once(name.to_owned()).chain(numbered);
    // An endless list has a name that is not used.
    let free = names.find(|name| !used.contains(name)).unwrap_or_default();
    used.insert(free.clone());
    free
}

/// The file of this code.
fn elf_file(code: &Code) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    write(code, &mut bytes).map_err(io::Error::other)?;
    Ok(bytes)
}

fn write(code: &Code, bytes: &mut Vec<u8>) -> object::write::Result<()> {
    // A name in the file ends with a zero.
    let names: Vec<String> =
        code.symbols.iter().map(|symbol| symbol.name.replace('\0', "")).collect();
    let mut writer = Writer::new(Endianness::Little, true, bytes);
    writer.reserve_file_header();
    let text = writer.add_section_name(b".text");
    let sections: Vec<(SectionIndex, u64)> = code
        .ranges
        .iter()
        .map(|range| (writer.reserve_section_index(), writer.reserve(range.bytes.len() as u64, 1)))
        .collect();
    writer.reserve_null_symbol_index();
    let symbols: Vec<_> = code
        .symbols
        .iter()
        .zip(&names)
        .map(|(symbol, name)| {
            let section = sections.get(symbol.range).map(|(section, _)| *section);
            writer.reserve_symbol_index(section);
            (symbol, writer.add_string(name.as_bytes()), section)
        })
        .collect();
    writer.reserve_symtab_section_index();
    writer.reserve_symtab();
    if writer.symtab_shndx_needed() {
        writer.reserve_symtab_shndx_section_index();
    }
    writer.reserve_symtab_shndx();
    writer.reserve_strtab_section_index();
    writer.reserve_strtab()?;
    writer.reserve_shstrtab_section_index();
    writer.reserve_shstrtab()?;
    writer.reserve_section_headers();

    writer.write_file_header(&FileHeader {
        e_type: ET_EXEC,
        e_machine: EM_X86_64,
        ..FileHeader::default()
    })?;
    code.ranges.iter().for_each(|range| writer.write(&range.bytes));
    writer.write_null_symbol();
    for (symbol, name, section) in symbols {
        writer.write_symbol(&Sym {
            section: section.map(|section| section.0),
            st_name: writer.string_offset(Some(name)),
            st_info: STT_FUNC | STB_GLOBAL,
            st_value: symbol.address,
            st_other: SymbolOther::default(),
            st_shndx: SymbolSection::default(),
            st_size: 0,
        });
    }
    writer.write_symtab_shndx();
    writer.write_strtab();
    writer.write_shstrtab();
    writer.write_null_section_header();
    for (range, (_, offset)) in code.ranges.iter().zip(sections) {
        writer.write_section_header(&SectionHeader {
            sh_name: writer.section_name_offset(Some(text)),
            sh_type: SHT_PROGBITS,
            sh_flags: SHF_ALLOC | SHF_EXECINSTR,
            sh_addr: range.address,
            sh_offset: offset,
            sh_size: range.bytes.len() as u64,
            sh_addralign: 1,
            ..SectionHeader::default()
        });
    }
    // The null symbol is the only local one.
    writer.write_symtab_section_header(1);
    writer.write_symtab_shndx_section_header();
    writer.write_strtab_section_header();
    writer.write_shstrtab_section_header();
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use object::{Object as _, ObjectSection as _, ObjectSymbol as _};
    use proptest::prelude::*;
    use scope_result::Mode;

    use super::*;

    fn block(address: u64, code: &[u8]) -> Block {
        Block { code: code.to_vec(), mode: Mode::Kernel, ..Block::at(address) }
    }

    fn code(blocks: &[(Block, &str)]) -> Code {
        Code::new(blocks.iter().map(|(block, function)| (block, *function)).collect())
    }

    fn ranges(code: &Code) -> Vec<(u64, &[u8])> {
        code.ranges.iter().map(|range| (range.address, &range.bytes[..])).collect()
    }

    fn symbols(code: &Code) -> Vec<(&str, u64)> {
        code.symbols.iter().map(|symbol| (&symbol.name[..], symbol.address)).collect()
    }

    #[test]
    fn blocks_that_touch_or_overlap_are_one_range() {
        let code = code(&[
            (block(0x104, &[4, 5, 6]), "f"),
            (block(0x100, &[0, 1, 2, 3]), "f"),
            (block(0x102, &[2, 3, 4]), "f"),
            (block(0x108, &[8]), "g"),
            (block(0x10a, &[10]), "f"),
        ]);
        let expected = [(0x100, &[0, 1, 2, 3, 4, 5, 6][..]), (0x108, &[8]), (0x10a, &[10])];
        assert_eq!(ranges(&code), expected);
        assert_eq!(symbols(&code), [("f", 0x100), ("g", 0x108), ("f", 0x10a)]);
    }

    #[test]
    fn of_different_code_at_one_address_the_first_stays() {
        let code = code(&[(block(0x100, &[1, 1]), "f"), (block(0x100, &[2, 2, 2]), "g")]);
        assert_eq!(ranges(&code), [(0x100, &[1, 1, 2][..])]);
        assert_eq!(symbols(&code), [("f", 0x100)]);
    }

    #[test]
    fn code_ends_with_the_address_space() {
        let code = code(&[(block(u64::MAX - 2, &[1, 2, 3, 4]), "f"), (block(u64::MAX, &[5]), "g")]);
        assert_eq!(ranges(&code), [(u64::MAX - 2, &[1, 2][..])]);
    }

    #[test]
    fn names_of_files_are_plain_and_differ() {
        let block = block(0x100, &[0xc3]);
        let names = ["Xen/xen", "domU 1/../../etc/x", "domU 1/..-../etc/x", "dom0/[vdso]"];
        let blocks = names.iter().map(|name| (&block, *name, "f"));
        let objects = Objects::new(Path::new("/out/tx.callgrind"), blocks).unwrap();
        let path = |name| objects.path(name).unwrap().display().to_string();
        assert_eq!(
            names.map(path),
            [
                "/out/tx.callgrind.objects/Xen-xen",
                "/out/tx.callgrind.objects/domU-1-..-..-etc-x.2",
                "/out/tx.callgrind.objects/domU-1-..-..-etc-x",
                "/out/tx.callgrind.objects/dom0-[vdso]",
            ]
        );
        assert_eq!(objects.path("dom0/other"), None);
        assert!(file_name(&"x/".repeat(1000)).len() <= NAME_MAX);
    }

    #[test]
    fn there_may_be_more_ranges_than_a_symbol_has_section_numbers() {
        const RANGES: u64 = 70_000;
        let address = |number: u64| 0x1000 + number * 2;
        let blocks: Vec<_> = (0..RANGES).map(|number| block(address(number), &[0xc3])).collect();
        let names = ["f", "g"].into_iter().cycle();
        let bytes = elf_file(&Code::new(blocks.iter().zip(names).collect())).unwrap();
        let file = object::File::parse(&bytes[..]).unwrap();
        let symbols: Vec<_> = file.symbols().filter(object::ObjectSymbol::is_definition).collect();
        assert_eq!(symbols.len() as u64, RANGES);
        for (number, symbol) in (0..).zip(symbols) {
            let section = file.section_by_index(symbol.section_index().unwrap()).unwrap();
            assert_eq!((symbol.address(), section.address()), (address(number), address(number)));
            assert_eq!(section.data().unwrap(), [0xc3]);
        }
    }

    /// Blocks near one another, some at the end of the address space.
    fn blocks() -> impl Strategy<Value = Vec<(Block, String)>> {
        let address = prop_oneof![0u64..600, (0u64..600).prop_map(|back| u64::MAX - back)];
        let name = prop_oneof![Just("f".to_owned()), Just("a\0b\n".to_owned()), any::<String>()];
        let bytes = prop::collection::vec(any::<u8>(), 0..40);
        let one = (address, bytes, name).prop_map(|(at, bytes, name)| (block(at, &bytes), name));
        prop::collection::vec(one, 0..60)
    }

    proptest! {
        #[test]
        fn files_have_the_code_of_all_blocks(blocks in blocks()) {
            let code = Code::new(blocks.iter().map(|(block, name)| (block, &name[..])).collect());
            let bytes = elf_file(&code).unwrap();
            let file = object::File::parse(&bytes[..]).unwrap();
            let mut there = BTreeMap::new();
            for section in file.sections().filter(|section| section.address() > 0 || section.name() == Ok(".text")) {
                for (offset, byte) in (0..).zip(section.data().unwrap()) {
                    prop_assert_eq!(there.insert(section.address() + offset, *byte), None);
                }
            }
            let mut expected = BTreeMap::<u64, Vec<u8>>::new();
            for (block, _) in &blocks {
                let at = |offset: usize| block.address.checked_add(offset as u64);
                for (address, byte) in block.code.iter().enumerate().map(|(n, byte)| (at(n), byte)) {
                    if let Some(address) = address.filter(|address| *address < u64::MAX) {
                        expected.entry(address).or_default().push(*byte);
                    }
                }
            }
            prop_assert!(there.keys().eq(expected.keys()));
            for (address, bytes) in &expected {
                prop_assert!(bytes.contains(&there[address]));
            }
            // Each symbol lies in its section.
            for symbol in file.symbols().filter(object::ObjectSymbol::is_definition) {
                prop_assert!(there.contains_key(&symbol.address()));
            }
        }
    }
}
