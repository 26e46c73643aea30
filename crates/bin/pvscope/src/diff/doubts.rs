//! What makes a comparison of two recordings doubtful.

use scope_model::Config;
use scope_result::{FileDigest, Provenance, Recording};

use crate::provenance::start;

/// What differs between two recordings besides what is to be compared, with the reason why it matters.
pub fn doubts(a: &Recording, b: &Recording) -> Vec<String> {
    let mut doubts = Vec::new();
    if a.config != b.config {
        let text = |config: &Config| {
            let single = if config.single { ", one size and policy" } else { "" };
            format!("{} {config}{single}", config.preset.name())
        };
        doubts.push(format!(
            "The models differ: a has {}, b has {}: misses and model cycles are of other caches and TLBs.",
            text(&a.config),
            text(&b.config)
        ));
    }
    if a.work.interface.is_empty() != b.work.interface.is_empty() {
        doubts.push(
            "One side's frames were counted at a driver between the marks, and the other's by its guest around them: \
             compare instructions in total, or record again."
                .to_owned(),
        );
    }
    let (from, to) = (&a.provenance, &b.provenance);
    for (letter, side) in [("a", from), ("b", to)] {
        if side.pvscope.is_empty() {
            doubts.push(format!("Recording {letter} does not say what it was made with."));
        }
    }
    if from.pvscope.is_empty() || to.pvscope.is_empty() {
        return doubts;
    }
    of_tools(from, to, &mut doubts);
    if from.workload == to.workload {
        of_images(from, to, &mut doubts);
    } else {
        doubts.push(format!(
            "The workloads differ: a is {}, b is {}: a frame is other work unless its payload is the same.",
            from.workload, to.workload
        ));
        let both = |image: &&FileDigest| to.images.iter().any(|other| other.name == image.name);
        let common = from.images.iter().filter(both).cloned().collect();
        of_images(&Provenance { images: common, ..from.clone() }, to, &mut doubts);
    }
    of_options(from, to, &mut doubts);
    of_programs(from, to, &mut doubts);
    if from.from_snapshot != to.from_snapshot {
        doubts.push(format!(
            "The starts differ: a was recorded {}, b {}: the machine has other random numbers.",
            start(from.from_snapshot),
            start(to.from_snapshot)
        ));
    }
    doubts
}

fn of_tools(a: &Provenance, b: &Provenance, doubts: &mut Vec<String>) {
    for (what, a, b, why) in [
        (
            "versions of pvscope",
            &a.pvscope,
            &b.pvscope,
            "they may count the same execution differently",
        ),
        (
            "versions of QEMU",
            &a.qemu,
            &b.qemu,
            "they may give the machine other devices and another clock",
        ),
    ] {
        if a != b {
            doubts.push(format!("The {what} differ: a has {a}, b has {b}: {why}."));
        }
    }
}

/// Images of either side; with different workloads one side may have images that the other does not boot.
fn of_images(a: &Provenance, b: &Provenance, doubts: &mut Vec<String>) {
    let mut names: Vec<&str> = Vec::new();
    let of_b = b.images.iter().filter(|_| a.workload == b.workload);
    for image in a.images.iter().chain(of_b) {
        if !names.contains(&&*image.name) {
            names.push(&image.name);
        }
    }
    for name in names {
        let digests = |side: &Provenance| -> String {
            let own = side.images.iter().filter(|image| image.name == name);
            let own: Vec<&str> = own.map(|image| &*image.digest).collect();
            if own.is_empty() { "none".to_owned() } else { own.join(" ") }
        };
        let (a, b) = (digests(a), digests(b));
        if a != b {
            doubts.push(format!(
                "The images differ: {name} is {a} in a, {b} in b: other code runs besides what is compared."
            ));
        }
    }
}

fn of_options(a: &Provenance, b: &Provenance, doubts: &mut Vec<String>) {
    let only = |one: &Provenance, other: &Provenance| -> String {
        let own = one.options.iter().filter(|option| !other.options.contains(option));
        let own: Vec<&str> = own.map(String::as_str).collect();
        if own.is_empty() { "none".to_owned() } else { own.join(" ") }
    };
    if a.options != b.options {
        doubts.push(format!(
            "The options differ: {} in a, {} in b: starting caches, or flushes, have another share.",
            only(a, b),
            only(b, a)
        ));
    }
    if a.workload == b.workload && a.machine != b.machine {
        let words = |one: &Provenance, other: &Provenance| -> String {
            let own = one.machine.iter().filter(|word| !other.machine.contains(word));
            own.map(String::as_str).collect::<Vec<_>>().join(" ")
        };
        doubts.push(format!(
            "QEMU's arguments differ: {:?} in a, {:?} in b.",
            words(a, b),
            words(b, a)
        ));
    }
}

