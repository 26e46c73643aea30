//! What a capture records of a port's frames, and that it changes nothing for the port.

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;

use crate::common::{
    Captured, Port, blocks, file_of, frames, gso_frame, number, options, packets, packets_of,
    start, tcp_frame,
};
use capture::{BUFFER_BYTES, CAPTURES_MAX, CaptureLayer, CapturePoint, Options, StartError};
use offload::Checksum;
use port::{DropReason, Layers, Outcome, Ticket, WINDOW};
use port_testing::Sent;

const NO_ROOM: Outcome = Outcome::Dropped(DropReason::NoRoom);

fn numbered(numbers: std::ops::Range<u16>) -> impl Iterator<Item = Vec<u8>> {
    numbers.map(|number| tcp_frame(number, 300))
}

fn filtered(filter: &str) -> Options {
    Options { filter: filter.into(), ..Options::default() }
}

#[test]
fn nothing_is_recorded_while_no_capture_runs() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    port.carry(numbered(0..3));
    assert_eq!(port.sender.body_uses(), 0, "nobody asked for the bodies");
    let capture = start(&point, &Options::default());
    port.carry(numbered(3..5));
    drop(capture);
    let asked = port.sender.body_uses();
    port.carry(numbered(5..7));
    assert_eq!(port.sender.body_uses(), asked, "it ends when it is dropped");
    let capture = start(&point, &Options::default());
    assert_eq!(packets_of(capture), []);
}

#[test]
fn the_wrapper_can_be_put_on_and_taken_off() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let capture = start(&point, &Options::default());
    assert!(point.is_active());
    port.carry(numbered(0..3));
    // Off. A queue without the wrapper stays as it is.
    let without = Layers(vec![Box::new(CaptureLayer::default())]);
    port.rewrap(&without);
    port.rewrap(&without);
    port.carry(numbered(3..5));
    // On again, with frames in hand.
    port.receive(numbered(5..7));
    port.rewrap(&Layers(vec![Box::new(point.layer())]));
    port.finish(&[Outcome::Delivered; WINDOW]);
    let bytes: Vec<_> = packets_of(capture).into_iter().map(|packet| packet.bytes).collect();
    assert!(bytes.into_iter().eq(numbered(0..3).chain(numbered(5..7))));
    assert!(!point.is_active());
}

#[test]
fn packets_of_both_directions_are_recorded_in_order() {
    let point = CapturePoint::new("red");
    let (mut port, mut other) = (Port::wrapped(&point), Port::wrapped(&CapturePoint::new("blue")));
    let capture = start(&point, &Options::default());
    let sent: Vec<_> = numbered(0..4).chain([vec![0xff; 14]]).collect();
    port.carry(sent.clone());
    other.receive(sent.clone());
    port.offer(&other, &[]);
    port.carry(sent.clone());
    let packets = packets_of(capture);
    let bytes: Vec<_> = packets.iter().map(|packet| packet.bytes.clone()).collect();
    assert_eq!(bytes, [sent.clone(), sent.clone(), sent.clone()].concat());
    let directions: Vec<_> = packets.iter().map(Captured::direction).collect();
    assert_eq!(directions, [[1; 5], [2; 5], [1; 5]].concat());
    assert!(packets.is_sorted_by_key(|packet| packet.timestamp));
    assert!(packets.iter().all(|packet| packet.comment.is_none()));
    assert!(packets.iter().all(|packet| packet.original_len as usize == packet.bytes.len()));
}

#[test]
fn a_drop_carries_its_reason_on_either_side() {
    let point = CapturePoint::new("red");
    let (mut port, mut other) = (Port::wrapped(&point), Port::wrapped(&CapturePoint::new("blue")));
    let capture = start(&point, &Options::default());
    let drops = start(&point, &filtered("dropped and outbound"));
    port.receive(numbered(0..DropReason::ALL.len().try_into().unwrap()));
    port.finish(&DropReason::ALL.map(Outcome::Dropped));
    other.receive(numbered(100..104));
    port.offer(&other, &[Outcome::Delivered, NO_ROOM, Outcome::SourceFault, Outcome::Waiting]);

    let packets = packets_of(capture);
    let (inbound, outbound) = packets.split_at(DropReason::ALL.len());
    for (packet, reason) in inbound.iter().zip(DropReason::ALL) {
        assert_eq!(packet.comment, Some(format!("dropped: {}", reason.name())));
    }
    let comments: Vec<_> = outbound.iter().map(|packet| packet.comment.as_deref()).collect();
    assert_eq!(comments, [None, Some("dropped: no_room"), Some("dropped: memory_fault")]);
    let drops = packets_of(drops);
    assert_eq!(drops.iter().map(|drop| number(&drop.bytes)).collect::<Vec<_>>(), [101, 102]);
}

