//! A frontend that owns the first half of each page that it grants, as Unikraft's netfront does.

use std::sync::Arc;
use std::time::Duration;

use machine::Machine;
use netback::{GrantReuse, Offered, TxChannel};
use offload::Features;
use port::{Body, Fragment, Frame, Outcome};
use port_testing::offer;
use shm::Region;
use wire::netif::{RxRequest, RxResponse};

use crate::common::guest::{DATA, OFFERED, PAGE, PERSISTENT, REQ_PROD, RSP_PROD, RX_RING, Raw};

const HALF: usize = 2048;
const BUFFERS: u32 = 32;
const OTHERS: u8 = 0xa5;

fn frame_of(len: usize, body: &Region) -> Frame {
    let mut bytes = vec![0x77; len];
    bytes[..14].copy_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x88, 0xb5]);
    let mut frame = port_testing::frame(&bytes);
    let rest = &bytes[frame.header().len()..];
    if !rest.is_empty() {
        body.copy_in(0, rest).unwrap();
        frame.fragments.push(Fragment::in_region(0, 0, rest.len().try_into().unwrap()));
    }
    frame
}

/// Every length that fits half a page, over every slot of the ring: the other half is untouched.
fn check(offered: Offered) {
    let machine = Machine::new();
    let raw = Raw::new(&machine);
    for page in DATA..DATA + BUFFERS {
        raw.write(page, HALF, [OTHERS; HALF]);
    }
    let mut vif = raw.announce_as(machine, offered);
    let mut queue = raw.connect(&mut vif, Features::ALL);
    let body = Region::anonymous(PAGE).unwrap();
    let regions: Arc<[Region]> = [body].into();
    let mut posted = 0u32;
    for len in (14..=HALF).step_by(3).chain([HALF]) {
        let request = RxRequest { id: 0, pad: 0, gref: DATA + posted % BUFFERS };
        raw.write(RX_RING, Raw::slot::<RxRequest>(posted), request);
        posted += 1;
        raw.write(RX_RING, REQ_PROD, posted);
        let frame = frame_of(len, &regions[0]);
        let outcome = offer(&mut queue.rx, Body::Regions(&regions), &frame, Duration::ZERO);
        assert_eq!(outcome, Ok(Outcome::Delivered));
        assert_eq!(raw.read::<u32>(RX_RING, RSP_PROD), posted);
        let RxResponse { offset, status, .. } = raw.response(posted - 1);
        assert_eq!((offset, usize::try_from(status)), (0, Ok(len)));
    }
    for page in DATA..DATA + BUFFERS {
        assert_eq!(raw.read::<[u8; HALF]>(page, HALF), [OTHERS; HALF], "page {page}");
    }
}

#[test]
fn frames_begin_at_the_first_byte_of_a_buffer() {
    check(OFFERED);
    check(Offered { tx: TxChannel::Remap, ..OFFERED });
}

#[test]
fn frames_begin_at_the_first_byte_of_a_page_that_stays_mapped() {
    let reuse = GrantReuse::OnDemand;
    check(Offered { persistent_grants: PERSISTENT, reuse, ..OFFERED });
}
