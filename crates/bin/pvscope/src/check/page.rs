//! The tables of docs/performance.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use super::baseline::Baseline;
use super::measured::Measured;
use super::windows::frames_of;
use crate::error::{Error, Result};

/// The comments before and after the tables.
const BEGIN: &str = "<!-- begin: written by pvscope check -->";
const END: &str = "<!-- end: written by pvscope check -->";

/// The sizes of frames, by the ends of windows' names.
const SIZES: [(&str, &str); 3] = [("64", "64 bytes"), ("1514", "1514 bytes"), ("64k", "64 KiB")];

/// Replaces the tables in a page.
pub fn write(page: &Path, now: &Baseline) -> Result<()> {
    write_between(page, &tables(&now.windows))
}

/// Replaces what lies between the two comments of a page.
pub fn write_between(page: &Path, tables: &str) -> Result<()> {
    let text = std::fs::read_to_string(page).map_err(Error::path(page))?;
    let new = replaced(&text, tables.trim_end());
    let new = new.ok_or_else(|| Error::Usage(format!("{}: no line {BEGIN:?}", page.display())))?;
    Ok(report::write_atomic(page, new.as_bytes())?)
}

fn replaced(text: &str, tables: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{tables}\n{END}{after}"))
}

/// A table for each size.
fn tables(windows: &BTreeMap<String, Measured>) -> String {
    let mut text = String::new();
    for (end, size) in SIZES {
        let _ = writeln!(
            text,
            "\n### A frame of {size}\n\n| path | pvnet | kernel | rest | L1 misses | DTLB misses | hypercalls | notifications | model \
             cycles | × floor |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
        );
        for (name, window) in windows {
            let Some(path) = name.strip_suffix(end).and_then(|name| name.strip_suffix('-')) else {
                continue;
            };
            text += &row(path, frames_of(name), window);
        }
    }
    text.trim_end().to_owned()
}

fn row(path: &str, frames: u64, window: &Measured) -> String {
    let Measured { instructions, l1_misses, misses, counts, .. } = window;
    let of = |map: &BTreeMap<String, f64>, name: &str| map.get(name).copied().unwrap_or_default();
    let per_frame =
        |name: &str| counts.get(name).copied().unwrap_or_default() as f64 / frames as f64;
    let cycles = of(misses, "cycles");
    format!(
        "| {path} | {:.0} | {:.0} | {:.0} | {:.1} | {:.2} | {:.2} | {:.2} | {cycles:.0} | {:.1} |\n",
        of(instructions, "pvnet"),
        of(instructions, "kernel"),
        of(instructions, "rest"),
        l1_misses.values().sum::<f64>(),
        of(misses, "dtlb"),
        per_frame("hypercalls"),
        per_frame("notifications"),
        cycles / floor(window.bytes),
    )
}

/// The model cycles of the floor: one copy of the frame from L2 to L1, 32 bytes per instruction, and two cache lines that move
/// between cores. The costs are those of the preset `server`; a line from another core costs as much as one from L3.
fn floor(bytes: u64) -> f64 {
    let costs = scope_model::Costs::default();
    let lines = bytes.div_ceil(64) as f64;
    // A load and a store each.
    let instructions = bytes.div_ceil(32) as f64 * 2.0;
    instructions * costs.instruction + 2.0 * lines * costs.l2_sequential + 2.0 * costs.l3_hit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_lies_between_the_comments_is_replaced() {
        let text = format!("# Title\n\n{BEGIN}\nold\n{END}\nrest\n");
        let new = replaced(&text, "new").unwrap();
        assert_eq!(new, format!("# Title\n\n{BEGIN}\nnew\n{END}\nrest\n"));
        assert_eq!(replaced(&new, "new"), Some(new.clone()));
        assert_eq!(replaced("# Title\n", "new"), None);
    }

    #[test]
    fn counts_are_of_one_frame_whatever_its_size() {
        let window =
            Measured { counts: [("hypercalls".to_owned(), 64)].into(), ..Measured::default() };
        let windows = ["copy-64", "copy-64k"].map(|name| (name.to_owned(), window.clone()));
        let tables = tables(&windows.into());
        assert!(tables.contains("| 0.03 | 0.00 |") && tables.contains("| 0.50 | 0.00 |"));
    }

    #[test]
    fn the_floor_grows_with_the_frame() {
        assert!(floor(64) > 0.0 && floor(1514) > floor(64) && floor(65_214) > 10.0 * floor(1514));
    }
}
