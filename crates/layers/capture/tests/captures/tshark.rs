//! The stream as Wireshark reads it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::common::{Port, file_of, gso_frame, start, tcp_frame};
use capture::{CapturePoint, Options};
use port::{DropReason, Outcome};

/// A capture file, which is removed in the end.
struct File(PathBuf);

impl File {
    /// A capture of three packets in, of which one is dropped, and one out.
    fn of(name: &str, options: &Options) -> Self {
        let point = CapturePoint::new("red");
        let mut port = Port::wrapped(&point);
        let capture = start(&point, options);
        let dropped = Outcome::Dropped(DropReason::SpoofedMac);
        port.receive([gso_frame(3000), tcp_frame(2, 10).into(), tcp_frame(3, 10).into()]);
        port.finish(&[Outcome::Delivered, Outcome::Delivered, dropped]);
        let mut other = Port::wrapped(&CapturePoint::new("blue"));
        other.receive([tcp_frame(4, 10)]);
        port.offer(&other, &[]);
        let (bytes, totals) = file_of(capture);
        assert_eq!(totals.lost, 0);
        let file = format!("capture-{}-{name}.pcapng", std::process::id());
        let path = std::env::temp_dir().join(file);
        fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// What a program prints about a file, or none if it is not installed.
fn output(program: &str, args: &[&str], path: &Path) -> Option<String> {
    let output = Command::new(program).args(args).arg(path).output();
    let output = lab::needed(output.map_err(|error| format!("{program}: {error}")))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).unwrap())
}

fn fields(path: &Path, fields: &[&str]) -> Option<Vec<String>> {
    let mut args = vec!["-n", "-o", "tcp.check_checksum:TRUE", "-T", "fields"];
    args.extend(fields.iter().flat_map(|field| ["-e", field]));
    args.push("-r");
    Some(output("tshark", &args, path)?.lines().map(str::to_owned).collect())
}

#[test]
fn tshark_shows_direction_lengths_and_reason() {
    let file = File::of("plain", &Options { snaplen: 60, ..Options::default() });
    let names = [
        "frame.interface_name",
        "frame.packet_flags_direction",
        "frame.cap_len",
        "frame.len",
        "tcp.srcport",
        "frame.comment",
    ];
    let Some(lines) = fields(&file.0, &names) else { return };
    // tshark prints the direction in hexadecimal, with as many digits as its version likes.
    let direction = |line: &str| {
        let mut words: Vec<_> = line.split('\t').map(str::to_owned).collect();
        let digits = words[1].trim_start_matches("0x");
        words[1] = u32::from_str_radix(digits, 16).unwrap().to_string();
        words.join(" ")
    };
    let lines: Vec<_> = lines.iter().map(|line| direction(line)).collect();
    assert_eq!(
        lines,
        [
            "red 1 60 3054 1 ",
            "red 1 60 64 2 ",
            "red 1 60 64 3 dropped: spoofed_mac",
            "red 2 60 64 4 "
        ]
    );
}

#[test]
fn tshark_finds_the_checksums_of_segments_correct() {
    let file = File::of("segmented", &Options { segmented: true, ..Options::default() });
    let Some(lines) = fields(&file.0, &["tcp.srcport", "tcp.len", "tcp.checksum.status"]) else {
        return;
    };
    assert_eq!(lines[..3], ["1\t1000\t1", "1\t1000\t1", "1\t1000\t1"]);
    assert_eq!(lines.len(), 6);
}

#[test]
fn capinfos_shows_the_interface_and_the_program() {
    let file = File::of("info", &Options { filter: "tcp".into(), ..Options::default() });
    let Some(text) = output("capinfos", &["-M"], &file.0) else { return };
    let plain = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let lines: Vec<_> = text.lines().map(plain).collect();
    for expected in [
        "File type: pcapng",
        "File encapsulation: ether",
        "Number of packets: 4",
        "Strict time order: True",
        concat!("Capture application: pvnet ", env!("CARGO_PKG_VERSION")),
        "Name = red",
        "Time precision = nanoseconds (9)",
        "Filter string = tcp",
        "Number of stat entries = 1",
    ] {
        assert!(lines.iter().any(|line| line == expected), "{expected}: {lines:#?}");
    }
}