/// Another build of a program is what is compared, mostly; another compiler or profile makes it another program.
fn of_programs(a: &Provenance, b: &Provenance, doubts: &mut Vec<String>) {
    for program in &a.programs {
        let other = b.programs.iter().find(|other| other.name == program.name);
        if let Some(other) = other.filter(|other| other.built_by != program.built_by) {
            let known = |text: &str| if text.is_empty() { "unknown" } else { text }.to_owned();
            doubts.push(format!(
                "The programs were built differently: {} by {} in a, by {} in b.",
                program.name,
                known(&program.built_by),
                known(&other.built_by)
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use scope_model::Preset;

    use super::*;

    fn file(name: &str, digest: &str, built_by: &str) -> FileDigest {
        let [name, digest, built_by] = [name, digest, built_by].map(str::to_owned);
        FileDigest { name, digest, built_by }
    }

    fn recording() -> Recording {
        let provenance = Provenance {
            pvscope: "0.1.0".to_owned(),
            qemu: "QEMU 10.0.2".to_owned(),
            machine: vec!["-m".to_owned(), "1G".to_owned()],
            workload: "tx-pvnet".to_owned(),
            options: vec!["--milliseconds 200".to_owned()],
            from_snapshot: true,
            images: vec![file("kernel", "01", ""), file("xen", "02", "")],
            programs: vec![file("/bin/pvnet", "03", "rustc 1.90.0, release")],
        };
        Recording { provenance, ..Recording::default() }
    }

    /// The doubts about a recording and a changed copy of it.
    fn after(change: impl FnOnce(&mut Recording)) -> Vec<String> {
        let (a, mut b) = (recording(), recording());
        change(&mut b);
        doubts(&a, &b)
    }

    fn one(doubts: &[String], parts: &[&str]) {
        let [doubt] = doubts else { panic!("{doubts:?}") };
        assert!(parts.iter().all(|part| doubt.contains(part)), "{doubt}");
    }

    #[test]
    fn the_same_machine_leaves_no_doubt() {
        assert_eq!(after(|_| {}), Vec::<String>::new());
        // What is compared: another build of pvnet.
        assert!(after(|b| b.provenance.programs[0].digest = "77".to_owned()).is_empty());
    }

    #[test]
    fn another_pvscope() {
        let doubts = after(|b| b.provenance.pvscope = "0.2.0".to_owned());
        one(&doubts, &["versions of pvscope", "a has 0.1.0, b has 0.2.0"]);
    }

    #[test]
    fn another_start() {
        let doubts = after(|b| b.provenance.from_snapshot = false);
        one(&doubts, &["starts differ", "a was recorded from a snapshot, b from a boot"]);
    }

    #[test]
    fn another_qemu() {
        let doubts = after(|b| b.provenance.qemu = "QEMU 10.0.7".to_owned());
        one(&doubts, &["versions of QEMU", "QEMU 10.0.2", "QEMU 10.0.7"]);
    }

    #[test]
    fn another_model() {
        one(
            &after(|b| b.config = Preset::Of2007.config()),
            &["The models differ", "2007", "server"],
        );
        one(&after(|b| b.config.single = true), &["The models differ", "one size and policy"]);
    }

    #[test]
    fn another_kernel_or_an_image_that_is_missing() {
        let doubts = after(|b| b.provenance.images[0].digest = "11".to_owned());
        one(&doubts, &["kernel is 01 in a, 11 in b"]);
        one(&after(|b| drop(b.provenance.images.pop())), &["xen is 02 in a, none in b"]);
        let more = after(|b| b.provenance.images.push(file("domU", "05", "")));
        one(&more, &["domU is none in a, 05 in b"]);
    }

    #[test]
    fn other_options() {
        let doubts = after(|b| b.provenance.options = vec!["--milliseconds 50".to_owned()]);
        one(&doubts, &["--milliseconds 200 in a, --milliseconds 50 in b"]);
        let more = after(|b| b.provenance.options.push("--check".to_owned()));
        one(&more, &["none in a, --check in b"]);
    }

    #[test]
    fn other_arguments_of_qemu() {
        let doubts = after(|b| b.provenance.machine[1] = "2G".to_owned());
        one(&doubts, &["QEMU's arguments", "\"1G\" in a, \"2G\" in b"]);
    }

    #[test]
    fn another_workload_and_its_own_images() {
        let other = |b: &mut Recording| {
            b.provenance.workload = "loopback".to_owned();
            // Without Xen.
            b.provenance.images.pop();
        };
        one(&after(other), &["The workloads differ: a is tx-pvnet, b is loopback"]);
        let doubts = after(|b| {
            other(b);
            b.provenance.images[0].digest = "11".to_owned();
        });
        assert_eq!(doubts.len(), 2, "{doubts:?}");
    }

    #[test]
    fn a_program_of_another_compiler_or_profile() {
        let doubts = after(|b| {
            b.provenance.programs[0].built_by = "rustc 1.90.0, debug".to_owned();
        });
        one(&doubts, &["/bin/pvnet", "release in a", "debug in b"]);
    }

    #[test]
    fn frames_that_were_counted_differently() {
        one(&after(|b| b.work.interface = "vif1.0".to_owned()), &["counted at a driver"]);
    }

    #[test]
    fn a_recording_that_does_not_say() {
        one(&after(|b| b.provenance = Provenance::default()), &["b does not say"]);
    }
}
