//! The protocol between the host and a domain's agent: lines of text.
//!
//! ```text
//! host  ► ~run ID BASE64                 run this script
//!       ► ~stop ID                       kill it and its children
//! agent ► ~up SECONDS                    ready, this long after the domain's boot
//!       ► ~end ID STATUS LENGTH BASE64   a script ended; all its output
//! ```
//!
//! Each frame starts a new line. Other output may come between frames. Output in the middle of a frame makes it
//! invalid, and never turns it into another valid frame.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// A message of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Frame {
    /// It is ready.
    Up {
        /// Seconds since its domain's boot.
        uptime: f64,
    },
    /// A script has ended.
    End {
        /// Its number.
        id: u64,
        /// Its exit status, as in a shell.
        status: i32,
        output: Vec<u8>,
    },
}

impl Frame {
    fn parse(line: &[u8]) -> Option<Self> {
        let line = std::str::from_utf8(line).ok()?;
        let mut words = line.trim_end_matches('\r').split(' ');
        match words.next()? {
            "~up" => Some(Self::Up { uptime: words.next()?.parse().ok()? }),
            "~end" => {
                let id = words.next()?.parse().ok()?;
                let status = words.next()?.parse().ok()?;
                let length: usize = words.next()?.parse().ok()?;
                let output = STANDARD.decode(words.next()?).ok()?;
                let whole = output.len() == length && words.next().is_none();
                whole.then_some(Self::End { id, status, output })
            }
            _ => None,
        }
    }
}

/// The line that starts a script.
pub(super) fn run(id: u64, script: &str) -> String {
    format!("~run {id} {}\n", STANDARD.encode(script))
}

/// The line that kills a script.
pub(super) fn stop(id: u64) -> String {
    format!("~stop {id}\n")
}

/// Splits received bytes into lines.
#[derive(Debug, Default)]
pub(super) struct Lines {
    rest: Vec<u8>,
}

impl Lines {
    /// Takes received bytes. Calls `frame` for each whole frame and `noise` for each other line that is not empty.
    pub(super) fn push(
        &mut self,
        bytes: &[u8],
        mut frame: impl FnMut(Frame),
        mut noise: impl FnMut(&[u8]),
    ) {
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(line);
            let Some(line) = self.rest.strip_suffix(b"\n") else { return };
            match Frame::parse(line) {
                Some(whole) => frame(whole),
                None if line.is_empty() || line == b"\r" => {}
                None => noise(line),
            }
            self.rest.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn end(id: u64, status: i32, output: &[u8]) -> Frame {
        Frame::End { id, status, output: output.to_vec() }
    }

    /// A frame as the agent writes it.
    fn write(frame: &Frame) -> Vec<u8> {
        match frame {
            Frame::Up { uptime } => format!("\n~up {uptime}\n"),
            Frame::End { id, status, output } => {
                format!("\n~end {id} {status} {} {}\n", output.len(), STANDARD.encode(output))
            }
        }
        .into_bytes()
    }

    /// All frames in bytes that arrive in parts of `size`.
    fn read(bytes: &[u8], size: usize) -> Vec<Frame> {
        let mut lines = Lines::default();
        let mut frames = Vec::new();
        for part in bytes.chunks(size) {
            lines.push(part, |frame| frames.push(frame), |_| ());
        }
        frames
    }

    #[test]
    fn other_lines_are_noise_and_empty_ones_nothing() {
        let mut noise = Vec::new();
        let mut lines = Lines::default();
        let text = b"[    1.0] xen\r\n\r\n\n~end 1 0 9 eA==\n~up 3.5\r\n~up\n~down\nlast";
        let mut boots = 0;
        lines.push(
            text,
            |_| boots += 1,
            |line| noise.push(String::from_utf8_lossy(line).into_owned()),
        );
        assert_eq!(noise, ["[    1.0] xen\r", "~end 1 0 9 eA==", "~up", "~down"]);
        assert_eq!(boots, 1);
    }

    #[test]
    fn a_script_travels_as_one_line() {
        let line = run(7, "echo one\necho two\n");
        assert_eq!(line.matches('\n').count(), 1);
        assert!(line.starts_with("~run 7 ") && line.ends_with('\n'), "{line}");
        assert_eq!(stop(7), "~stop 7\n");
    }

    fn frames() -> impl Strategy<Value = Frame> {
        let output = prop::collection::vec(any::<u8>(), 0..200);
        prop_oneof![
            (0_u32..9000).prop_map(|centi| Frame::Up { uptime: f64::from(centi) / 100.0 }),
            (any::<u64>(), any::<i32>(), output).prop_map(|(id, status, output)| Frame::End {
                id,
                status,
                output
            }),
        ]
    }

    /// What the kernel, a daemon or a broken line may put between frames.
    fn noise() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(any::<u8>(), 0..80),
            "[ -~\r\n]{0,80}".prop_map(String::into_bytes),
            Just(b"~end 1 0 ".to_vec()),
        ]
    }

    proptest! {
        #[test]
        fn every_frame_arrives_through_noise_in_any_parts(
            talk in prop::collection::vec((noise(), frames()), 0..12),
            size in 1_usize..64,
        ) {
            let bytes: Vec<u8> =
                talk.iter().flat_map(|(noise, frame)| [noise.clone(), write(frame)].concat()).collect();
            let expected: Vec<Frame> = talk.into_iter().map(|(_, frame)| frame).collect();
            prop_assert_eq!(read(&bytes, size), expected);
        }

        #[test]
        fn noise_within_an_answer_never_makes_another(
            output in prop::collection::vec(any::<u8>(), 1..100),
            at in any::<prop::sample::Index>(),
            noise in "[ -~]{1,20}",
        ) {
            let whole = end(3, 0, &output);
            let mut bytes = write(&whole);
            // The noise comes after the numbers, which have no check.
            let payload = bytes.len() - 1 - STANDARD.encode(&output).len();
            let at = payload + at.index(bytes.len() - 1 - payload);
            bytes.splice(at..at, noise.bytes());
            prop_assert!(read(&bytes, 16).iter().all(|frame| *frame == whole));
        }
    }
}
