//! This test's own program, read back: its symbols, its source lines and its process.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use scope_symbols::{AddressSpace, Maps, Named, Process, Program};

/// A function of a known name, at a known line.
#[inline(never)]
extern "C" fn a_function_to_be_found(number: u32) -> u32 {
    number ^ line!()
}

fn own_program() -> Vec<u8> {
    fs::read("/proc/self/exe").expect("this program")
}

/// The address space of this process, with the programs that its mappings name.
fn own_space() -> AddressSpace {
    let text = fs::read_to_string("/proc/self/maps").expect("maps");
    let maps = Maps::parse(&text).expect("the kernel's own text");
    let process = Process { pid: std::process::id(), name: "program".to_owned(), maps };
    let mut read: HashMap<PathBuf, Option<Arc<Program>>> = HashMap::new();
    process.space(|path| {
        let open = || {
            let module = path.file_name()?.to_str()?;
            Some(Arc::new(Program::parse(module, fs::read(path).ok()?).ok()?))
        };
        read.entry(path.to_owned()).or_insert_with(open).clone()
    })
}

/// Where a function of this process is.
fn address(function: extern "C" fn(u32) -> u32) -> u64 {
    u64::try_from(function as usize).expect("64 bits")
}

#[test]
fn a_function_of_this_process_has_its_name_and_line() {
    let space = own_space();
    let here = address(a_function_to_be_found);
    let Named::Function { module, function, offset } = space.name(here) else {
        panic!("{:?}", space.name(here));
    };
    assert!(module.starts_with("program-"), "{module}");
    assert_eq!((function, offset), ("program::a_function_to_be_found", 0));
    let line = space.line(here).expect("debug information");
    assert!(line.file.ends_with("tests/program.rs"), "{line:?}");
    let body = a_function_to_be_found(std::hint::black_box(0));
    assert!((body - 2..=body).contains(&line.line), "{line:?}, not near {body}");
    assert_eq!(space.line(0x10), None);
}

/// A program with known inlining: the numbers of its lines are in the test.
const INLINING: &str = "\
#[inline(always)]
fn innermost(number: u32) -> u32 {
    std::hint::black_box(number)
}
#[inline(always)]
fn middle(number: u32) -> u32 {
    innermost(number) << 3
}
#[inline(never)]
#[no_mangle]
pub extern \"C\" fn outer(number: u32) -> u32 {
    middle(number)
}
fn main() {
    std::process::exit(outer(std::process::id()) as i32);
}
";

