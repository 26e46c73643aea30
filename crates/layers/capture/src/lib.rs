//! Packet capture at a port: `pvnet capture PORT [-w FILE|-] [--snaplen N] [-c N] [FILTER]`.
//!
//! A [`CapturePoint`] wraps both sides of a port's queues. While a [`Capture`] runs there, it gets
//! a copy of the frames that its [`Filter`] selects, in both directions, as a pcapng stream that
//! Wireshark and tcpdump open live. The wrapper can be put on when a capture starts and be taken
//! off after it ([`CapturePoint::layer`], [`CaptureLayer`]), so that a port that is not being captured
//! pays nothing.
//!
//! ```text
//!             receive, window, with_body ...        pass through
//!  port A ──► finish ──► Recorder ─┐
//!                                  ├─► Sink: a buffer per side ─► Capture::run ─► file, socket
//!  port A ◄── deliver ─► Recorder ─┘        try_lock, bounded       a thread
//! ```
//!
//! # What is recorded
//! - **Inbound**, from the port into the switch: each frame once, when its outcome is final.
//! - **Outbound**, from the switch out of the port: each frame once, when the port has taken or
//!   dropped it. A delivery that goes on after the call is recorded when it begins.
//! - A dropped frame has the comment `dropped: REASON`. The reason has its name in the metrics.
//! - Packets that never became frames are not recorded. The port's counters have them.
//! - A frame whose body can no longer be read is recorded up to its private header.
//!
//! Frames are recorded as the driver domain sees them: up to 64 KiB long where the sender leaves
//! the segmentation to others, and with partial checksums. The flags of each packet say so
//! (`epb_flags` bits 9 to 11). With [`Options::segmented`], frames to be segmented are recorded as
//! the segments that a wire would carry, with complete checksums.
//!
//! All frames of one batch have the same timestamp. Packets are in the order of their timestamps.
//!
//! A [`Recording`] captures several ports and has no end of its own. It writes to [`Files`] of limited size and number, in which each port
//! is an interface.
//!
//! # What it costs
//! Workers never wait for a capture. A buffer of [`BUFFER_BYTES`] lies between them and the thread
//! in [`Capture::run`]; what does not fit is counted as lost. The counts are in the interface
//! statistics at the end of the stream.
//!
//! # Example
//! ```
//! use capture::{CapturePoint, Options};
//!
//! let point = CapturePoint::new("red");
//! // let queue = point.wrap(queue);
//! let options = Options { filter: "tcp port 80 or dropped".into(), ..Options::default() };
//! let capture = point.start(&options)?;
//! let mut file = Vec::new();
//! let totals = capture.run(&mut file, &mut || true)?;
//! assert_eq!((totals.written, totals.lost), (0, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod blocks;
mod current;
mod files;
mod filter;
mod pcapng;
mod point;
mod reader;
mod recorder;
mod recording;
mod request;
mod sink;
mod sinks;
mod wrapper;

pub use blocks::{Block, Blocks, CapturedFrame, Content};
pub use files::{EXTENSION, Files};
pub use filter::{Direction, Filter, FilterError, Packet};
pub use point::{CaptureLayer, CapturePoint, StartError};
pub use reader::{Capture, Totals};
pub use recording::{Recording, RecordingStatus};
pub use request::{CaptureRequest, Options};
pub use sink::BUFFER_BYTES;
pub use sinks::CAPTURES_MAX;
