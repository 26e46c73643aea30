//! Traffic between ports of different kinds: where frames stay unsegmented, and where pvnet segments them.

use control_socket::Status;
use hypervisor::Counted;
use lab::Throughput;
use xenlab::{Result, Shell};

use crate::card::{CARD_GUEST, CARD_WIRE};
use crate::recorder::{Recorded, Recorder};
use crate::setup::Setup;
use crate::testbed::{GUEST, TAP, Testbed, WIRE};
use crate::traffic::{self, Peer};

/// Bytes. If frames are longer on average, they were not segmented.
const MTU: f64 = 1514.0;
/// The longest frame of a wire.
const FRAME: usize = 1514;
/// How long TCP is measured in each direction, in seconds.
const SECONDS: u32 = 3;

/// The daemon's counters at two moments.
struct Carried<'a> {
    before: &'a Status,
    after: &'a Status,
}

impl Carried<'_> {
    /// Bytes per frame that came in at all ports. Acknowledgements count as frames.
    fn bytes_per_frame(&self) -> f64 {
        let sum = |status: &Status| {
            status.ports.iter().fold((0, 0), |(frames, bytes), port| {
                (frames + port.ingress.frames, bytes + port.ingress.bytes)
            })
        };
        let ((frames, bytes), (more, most)) = (sum(self.before), sum(self.after));
        (most - bytes) as f64 / ((more - frames) as f64).max(1.0)
    }

    fn segments(&self) -> u64 {
        let count = |status: &Status| status.meter.counts.of(Counted::Segments);
        count(self.after) - count(self.before)
    }
}

/// TCP from the first machine and back. Frames must pass unsegmented between the two ports.
fn whole(setup: &mut Setup<'_>, server: End, address: &str) -> Result<(String, bool)> {
    let daemon = &setup.testbed.daemon;
    let mut rates = Vec::new();
    let before = daemon.status()?;
    for reverse in [false, true] {
        let server = server.peer(setup)?;
        rates.push(traffic::tcp(setup.shell(0)?, server, address, SECONDS, reverse)?);
    }
    let after = daemon.status()?;
    let carried = Carried { before: &before, after: &after };
    let (size, segments) = (carried.bytes_per_frame(), carried.segments());
    let seen = format!("{}, {size:.0} bytes per frame, {segments} segments cut", both(&rates));
    Ok((seen, size > MTU && segments == 0))
}

/// The other end of a transfer.
#[derive(Clone, Copy)]
enum End {
    Machine,
    Guest,
    CardGuest,
}

impl End {
    fn peer<'a>(self, setup: &'a Setup<'_>) -> Result<Peer<'a>> {
        Ok(match self {
            Self::Machine => Peer::Machine(setup.shell(1)?),
            Self::Guest => Peer::Namespace(&setup.testbed.guest_namespace),
            Self::CardGuest => Peer::Namespace(&setup.testbed.card.guest_namespace),
        })
    }
}

fn both(rates: &[Throughput]) -> String {
    let words: Vec<String> = rates.iter().map(|rate| format!("{:.0}", rate.mbps)).collect();
    format!("{} Mb/s", words.join(" and "))
}

/// TCP between two machines.
pub(crate) fn machines(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    whole(setup, End::Machine, &Testbed::address(1))
}

/// TCP between a machine and a process guest.
pub(crate) fn guest(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    whole(setup, End::Guest, GUEST)
}

/// TCP between a machine and the tap, which is recorded. Frames to the tap are segmented and have checksums; frames
/// from it come in unsegmented.
pub(crate) fn wire(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    let namespace = &setup.testbed.wire_namespace;
    let mut rates = Vec::new();
    let mut seen = Vec::new();
    let mut passed = true;
    for reverse in [false, true] {
        let before = setup.testbed.daemon.status()?;
        let recorder = Recorder::start(namespace, TAP)?;
        let server = Peer::Namespace(namespace);
        rates.push(traffic::tcp(setup.shell(0)?, server, WIRE, SECONDS, reverse)?);
        let address = Testbed::address(0);
        let [out, back] = recorder.finish([&address, WIRE])?;
        let after = setup.testbed.daemon.status()?;
        let segments = Carried { before: &before, after: &after }.segments();
        passed &= out.frames > 0 && out.longest <= FRAME && out.wrong == 0;
        if reverse {
            passed &= back.longest > FRAME && segments == 0;
            seen.push(format!("in: up to {} bytes, {segments} segments cut", back.longest));
        } else {
            passed &= segments > 0;
            seen.push(format!(
                "out: {} frames of up to {} bytes, {} wrong checksums, {segments} segments cut",
                out.frames, out.longest, out.wrong
            ));
        }
    }
    Ok((format!("{}; {}", both(&rates), seen.join("; ")), passed))
}

