//! `pvnet-lab bench pps --lockstep`: carries exactly N frames over each path, and counts their hypercalls, notifications and grant operations.
//!
//! The generator and the daemon's worker take turns on one thread, so each run executes the same instructions. Each window
//! lies between two marks that pvscope knows; nothing else happens between them.

mod host;
mod netif;
mod nics;
mod uplinks;
mod virtio;
mod window;

use std::fmt::Write as _;
use std::hint::black_box;
use std::io::Read as _;
use std::os::fd::AsFd as _;

use clap::Args;
use lab::{Namespace, Progress};
use report::Benchmark;
use rustix::process::geteuid;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use window::{Counts, Path};

use crate::bench::rows::Rows;
use crate::error::{Error, Result};
use crate::output;

pub use nics::{Direction, NicKind, NicPath, Times};
pub use window::{PathKind, Size, Window, carry};

/// Frames before the first mark: more than any ring has slots, so that all pages and caches are in use.
const WARM_UP: u64 = 1024;
/// The same for frames of many pages.
const WARM_UP_LARGE: u64 = 64;

/// Options of lockstep.
#[derive(Args)]
pub struct LockstepArgs {
    /// Carry exactly --frames frames over every path, with the generator and the worker in turn on one thread, and count
    /// hypercalls and notifications. Nothing is timed. Paths with an uplink need root.
    #[arg(long, conflicts_with_all = ["seconds", "sizes", "no_persistent_grants"])]
    pub lockstep: bool,
    /// Frames of each window.
    #[arg(long, value_name = "N", requires = "lockstep", default_value_t = 2048, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub frames: u64,
    /// Frames of each window with frames of 64 KiB, each of which takes as long as dozens of others [default: as --frames].
    #[arg(long, value_name = "N", requires = "lockstep", value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub large_frames: Option<u64>,
    /// Paths (copy) or windows (copy-1514) to carry them over [default: all].
    #[arg(long, value_name = "NAME,…", requires = "lockstep", value_delimiter = ',')]
    pub windows: Vec<String>,
    /// How often to repeat all windows, each time with their memory elsewhere.
    #[arg(long, value_name = "N", requires = "lockstep", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=99))]
    pub perturb: u32,
    /// Execute marks around each window, for pvscope. Then print a line for each in their order, and wait until standard input
    /// ends.
    #[arg(long, requires = "lockstep")]
    pub marks: bool,
}

/// Runs the windows.
pub fn run(args: &LockstepArgs, quiet: bool) -> Result<Benchmark> {
    let namespace = enter()?;
    let windows = Window::chosen(&args.windows).map_err(Error::Failed)?;
    let (possible, skipped): (Vec<_>, Vec<_>) =
        windows.into_iter().partition(|window| namespace.is_some() || !window.needs_network());
    let progress = Progress::new(possible.len() * args.perturb as usize, quiet);
    if !skipped.is_empty() {
        progress.note(&format!("not root, so these are left out: {}", names(&skipped)));
    }
    let mut rows = Rows::default();
    let mut lines = String::new();
    for round in 0..args.perturb {
        for window in &possible {
            let large = args.large_frames.filter(|_| window.size.is_large());
            let frames = large.unwrap_or(args.frames);
            progress.step(format!("{window}: {frames} frames"));
            lab::Interrupt::check()?;
            let failed = |reason| Error::Failed(format!("{window}: {reason}"));
            let counts = measure(window, frames, round, args.marks).map_err(failed)?;
            lines += &line(window, frames, &counts);
            for (name, count) in counts.named() {
                let per_frame = count as f64 / frames as f64;
                rows.push(&format!("{window}+{name}"), "per frame", per_frame);
            }
        }
    }
    if args.marks {
        output::print(&(lines + "@done\n"))?;
        // The profiler reads this process's mappings before it ends.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
    }
    Ok(rows.finish("lockstep"))
}

/// A window as pvscope reads it: the name, the frames, their bytes, and all counts.
fn line(window: &Window, frames: u64, counts: &Counts) -> String {
    let bytes = frames * window.size.bytes() as u64;
    let mut line = format!("@window {window} {frames} {bytes}");
    for (name, count) in counts.named() {
        let _ = write!(line, " {name}={count}");
    }
    line + "\n"
}

