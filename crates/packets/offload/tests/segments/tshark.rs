//! Segments as Wireshark sees them: a third implementation, and the one that operators trust.

use std::fs;
use std::process::Command;

use crate::common::{Network, Tcp, payload};
use offload::{Gso, GsoKind, MAX_HEADER, Segmenter};
use wire::headers::Headers;

const PAYLOAD_LEN: usize = 10_000;
const SIZE: u16 = 1000;
const SEGMENTS: usize = 10;
/// What a pcap file starts with: its magic, version 2.4, a snaplen of 65,535 bytes, Ethernet.
const PCAP_HEADER: [u8; 24] =
    [0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 1, 0, 0, 0];

/// One frame of each shape: IP version, options, tags.
fn frames() -> Vec<(Vec<u8>, GsoKind)> {
    let mut frames = Vec::new();
    for vlan_tags in 0..=2 {
        for (v6, kind) in [(false, GsoKind::TcpV4), (true, GsoKind::TcpV6)] {
            for options in [0, 3] {
                let network = Network { vlan_tags, v6, options, ident: 7, addresses: 0x0102 };
                let tcp = Tcp { seq: 1_000_000, flags: 0x18, options };
                frames.push((network.tcp_frame(&tcp, &payload(PAYLOAD_LEN)), kind));
            }
        }
    }
    frames
}

fn append_segments(capture: &mut Vec<u8>, frame: &[u8], kind: GsoKind) {
    let headers = Headers::parse(frame).expect("whole headers");
    let mut segmenter = Segmenter::new(frame, &headers, Gso { kind, size: SIZE }).expect("TCP");
    let mut header = [0; MAX_HEADER];
    while let Some(segment) = segmenter.next(&mut header) {
        let bytes = [&header[..segment.header_len], &frame[segment.payload]].concat();
        let len = u32::try_from(bytes.len()).expect("short");
        // The time in two words, the captured and the original length.
        capture.extend([0, 0, len, len].map(u32::to_le_bytes).concat());
        capture.extend(bytes);
    }
}

/// What tshark says of the file, one line per frame: the status of the IPv4 and the TCP checksum (1 is good) and the
/// TCP payload's length.
fn statuses(path: &std::path::Path) -> Option<String> {
    let output = Command::new("tshark")
        .args(["-n", "-r"])
        .arg(path)
        .args(["-o", "tcp.check_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
        .args([
            "-T",
            "fields",
            "-e",
            "ip.checksum.status",
            "-e",
            "tcp.checksum.status",
            "-e",
            "tcp.len",
        ])
        .output();
    let output = lab::needed(output.map_err(|error| format!("tshark: {error}")))?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("numbers"))
}

#[test]
fn tshark_finds_no_bad_checksum() {
    let frames = frames();
    let mut capture = PCAP_HEADER.to_vec();
    for (frame, kind) in &frames {
        append_segments(&mut capture, frame, *kind);
    }
    let path = std::env::temp_dir().join(format!("offload-{}.pcap", std::process::id()));
    fs::write(&path, capture).expect("a temporary file");
    let statuses = statuses(&path);
    fs::remove_file(&path).expect("still there");
    let Some(statuses) = statuses else { return };

    let of_v4 = format!("1\t1\t{SIZE}");
    let of_v6 = format!("\t1\t{SIZE}");
    let expected: Vec<&str> = frames
        .iter()
        .flat_map(|(_, kind)| {
            let line = if *kind == GsoKind::TcpV4 { &of_v4 } else { &of_v6 };
            std::iter::repeat_n(line.as_str(), SEGMENTS)
        })
        .collect();
    assert_eq!(statuses.lines().collect::<Vec<_>>(), expected);
}
