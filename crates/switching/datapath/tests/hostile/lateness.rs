//! When a neighbour's frame is delivered beside a guest that makes its own frames expensive. Lateness is counted in what the
//! hostile guest gets meanwhile, not in time: the worker itself reads these counts when it delivers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use hypervisor::{Counted, EventChannel};
use netback::{GrantReuse, RxChannel, TxChannel};
use netfront::Config;
use port::{
    Armed, Body, Broken, Budget, Egress, Event, Frame, Ingress, KeptFrame, Outcome, Outcomes,
    Place, Queue, ReceiveBuffers, Received, WINDOW, Window,
};
use port_testing::{FakeEgress, Sender};
use shm::Region;
use switch::MacAddr;
use wire::netif::TxRequest;

use crate::common::{Host, frame, wait_until};
use crate::races::while_doing;
use crate::raw::{DATA, Hostile, PERMIT, RING, TX_RING};

/// A busy worker polls for events of its other queues after so many rounds; the round before and the one after count too.
const ROUNDS: u32 = 16 + 2;
/// Lookups that earn a mapping in a grant cache.
const MAPPING_COST: u64 = 32;
/// The neighbour that sends, the one that receives, and a third one.
const RED: [u8; 6] = [2, 0, 0, 0, 1, 1];
const BLUE: [u8; 6] = [2, 0, 0, 0, 1, 2];
const SINK: [u8; 6] = [2, 0, 0, 0, 1, 3];

/// Plugs in a port that has this address.
fn plug(host: &Host, mac: [u8; 6], ingress: Box<dyn Ingress>, egress: Box<dyn Egress>) {
    let port = host.datapath.attach("neighbour", vec![Queue { ingress, egress }], Vec::new());
    host.datapath.teach(port.id(), MacAddr(mac)).unwrap();
}

/// An egress queue that takes all frames and calls `noted` for each, on the worker's thread.
fn noting(mut noted: impl FnMut() + Send + 'static) -> Box<dyn Egress> {
    Box::new(FakeEgress::new(move |_, _| {
        noted();
        Ok(Outcome::Delivered)
    }))
}

/// Each packet is in a page whose reference was not used lately, so no lookup of the cache finds it.
#[test]
fn a_flood_of_references_delays_no_neighbour() {
    /// References to send by, many more than the cache has places.
    const FIRST: u32 = 2000;
    const MANY: u32 = 6000;
    for tx in [TxChannel::Header, TxChannel::Remap] {
        let host = Host::with_channels(1, 1, tx, RxChannel::Copy).reusing(GrantReuse::OnDemand);
        let mut h = Hostile::new(&host);
        h.connect(&host);
        let (red, red_ingress) = Sender::new();
        plug(&host, RED, red_ingress, noting(|| ()));
        plug(&host, SINK, Sender::new().1, noting(|| ()));
        // What the flood has got at each delivery: packets, and mappings.
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (memory, meter) = (h.memory.clone(), host.platform.meter().clone());
        let counts = move || (memory.rsp_prod(TX_RING), meter.count(Counted::Maps));
        let (noted, now) = (seen.clone(), counts.clone());
        plug(&host, BLUE, Sender::new().1, noting(move || noted.lock().unwrap().push(now())));
        for page in 0..RING {
            h.memory.write(DATA + page, 0, &frame(SINK, crate::raw::MAC, 600, page));
        }
        (0..MANY).for_each(|n| h.memory.grant(FIRST + n, PERMIT, 0, DATA + n % RING));
        host.platform.meter().switch(true);
        let (memory, event) = (h.memory.clone(), h.event.take().unwrap());
        let mut sent = 0u32;
        let flood = || {
            let room = RING - sent.wrapping_sub(memory.rsp_prod(TX_RING));
            if room == 0 {
                std::thread::yield_now();
                return;
            }
            for n in sent..sent + room {
                let id = u16::try_from(n % RING).unwrap();
                let gref = FIRST + n % MANY;
                let slot = TxRequest { gref, offset: 0, flags: 0, id, size: 600 };
                memory.write_slot(TX_RING, n, slot);
            }
            sent += room;
            memory.set_req_prod(TX_RING, sent);
            event.notify().unwrap();
        };
        while_doing(flood, || {
            // At first the cache has credit for all its places.
            wait_until("the flood", || counts().0 > 20_000);
            for n in 0..200u32 {
                red.send(frame(BLUE, RED, 300, n));
                let before = counts();
                wait_until("the frame", || seen.lock().unwrap().len() > n as usize);
                let at = seen.lock().unwrap()[n as usize];
                // Less than none if it was delivered at once.
                let packets = at.0.wrapping_sub(before.0).cast_signed().max(0).cast_unsigned();
                let window = u32::try_from(WINDOW).unwrap();
                assert!(packets <= ROUNDS * window, "{tx}: frame {n} after {packets} packets");
                let maps = at.1.saturating_sub(before.1);
                // A packet of `remap` costs a mapping in any case, as without a cache.
                let bound = u64::from(packets + 2 * window) / MAPPING_COST + 1;
                assert!(
                    tx == TxChannel::Remap || maps <= bound,
                    "{maps} mappings, {packets} packets"
                );
            }
        });
        let misses = host.platform.meter().count(Counted::GrantMisses);
        assert!(misses > 20_000, "{tx}: the flood missed {misses} times");
    }
}

