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

/// This process, its programs read from the host.
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
