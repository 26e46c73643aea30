//! How far counts may be from the baseline's.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

use super::measured::Measured;
use super::windows::frames_of;

/// How many functions a difference names.
const NAMED: usize = 5;

/// The bands in percent: instructions of pvnet, of the kernel and of libraries; misses (docs/decisions/0061 has what they are
/// chosen by).
const PVNET: f64 = 0.3;
const KERNEL: f64 = 1.0;
const LIBRARIES: f64 = 1.0;
const L1_MISSES: f64 = 2.0;
/// Layouts do not move the kernel's data, which lies elsewhere after another history of allocations.
const KERNEL_L1_MISSES: f64 = 15.0;
/// Layouts move a program's sections as wholes. Which objects of a section share a page is another matter in each version.
const DTLB_MISSES: f64 = 20.0;
/// Smaller differences than this are none, whatever their share: the numbers in the file are rounded.
const INSTRUCTIONS_LEAST: f64 = 0.05;
/// The same for the kernel, of a whole window: a tick of its timer falls into it or does not, and some wake other programs.
const TICK: f64 = 40_000.0;
/// The same for libraries: a call more or less in a whole window.
const CALL: f64 = 1_000.0;
/// A tenth of a miss is some model cycle per frame.
const MISSES_LEAST: f64 = 0.1;
/// The same for L1 in the windows of a card, whose frames miss two to five lines of pvnet: versions that do the same differed by a
/// line. Supposed, not shown: layouts move the heap as a whole, so what lies in the same sets of L1 there depends on the version.
const CARD_L1_MISSES_LEAST: f64 = 1.2;
/// The least by which a function's misses change that is named.
const MOVED_LEAST: f64 = 0.02;

/// A count that is out of its band.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Difference {
    /// The window.
    pub window: String,
    /// What was counted.
    pub what: String,
    /// The baseline's number.
    pub before: f64,
    /// The present one.
    pub now: f64,
    /// The functions whose instructions or L1 misses changed most: the name, before, now.
    pub functions: Vec<(String, f64, f64)>,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { window, what, before, now, functions } = self;
        write!(f, "{window}: {what}: {before:.2} → {now:.2}")?;
        if *before != 0.0 {
            write!(f, " ({:+.2} %)", (now / before - 1.0) * 100.0)?;
        }
        for (name, before, now) in functions {
            write!(f, "\n    {:+9.2}  {name} ({before:.2} → {now:.2})", now - before)?;
        }
        Ok(())
    }
}

/// The differences of the windows that `is_chosen`, in the order of their names.
pub fn compare(
    before: &BTreeMap<String, Measured>,
    now: &BTreeMap<String, Measured>,
    is_chosen: impl Fn(&str) -> bool,
) -> Vec<Difference> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let mut differences = Vec::new();
    for name in names.into_iter().filter(|name| is_chosen(name)) {
        match (before.get(name), now.get(name)) {
            (Some(before), Some(now)) => differences.extend(of_window(name, before, now)),
            (before, _) => differences.push(Difference {
                window: name.clone(),
                what: "the window exists".to_owned(),
                before: f64::from(u8::from(before.is_some())),
                now: f64::from(u8::from(before.is_none())),
                functions: Vec::new(),
            }),
        }
    }
    differences
}

/// What was counted, the baseline's number, the present one, and the functions that moved.
type Out = (String, f64, f64, Vec<(String, f64, f64)>);

fn of_window(window: &str, before: &Measured, now: &Measured) -> Vec<Difference> {
    let frames = frames_of(window) as f64;
    let out = [instructions(before, now, frames), misses(window, before, now), counts(before, now)];
    let difference = |(what, before, now, functions)| Difference {
        window: window.to_owned(),
        what,
        before,
        now,
        functions,
    };
    out.into_iter().flatten().map(difference).collect()
}

/// Instructions of each module, of a window of `frames` frames.
fn instructions(before: &Measured, now: &Measured, frames: f64) -> Vec<Out> {
    let modules = both(&before.instructions, &now.instructions).into_iter();
    let out = modules.filter(|(module, before, now)| {
        let (band, least) = match *module {
            "pvnet" => (PVNET, INSTRUCTIONS_LEAST),
            "kernel" => (KERNEL, TICK / frames),
            _ => (LIBRARIES, CALL / frames),
        };
        is_out(*before, *now, band, least)
    });
    out.map(|(module, before_count, count)| {
        let mut functions = both(&before.functions, &now.functions);
        functions.retain(|(name, ..)| is_of(module, name));
        let functions = moved(functions, INSTRUCTIONS_LEAST);
        (format!("instructions per frame, {module}"), before_count, count, functions)
    })
    .collect()
}

