//! Attacks on descriptors, indices and sequence numbers, and on the files of a context.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd};

use cdna::{Descriptor, Direction, Flags, Mailbox, completion, ring};
use contexts::Protection;
use rustix::fs::fstat;
use shm::Region;

use crate::guest::{PAGE, PEER, frame, mac};
use crate::outcome::Outcome;
use crate::world::{BAD, NEIGHBOUR, SECRET, SECRET_PAGE, World};

/// A mapping of a file that can be written, however the guest tries to get one.
fn map_writable(file: impl AsFd, len: usize) -> Option<Region> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let reopened = OpenOptions::new().read(true).write(true).open(path);
    let again = reopened.ok().and_then(|file| Region::map(file, 0, len).ok());
    assert!(rustix::io::pwrite(&file, &[1; 16], 0).is_err());
    Region::map(&file, 0, len).ok().or(again)
}

/// It writes a descriptor of the neighbour's page into its ring, past the hypervisor.
pub fn forges_a_descriptor(world: &mut World) -> Outcome {
    let address = world.guest(NEIGHBOUR).address(SECRET_PAGE);
    let headers = frame(PEER, mac(BAD), b"");
    let protection = world.protection;
    let guest = world.guest(BAD);
    let [_, rings, ..] = guest.files.for_guest().unwrap();
    // What is sealed after the guest mapped it can be written through that mapping only.
    let forged = map_writable(rings, ring::RINGS_LEN);
    assert!(forged.is_none());
    if protection == Protection::Hypervisor {
        return Outcome::Sealed;
    }
    guest.memory().copy_in(20 * PAGE, &headers).unwrap();
    let len = SECRET.len().try_into().unwrap();
    let chain = [
        Descriptor { flags: 0, ..guest.buffer(20, 14) },
        Descriptor::buffer(0, address, len, Flags::EOP),
    ];
    world.post(BAD, Direction::Tx, &chain).unwrap();
    world.settle();
    let wins = world.net().sent.iter().any(|frame| frame.ends_with(SECRET));
    world.judge(wins, "nothing was sent")
}

/// A false consumer index would have the hypervisor release pages that the card uses.
pub fn forges_a_consumer_index(world: &mut World) -> Outcome {
    let [_, _, completions, _] = world.guest(BAD).files.for_guest().unwrap();
    match map_writable(completions, completion::PAGE_LEN) {
        Some(_) => Outcome::GuestWins,
        None => Outcome::Sealed,
    }
}

/// It has received frames written where a ring would be if rings were memory of the machine.
pub fn writes_its_ring_through_a_receive_buffer(world: &mut World) -> Outcome {
    let before: [u8; ring::RINGS_LEN] = world.guest(BAD).files.rings().read(0).unwrap();
    let own = world.guest(BAD).address(0);
    // All of its own memory first: none of it is a ring.
    for page in 1..64 {
        let guest = world.guest(BAD);
        let buffer = guest.buffer(page, 4096);
        world.post(BAD, Direction::Rx, &[buffer]).unwrap();
        world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xff; 4000]));
    }
    world.settle();
    let after: [u8; ring::RINGS_LEN] = world.guest(BAD).files.rings().read(0).unwrap();
    let tx = ..ring::RING_LEN;
    assert_eq!(before[tx], after[tx]);
    assert!(after[ring::RING_LEN..].iter().zip(&before[ring::RING_LEN..]).any(|(a, b)| a != b));
    // Below its memory there is none of any domain.
    let outside = Descriptor::buffer(0, own - PAGE as u64, 4096, Flags::NONE);
    if let Err(refused) = world.post(BAD, Direction::Rx, &[outside]) {
        return refused;
    }
    world.net().arriving.push_back(frame(mac(BAD), PEER, &[0xff; 4000]));
    world.settle();
    world.judge(false, "nothing was written")
}

/// The slot beyond its last descriptor has one of the round before, whose page may be another's by now. The world begins 100 descriptors
/// before the wrap.
pub fn replays_a_descriptor_after_the_wrap(world: &mut World) -> Outcome {
    for _ in 0..300 {
        world.send(BAD, 20, &frame(PEER, mac(BAD), b"fine"));
        world.settle();
    }
    assert_eq!(std::mem::take(&mut world.net().sent).len(), 300);
    let guest = world.guest(BAD);
    guest.write(Mailbox::TxProducer, guest.producers[Direction::Tx as usize].wrapping_add(1));
    world.settle();
    assert!(world.net().sent.is_empty());
    world.judge(false, "nothing was sent")
}

/// A context page is a file: with its descriptor comes this page, and no other.
pub fn searches_for_another_contexts_page(world: &mut World) -> Outcome {
    let files = |world: &mut World, number| {
        let files = world.guest(number).files.for_guest().unwrap().map(|file| fstat(file).unwrap());
        files.map(|stat| (stat.st_ino, stat.st_size))
    };
    let (own, others) = (files(world, BAD), files(world, NEIGHBOUR));
    let sizes = [PAGE, ring::RINGS_LEN, completion::PAGE_LEN].map(|len| len as i64);
    assert!(own.iter().zip(sizes).all(|((_, size), len)| *size == len));
    let is_shared = own[..3].iter().any(|own| others[..3].iter().any(|other| own.0 == other.0));
    world.judge(is_shared, "each page is a file")
}
