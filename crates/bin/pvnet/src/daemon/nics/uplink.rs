//! A card's context as the driver domain's uplink: the way of guests on netback to the card, which is the paper's
//! driver domain with a RiceNIC.
//!
//! The driver domain has memory for it in a domain of its own, and a channel as guests have: it differs from a guest in its
//! permissions only.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cdna::call::MapEntry;
use cdna::{ContextId, Descriptor, Direction};
use cdnafront::{CallError, Hypercalls, Interface};
use contexts::{Caller, Contexts, Refusal};
use control_socket::Reason;
use hypervisor::{Meter, PageOwner};
use machine::{Domain, MachineGuest, MemorySize};
use netdev::Device;
use nic_session::channel::GuestEnd;
use rustix::event::{PollFd, PollFlags, poll};
use tracing::warn;

use super::card::{NicCard, Place};
use super::cards::Nics;
use super::channel::wait_for_card;
use crate::config::Uplink;
use crate::context::ContextDevice;
use crate::daemon::event::PortEvents;
use crate::daemon::ports::port_event::PortEvent;
use crate::daemon::thread::spawn;
use crate::program::text;

/// Pages of memory: the buffers of both rings, twice, since those of one assignment may still be held when the next
/// comes.
const PAGES: usize = 2 * (cdnafront::TX_PAGES + cdnafront::RX_PAGES) + 64;
/// How long the card may take to give the context back.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Serves an uplink that is a context, on a thread, until the process ends.
pub fn serve_uplink(
    uplink: &Uplink,
    nics: &Arc<Nics>,
    meter: &Arc<Meter>,
    events: PortEvents,
) -> Result<(), String> {
    let served = ServedUplink::open(uplink, nics, meter.clone(), events)?;
    spawn("uplink context", move || served.run()).map(drop).map_err(text)
}

struct ServedUplink {
    name: String,
    nic: String,
    device: ContextDevice,
    meter: Arc<Meter>,
    events: PortEvents,
    domain: Arc<Domain>,
    place: Place,
}

impl ServedUplink {
    fn open(
        uplink: &Uplink,
        nics: &Arc<Nics>,
        meter: Arc<Meter>,
        events: PortEvents,
    ) -> Result<Self, String> {
        let Uplink { name, nic, .. } = uplink.clone();
        let size = MemorySize { pages: PAGES, grant_pages: 1, ..MemorySize::default() };
        let domain = nics.machine().create(size).map_err(text)?;
        let guest = MachineGuest::inside(nics.machine(), &domain).map_err(text)?;
        nics.joined(&name, domain.id());
        let channel = Arc::new(GuestEnd::new(nics.open_channel(&name, domain.id())?));
        let device = ContextDevice::open(&guest, &channel, 0)?;
        let nic = nic.unwrap_or_default();
        let place = nics.place(&name)?;
        Ok(Self { name, nic, device, meter, events, domain, place })
    }

    fn run(self) {
        let result = self.serve();
        let reason = result.err().unwrap_or_else(|| "the daemon is stopping".to_owned());
        warn!(uplink = self.name, reason, "its context is served no more");
        self.down(Reason::DeviceFailed(reason));
    }

    /// Plugs the context in whenever the card serves it.
    fn serve(&self) -> Result<(), String> {
        loop {
            let calls = || -> Box<dyn Hypercalls> { Box::new(self.calls()) };
            let connected = self.device.connect_port(self.meter.clone(), &calls)?;
            let Some((interface, queue)) = connected else {
                self.wait()?;
                continue;
            };
            self.events.tell(PortEvent::Ready { queues: vec![queue], agreed: None });
            self.wait_for_end(&interface)?;
            self.down(Reason::NoCard(self.nic.clone()));
            Box::new(interface).close(CLOSE_LIMIT);
        }
    }

    /// A ring's calls to the hypervisor, which is this process.
    fn calls(&self) -> DirectCalls {
        DirectCalls::new(&self.place, &self.domain)
    }

    fn wait_for_end(&self, interface: &Interface) -> Result<(), String> {
        while interface.is_open() {
            self.wait()?;
            self.device.take_changes();
        }
        Ok(())
    }

    /// Waits for a change of the assignment.
    fn wait(&self) -> Result<(), String> {
        let changes = self.device.changes();
        let mut fds = [PollFd::from_borrowed_fd(changes, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut fds, None)).map_err(text)?;
        Ok(())
    }

    /// Unplugs it, and waits until no worker uses its memory.
    fn down(&self, why: Reason) {
        let _ = self.events.tell(PortEvent::Gone(why)).recv();
    }
}

/// Calls about a context that the driver domain drives, without a call page.
pub(super) struct DirectCalls {
    card: Arc<NicCard>,
    /// None if the card has ended meanwhile.
    contexts: Option<Arc<Contexts<Domain>>>,
    context: ContextId,
    domain: Arc<Domain>,
}

fn refused(refusal: Refusal) -> CallError {
    CallError::Refused(refusal.to_string())
}

impl DirectCalls {
    /// Calls about the context at `place`, which `domain` has.
    pub(super) fn new((card, slot): &Place, domain: &Arc<Domain>) -> Self {
        let (contexts, context) = (card.contexts(), card.context_of(*slot));
        Self { card: card.clone(), contexts, context, domain: domain.clone() }
    }

    fn contexts(&self) -> Result<&Contexts<Domain>, CallError> {
        self.contexts.as_deref().ok_or(CallError::Gone)
    }

    fn caller(&self) -> Result<Caller<'_, Domain>, CallError> {
        Ok(self.contexts()?.caller(self.context, self.domain.id()))
    }

    fn entries(&self, pages: &[Range<u64>], permission: u16) -> Result<Vec<MapEntry>, CallError> {
        let first = self.domain.machine_pages().start;
        let entry = |range: &Range<u64>| {
            let page = u32::try_from(range.start.checked_sub(first)?).ok()?;
            let pages = u16::try_from(range.end.checked_sub(range.start)?).ok()?;
            Some(MapEntry { machine_page: range.start, page, pages, permission })
        };
        let entries: Option<_> = pages.iter().map(entry).collect();
        entries.ok_or_else(|| CallError::Refused("pages of another domain".to_owned()))
    }
}

impl Hypercalls for DirectCalls {
    fn enqueue(&mut self, direction: Direction, batch: &[Descriptor]) -> Result<(), CallError> {
        let enqueued = self.caller()?.enqueue(direction, batch);
        enqueued.map(drop).map_err(refused)
    }

    fn map(&mut self, direction: Direction, pages: &[Range<u64>]) -> Result<(), CallError> {
        let permission = match direction {
            Direction::Tx => MapEntry::MAY_READ,
            Direction::Rx => MapEntry::MAY_WRITE,
        };
        let (entries, now) = (self.entries(pages, permission)?, self.card.now());
        let contexts = self.contexts()?;
        let wait = |unmapping| wait_for_card(contexts, unmapping);
        let mapped = self.caller()?.map_when_confirmed(&entries, now, wait);
        mapped.map(drop).map_err(refused)
    }

    fn unmap(&mut self, pages: &[Range<u64>]) -> Result<(), CallError> {
        let (entries, now) = (self.entries(pages, 0)?, self.card.now());
        let contexts = self.contexts()?;
        let unmapping = self.caller()?.unmap(&entries, now).map_err(refused)?;
        match unmapping.is_none_or(|unmapping| wait_for_card(contexts, unmapping)) {
            true => Ok(()),
            false => Err(CallError::Gone),
        }
    }
}