/// L1 misses of the program with its libraries and of the kernel, and DTLB misses. Model cycles follow from the others.
fn misses(window: &str, before: &Measured, now: &Measured) -> Vec<Out> {
    let least = if window.starts_with("cdna-") { CARD_L1_MISSES_LEAST } else { MISSES_LEAST };
    let l1 = |of: &Measured, is_kernel: bool| -> f64 {
        let modules = of.l1_misses.iter().filter(|(module, _)| (*module == "kernel") == is_kernel);
        modules.map(|(_, count)| count).sum()
    };
    let mut all = Vec::new();
    for (whose, is_kernel, band) in
        [("pvnet and its libraries", false, L1_MISSES), ("kernel", true, KERNEL_L1_MISSES)]
    {
        let (before_count, count) = (l1(before, is_kernel), l1(now, is_kernel));
        if is_out(before_count, count, band, least) {
            let mut functions = both(&before.missed, &now.missed);
            functions.retain(|(name, ..)| is_of("kernel", name) == is_kernel);
            let functions = moved(functions, MOVED_LEAST);
            all.push((format!("l1 misses per frame, {whose}"), before_count, count, functions));
        }
    }
    let dtlb = |of: &Measured| of.misses.get("dtlb").copied().unwrap_or(0.0);
    let (before, now) = (dtlb(before), dtlb(now));
    if is_out(before, now, DTLB_MISSES, MISSES_LEAST) {
        all.push(("dtlb misses per frame".to_owned(), before, now, Vec::new()));
    }
    all
}

/// What the bench counts: each number is exact.
fn counts(before: &Measured, now: &Measured) -> Vec<Out> {
    let counts = |of: &Measured| -> BTreeMap<String, f64> {
        of.counts.iter().map(|(name, count)| (name.clone(), *count as f64)).collect()
    };
    both(&counts(before), &counts(now))
        .into_iter()
        .filter(|(_, before, now)| before != now)
        .map(|(what, before, now)| (what.to_owned(), before, now, Vec::new()))
        .collect()
}

/// Whether a count has moved out of a band in percent.
fn is_out(before: f64, now: f64, band: f64, least: f64) -> bool {
    (now - before).abs() > (before * band / 100.0).max(least)
}

/// The values of both maps, 0 where one has none.
fn both<'a>(
    before: &'a BTreeMap<String, f64>,
    now: &'a BTreeMap<String, f64>,
) -> Vec<(&'a str, f64, f64)> {
    let names: BTreeSet<&String> = before.keys().chain(now.keys()).collect();
    let value = |of: &BTreeMap<String, f64>, name: &str| of.get(name).copied().unwrap_or(0.0);
    names.into_iter().map(|name| (&**name, value(before, name), value(now, name))).collect()
}

/// Whether a function belongs to a module.
fn is_of(module: &str, function: &str) -> bool {
    match function.split_once(' ') {
        Some((of @ ("pvnet" | "kernel"), _)) => of == module,
        _ => module == "rest",
    }
}