/// Carries frames between two marks, if `marks`, and as many again to count. `round` moves the memory that they use.
fn measure(
    window: &Window,
    frames: u64,
    round: u32,
    marks: bool,
) -> std::result::Result<Counts, String> {
    let moved = displacement(round);
    let mut path = path(window)?;
    let warm_up = if window.size.is_large() { WARM_UP_LARGE } else { WARM_UP };
    window::carry(&mut *path, warm_up)?;
    if marks {
        begin();
        let carried = window::carry(&mut *path, frames);
        end();
        carried?;
    }
    let counts = path.count(frames)?;
    drop(moved);
    Ok(counts)
}

/// Memory that is allocated before the path's, so that the path's lies elsewhere in each round.
fn displacement(round: u32) -> Vec<u8> {
    /// 37 pages and a cache line.
    const STEP: usize = 37 * 4096 + 64;
    // The bytes are written, so that the memory has pages.
    vec![1; STEP * round as usize]
}

fn names(windows: &[Window]) -> String {
    windows.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Builds the path of a window.
pub fn path(window: &Window) -> std::result::Result<Box<dyn Path>, String> {
    Ok(match window.path {
        PathKind::Header | PathKind::Copy | PathKind::Remap | PathKind::Flip => {
            Box::new(netif::Pair::new(window.path, window.size)?)
        }
        PathKind::UplinkTx | PathKind::UplinkTxBasic => {
            Box::new(uplinks::ToUplink::new(window.path, window.size)?)
        }
        PathKind::GuestCopy
        | PathKind::GuestCopyMapped
        | PathKind::Direct
        | PathKind::UplinkRx
        | PathKind::UplinkRxBasic => Box::new(uplinks::FromUplink::new(window.path, window.size)?),
        PathKind::VhostUser => Box::new(virtio::Pair::new(window.size)?),
        PathKind::Card(protection) => Box::new(nics::Card::new(protection, window.size)?),
    })
}

/// Moves this thread into a network namespace of its own, where windows make their taps. `None` without root.
pub fn enter() -> Result<Option<Namespace>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let namespace = Namespace::create("lockstep")?;
    let path = namespace.path();
    let file = std::fs::File::open(&path).map_err(|source| Error::Path { path, source })?;
    let enter = move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network));
    enter.map_err(|errno| Error::Failed(format!("entering a namespace: {errno}")))?;
    Ok(Some(namespace))
}

// Marks, between which pvscope records.
//
// A mark is the load of a constant into a register. The program needs no `unsafe` code for it, and no compiler chooses the number.

/// The constants of the marks at the beginning and at the end, the first as `scope_recorder::MARK_BEGIN_CONSTANT`.
const BEGIN: u64 = u64::from_le_bytes(*b"pvs<beg>");
const END: u64 = u64::from_le_bytes(*b"pvs<end>");

/// Recording begins when this returns.
#[inline(never)]
pub(crate) fn begin() {
    black_box(BEGIN);
}

/// Recording has ended when this returns.
#[inline(never)]
pub(crate) fn end() {
    black_box(END);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The part of the gate that needs no virtual machine: the counts are the same in every run, whatever else the machine does.
    #[test]
    fn counts_of_windows_are_exact() {
        for window in Window::all().filter(|window| !window.needs_network()) {
            let frames = if window.size.is_large() { 64 } else { 320 };
            let twice = [0, 3].map(|round| measure(&window, frames, round, false).unwrap());
            assert_eq!(twice[0], twice[1], "{window}");
        }
    }

    #[test]
    fn a_path_that_does_more_is_seen() {
        let counts = |path| measure(&Window { path, size: Size::Full }, 320, 0, false).unwrap();
        let (header, copy, remap) =
            (counts(PathKind::Header), counts(PathKind::Copy), counts(PathKind::Remap));
        // With pages that stay mapped, events are the only hypercalls.
        assert_eq!(header.hypercalls, header.notifications, "{header:?}");
        assert!(copy.hypercalls > header.hypercalls, "{copy:?} {header:?}");
        // A mapping and an unmapping of each frame.
        assert!(remap.hypercalls >= copy.hypercalls + 320, "{remap:?} {copy:?}");
    }
}
