//! Connecting to a frontend: reading what it wrote, mapping its rings, binding its events.

use std::io;
use std::sync::atomic::AtomicU16;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use hypervisor::{CopyForm, EvtchnPort, GrantRef, GuestCopies, Hypervisor};
use offload::Features;
use port::{Armed, Broken, Doorbell, Event, SteeringCell, Task};
use ring::{BackRing, Ledger, RegionPage, Slots};
use wire::netif::{header_channel, keys};
use xenstore::{Store, StoreError};

use crate::buffers::Destination;
use crate::completions::Completions;
use crate::grant_cache::{Direction, GrantCache};
use crate::hash::Hashing;
use crate::headers::{KeptPages, PacketAccess};
use crate::multicast::MulticastList;
use crate::persistent::FragmentsInUse;
use crate::rx::{RxMode, RxOptions};
use crate::{
    ControlRing, EventRing, Fault, GrantReuse, GrantUse, Ledgers, Offered, PersistentGrants,
    RingKind, RxChannel, RxQueue, TxChannel, TxQueue,
};

/// Why a frontend could not be connected. The reason is for an operator.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A key is not there or is not a number.
    #[error("the frontend's {0} is missing or not a number")]
    Key(String),
    /// More queues than offered, or none (CVE-2026-45890).
    #[error("the frontend asks for {asked} queues; 1 to {offered} are offered")]
    Queues {
        /// The number of queues that it asks for.
        asked: u32,
        /// The number that the backend offers.
        offered: u32,
    },
    /// The frontend wants another RX channel than is offered.
    #[error(
        "the frontend's {} does not ask for rx = \"{offered}\", the only mode that is offered",
        keys::REQUEST_RX_COPY
    )]
    RxChannel {
        /// The offered channel.
        offered: RxChannel,
    },
    /// This platform has no page flipping.
    #[error("this platform has no page flipping: use rx = \"copy\"")]
    NoFlip,
    /// This platform pins what it maps.
    #[error(
        "this platform cannot keep pages mapped without asking the frontend, which could not end \
         their grants: use grant_reuse = \"{}\"",
        GrantReuse::Agreed
    )]
    NoReuse,
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A grant or an event channel was refused.
    #[error(transparent)]
    Hypervisor(#[from] hypervisor::Error),
    /// A ring is broken from the start.
    #[error(transparent)]
    Ring(#[from] Fault),
    /// A ring's ledger could not be opened.
    #[error("ledger: {0}")]
    Ledger(#[source] io::Error),
}

/// The rings of a connected frontend.
pub struct Connection<H: Hypervisor> {
    /// Its queues.
    pub queues: Vec<VifQueue<H>>,
    /// The control ring, if the frontend has one.
    pub control: Option<ControlRing<H>>,
    /// The time limit of granted buffers, if the guest copies.
    expiry: Option<Box<Expiry>>,
    /// The multicast groups that the frontend wants, if it may say so now and later.
    pub(crate) multicast: Option<Arc<MulticastList>>,
    /// Bytes that the frontend wants before each frame, which it may change.
    pub(crate) headroom: Arc<AtomicU16>,
}

impl<H: Hypervisor> Connection<H> {
    /// The connection as a port of the datapath: its queues, and the control ring and the time limit of
    /// granted buffers as tasks.
    pub fn into_port(self) -> (Vec<port::Queue>, Vec<Box<dyn Task>>) {
        let queue =
            |VifQueue { tx, rx }| port::Queue { ingress: Box::new(tx), egress: Box::new(rx) };
        let control = self.control.map(|control| -> Box<dyn Task> { Box::new(control) });
        let expiry = self.expiry.map(|expiry| -> Box<dyn Task> { expiry });
        (self.queues.into_iter().map(queue).collect(), control.into_iter().chain(expiry).collect())
    }

    /// What the guest copies from, by queue; nothing if it does not copy.
    pub fn guest_copies(&self) -> impl Iterator<Item = &Arc<dyn GuestCopies>> {
        self.queues.iter().filter_map(|queue| queue.rx.guest_copies())
    }

    /// What there was too little of for the guest to copy, so that its frames are copied. None if it copies, or if it
    /// does not want to.
    pub fn out_of(&self) -> Option<&'static str> {
        self.queues.iter().find_map(|queue| queue.rx.out_of())
    }

    /// How the pages that stay mapped are used. The counts live as long as their queues.
    pub fn usage(&self) -> Vec<Weak<GrantUse>> {
        let mut all: Vec<&Arc<GrantUse>> = Vec::new();
        for one in
            self.queues.iter().flat_map(|VifQueue { tx, rx }| [tx.usage(), rx.usage()]).flatten()
        {
            // Both directions of a queue may have one table.
            if !all.iter().any(|known| Arc::ptr_eq(known, one)) {
                all.push(one);
            }
        }
        all.into_iter().map(Arc::downgrade).collect()
    }

    /// Notifies the frontend on all rings: an earlier backend may have died between a publication
    /// and its notification.
    pub(crate) fn wake(&self) {
        for VifQueue { tx, rx } in &self.queues {
            tx.notify();
            rx.notify();
        }
        if let Some(control) = &self.control {
            control.notify();
        }
    }
}

/// One queue: a ring each way.
pub struct VifQueue<H: Hypervisor> {
    /// From the guest.
    pub tx: TxQueue<H>,
    /// To the guest.
    pub rx: RxQueue<H>,
}

/// How a queue's rings are opened.
#[derive(Clone, Copy)]
pub(crate) struct Rings<'a> {
    pub(crate) ledgers: &'a dyn Ledgers,
    /// They are live, left by an earlier backend, and are resumed.
    pub(crate) resumes: bool,
    /// Header pages are used, if the frontend has some.
    pub(crate) headers: bool,
    /// The guest copies, if it has asked for it.
    pub(crate) copies: bool,
}