#[test]
fn a_frame_that_waits_or_is_in_flight_is_recorded_once() {
    let point = CapturePoint::new("red");
    let (mut port, mut other) = (Port::wrapped(&point), Port::wrapped(&point));
    let inbound = start(&point, &filtered("inbound"));
    let outbound = start(&point, &filtered("outbound"));
    let in_flight = Outcome::InFlight(Ticket(7));
    other.receive(numbered(0..3));
    port.offer(&other, &[in_flight, Outcome::Waiting, Outcome::Waiting]);
    other.finish(&[in_flight]);
    other.finish(&[in_flight]);
    other.finish(&[Outcome::Delivered]);
    port.offer(&other, &[Outcome::Waiting, Outcome::Waiting]);
    other.finish(&[]);
    port.offer(&other, &[Outcome::Delivered, NO_ROOM]);
    other.finish(&[Outcome::Delivered, NO_ROOM]);
    other.finish(&[]);
    for capture in [inbound, outbound] {
        let packets = packets_of(capture);
        assert_eq!(packets.iter().map(|p| number(&p.bytes)).collect::<Vec<_>>(), [0, 1, 2]);
    }
}

#[test]
fn a_frame_that_is_sent_in_parts_is_recorded_once() {
    let point = CapturePoint::new("red");
    let (mut port, mut other) = (Port::wrapped(&point), Port::wrapped(&CapturePoint::new("blue")));
    let capture = start(&point, &Options::default());
    other.receive(numbered(0..3));
    let partial = |segments| Outcome::Partial { segments };
    port.offer(&other, &[Outcome::Delivered, partial(0)]);
    other.finish(&[Outcome::Delivered, partial(0), Outcome::Waiting]);
    port.offer(&other, &[partial(64)]);
    port.offer(&other, &[partial(128)]);
    port.offer(&other, &[Outcome::Delivered, NO_ROOM]);
    let packets = packets_of(capture);
    assert_eq!(packets.iter().map(|p| number(&p.bytes)).collect::<Vec<_>>(), [0, 1, 2]);
    let comments: Vec<_> = packets.iter().map(|packet| packet.comment.as_deref()).collect();
    assert_eq!(comments, [None, None, Some("dropped: no_room")]);
}

#[test]
fn the_snaplen_cuts_headers_and_bodies() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let whole = tcp_frame(1, 5000);
    // Within the header, at its end, within the first and the second fragment, the whole, and more.
    let snaplens = [60, 128, 129, 1000, 3000, 5053, 5054, 9000, u32::MAX];
    for snaplens in snaplens.chunks(CAPTURES_MAX) {
        let captures = snaplens
            .iter()
            .map(|&snaplen| (snaplen, start(&point, &Options { snaplen, ..Options::default() })));
        let captures: Vec<_> = captures.collect();
        port.carry([whole.clone()]);
        for (snaplen, capture) in captures {
            let packets = packets_of(capture);
            assert_eq!(packets[0].original_len as usize, whole.len());
            let expected = &whole[..whole.len().min(snaplen as usize)];
            assert!(packets[0].bytes == expected, "{snaplen}");
        }
    }
}

