//! How contexts share the wire.

use std::time::Duration;

use crate::common::guest::{Guest, mac, usual};
use firmware::Config;

use crate::common::{Host, PEER, frame};

/// Keeps a guest's ring full of frames of one length.
fn refill(guest: &mut Guest, number: u8, len: usize) {
    while guest.room() > 0 {
        guest.send(&frame(PEER, mac(number), number, len));
    }
}

/// What each of the guests sent in this many milliseconds at 1 Gbit/s, in bytes on the wire.
fn shares(lens: &[usize], millis: u64) -> (Vec<usize>, Vec<u8>) {
    let mut host = Host::new(Config { rate_mbps: 1000, ..Config::default() });
    let numbers = 1..=u8::try_from(lens.len()).unwrap();
    let mut guests: Vec<_> = numbers.map(|number| (number, host.guest(number))).collect();
    guests.iter().for_each(|(_, guest)| guest.enable(usual()));
    let end = host.now + Duration::from_millis(millis);
    let (mut bytes, mut order) = (vec![0; lens.len()], Vec::new());
    while host.now < end {
        for (number, guest) in &mut guests {
            refill(guest, *number, lens[usize::from(*number) - 1]);
        }
        host.run();
        for sent in host.sent() {
            bytes[usize::from(sent[11]) - 1] += sent.len() + 24;
            order.push(sent[11]);
        }
        host.now += Duration::from_micros(100);
    }
    (bytes, order)
}

/// Jain's index of fairness.
#[expect(clippy::cast_precision_loss, reason = "a test's numbers")]
fn jain(shares: &[usize]) -> f64 {
    let sum: f64 = shares.iter().map(|share| *share as f64).sum();
    let squares: f64 = shares.iter().map(|share| (*share as f64).powi(2)).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn twenty_four_guests_get_equal_shares_of_the_wire() {
    let (bytes, order) = shares(&[1514; 24], 50);
    assert!(jain(&bytes) > 0.999, "{bytes:?}");
    // Their frames are interleaved: none sends three in a row.
    assert!(order.windows(3).all(|three| three[0] != three[1] || three[1] != three[2]));
}

#[test]
fn short_frames_and_long_ones_get_equal_shares() {
    let lens: Vec<_> = (0..24).map(|n| [60, 200, 590, 1514][n % 4]).collect();
    let (bytes, order) = shares(&lens, 50);
    assert!(jain(&bytes) > 0.995, "{bytes:?}");
    // A turn of short frames is no longer than one of long frames.
    let longest = order.chunk_by(|a, b| a == b).map(<[u8]>::len).max().unwrap();
    assert!(longest <= 2 * 2048 / 84, "{longest} frames in a row");
}