/// The functions that changed most, and by more than `least`.
fn moved(mut functions: Vec<(&str, f64, f64)>, least: f64) -> Vec<(String, f64, f64)> {
    let size = |(_, before, now): &(&str, f64, f64)| (now - before).abs();
    functions.retain(|function| size(function) > least);
    functions.sort_by(|one, other| size(other).total_cmp(&size(one)));
    let named = functions.into_iter().take(NAMED);
    named.map(|(name, before, now)| (name.to_owned(), before, now)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(pvnet: f64, kernel: f64, l1: f64, hypercalls: u64) -> BTreeMap<String, Measured> {
        let measured = Measured {
            bytes: 64,
            instructions: [("pvnet".to_owned(), pvnet), ("kernel".to_owned(), kernel)].into(),
            l1_misses: [("pvnet".to_owned(), l1), ("kernel".to_owned(), 10.0)].into(),
            misses: [("dtlb".to_owned(), 0.5 * l1), ("cycles".to_owned(), 9.0 * l1)].into(),
            counts: [("hypercalls".to_owned(), hypercalls)].into(),
            missed: [("pvnet b".to_owned(), l1 - 1.0), ("kernel c".to_owned(), 1.0)].into(),
            functions: [
                ("pvnet a".to_owned(), pvnet / 2.0),
                ("pvnet b".to_owned(), 7.0),
                ("kernel c".to_owned(), kernel),
            ]
            .into(),
        };
        [("header-64".to_owned(), measured)].into()
    }

    fn differences(now: &BTreeMap<String, Measured>) -> Vec<String> {
        let before = window(1000.0, 1000.0, 10.0, 64);
        compare(&before, now, |_| true).into_iter().map(|difference| difference.what).collect()
    }

    #[test]
    fn each_count_has_its_band() {
        assert!(differences(&window(1000.0, 1000.0, 10.0, 64)).is_empty());
        assert!(differences(&window(1002.9, 985.5, 10.19, 64)).is_empty());
        assert_eq!(
            differences(&window(1003.2, 1000.0, 10.0, 64)),
            ["instructions per frame, pvnet"]
        );
        assert_eq!(
            differences(&window(996.8, 1000.0, 10.0, 64)),
            ["instructions per frame, pvnet"]
        );
        assert_eq!(
            differences(&window(1000.0, 1019.7, 10.0, 64)),
            ["instructions per frame, kernel"]
        );
        assert_eq!(
            differences(&window(1000.0, 1000.0, 10.21, 64)),
            ["l1 misses per frame, pvnet and its libraries"]
        );
        let both = ["l1 misses per frame, pvnet and its libraries", "dtlb misses per frame"];
        assert_eq!(differences(&window(1000.0, 1000.0, 12.01, 64)), both);
        assert_eq!(differences(&window(1000.0, 1000.0, 10.0, 65)), ["hypercalls"]);
    }

    #[test]
    fn misses_of_the_kernel_have_a_band_of_their_own() {
        let with_kernel = |misses| {
            let mut windows = window(1000.0, 1000.0, 10.0, 64);
            let of_64 = windows.get_mut("header-64").unwrap();
            of_64.l1_misses.insert("kernel".to_owned(), misses);
            differences(&windows)
        };
        assert!(with_kernel(11.4).is_empty() && with_kernel(8.6).is_empty());
        assert_eq!(with_kernel(11.6), ["l1 misses per frame, kernel"]);
    }

    #[test]
    fn a_line_more_per_frame_is_no_difference_for_a_card() {
        let card = |misses| {
            let of_64 = window(1000.0, 1000.0, misses, 64)["header-64"].clone();
            BTreeMap::from([("cdna-iommu-static-64".to_owned(), of_64)])
        };
        let differ = |misses| !compare(&card(10.0), &card(misses), |_| true).is_empty();
        assert!(!differ(11.1) && !differ(8.9) && differ(11.3) && differ(8.7));
    }

    #[test]
    fn a_tick_of_the_timer_is_no_difference_in_a_window_of_few_frames() {
        let large = |kernel| {
            let of_64 = window(1000.0, kernel, 10.0, 64);
            BTreeMap::from([("copy-64k".to_owned(), of_64["header-64"].clone())])
        };
        let differ = |kernel| !compare(&large(300.0), &large(kernel), |_| true).is_empty();
        assert!(!differ(600.0) && differ(650.0));
    }

    #[test]
    fn a_call_into_a_library_is_no_difference() {
        let with_rest = |count| {
            let mut windows = window(1000.0, 1000.0, 10.0, 64);
            let measured = windows.get_mut("header-64").unwrap();
            measured.instructions.insert("rest".to_owned(), count);
            windows
        };
        let differ =
            |before, now| !compare(&with_rest(before), &with_rest(now), |_| true).is_empty();
        assert!(!differ(2.43, 2.16) && differ(2.5, 1.5));
        assert!(!differ(100.0, 100.9) && differ(100.0, 101.2));
    }

    #[test]
    fn the_functions_that_moved_are_named() {
        let before = window(1000.0, 1000.0, 10.0, 64);
        let found = compare(&before, &window(1200.0, 1000.0, 10.0, 64), |_| true);
        let [difference] = &found[..] else { panic!("{found:?}") };
        assert_eq!(difference.functions, [("pvnet a".to_owned(), 500.0, 600.0)]);
        let text = difference.to_string();
        assert!(
            text.contains("header-64") && text.contains("+20.00 %") && text.contains("pvnet a")
        );
        let found = compare(&before, &window(1000.0, 1000.0, 12.0, 64), |_| true);
        let [difference] = &found[..] else { panic!("{found:?}") };
        assert_eq!(difference.functions, [("pvnet b".to_owned(), 9.0, 11.0)]);
    }

    #[test]
    fn a_window_that_is_new_or_gone_differs() {
        let some = window(1000.0, 1000.0, 10.0, 64);
        assert_eq!(compare(&some, &BTreeMap::new(), |_| true).len(), 1);
        assert_eq!(compare(&BTreeMap::new(), &some, |_| true).len(), 1);
        assert!(compare(&some, &BTreeMap::new(), |_| false).is_empty());
    }
}