#[test]
fn a_frame_with_an_unreadable_body_is_recorded_by_its_header() {
    let point = CapturePoint::new("red");
    let (mut port, mut other) = (Port::wrapped(&point), Port::wrapped(&CapturePoint::new("blue")));
    let capture = start(&point, &Options::default());
    let segmented = start(&point, &Options { segmented: true, ..Options::default() });
    let sent = gso_frame(10_000);
    other.receive([sent.clone()]);
    let window = other.queue.ingress.window();
    let mut offers = [port::Offer::new(window.frame(0))];
    let nowhere = Arc::from([]);
    let body = port::Body::Regions(&nowhere);
    port.queue.egress.deliver(body, &mut offers, std::time::Duration::ZERO).unwrap();
    for capture in [capture, segmented] {
        let [packet] = &packets_of(capture)[..] else { panic!("one packet") };
        assert_eq!(packet.bytes, sent.bytes()[..128]);
        assert_eq!(packet.original_len as usize, sent.bytes().len());
    }
}

#[test]
fn unfinished_frames_are_recorded_as_they_are_or_as_segments() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let plain = start(&point, &Options::default());
    let segmented = start(&point, &Options { segmented: true, ..Options::default() });
    let short = start(&point, &Options { segmented: true, snaplen: 100, ..Options::default() });
    let long = gso_frame(10_000);
    let mut validated = Sent::from(tcp_frame(2, 10));
    validated.frame.checksum = Checksum::Validated;
    port.carry([long.clone(), validated.clone()]);

    let packets = packets_of(plain);
    assert_eq!(packets[0].bytes, long.bytes());
    assert_eq!(packets[0].flags, 1 | 1 << 9 | 1 << 11, "no checksum yet, to be segmented");
    assert_eq!(packets[1].flags, 1 | 1 << 10, "a valid checksum");

    let packets = packets_of(segmented);
    assert_eq!(packets.len(), 11);
    assert_eq!(packets[10].bytes, validated.bytes());
    for (segment, payload) in packets.iter().zip(long.bytes()[54..].chunks(1000)) {
        assert_eq!(segment.bytes[54..], *payload);
        assert_eq!(segment.original_len as usize, segment.bytes.len());
        assert_eq!(segment.flags, 1);
        let (computed, held) = frames::transport_checksums(&frames::parse(&segment.bytes));
        assert_eq!(computed, held);
    }

    let lens = packets_of(short).into_iter().map(|p| (p.bytes.len(), p.original_len));
    assert_eq!(lens.collect::<Vec<_>>(), [vec![(100, 1054); 10], vec![(64, 64)]].concat());
}

#[test]
fn a_full_sink_loses_packets_and_says_how_many() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let slow = start(&point, &Options::default());
    let headers = start(&point, &Options { snaplen: 64, ..Options::default() });
    let frames = 2 * BUFFER_BYTES / 60_000;
    for _ in 0..frames.div_ceil(WINDOW) {
        port.carry(vec![tcp_frame(1, 60_000); WINDOW]);
    }
    let all = (frames.div_ceil(WINDOW) * WINDOW) as u64;
    let (file, totals) = file_of(slow);
    assert_eq!(totals.written + totals.lost, all);
    assert!(file.len() > BUFFER_BYTES * 99 / 100, "what there is space for is used");
    assert!(file.len() < BUFFER_BYTES + 1000, "and no more");
    assert_eq!(packets(&file).len() as u64, totals.written);
    let (kind, statistics) = blocks(&file).pop().unwrap();
    assert_eq!(kind, 5);
    let count = |wanted: u16| {
        let options = options(&statistics[12..]);
        let (_, value) = options.iter().find(|(code, _)| *code == wanted).unwrap();
        u64::from_le_bytes((*value).try_into().unwrap())
    };
    assert_eq!((count(4), count(5)), (all, totals.lost));
    // The other capture has enough space, and has lost nothing.
    assert_eq!(file_of(headers).1.written, all);
}

/// An output that hands over what is written.
struct Live(mpsc::Sender<Vec<u8>>);

