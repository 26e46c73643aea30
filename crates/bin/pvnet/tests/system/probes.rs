//! The probes of the program, as bpftrace finds them in its file.

use std::collections::BTreeMap;

use object::elf::FileHeader64;
use object::read::elf::{FileHeader, SectionHeader};
use object::{File, LittleEndian, Object, ObjectSection};

/// A place in the code with a probe.
struct Place {
    address: u64,
    arguments: usize,
}

/// The places of provider `pvnet`, by the probe's name.
fn places(program: &[u8]) -> BTreeMap<String, Vec<Place>> {
    let header = FileHeader64::<LittleEndian>::parse(program).unwrap();
    let endian = header.endian().unwrap();
    let sections = header.sections(endian, program).unwrap();
    let (_, section) =
        sections.section_by_name(endian, b".note.stapsdt").expect("the program has probes");
    let mut notes = section.notes(endian, program).unwrap().expect("a section of notes");
    let mut places = BTreeMap::<String, Vec<Place>>::new();
    while let Some(note) = notes.next().unwrap() {
        assert_eq!(note.name(), b"stapsdt");
        // The addresses of the probe, of the section that says by how much code has moved, and of a semaphore. Then three texts.
        let (numbers, texts) = note.desc().split_at(24);
        let address = u64::from_le_bytes(numbers[..8].try_into().unwrap());
        let mut texts = texts.split(|byte| *byte == 0).map(|text| str::from_utf8(text).unwrap());
        let [provider, name, arguments] = [(); 3].map(|()| texts.next().unwrap());
        if provider == "pvnet" {
            let place = Place { address, arguments: arguments.split_whitespace().count() };
            places.entry(name.to_owned()).or_default().push(place);
        }
    }
    places
}

#[test]
fn the_program_has_the_probes_that_its_documentation_names() {
    let program = std::fs::read(env!("CARGO_BIN_EXE_pvnet")).unwrap();
    let places = places(&program);
    let arguments = [("drop", 5), ("egress", 6), ("ingress", 4), ("switch", 5)];
    let names: Vec<_> = places.keys().map(String::as_str).collect();
    assert_eq!(names, arguments.map(|(name, _)| name));
    let file = File::parse(&*program).unwrap();
    for (name, count) in arguments {
        for place in &places[name] {
            assert_eq!(place.arguments, count, "{name}");
            // While nobody listens it is a `nop`.
            let code = file.sections().find_map(|section| {
                section.data_range(place.address, 1).ok().flatten().map(<[u8]>::to_vec)
            });
            if cfg!(target_arch = "x86_64") {
                assert_eq!(code.as_deref(), Some(&[0x90][..]), "{name} at {:#x}", place.address);
            }
        }
    }
}