/// The parameters of connecting one frontend's rings.
struct ConnectContext<'a, H: Hypervisor> {
    hypervisor: &'a H,
    peer: &'a H::Peer,
    keys: Keys<'a>,
    features: Features,
    offered: &'a Offered,
    rings: Rings<'a>,
    headroom: Arc<AtomicU16>,
}

impl<H: Hypervisor> ConnectContext<'_, H> {
    /// Maps a ring.
    fn ring<S: Slots>(
        &self,
        gref: GrantRef,
        event: Arc<H::Event>,
        (queue, kind): (u32, RingKind),
    ) -> Result<EventRing<S, H>, ConnectError> {
        let mapping = self.hypervisor.map(self.peer, &[gref])?;
        self.hypervisor.notify_on_unmap(&mapping, &event);
        let page = RegionPage::new(mapping).map_err(|_| hypervisor::Error::Exhausted("pages"))?;
        let ledger = self.rings.ledgers.ledger(queue, kind);
        let ledger = ledger.and_then(|region| Ledger::new(region).map_err(io::Error::other));
        let ledger = ledger.map_err(ConnectError::Ledger)?;
        let ring = match self.rings.resumes {
            true => BackRing::resume(page, ledger),
            false => BackRing::attach(page, ledger),
        };
        Ok(EventRing { ring: ring.map_err(Fault::from)?, event })
    }

    fn bind(&self, port: u32) -> Result<H::Event, ConnectError> {
        Ok(self.hypervisor.bind_interdomain(self.peer, EvtchnPort(port))?)
    }

    /// Connects one queue, whose keys begin with `prefix`.
    fn queue(
        &self,
        (queue, prefix): (u32, &str),
        grants: Option<Arc<PersistentGrants<H>>>,
        steering: Option<Arc<SteeringCell>>,
    ) -> Result<VifQueue<H>, ConnectError> {
        let Self { hypervisor, peer, keys, features, offered, rings, headroom } = self;
        let need = |key: &str| keys.need(&format!("{prefix}{key}"));
        let number = |key: &str| keys.number(&format!("{prefix}{key}"));
        let (tx, rx) = (GrantRef(need(keys::TX_RING_REF)?), GrantRef(need(keys::RX_RING_REF)?));
        // Split channels first, as Linux does: an earlier driver may have left the key of the
        // shared channel.
        let split = number(keys::EVENT_CHANNEL_TX)?.zip(number(keys::EVENT_CHANNEL_RX)?);
        let (tx_event, rx_event) = match split {
            Some((tx, rx)) => (Arc::new(self.bind(tx)?), Arc::new(self.bind(rx)?)),
            None => {
                let event = Arc::new(self.bind(need(keys::EVENT_CHANNEL)?)?);
                (event.clone(), event)
            }
        };
        let tx = self.ring(tx, tx_event, (queue, RingKind::Tx))?;
        let rx = self.ring(rx, rx_event, (queue, RingKind::Rx))?;
        let headers = if rings.headers { header_pages(keys, prefix)? } else { None };
        let headers = headers.map(|grefs| hypervisor.map(peer, &grefs)).transpose()?;
        let cache = |direction, places| match places {
            0 => Ok(None),
            places => GrantCache::new(*hypervisor, peer, direction, places).map(Some),
        };
        let [tx_places, rx_places] = offered.cached_pages();
        let (tx_cache, rx_cache) =
            (cache(Direction::Tx, tx_places)?, cache(Direction::Rx, rx_places)?);
        let access = match (headers, offered.tx) {
            (None, TxChannel::Remap) => PacketAccess::by_remap(*hypervisor, peer, tx_cache)?,
            (headers, _) => {
                let agreed =
                    grants.clone().map(|grants| KeptPages::Agreed(FragmentsInUse::new(grants)));
                let kept = tx_cache.map(KeptPages::OnDemand).or(agreed);
                PacketAccess::by_copy(*hypervisor, peer, headers, kept.unwrap_or(KeptPages::None))
            }
        };
        let (hypervisor, peer) = ((*hypervisor).clone(), (*peer).clone());
        let tx = TxQueue::new(tx, access, Completions::new(offered.completion_delay));
        let mode = self.rx_mode()?;
        let to = Destination::new(peer, grants);
        let offsets = keys.flag(keys::FEATURE_RX_OFFSET)?;
        let (features, coalescing) = (*features, offered.coalescing);
        let headroom = headroom.clone();
        let options = RxOptions { features, coalescing, steering, offsets, headroom, mode };
        let rx = RxQueue::new(hypervisor, to, rx, options, rx_cache);
        Ok(VifQueue { tx, rx })
    }

    /// How a queue's frames get into the guest's memory.
    fn rx_mode(&self) -> Result<RxMode<H>, ConnectError> {
        let Self { hypervisor, peer, keys, offered, rings, .. } = self;
        Ok(match (offered.rx, offered.rx.guest_copy()) {
            (_, Some(form)) => {
                // On live rings the frontend knows the grants of the earlier backend only.
                let may_resume = !rings.resumes || H::RESUMES_GUEST_COPIES;
                if !(rings.copies && may_resume && keys.flag(keys::REQUEST_RX_GUEST_COPY)?) {
                    return Ok(RxMode::Copy);
                }
                match hypervisor.guest_copies(peer, form) {
                    Ok(copies) if copies.form() == CopyForm::Granted => {
                        RxMode::Pool { copies, resumes: rings.resumes }
                    }
                    Ok(copies) => RxMode::GuestCopy(copies),
                    Err(hypervisor::Error::Exhausted(what)) => RxMode::OutOf(what),
                    Err(error) => return Err(error.into()),
                }
            }
            (RxChannel::Flip, _) => {
                RxMode::Flip(hypervisor.page_transfer().ok_or(ConnectError::NoFlip)?)
            }
            (RxChannel::Direct, _) if keys.flag(keys::REQUEST_RX_ANY_ORDER)? => RxMode::Lend,
            _ => RxMode::Copy,
        })
    }

    /// Connects the control ring, which serves the persistent grants of all queues, and their hash.
    fn control(
        &self,
        (gref, port): (GrantRef, u32),
        grants: Vec<Arc<PersistentGrants<H>>>,
        (queues, steering): (u32, Arc<SteeringCell>),
    ) -> Result<ControlRing<H>, ConnectError> {
        let event = Arc::new(self.bind(port)?);
        let ring = self.ring(gref, event, (0, RingKind::Ctrl))?;
        let Rings { ledgers, resumes, .. } = self.rings;
        let queues = u16::try_from(queues).unwrap_or(u16::MAX);
        let hashing = ledgers.ledger(0, RingKind::Hash).and_then(|kept| {
            Hashing::new(kept, queues, steering, resumes).map_err(io::Error::from)
        });
        let hashing = Box::new(hashing.map_err(ConnectError::Ledger)?);
        let (hypervisor, peer) = (self.hypervisor.clone(), self.peer.clone());
        Ok(ControlRing::new(hypervisor, peer, ring, grants, hashing))
    }
}

