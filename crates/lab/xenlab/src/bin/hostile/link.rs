//! The rings, pages and event channel of a connection.

use std::time::Duration;

use hypervisor::{DomId, EventChannel as _, EvtchnPort, GrantRef, Guest as _, PAGE_SIZE};
use ring::Slots as _;
use ring::netif::{Rx, Tx};
use wire::netif::{NR_SLOTS_MIN, RxRequest, TxRequest, keys, status, tx_flags};
use xen::{SharedPages, XenEvent, XenGuest};
use xenlab::scenario::Answers;
use xenstore::XenbusState;

use crate::device::{Outcome, holds_within, wait_until};
use crate::frames::{self, HostileDevice};
use crate::ring::Ring;

/// Pages to send from: more than the largest packet needs.
const DATA: usize = 64;
/// How long an answer may take.
const ECHO: Duration = Duration::from_secs(3);
/// How often an echo is tried: one may be lost after an attack.
const TRIES: u16 = 5;

/// The first contents of a link's RX ring.
pub struct Shape {
    /// How many buffers are posted at first.
    pub buffers: u32,
    /// Wrong references for the first buffers.
    pub bad_buffers: Vec<GrantRef>,
}

impl Default for Shape {
    fn default() -> Self {
        Self { buffers: Rx::COUNT, bad_buffers: Vec::new() }
    }
}

/// This end of a connection, which may break the rules.
pub struct Link {
    pub tx: Ring<Tx>,
    pub rx: Ring<Rx>,
    pub event: XenEvent,
    port: EvtchnPort,
    data: SharedPages,
    data_grefs: Vec<GrantRef>,
    buffers: SharedPages,
    buffer_grefs: Vec<GrantRef>,
    /// The TX ring's next request and next response.
    tx_prod: u32,
    tx_cons: u32,
    rx_prod: u32,
    rx_cons: u32,
    /// Responses of the RX ring that are errors.
    pub rx_errors: u32,
    echoes: u16,
}

impl Link {
    /// Shares the rings, the pages and the event channel.
    pub fn new(device: &HostileDevice, shape: Shape) -> Outcome<Self> {
        let (guest, domain) = (&device.guest, &device.domain);
        let (tx, rx) = (Ring::new(guest, *domain)?, Ring::new(guest, *domain)?);
        let (data, data_grefs) = guest.share(*domain, DATA)?;
        let (buffers, buffer_grefs) = share_buffers(guest, *domain)?;
        let (event, port) = guest.alloc_unbound(*domain)?;
        let mut link = Self {
            tx,
            rx,
            event,
            port,
            data,
            data_grefs,
            buffers,
            buffer_grefs,
            tx_prod: 0,
            tx_cons: 0,
            rx_prod: 0,
            rx_cons: 0,
            rx_errors: 0,
            echoes: 0,
        };
        for gref in shape.bad_buffers {
            link.post_as(gref);
        }
        link.post_up_to(shape.buffers);
        Ok(link)
    }

    /// Connects as a valid frontend does.
    pub fn connect(device: &HostileDevice) -> Outcome<Self> {
        Self::connect_as(device, Shape::default())
    }

    /// The same with another RX ring.
    pub fn connect_as(device: &HostileDevice, shape: Shape) -> Outcome<Self> {
        let link = Self::new(device, shape)?;
        link.join(device)?;
        Ok(link)
    }

