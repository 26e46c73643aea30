//! From an assigned context to the device or the port that drives it.

use std::sync::Arc;

use cdna::layout::features;
use cdna::{Direction, Enable, Mailbox};
use hypervisor::Meter;
use offload::Features;
use port::Event;
use wire::ethernet::MacAddr;

use crate::call_page::Hypercalls;
use crate::device::{CardQueue, Interface, Release};
use crate::egress::ContextEgress;
use crate::ingress::ContextIngress;
use crate::lent::{Leftover, LentIngress, Loan};
use crate::pages::Memory;
use crate::pages::{Pages, Wake};
use crate::ring::Ring;
use crate::ring::{Direct, Enqueue, MapEach, Publish};
use crate::rx::RxRing;
use crate::tx::TxRing;

/// Who writes a context's rings, and which addresses the card can use. Of two handles the first is for TX.
pub enum Access {
    /// This domain writes them. The card can use all addresses (protection `none`), or all of this domain's
    /// (`iommu = "static"`).
    Direct,
    /// The hypervisor writes them (protection `hypervisor`).
    Enqueue([Box<dyn Hypercalls>; 2]),
    /// This domain writes them. The card can use a buffer only while it is mapped (`iommu = "strict"` or
    /// `"deferred"`).
    MapEach([Box<dyn Hypercalls>; 2]),
}

/// A context that was assigned to this domain.
pub struct Context {
    /// Its MAC address.
    pub mac: MacAddr,
    /// The card's [`features`].
    pub features: u32,
    /// Who writes the rings.
    pub access: Access,
    /// The index of the first descriptor of either ring.
    pub start: u32,
    /// The shared pages.
    pub pages: Pages,
    /// TX buffers: [`TX_PAGES`](crate::TX_PAGES).
    pub tx_memory: Memory,
    /// RX buffers: [`RX_PAGES`](crate::RX_PAGES).
    pub rx_memory: Memory,
    /// The virtual interrupt.
    pub interrupt: Arc<dyn Event>,
    /// Becomes readable when [`Pages::status`] may have changed.
    pub changed: Arc<dyn Event>,
    /// Gives the context back.
    pub release: Release,
}

/// When a context is interrupted: after a number of frames or microseconds. 0 frames: only by time. 0
/// microseconds: only by number. Both 0: at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Coalescing {
    /// Sent frames.
    pub tx_frames: u32,
    /// Microseconds after a sent frame.
    pub tx_micros: u32,
    /// Received frames.
    pub rx_frames: u32,
    /// Microseconds after a received frame.
    pub rx_micros: u32,
    /// Whether `rx_micros` counts from the last interrupt: then a frame after a pause interrupts at once.
    pub rx_adaptive: bool,
}

impl Default for Coalescing {
    /// A quarter of the TX ring and an eighth of the RX ring, or times that a stack's timers do not notice. A lone received frame does not wait.
    fn default() -> Self {
        Self { tx_frames: 64, tx_micros: 200, rx_frames: 32, rx_micros: 50, rx_adaptive: true }
    }
}

/// Options of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The offloads that this end accepts on receive.
    pub receive: Features,
    /// When the card interrupts.
    pub coalescing: Coalescing,
    /// Receive frames for addresses that no context has, if the hypervisor permits it.
    pub promiscuous: bool,
}

impl Default for Config {
    fn default() -> Self {
        let coalescing = Coalescing::default();
        Self { receive: Features::NETIF, coalescing, promiscuous: false }
    }
}

impl Config {
    fn enable(&self) -> Enable {
        let Features { sg, csum_v4, csum_v6, tso_v4, tso_v6, .. } = self.receive;
        let sums = csum_v4 && csum_v6;
        let optional = [
            (sums, Enable::BLANK_CHECKSUMS),
            (sums && sg && tso_v4 && tso_v6, Enable::UNSEGMENTED),
            (self.promiscuous, Enable::PROMISCUOUS),
            (self.coalescing.rx_adaptive, Enable::ADAPTIVE),
        ];
        let always = Enable::TX
            | Enable::RX
            | Enable::BROADCAST
            | Enable::MULTICAST
            | Enable::INTERRUPTS
            | Enable::ONE_SHOT;
        let chosen = optional.into_iter().filter(|(is_chosen, _)| *is_chosen);
        chosen.fold(always, |all, (_, flag)| all | flag)
    }
}

/// Starts a context for a guest's stack.
#[must_use]
pub fn open(context: Context, config: &Config) -> (Interface, CardQueue) {
    let interrupt = context.interrupt.clone();
    let (interface, tx, rx) = start(context, config);
    (interface, CardQueue { tx, rx, interrupt })
}