#[test]
fn inlined_functions_have_the_lines_of_their_calls() {
    let folder = std::env::temp_dir().join(format!("scope-inlining-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let (source, binary) = (folder.join("inlining.rs"), folder.join("inlining"));
    fs::write(&source, INLINING).expect("write");
    let compiled = std::process::Command::new(option_env!("RUSTC").unwrap_or("rustc"))
        .args(["-O", "-g", "--edition", "2021", "-o"])
        .args([&binary, &source])
        .status();
    let file = fs::read(&binary);
    fs::remove_dir_all(&folder).expect("the folder");
    assert!(compiled.expect("rustc").success());
    let program = Program::parse("inlining", file.expect("a program")).expect("ELF");
    let outer = program.symbols().iter().find(|symbol| symbol.name == "outer").expect("exported");
    let range = program.symbols().range_of("outer").expect("a size");
    let spans = program.spans(outer.start, range.end - range.start);
    // Functions of the standard library may be inlined further in.
    let chains: Vec<Vec<(&str, u32)>> = spans
        .iter()
        .map(|span| {
            let own = span
                .source
                .inlined
                .iter()
                .filter(|inlined| inlined.call.file.ends_with("inlining.rs"));
            own.map(|inlined| {
                (inlined.name.rsplit("::").next().unwrap_or_default(), inlined.call.line)
            })
            .collect()
        })
        .collect();
    assert!(
        chains.iter().any(|chain| chain.starts_with(&[("middle", 12), ("innermost", 7)])),
        "{chains:?}"
    );
    // The shift belongs to the function in the middle, the return to the outer one. A shift cannot take the read into its own
    // instruction, as an exclusive or does.
    let line = |chain: &[(&str, u32)], line: u32| {
        let of = |place: usize| spans[place].source.line.line == line;
        chains.iter().enumerate().any(|(place, own)| own == chain && of(place))
    };
    assert!(line(&[("middle", 12)], 7), "{spans:?}");
    assert!(line(&[], 13), "{spans:?}");
    // Every instruction is counted once, and spans lie in their order.
    let instructions: u32 = spans.iter().map(|span| u32::from(span.instructions)).sum();
    assert!(instructions >= 4 && u64::from(instructions) <= range.end - range.start);
    assert!(
        spans
            .windows(2)
            .all(|pair| pair[0].offset < pair[1].offset && pair[0].source != pair[1].source)
    );
    assert!(program.spans(0x10, 4).is_empty());
}

#[test]
fn a_function_of_a_shared_library_has_its_name() {
    let space = own_space();
    let maps = Maps::parse(&fs::read_to_string("/proc/self/maps").expect("maps")).expect("maps");
    let libc = maps.mappings().iter().find(|mapping| mapping.module().starts_with("libc"));
    let libc = libc.expect("the C library");
    let program = Program::parse("libc", fs::read(&libc.path).expect("libc")).expect("ELF");
    let symbols = program.symbols();
    let wanted = symbols.iter().find(|symbol| symbol.name == "getpid").expect("exported").start;
    let named = space.name(wanted.wrapping_add(libc.bias(&program).expect("the same file")));
    let module = libc.module();
    let getpid = symbols.lookup(wanted).expect("inside").name;
    assert!(getpid.ends_with("getpid"), "{getpid}");
    assert_eq!(named, Named::Function { module, function: getpid, offset: 0 });
}

/// A library of 64 bytes of code at 0x1000 that exports functions `(name, start, size, binding)`; stripped.
fn library(functions: &[(&str, u64, u64, u8)]) -> Vec<u8> {
    let (mut names, mut symbols) = (vec![0], vec![0; 24]);
    for (name, start, size, binding) in functions {
        symbols.extend(u32::try_from(names.len()).expect("short").to_le_bytes());
        // A function, visible, of section 1.
        symbols.extend([binding << 4 | 2, 0, 1, 0]);
        [start, size].iter().for_each(|word| symbols.extend(word.to_le_bytes()));
        names.extend(name.bytes().chain([0]));
    }
    let none: &[u8] = &[];
    // The empty section, the code, .dynsym (with its names in the next section) and .dynstr: type, flags, address, content.
    let sections = [
        (0u32, 0u64, 0u64, none),
        (1, 6, 0x1000, &[0x90; 64]),
        (11, 2, 0, &symbols),
        (3, 2, 0, &names),
    ];
    let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
    [0, 0, 64u64].iter().for_each(|word| file.extend(word.to_le_bytes()));
    file.extend([0; 4]);
    [64u16, 0, 0, 64, 4, 3].iter().for_each(|half| file.extend(half.to_le_bytes()));
    let mut at = 64 + 64 * 4;
    for (kind, flags, address, content) in sections {
        let (link, entry) = if kind == 11 { (3u32, 24u64) } else { (0, 0) };
        let len = content.len() as u64;
        file.extend([0; 4]);
        file.extend(kind.to_le_bytes());
        [flags, address, at, len].iter().for_each(|word| file.extend(word.to_le_bytes()));
        file.extend(link.to_le_bytes());
        file.extend([0; 4]);
        [1, entry].iter().for_each(|word| file.extend(word.to_le_bytes()));
        at += len;
    }
    sections.iter().for_each(|section| file.extend(section.3));
    file
}

#[test]
fn what_lies_between_exported_functions_has_no_name() {
    const GLOBAL: u8 = 1;
    let file = library(&[
        ("first", 0x1000, 8, GLOBAL),
        ("label", 0x1010, 0, GLOBAL),
        ("last", 0x1020, 16, GLOBAL),
    ]);
    let program = Program::parse("lib.so", file).expect("ELF");
    let name = |address| program.symbols().lookup(address).map(|symbol| symbol.name);
    assert_eq!([0x1000, 0x1007].map(name), [Some("first"); 2]);
    assert_eq!([0x1008, 0x1010, 0x101f, 0x1030].map(name), [None; 4]);
    assert_eq!([0x1020, 0x102f].map(name), [Some("last"); 2]);
}

#[test]
fn of_several_names_the_one_that_people_use_is_taken() {
    const GLOBAL: u8 = 1;
    const WEAK: u8 = 2;
    let names = [("__write", GLOBAL), ("write", WEAK), ("__libc_write", GLOBAL)];
    let file = library(&names.map(|(name, binding)| (name, 0x1000, 8, binding)));
    let program = Program::parse("libc.so.6", file).expect("ELF");
    assert_eq!(program.symbols().lookup(0x1004).map(|symbol| symbol.name), Some("write"));
}

#[test]
fn memory_without_a_program_is_named_by_its_mapping() {
    let maps =
        Maps::parse("1000-2000 r-xp 0 0:0 0\n3000-4000 r-xp 1000 8:1 7 /bin/gone (deleted)\n");
    let process = Process { pid: 1, name: "jit".to_owned(), maps: maps.expect("maps") };
    let space = process.space(|path| {
        assert_ne!(path, Path::new("/bin/gone"), "another file may stand there");
        None
    });
    assert_eq!(space.name(0x1010), Named::Module { module: "[anonymous]", address: 0x10 });
    assert_eq!(space.name(0x3010), Named::Module { module: "gone", address: 0x10 });
    assert_eq!(space.name(0x2010), Named::Unknown);
}

#[test]
fn programs_are_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Program>();
    shared::<AddressSpace>();
}

#[test]
fn what_is_no_elf_file_is_refused() {
    let error = Program::parse("text", *b"#!/bin/sh\n").expect_err("a script").to_string();
    assert!(error.starts_with("the ELF file cannot be read ("), "{error}");
    let mut cut = own_program();
    cut.truncate(100);
    assert!(Program::parse("cut", cut).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(64) })]

    /// Damage to the headers and tables of a real file is noticed or harms names only.
    #[test]
    fn a_damaged_program_is_read_or_refused(
        at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
    ) {
        let mut file = small_program();
        for (place, byte) in at {
            let place = place.index(file.len());
            file[place] = byte;
        }
        if let Ok(program) = Program::parse("damaged", file) {
            for symbol in program.symbols().iter().take(100) {
                let _ = (program.line(symbol.start), program.symbols().lookup(symbol.start));
            }
        }
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..500)) {
        let mut file = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0".to_vec();
        file.extend(bytes);
        let _ = Program::parse("bytes", file);
    }
}

/// The dynamic loader: the smallest ELF file with symbols that every Linux has.
fn small_program() -> Vec<u8> {
    let maps = Maps::parse(&fs::read_to_string("/proc/self/maps").expect("maps")).expect("maps");
    let loader = maps.mappings().iter().find(|mapping| mapping.module().starts_with("ld"));
    fs::read(&loader.expect("a dynamic loader").path).expect("loader")
}
