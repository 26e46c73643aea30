//! Executed code as an ELF file: a section for each range of addresses, and the functions as symbols.

use std::io;

use object::Endianness;
use object::elf::{
    EM_X86_64, ET_EXEC, SHF_ALLOC, SHF_EXECINSTR, SHT_PROGBITS, STB_GLOBAL, STT_FUNC, SymbolOther,
    SymbolSection,
};
use object::write::elf::{FileHeader, SectionHeader, SectionIndex, Sym, Writer};

use super::objects::Code;

/// The file of this code.
///
/// # Errors
/// If the format has no room for so much.
pub fn file(code: &Code) -> io::Result<Vec<u8>> {
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