impl Write for Live {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_live_reader_has_each_packet_while_the_capture_runs() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let capture = start(&point, &Options::default());
    let (output, written) = mpsc::channel();
    let reader = thread::spawn(move || capture.run(&mut Live(output), &mut || false));
    let preamble = written.recv().unwrap();
    assert_eq!(blocks(&preamble).len(), 2);
    for sent in numbered(0..3) {
        port.carry([sent.clone()]);
        assert_eq!(packets(&written.recv().unwrap())[0].bytes, sent);
    }
    drop(written);
    port.carry(numbered(3..4));
    assert_eq!(reader.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
}

/// An output that reports a write, and then waits until the test lets it go on.
struct Stuck(mpsc::SyncSender<()>, mpsc::Receiver<()>);

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let _ = self.0.try_send(());
        // Fails once the test has ended the channel.
        self.1.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_stops_delays_nobody_and_ends_its_capture() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let capture = start(&point, &Options::default());
    let (is_stuck, stuck) = mpsc::sync_channel(1);
    let (go_on, may_go_on) = mpsc::channel();
    let reader = thread::spawn(move || capture.run(&mut Stuck(is_stuck, may_go_on), &mut || false));
    stuck.recv().unwrap();
    for _ in 0..10 {
        port.carry(vec![tcp_frame(1, 60_000); WINDOW]);
    }
    drop(go_on);
    assert_eq!(reader.join().unwrap().unwrap_err().kind(), io::ErrorKind::BrokenPipe);
    let asked = port.sender.body_uses();
    port.carry(numbered(0..1));
    assert_eq!(port.sender.body_uses(), asked, "it is gone from the port");
}

#[test]
fn a_capture_ends_after_its_count_or_with_its_port() {
    let point = CapturePoint::new("red");
    let mut port = Port::wrapped(&point);
    let counted = start(&point, &Options { count: Some(3), ..Options::default() });
    let endless = start(&point, &Options::default());
    port.carry(numbered(0..5));
    let mut file = Vec::new();
    assert_eq!(counted.run(&mut file, &mut || false).unwrap().written, 3);
    assert_eq!(packets(&file).len(), 3);
    drop((port, point));
    assert_eq!(endless.run(&mut Vec::new(), &mut || false).unwrap().written, 5);
}

#[test]
fn packets_of_concurrent_sides_are_in_order() {
    const BATCHES: usize = 300;
    let point = CapturePoint::new("red");
    let capture = start(&point, &Options { snaplen: 64, ..Options::default() });
    let stop = AtomicBool::new(false);
    let (file, totals) = thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut file = Vec::new();
            let totals = capture.run(&mut file, &mut || stop.load(Ordering::Relaxed)).unwrap();
            (file, totals)
        });
        let workers = [0, 1, 2].map(|_| {
            let mut port = Port::wrapped(&point);
            scope.spawn(move || {
                for batch in 0..BATCHES {
                    port.carry([tcp_frame(u16::try_from(batch).unwrap(), 10)]);
                    thread::yield_now();
                }
            })
        });
        for worker in workers {
            worker.join().unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    let packets = packets(&file);
    assert!(packets.is_sorted_by_key(|packet| packet.timestamp));
    assert_eq!(totals.written + totals.lost, 3 * BATCHES as u64);
    // Fewer threads than buffers: a batch finds one.
    assert_eq!(totals.lost, 0);
}

#[test]
fn the_stream_names_its_program_and_interface() {
    let point = CapturePoint::new("red");
    let capture = start(&point, &Options { snaplen: 96, ..filtered("arp") });
    let (file, _) = file_of(capture);
    let blocks = blocks(&file);
    assert_eq!(blocks.iter().map(|(kind, _)| *kind).collect::<Vec<_>>(), [0x0a0d_0d0a, 1, 5]);
    let section = options(&blocks[0].1[16..]);
    assert!(section[0].1.starts_with(b"Linux "));
    assert!(section[1].1.starts_with(b"pvnet "));
    let interface = options(&blocks[1].1[8..]);
    assert_eq!(interface, [(2, &b"red"[..]), (9, &[9]), (11, b"\0arp")]);
}

#[test]
fn a_capture_that_cannot_start_says_why() {
    let point = CapturePoint::new("red");
    let running = [(); CAPTURES_MAX].map(|()| start(&point, &Options::default()));
    let error = point.start(&Options::default()).err().unwrap();
    assert_eq!(error.to_string(), "port \"red\" has 4 captures already; end one of them first");
    drop(running);
    let error = point.start(&filtered("hots 10.0.0.1")).err().unwrap();
    assert!(matches!(error, StartError::Filter(_)));
    assert!(error.to_string().starts_with("filter, character 1: found `hots`, expected ether, "));
}