    /// Starts over, and connects with this link's rings.
    pub fn join(&self, device: &HostileDevice) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_connected()
    }

    /// Starts over, offers valid rings, changes the offer with `spoil`, and tries to connect. Succeeds if the backend
    /// refuses.
    pub fn refused(
        &self,
        device: &HostileDevice,
        spoil: impl FnOnce(&HostileDevice) -> Outcome,
    ) -> Outcome {
        device.start_over()?;
        self.offer(device)?;
        spoil(device)?;
        device.enter(XenbusState::Connected)?;
        device.wait_closed()
    }

    /// Writes the keys of a valid frontend with one queue.
    pub fn offer(&self, device: &HostileDevice) -> Outcome {
        for (key, value) in [
            (keys::TX_RING_REF, self.tx.gref().0),
            (keys::RX_RING_REF, self.rx.gref().0),
            (keys::EVENT_CHANNEL, self.port.0),
            (keys::MULTI_QUEUE_NUM_QUEUES, 1),
            (keys::REQUEST_RX_COPY, 1),
            (keys::FEATURE_RX_NOTIFY, 1),
            (keys::FEATURE_SG, 1),
        ] {
            device.key(key, &value.to_string())?;
        }
        for key in [keys::EVENT_CHANNEL_TX, keys::EVENT_CHANNEL_RX, keys::TX_HEADER_REFS] {
            device.remove(key)?;
        }
        Ok(())
    }

    /// The index of the next request.
    pub fn tx_prod(&self) -> u32 {
        self.tx_prod
    }

    /// Notifies the backend.
    pub fn notify(&self) -> Outcome {
        Ok(self.event.notify()?)
    }

    /// Writes into a data page.
    pub fn fill(&self, page: u16, bytes: &[u8]) -> Outcome {
        Ok(self.data.copy_in(usize::from(page) * PAGE_SIZE, bytes)?)
    }

    /// A request for `size` bytes of a data page. Its id is the page's number.
    pub fn slot(&self, page: u16, offset: u16, size: u16, flags: u16) -> TxRequest {
        let gref = self.data_grefs[usize::from(page) % DATA].0;
        TxRequest { gref, offset, flags, id: page, size }
    }

    /// A packet of `count` slots with `size` bytes each.
    pub fn chain(&self, count: u16, size: u16) -> Vec<TxRequest> {
        let more = |n| if n + 1 < count { tx_flags::MORE_DATA } else { 0 };
        let mut slots: Vec<_> = (0..count).map(|n| self.slot(n, 0, size, more(n))).collect();
        slots[0].size = count * size;
        slots
    }

    /// Puts slots on the TX ring unchecked, and notifies.
    pub fn send(&mut self, slots: &[TxRequest]) -> Outcome {
        for slot in slots {
            self.tx.request(self.tx_prod, *slot);
            self.tx_prod = self.tx_prod.wrapping_add(1);
        }
        self.tx.publish(self.tx_prod);
        self.notify()
    }

    /// Sends slots, and waits for an answer to each.
    pub fn transmit(&mut self, slots: &[TxRequest]) -> Outcome<Answers> {
        self.send(slots)?;
        self.answers(slots.len())
    }

    /// Waits for `count` answers, and counts them by status.
    pub fn answers(&mut self, count: usize) -> Outcome<Answers> {
        let end = self.tx_cons.wrapping_add(u32::try_from(count)?);
        let waiting = |tx: &Ring<Tx>| end.wrapping_sub(tx.rsp_prod());
        // If the index has passed `end`, the difference wraps to a huge number.
        wait_until("answers", || Ok(waiting(&self.tx) == 0 || waiting(&self.tx) > Tx::COUNT))?;
        Ok(self.take_answers(end))
    }

    /// Counts the answers that have come, by status.
    pub fn present_answers(&mut self) -> Answers {
        self.take_answers(self.tx.rsp_prod())
    }

    fn take_answers(&mut self, end: u32) -> Answers {
        let mut answers = Answers::default();
        while self.tx_cons != end {
            match self.tx.response(self.tx_cons).status {
                status::OKAY => answers.okay += 1,
                status::NULL => answers.null += 1,
                status::ERROR => answers.error += 1,
                status::DROPPED => answers.dropped += 1,
                _ => answers.other += 1,
            }
            self.tx_cons = self.tx_cons.wrapping_add(1);
        }
        answers
    }

    /// How many requests the TX ring has room for.
    pub fn free(&self) -> u32 {
        Tx::COUNT - self.tx_prod.wrapping_sub(self.tx_cons)
    }

    /// Posts a buffer with the given reference.
    fn post_as(&mut self, gref: GrantRef) {
        // The remainder is below 256.
        let id = u16::try_from(self.rx_prod % Rx::COUNT).unwrap_or(0);
        self.rx.request(self.rx_prod, RxRequest { id, pad: 0, gref: gref.0 });
        self.rx_prod = self.rx_prod.wrapping_add(1);
    }

    /// Posts buffers until `count` are outstanding.
    pub fn post_up_to(&mut self, count: u32) {
        while self.rx_prod.wrapping_sub(self.rx_cons) < count {
            self.post_as(self.buffer_grefs[(self.rx_prod % Rx::COUNT) as usize]);
        }
        self.rx.publish(self.rx_prod);
    }

    /// Posts one more buffer, and notifies.
    pub fn post_one(&mut self) -> Outcome {
        let count = self.rx_prod.wrapping_sub(self.rx_cons) + 1;
        self.post_up_to(count.min(Rx::COUNT));
        self.notify()
    }

    /// Takes the received frames, each of which must fit one buffer. Posts a new buffer for each.
    pub fn receive(&mut self) -> Outcome<Vec<Vec<u8>>> {
        let mut frames = Vec::new();
        let before = self.rx_cons;
        while self.rx_cons != self.rx.rsp_prod() {
            let response = self.rx.response(self.rx_cons);
            let page = (self.rx_cons % Rx::COUNT) as usize * PAGE_SIZE;
            self.rx_cons = self.rx_cons.wrapping_add(1);
            let Ok(len) = usize::try_from(response.status) else {
                self.rx_errors += 1;
                continue;
            };
            let mut bytes = vec![0; len];
            self.buffers.copy_out(page + usize::from(response.offset), &mut bytes)?;
            frames.push(bytes);
        }
        let taken = self.rx_cons.wrapping_sub(before);
        if taken > 0 {
            let given = self.rx_prod.wrapping_sub(self.rx_cons);
            self.post_up_to(given + taken);
            self.notify()?;
        }
        Ok(frames)
    }

    /// Checks that frames are carried both ways: an ARP request, then an echo in slots of `size` bytes.
    /// Returns how many tries it took.
    pub fn echo_split(&mut self, device: &HostileDevice, size: usize) -> Outcome<u16> {
        for tries in 1..=TRIES {
            self.echoes += 1;
            if self.try_echo(device, size)? {
                return Ok(tries);
            }
        }
        Err(format!("no echo after {TRIES} tries").into())
    }

    /// Checks that frames are carried both ways, with an echo in one slot.
    pub fn echo(&mut self, device: &HostileDevice) -> Outcome {
        self.echo_split(device, PAGE_SIZE).map(drop)
    }

    fn try_echo(&mut self, device: &HostileDevice, size: usize) -> Outcome<bool> {
        self.send_bytes(&frames::who_has(device), PAGE_SIZE)?;
        let Some(peer) = self.await_frame(|frame| frames::is_at(device, frame))? else {
            return Ok(false);
        };
        let seq = self.echoes;
        let request = frames::echo(device, peer, seq, size.min(4) * NR_SLOTS_MIN);
        self.send_bytes(&request, size)?;
        let payload = request[frames::ECHO_HEADERS..].to_vec();
        let reply = self.await_frame(|frame| frames::is_reply(frame, seq, &payload))?;
        Ok(reply.is_some())
    }

    /// Sends a frame in slots of `size` bytes each, and waits for the answers.
    fn send_bytes(&mut self, bytes: &[u8], size: usize) -> Outcome {
        let count = u16::try_from(bytes.len().div_ceil(size))?;
        let mut slots = Vec::new();
        for (n, part) in (0..).zip(bytes.chunks(size)) {
            self.fill(n, part)?;
            let more = if n + 1 < count { tx_flags::MORE_DATA } else { 0 };
            slots.push(self.slot(n, 0, u16::try_from(part.len())?, more));
        }
        slots[0].size = u16::try_from(bytes.len())?;
        let answers = self.transmit(&slots)?;
        match usize::try_from(answers.okay)? == slots.len() {
            true => Ok(()),
            false => Err(format!("a valid frame of {count} slots: {answers:?}").into()),
        }
    }

    /// Waits a while for a frame that `wanted` accepts.
    fn await_frame<T>(&mut self, wanted: impl Fn(&[u8]) -> Option<T>) -> Outcome<Option<T>> {
        let mut found = None;
        holds_within(ECHO, || {
            found = self.receive()?.iter().find_map(|frame| wanted(frame));
            Ok(found.is_some())
        })?;
        Ok(found)
    }
}

fn share_buffers(guest: &XenGuest, domain: DomId) -> Outcome<(SharedPages, Vec<GrantRef>)> {
    Ok(guest.share(domain, Rx::COUNT as usize)?)
}
