//! What a report says in sentences.

use ::report::{count, human};
use scope_result::{Domain, FileDigest, Provenance};

use crate::provenance::start;
use crate::summary::Summary;

/// A summary in a sentence or two.
pub fn lead(summary: &Summary<'_>) -> String {
    let work = &summary.recording.work;
    let cycles = summary.cycles(&summary.total);
    let instructions = summary.total.instructions as f64;
    if work.frames == 0 {
        return format!(
            "{}: no frames were counted, so all counts are totals: {} instructions and {} model cycles.",
            work.what,
            human(instructions),
            human(cycles),
        );
    }
    let parts = if work.interface.is_empty() {
        " (by the guest's own counters, read before the marks and after them)".to_owned()
    } else {
        format!(
            ", {} with {} bytes of payload and {} acknowledgements, at the driver of {}",
            count(work.data_frames),
            count(work.payload),
            count(work.acks),
            work.interface
        )
    };
    format!(
        "{}: {} frames of {} bytes on average{parts}.\nA frame takes {} instructions and {} model cycles; 10⁹ bytes take {} × 10⁹ \
         instructions and {} × 10⁹ model cycles.",
        work.what,
        count(work.frames),
        human(work.bytes as f64 / summary.frames()),
        human(summary.per_frame(instructions)),
        human(summary.per_frame(cycles)),
        human(summary.per_gigabyte(instructions) / 1e9),
        human(summary.per_gigabyte(cycles) / 1e9),
    )
}

/// The modelled processor and the costs.
pub fn model(summary: &Summary<'_>) -> String {
    let config = &summary.recording.config;
    format!(
        "Model {}: {config}. Model cycles, which rank code and are no time: {}.",
        config.preset.name(),
        summary.costs()
    )
}

/// What the recording was made with.
pub fn provenance(provenance: &Provenance) -> String {
    if provenance.pvscope.is_empty() {
        return "The recording does not say what it was made with.".to_owned();
    }
    let files = |files: &[FileDigest]| -> String {
        let file = |file: &FileDigest| {
            let built_by = Some(&file.built_by).filter(|text| !text.is_empty());
            let built_by = built_by.map(|text| format!(" ({text})")).unwrap_or_default();
            format!("{} {}{built_by}", file.name, file.digest)
        };
        files.iter().map(file).collect::<Vec<_>>().join(", ")
    };
    let Provenance { pvscope, qemu, machine, workload, options, images, programs, from_snapshot } =
        provenance;
    let mut text = format!(
        "Recorded by pvscope {pvscope} (format {}) with {qemu}: {workload}, {}",
        scope_result::VERSION,
        start(*from_snapshot)
    );
    for (what, list) in [
        ("options", options.join(" ")),
        ("images", files(images)),
        ("programs", files(programs)),
        ("machine", machine.join(" ")),
    ] {
        if !list.is_empty() {
            text += &format!("; {what}: {list}");
        }
    }
    text + "."
}

/// The unit of counts: per frame, or in total if no frames were counted.
pub fn unit(summary: &Summary<'_>) -> &'static str {
    if summary.recording.work.frames == 0 { "in total" } else { "per frame" }
}

/// The text with a capital first letter.
pub fn sentence(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// The limits of the recording's validity.
pub fn caveats(summary: &Summary<'_>) -> String {
    let checks = &summary.recording.checks;
    let unknown = summary.by(|part| part.function.module.is_empty());
    let unknown = unknown.iter().find(|(is, _)| *is).map_or(0, |(_, sum)| sum.instructions);
    let share = |count: u64| 100.0 * count as f64 / summary.total.instructions.max(1) as f64;
    let mut text = format!(
        "Of {} instructions {:.2} % are in code without a known name. ",
        count(summary.total.instructions),
        share(unknown)
    );
    text += &format!("{} accesses could not be translated. ", checks.untranslated);
    if checks.unknown_switches > 0 {
        text += &format!(
            "{} switches were to a domain whose number could not be read: this Xen keeps it at another offset. ",
            checks.unknown_switches
        );
    }
    if let Some(clock) = checks.clock {
        let (counted, executed) = (summary.recording.instructions, clock);
        text += &match counted.checked_sub(executed) {
            Some(more) => format!(
                "{} of them are {:.3} % more than QEMU's clock counted. ",
                count(more),
                share(more)
            ),
            None => format!(
                "QEMU's clock counted {} more, idle time included. ",
                count(executed.saturating_sub(counted))
            ),
        };
    }
    let has_xen = summary.recording.domains.iter().any(|domain| matches!(domain, Domain::Xen(_)));
    if has_xen && checks.new_spaces == 0 {
        text += "No write of CR3 was seen in Xen's switch_cr3_cr4, so all policies are flushed as the processor is when Xen \
                 switches. ";
    }
    if checks.not_frames > 0 {
        text += &format!("{} calls of drivers' functions had no frame. ", checks.not_frames);
    }
    if checks.compared > 0 {
        text += &format!(
            "Of {} accesses {} differed from QEMU's own translation. ",
            checks.compared, checks.stale
        );
    }
    if summary.recording.events_lost > 0 {
        text += &format!("{} events were dropped. ", summary.recording.events_lost);
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_says_what_the_recording_was_made_with() {
        let file = |name: &str, built_by: &str| FileDigest {
            name: name.to_owned(),
            digest: "0123456789abcdef".to_owned(),
            built_by: built_by.to_owned(),
        };
        let text = provenance(&Provenance {
            pvscope: "0.1.0".to_owned(),
            qemu: "QEMU emulator version 10.0.2".to_owned(),
            machine: Vec::new(),
            workload: "tx-pvnet".to_owned(),
            options: vec!["--milliseconds 200".to_owned()],
            from_snapshot: true,
            images: vec![file("kernel", ""), file("xen", "")],
            programs: vec![file("/usr/local/bin/pvnet", "rustc 1.90.0, release")],
        });
        for part in [
            "pvscope 0.1.0 (format 8)",
            "QEMU emulator version 10.0.2: tx-pvnet, from a snapshot",
            "options: --milliseconds 200",
            "images: kernel 0123456789abcdef, xen 0123456789abcdef",
            "programs: /usr/local/bin/pvnet 0123456789abcdef (rustc 1.90.0, release).",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(!text.contains("machine"), "{text}");
        assert!(provenance(&Provenance::default()).contains("does not say"));
    }
}