/// A frontend's keys.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    pub(crate) store: &'a dyn Store,
    pub(crate) path: &'a str,
}

impl Keys<'_> {
    fn text(&self, key: &str) -> Result<Option<String>, StoreError> {
        match self.store.read(None, &format!("{}/{key}", self.path)) {
            Ok(text) => Ok(Some(text)),
            Err(StoreError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn number(&self, key: &str) -> Result<Option<u32>, StoreError> {
        Ok(self.text(key)?.and_then(|text| text.trim().parse().ok()))
    }

    fn need(&self, key: &str) -> Result<u32, ConnectError> {
        self.number(key)?.ok_or_else(|| ConnectError::Key(key.to_owned()))
    }

    /// The bytes that a frontend wants before each frame.
    pub(crate) fn xdp_headroom(&self) -> Result<u16, StoreError> {
        let wanted = self.number(keys::XDP_HEADROOM)?.unwrap_or(0);
        Ok(u16::try_from(wanted).unwrap_or(u16::MAX).min(HEADROOM_MAX))
    }

    fn flag(&self, key: &str) -> Result<bool, StoreError> {
        Ok(self.number(key)?.is_some_and(|value| value != 0))
    }

    /// Reads the features. Without a key the default applies: IPv4 checksums are offloaded unless
    /// refused, IPv6 ones only if asked for.
    fn features(&self) -> Result<Features, StoreError> {
        Ok(Features {
            sg: self.flag(keys::FEATURE_SG)?,
            csum_v4: !self.flag(keys::FEATURE_NO_CSUM_OFFLOAD)?,
            csum_v6: self.flag(keys::FEATURE_IPV6_CSUM_OFFLOAD)?,
            tso_v4: self.flag(keys::FEATURE_GSO_TCPV4)?,
            tso_v6: self.flag(keys::FEATURE_GSO_TCPV6)?,
            ..Features::NONE
        })
    }
}

/// Connects all rings of a frontend, or none.
pub(crate) fn connect<H: Hypervisor>(
    hypervisor: &H,
    peer: &H::Peer,
    keys: Keys<'_>,
    offered: &Offered,
    rings: Rings<'_>,
) -> Result<Connection<H>, ConnectError> {
    let &Offered { max_queues, rx, .. } = offered;
    if keys.flag(keys::REQUEST_RX_COPY)? != rx.is_copy() {
        return Err(ConnectError::RxChannel { offered: rx });
    }
    let asked = keys.number(keys::MULTI_QUEUE_NUM_QUEUES)?.unwrap_or(1);
    if asked == 0 || asked > max_queues {
        return Err(ConnectError::Queues { asked, offered: max_queues });
    }
    if offered.reuse == GrantReuse::OnDemand && !H::UNPINNED_MAPPINGS {
        return Err(ConnectError::NoReuse);
    }
    let features = offered.delivered(keys.features()?);
    let bound = offered.persistent_pages();
    let control = control_keys(&keys)?;
    let steering = control.map(|_| Arc::<SteeringCell>::default());
    let headroom = Arc::new(AtomicU16::new(keys.xdp_headroom()?));
    let shared = headroom.clone();
    let context =
        ConnectContext { hypervisor, peer, keys, features, offered, rings, headroom: shared };
    let mut all_grants = Vec::new();
    let mut queues = (0..asked)
        .map(|n| {
            let prefix = queue_prefix(n, asked);
            let keeps = control.filter(|_| bound > 0);
            let grants = keeps.map(|_| PersistentGrants::new(hypervisor, peer, bound));
            let grants = grants.transpose()?.map(Arc::new);
            all_grants.extend(grants.clone());
            context.queue((n, &prefix), grants, steering.clone())
        })
        .collect::<Result<Vec<_>, ConnectError>>()?;
    let multicast = offered.multicast_control.then(|| {
        // On live rings, only the earlier backend knew the list.
        let has_asked = !rings.resumes && context.keys.flag(keys::REQUEST_MULTICAST_CONTROL)?;
        Ok::<_, StoreError>(Arc::new(MulticastList::new(has_asked)))
    });
    let multicast = multicast.transpose()?;
    for (queue, list) in queues.iter_mut().zip(multicast.iter().cycle()) {
        queue.tx.keep_list(list.clone());
        queue.rx.keep_list(list.clone());
    }
    let all_copies = queues.iter().filter_map(|queue| queue.rx.guest_copies());
    let may_expire = |copies: &&Arc<dyn GuestCopies>| copies.form() == CopyForm::Hypercall;
    let all_copies: Vec<_> = all_copies.filter(may_expire).cloned().collect();
    let expiry = (!all_copies.is_empty()).then(|| Expiry::new(all_copies).map(Box::new));
    let expiry = expiry.transpose().map_err(hypervisor::Error::os("doorbell"))?;
    let control = control.zip(steering);
    let control = control
        .map(|(place, steering)| context.control(place, all_grants, (asked, steering)))
        .transpose()?;
    let multicast = multicast.filter(|_| !rings.resumes);
    Ok(Connection { queues, control, expiry, multicast, headroom })
}

/// The most bytes that are left before a frame. A frontend finds in an extra of each frame how many those are.
const HEADROOM_MAX: u16 = 2048;

/// The directory of a queue's keys: a single queue has them beside those of the vif.
pub(crate) fn queue_prefix(queue: u32, queues: u32) -> String {
    match queues {
        1 => String::new(),
        _ => format!("{}{queue}/", keys::QUEUE_PREFIX),
    }
}

/// The page and the port of the control ring, if the frontend has one.
fn control_keys(keys: &Keys<'_>) -> Result<Option<(GrantRef, u32)>, ConnectError> {
    let Some(gref) = keys.number(keys::CTRL_RING_REF)? else { return Ok(None) };
    Ok(Some((GrantRef(gref), keys.need(keys::EVENT_CHANNEL_CTRL)?)))
}

/// The header pages, if the frontend has some. It must have all of them.
fn header_pages(keys: &Keys<'_>, prefix: &str) -> Result<Option<Vec<GrantRef>>, ConnectError> {
    let key = format!("{prefix}{}", keys::TX_HEADER_REFS);
    let Some(text) = keys.text(&key)? else { return Ok(None) };
    let grefs: Result<Vec<_>, _> =
        text.split_whitespace().map(|gref| gref.parse().map(GrantRef)).collect();
    match grefs {
        Ok(grefs) if grefs.len() == header_channel::PAGES => Ok(Some(grefs)),
        _ => Err(ConnectError::Key(key)),
    }
}

/// How long a guest may take to copy. After that it loses the frame, and the uplink has its buffer
/// again.
pub const COPY_LIMIT: Duration = Duration::from_secs(1);

/// Revokes what the guest has not copied in time.
///
/// It checks twice per limit, also while nothing is granted: an event per grant would cost more.
struct Expiry {
    copies: Vec<Arc<dyn GuestCopies>>,
    /// Never rung.
    event: Arc<Doorbell>,
    next: Instant,
}

impl Expiry {
    /// For the queues of one frontend.
    ///
    /// # Errors
    /// The process is out of descriptors.
    fn new(copies: Vec<Arc<dyn GuestCopies>>) -> io::Result<Self> {
        let next = Instant::now() + COPY_LIMIT / 2;
        Ok(Self { copies, event: Arc::new(Doorbell::new()?), next })
    }
}

impl Task for Expiry {
    fn event(&self) -> Arc<dyn Event> {
        self.event.clone()
    }

    fn step(&mut self) -> Result<bool, Broken> {
        let now = Instant::now();
        if now >= self.next {
            self.next = now + COPY_LIMIT / 2;
            for copies in &self.copies {
                copies.expire(COPY_LIMIT);
            }
        }
        Ok(false)
    }

    fn arm(&mut self) -> Result<Armed, Broken> {
        Ok(Armed::Until(self.next))
    }
}