/// A card's guest. Its frames reach the switch through another context of the card. It exchanges echoes with all kinds of ports
/// and with the card's wire, files and TCP with machines, and sends TCP to the tap, which is recorded.
pub(crate) fn card(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const MIB: u32 = 8;
    let testbed = &mut setup.testbed;
    let _card = testbed.card.start(setup.inputs.pvnet, &mut testbed.daemon)?;
    let testbed = &setup.testbed;
    let (one, two) = (setup.shell(0)?, setup.shell(1)?);
    let guest = Peer::Namespace(&testbed.card.guest_namespace);
    let (mut sent, mut received) = (0, 0);
    let second = Testbed::address(1);
    for (from, to) in [
        (Peer::Machine(one), CARD_GUEST),
        (Peer::Machine(two), CARD_WIRE),
        (guest, &second),
        (guest, GUEST),
        (guest, WIRE),
        (Peer::Namespace(&testbed.guest_namespace), CARD_GUEST),
        (Peer::Namespace(&testbed.wire_namespace), CARD_GUEST),
    ] {
        // The first echo may be lost: the card's wire has only just come up.
        let _ = traffic::ping(from, to, 1)?;
        let ping = traffic::ping(from, to, 3)?;
        (sent, received) = (sent + ping.sent, received + ping.received);
    }
    let files = [
        traffic::file(one, guest, CARD_GUEST, MIB)?,
        traffic::file_to(&testbed.card.guest_namespace, two, &second, MIB)?,
    ];
    let (rates, is_whole) = whole(setup, End::CardGuest, CARD_GUEST)?;
    let out = card_to_wire(&setup.testbed)?;
    let is_cut = out.frames > 0 && out.longest <= FRAME && out.wrong == 0;
    let same = files.iter().filter(|same| **same).count();
    Ok((
        format!(
            "{received} of {sent} echoes on 7 paths; {same} of 2 files unchanged, {MIB} MiB each; {rates}; \
             to the tap: {} frames of up to {} bytes, {} wrong checksums",
            out.frames, out.longest, out.wrong
        ),
        sent == received && same == 2 && is_whole && is_cut,
    ))
}

/// A file from a card's guest to the tap, recorded: frames pass the card unsegmented, and are segmented for the tap.
pub(crate) fn card_to_wire(testbed: &Testbed) -> Result<Recorded> {
    let (from, to) = (&testbed.card.guest_namespace, &testbed.wire_namespace);
    let recorder = Recorder::start(to, TAP)?;
    traffic::file_between(from, to, WIRE, 8)?;
    let [out] = recorder.finish([CARD_GUEST])?;
    Ok(out)
}

/// Files between all kinds of ports, compared by digest.
pub(crate) fn files(setup: &mut Setup<'_>) -> Result<(String, bool)> {
    const MIB: u32 = 8;
    let testbed = &setup.testbed;
    let (one, two): (&Shell, &Shell) = (setup.shell(0)?, setup.shell(1)?);
    let same = [
        traffic::file(one, Peer::Machine(two), &Testbed::address(1), MIB)?,
        traffic::file(two, Peer::Machine(one), &Testbed::address(0), MIB)?,
        traffic::file(one, Peer::Namespace(&testbed.guest_namespace), GUEST, MIB)?,
        traffic::file(two, Peer::Namespace(&testbed.wire_namespace), WIRE, MIB)?,
        traffic::file_to(&testbed.guest_namespace, two, &Testbed::address(1), MIB)?,
        traffic::file_to(&testbed.wire_namespace, one, &Testbed::address(0), MIB)?,
    ];
    let arrived = same.iter().filter(|same| **same).count();
    Ok((
        format!("{arrived} of {} files unchanged, {MIB} MiB each", same.len()),
        arrived == same.len(),
    ))
}
