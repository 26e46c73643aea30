//! A guest that means harm: each attack under each protection, and who wins. The table is printed: run this with
//! `cargo test -p nic-session --test hostile -- --nocapture`. Its summary for operators is docs/cdna.md.

mod ends;
mod guest;
mod memory;
mod outcome;
mod rings;
mod table;
mod world;

use std::fmt::Write as _;
use std::time::Duration;

use contexts::{IommuMode, Protection, Reason};

use crate::table::{CASES, Case};
use crate::world::{BAD, NEIGHBOUR, World};

const PROTECTIONS: [(&str, Protection); 5] = [
    ("none", Protection::None),
    ("hypervisor", Protection::Hypervisor),
    ("iommu = static", Protection::Iommu(IommuMode::Static)),
    ("iommu = strict", Protection::Iommu(IommuMode::Strict)),
    (
        "iommu = deferred",
        Protection::Iommu(IommuMode::Deferred { pages: 64, after: Duration::from_millis(1) }),
    ),
];

/// Descriptors and shared mappings of this process.
fn holdings() -> (usize, usize) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (files, maps.lines().filter(|line| line.contains("memfd:pvnet")).count())
}

/// Who wins. Whatever becomes of the guest, its neighbour's service goes on, and nothing leaks.
fn outcome(case: &Case, protection: Protection) -> String {
    let before = holdings();
    let mut world = World::new(protection, case.setup);
    let outcome = (case.attack)(&mut world);
    world.check_neighbour();
    for number in [BAD, NEIGHBOUR] {
        world.revoke(number, Reason::Requested);
    }
    for guest in world.guests() {
        assert_eq!(outcome::references(guest), 0);
    }
    drop(world);
    assert_eq!(holdings(), before, "descriptors and mappings");
    outcome.to_string()
}

#[test]
fn who_wins() {
    let (mut table, mut wrong) = (String::new(), String::new());
    for case in CASES {
        let mut last = String::new();
        for (n, (name, protection)) in PROTECTIONS.into_iter().enumerate() {
            let outcome = outcome(case, protection);
            let title = if n == 0 { case.name.replace('_', " ") } else { String::new() };
            let same = if outcome == last { "  \"" } else { &outcome };
            writeln!(table, "{title:50} {name:17} {same}").unwrap();
            let expected = case.expected[n];
            if outcome != expected {
                writeln!(wrong, "{}, {name}: {outcome}; expected: {expected}", case.name).unwrap();
            }
            last = outcome;
        }
    }
    println!("{table}");
    assert!(wrong.is_empty(), "{wrong}");
}