/// An uplink's side that receives: its frames can be kept, so many at a time.
struct Keeping {
    inner: Box<dyn Ingress>,
    kept: Mutex<Vec<Arc<Region>>>,
    refusals: Arc<AtomicU64>,
    /// Turns in which no frame was done with, and no other one could come in: all waited.
    waits: Arc<AtomicU64>,
}

/// How many frames can be kept: fewer than the guest has slots.
const SPARE: usize = 64;

impl Ingress for Keeping {
    fn event(&self) -> Arc<dyn Event> {
        self.inner.event()
    }

    /// As on a wire.
    fn has_back_pressure(&self) -> bool {
        false
    }

    fn window(&self) -> &Window {
        self.inner.window()
    }

    fn receive(&mut self, budget: &mut Budget, received: &mut Received) -> Result<(), Broken> {
        self.inner.receive(budget, received)
    }

    fn finish(&mut self, outcomes: &Outcomes) {
        let mut slots = self.inner.window().order().iter();
        let is_full = self.inner.window().is_full();
        if is_full && !slots.any(|slot| outcomes[usize::from(*slot)].is_final()) {
            self.waits.fetch_add(1, Ordering::Relaxed);
        }
        self.inner.finish(outcomes);
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        self.inner.arm()
    }

    fn with_body(&self, work: &mut dyn FnMut(Body<'_>)) {
        self.inner.with_body(&mut |body| {
            let Body::Regions(regions) = body else { unreachable!() };
            let Self { kept, refusals, .. } = self;
            work(Body::Buffers(&Buffers { regions, kept, refusals }));
        });
    }
}

struct Buffers<'a> {
    regions: &'a Arc<[Region]>,
    kept: &'a Mutex<Vec<Arc<Region>>>,
    refusals: &'a AtomicU64,
}

impl ReceiveBuffers for Buffers<'_> {
    fn regions(&self) -> &Arc<[Region]> {
        self.regions
    }

    fn keep(&self, frame: &Frame) -> Option<KeptFrame> {
        let mut kept = self.kept.lock().unwrap();
        kept.retain(|buffer| Arc::strong_count(buffer) > 1);
        if kept.len() >= SPARE {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        let memory = Arc::new(Region::anonymous(4096).unwrap());
        memory.copy_in(0, frame.header()).unwrap();
        let mut at = frame.header().len();
        for fragment in &frame.fragments {
            let Place::Region { index, offset } = fragment.place else { return None };
            let from = &self.regions[usize::from(index)];
            let (offset, len) = (offset.index(), usize::from(fragment.len));
            Region::copy_between(from, offset, &memory, at, len).unwrap();
            at += len;
        }
        kept.push(memory.clone());
        Some(KeptFrame { memory, offset: 0 })
    }
}

