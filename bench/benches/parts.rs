//! Rings, the switch's table, offloads, and copies into shared memory.

use std::hint::black_box;
use std::sync::Arc;

use gungraun::prelude::*;
use offload::{Gso, GsoKind, MAX_HEADER, Segmenter, complete_checksum};
use ring::netif::Tx;
use ring::{BackRing, FrontRing, LEDGER_LEN, Ledger, RegionPage};
use shm::Region;
use switch::{DEFAULT_CAPACITY, Limits, MacTable, PortId};
use wire::ethernet::MacAddr;
use wire::headers::Headers;
use wire::netif::{TxRequest, TxResponse};

/// Frames in a burst.
const BURST: u16 = 32;

type Page = RegionPage<Arc<Region>>;
type Rings = (FrontRing<Tx, Page>, BackRing<Tx, Page>);

/// Both ends of a ring.
fn rings() -> Rings {
    let page = Arc::new(Region::anonymous(4096).expect("a page"));
    let side = || RegionPage::new(page.clone()).expect("a page");
    let ledger = Region::anonymous(LEDGER_LEN).expect("memory");
    let front = FrontRing::init(side());
    let back = BackRing::attach(side(), Ledger::new(ledger).expect("a ledger")).expect("a new ring");
    (front, back)
}

// A burst of requests and their responses.
#[library_benchmark]
#[bench::burst(rings())]
fn requests(rings: Rings) -> Rings {
    let (mut front, mut back) = rings;
    for id in 0..BURST {
        front.request(TxRequest { gref: 8, offset: 0, flags: 0, id, size: 64 });
    }
    black_box(front.publish());
    while let Ok(Some(request)) = back.take() {
        back.respond(TxResponse { id: request.id, status: 0 });
    }
    black_box(back.publish());
    while let Ok(Some(response)) = front.take() {
        black_box(response);
    }
    (front, back)
}

/// A table with stations on a port.
fn table() -> MacTable {
    let table = MacTable::new(DEFAULT_CAPACITY, Limits::default());
    for station in 0..200 {
        table.learn(MacAddr([2, 0, 0, 0, 0, station]), PortId(1), 0);
    }
    table
}

// A frame's source and destination, for each of a burst.
#[library_benchmark]
#[bench::known(table())]
fn lookups(table: MacTable) -> MacTable {
    for _ in 0..BURST {
        black_box(table.learn(black_box(MacAddr([2, 0, 0, 0, 0, 7])), PortId(1), 1));
        black_box(table.lookup(black_box(MacAddr([2, 0, 0, 0, 0, 9])), 1));
    }
    table
}

/// TCP over IPv4 with this payload.
fn tcp(payload: usize) -> Vec<u8> {
    let mut bytes = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0, 0x45, 0];
    bytes.extend(u16::try_from(40 + payload).expect("a frame").to_be_bytes());
    bytes.extend([0, 0, 0, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
    bytes.extend([0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0x50, 0x10, 0, 0, 0, 0, 0, 0]);
    bytes.resize(54 + payload, 1);
    bytes
}

#[library_benchmark]
#[bench::full(tcp(1448))]
fn checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = Headers::parse(&frame).expect("headers");
    complete_checksum(&mut frame, &headers).expect("TCP");
    frame
}

#[library_benchmark]
#[bench::large(tcp(45 * 1448))]
fn segments(frame: Vec<u8>) -> Vec<u8> {
    let headers = Headers::parse(&frame).expect("headers");
    let gso = Gso { kind: GsoKind::TcpV4, size: 1448 };
    let mut segmenter = Segmenter::new(&frame, &headers, gso).expect("TCP");
    let mut header = [0; MAX_HEADER];
    while let Some(segment) = segmenter.next(&mut header) {
        black_box(segment);
    }
    frame
}

/// Shared memory and a frame.
fn memory(len: usize) -> (Region, Vec<u8>) {
    (Region::anonymous(1 << 17).expect("memory"), vec![1; len])
}

#[library_benchmark]
#[bench::small(memory(64))]
#[bench::full(memory(1514))]
#[bench::large(memory(65_214))]
fn copy((region, frame): (Region, Vec<u8>)) -> (Region, Vec<u8>) {
    region.copy_in(64, black_box(&frame)).expect("room");
    (region, frame)
}

library_benchmark_group!(name = parts, benchmarks = [requests, lookups, checksum, segments, copy]);

main!(library_benchmark_groups = parts);