/// Starts a context as a port of the switch. `meter` counts the port's work.
#[must_use]
pub fn open_port(
    context: Context,
    config: &Config,
    meter: Arc<Meter>,
) -> (Interface, ContextIngress, ContextEgress) {
    let interrupt = context.interrupt.clone();
    let (interface, tx, rx) = start(context, config);
    let ingress = ContextIngress::new(rx, interrupt.clone());
    let egress = ContextEgress::new(tx, interface.features, interrupt, meter);
    (interface, ingress, egress)
}

/// Starts the receiving half of a context whose buffers an egress queue lends. It receives frames for its
/// own address only. `rx_memory` of the context is all memory that can be lent. Buffers that were lent and
/// not filled are in `leftover` when the ingress side is dropped; the card may use them until the interface
/// is closed.
#[must_use]
pub fn open_lent(
    context: Context,
    config: &Config,
    loan: Loan,
    leftover: Arc<Leftover>,
) -> (Interface, LentIngress) {
    let Context { mac, access, start, rx_memory, changed, release, interrupt, .. } = context;
    let pages = Arc::new(context.pages);
    let [_, rx] = publishers(access, &pages);
    let memory = [rx_memory.clone(), rx_memory.clone()];
    let rx = RxRing::empty(Ring::new(pages.clone(), Direction::Rx, rx, start), rx_memory);
    let Coalescing { rx_frames, rx_micros, .. } = config.coalescing;
    let others = Enable::TX.0 | Enable::BROADCAST.0 | Enable::MULTICAST.0 | Enable::PROMISCUOUS.0;
    let settings = [
        (Mailbox::RxFrames, rx_frames),
        (Mailbox::RxMicros, rx_micros),
        (Mailbox::Enable, config.enable().0 & !others),
    ];
    pages.post(settings, Wake::IfAsleep);
    let features = features_of(context.features);
    let release = Some(release);
    let interface = Interface { mac, features, pages, changed, release, _memory: memory };
    (interface, LentIngress::new(rx, interrupt, loan, leftover))
}

fn start(context: Context, config: &Config) -> (Interface, TxRing, RxRing) {
    let Context { mac, access, start, tx_memory, rx_memory, changed, release, .. } = context;
    let pages = Arc::new(context.pages);
    let [tx, rx] = publishers(access, &pages);
    let memory = [tx_memory.clone(), rx_memory.clone()];
    let tx = TxRing::new(Ring::new(pages.clone(), Direction::Tx, tx, start), tx_memory);
    let mut rx = RxRing::new(Ring::new(pages.clone(), Direction::Rx, rx, start), rx_memory);
    rx.refill();
    let Coalescing { tx_frames, tx_micros, rx_frames, rx_micros, .. } = config.coalescing;
    let settings = [
        (Mailbox::TxFrames, tx_frames),
        (Mailbox::TxMicros, tx_micros),
        (Mailbox::RxFrames, rx_frames),
        (Mailbox::RxMicros, rx_micros),
        (Mailbox::Enable, config.enable().0),
    ];
    pages.post(settings, Wake::IfAsleep);
    let features = features_of(context.features);
    let release = Some(release);
    let interface = Interface { mac, features, pages, changed, release, _memory: memory };
    (interface, tx, rx)
}

fn publishers(access: Access, pages: &Arc<Pages>) -> [Box<dyn Publish>; 2] {
    let direct = |direction| Direct { pages: pages.clone(), direction };
    let (tx, rx) = (Direction::Tx, Direction::Rx);
    match access {
        Access::Direct => [Box::new(direct(tx)), Box::new(direct(rx))],
        Access::Enqueue([for_tx, for_rx]) => [
            Box::new(Enqueue { calls: for_tx, direction: tx }),
            Box::new(Enqueue { calls: for_rx, direction: rx }),
        ],
        Access::MapEach([for_tx, for_rx]) => {
            [Box::new(MapEach::new(direct(tx), for_tx)), Box::new(MapEach::new(direct(rx), for_rx))]
        }
    }
}

/// What a card with these features does on transmit.
fn features_of(bits: u32) -> Features {
    let has = |feature| bits & feature != 0;
    let (sums, tso) = (has(features::CHECKSUM), has(features::TSO));
    let all = Features {
        sg: has(features::SCATTER_GATHER),
        csum_v4: sums,
        csum_v6: sums,
        tso_v4: tso,
        tso_v6: tso,
        tagged: true,
        ..Features::NONE
    };
    // Leaves out segmentation where something that it needs is missing.
    all.without(Features::NONE)
}