/// Between two frames for the neighbour there are so many for the other one.
const BETWEEN: u32 = 100;
/// Frames for the neighbour.
const FRAMES: u32 = 20;

/// What became of an uplink's frames.
struct Turns {
    /// In which turn of the uplink's queue the neighbour got each of its frames.
    seen: Vec<u64>,
    /// How often a frame could not be kept.
    refused: u64,
    /// Turns in which a full window of frames waited.
    waits: u64,
}

/// Sends frames from an uplink to `target`, with some for a neighbour between them.
fn turns(host: &Host, uplink: [u8; 6], target: [u8; 6], neighbour: [u8; 6]) -> Turns {
    let (sender, inner) = Sender::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (noted, clock) = (seen.clone(), sender.clone());
    plug(
        host,
        neighbour,
        Sender::new().1,
        noting(move || noted.lock().unwrap().push(clock.turns())),
    );
    // Before it is plugged in, so that every turn finds as many as it can take.
    for n in 0..FRAMES {
        (0..BETWEEN).for_each(|m| sender.send(frame(target, uplink, 1000, n * BETWEEN + m)));
        sender.send(frame(neighbour, uplink, 300, n));
    }
    let [refusals, waits] = [(); 2].map(|()| Arc::<AtomicU64>::default());
    let (kept, counts) = (Mutex::default(), [refusals.clone(), waits.clone()]);
    let keeping = Keeping { inner, kept, refusals, waits };
    plug(host, uplink, Box::new(keeping), noting(|| ()));
    wait_until("the neighbour's frames", || seen.lock().unwrap().len() == FRAMES as usize);
    let seen = seen.lock().unwrap().clone();
    let [refused, waits] = counts.map(|count| count.load(Ordering::Relaxed));
    Turns { seen, refused, waits }
}

/// A guest hoards the buffers of an uplink: it copies nothing and posts nothing again. The uplink's frames for a neighbour come in
/// the same turns as if the frames between them were for a port that takes them at once.
#[test]
fn a_guest_that_hoards_an_uplinks_buffers_delays_no_neighbour() {
    const HOARDER: [u8; 6] = [2, 0, 0, 0, 0, 0xa];
    for rx in [RxChannel::GuestCopy, RxChannel::GuestCopyMapped] {
        let host = Host::with_channels(1, 1, TxChannel::Header, rx);
        plug(&host, SINK, Sender::new().1, noting(|| ()));
        let Turns { seen: usual, .. } = turns(&host, [2, 0, 0, 0, 2, 1], SINK, [2, 0, 0, 0, 2, 2]);
        let hoarder = host.guest("02:00:00:00:00:0a", Config::default());
        host.datapath.teach(hoarder.port.id(), MacAddr(HOARDER)).unwrap();
        // With an empty ring at the second time.
        for n in 0..2 {
            let Turns { seen, refused, waits } =
                turns(&host, [2, 0, 0, 0, 3, n], HOARDER, [2, 0, 0, 0, 4, n]);
            // A worker that waits for the hoarder has few turns, so they do not show this.
            assert_eq!(waits, 0, "{rx}: the uplink waited for the hoarder");
            for (number, (turn, usual)) in seen.iter().zip(&usual).enumerate() {
                // A turn that takes long is cut, which may cost another one.
                let limit = 2 * usual + 4;
                assert!(*turn <= limit, "{rx}: frame {number} in turn {turn}, usually {usual}");
            }
            let is_hoarded = rx == RxChannel::GuestCopy && n == 0;
            assert_eq!(refused > 0, is_hoarded, "{rx}: {refused} frames could not be kept");
        }
        let drops = hoarder.port.counters().snapshot();
        assert!(drops.dropped_total() >= u64::from(FRAMES * BETWEEN), "it loses its own frames");
    }
}
