//! What the paper reports: Santos, Turner, Janakiraman, Pratt, "Bridging the Gap between Software and Hardware Techniques
//! for I/O Virtualization", USENIX 2008. Figures without numbers in the text are plots.

use super::config::Line;

/// The packets per interrupt of the paper's NIC unless it is told otherwise (§5.2).
pub const DEFAULT: u16 = 6;
/// The paper's packets.
pub const MTU: u16 = 1500;
/// The most packets per interrupt that the paper tries.
pub const MOST: u16 = 64;

/// The cost of a packet over that on Linux, as a part of it; none where the text does not say.
///
/// The original has the default coalescing, the others 64 packets per interrupt (§6).
pub const fn over_linux(line: Line, coalesce: u16) -> Option<f64> {
    match (line, coalesce) {
        (Line::Linux, _) => Some(0.0),
        (Line::Original, DEFAULT) => Some(3.55),
        (Line::GuestCopy, MOST) => Some(0.97),
        (Line::MultiqueueReuse, MOST) => Some(0.25),
        (Line::Direct, MOST) => Some(0.11),
        _ => None,
    }
}
