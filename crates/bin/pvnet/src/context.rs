//! A context of a card as a device: of a guest, or of the driver domain.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use cdna::completion::Status;
use cdna::message::Protection;
use cdnafront::{
    Access, CallChannel, CallPage, CardQueue, Coalescing, Config, FdEvent, Hypercalls, Interface,
    Leftover, LentIngress, Loan, Memory, Pages, RX_PAGES, TX_PAGES,
};
use hypervisor::{Meter, PAGE_SIZE};
use machine::MachineGuest;
use nic_session::channel::{Assigned, GuestEnd, Mappings, Opened};
use nic_session::files::GuestFiles;
use offload::Features;
use port::{Event, LentMemory};
use wire::ethernet::MacAddr;

use crate::program::text;

/// How long the card may take to serve a context that it was told to serve.
const UP_LIMIT: Duration = Duration::from_secs(2);
/// How often the status is checked meanwhile.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// One of the contexts that the configuration gives to this guest, with or without a card.
pub struct ContextDevice {
    /// Whose pages its buffers are; none if they are lent.
    guest: Option<MachineGuest>,
    channel: Arc<GuestEnd>,
    index: usize,
    opened: Opened,
    calls: CallPage,
    interrupts: Arc<FdEvent>,
    changes: Arc<FdEvent>,
}

impl ContextDevice {
    /// Opens the context of this index.
    pub fn open(
        guest: &MachineGuest,
        channel: &Arc<GuestEnd>,
        index: usize,
    ) -> Result<Self, String> {
        Ok(Self { guest: Some(guest.clone()), ..Self::without_memory(channel, index)? })
    }

    /// The same, for a context whose buffers are lent.
    pub fn without_memory(channel: &Arc<GuestEnd>, index: usize) -> Result<Self, String> {
        let context = channel.open(index).map_err(|error| format!("context {index}: {error}"))?;
        let first_page = context.opened.base / PAGE_SIZE as u64;
        let [answers, doorbell] = context.calls;
        let calls = CallChannel::new(answers, doorbell).map_err(text)?;
        Ok(Self {
            guest: None,
            channel: channel.clone(),
            index,
            opened: context.opened,
            calls: CallPage::new(context.call_page, first_page, calls).map_err(text)?,
            interrupts: Arc::new(FdEvent(context.interrupts)),
            changes: Arc::new(FdEvent(context.changes)),
        })
    }

    /// Becomes readable when a card may have begun to serve it.
    pub fn changes(&self) -> BorrowedFd<'_> {
        self.changes.as_fd()
    }

    /// Its MAC address.
    pub fn mac(&self) -> MacAddr {
        self.opened.mac
    }

    /// Takes the notices that there were. What they were about is checked after this.
    pub fn take_changes(&self) {
        self.changes.take();
    }

    /// Its device, if a card serves it. `own` are this end's offloads.
    pub fn connect(&self, own: Features) -> Result<Option<(Interface, CardQueue)>, String> {
        let config = self.config(own, false);
        let calls = || -> Box<dyn Hypercalls> { Box::new(self.calls.clone()) };
        Ok(self.context(&calls)?.map(|context| cdnafront::open(context, &config)))
    }

    /// Its device and a port's queue, if a card serves it. The port takes frames for all stations. It is in
    /// the hypervisor's process, so it needs no call page: `calls` returns a handle for each ring.
    pub fn connect_port(
        &self,
        meter: Arc<Meter>,
        calls: &dyn Fn() -> Box<dyn Hypercalls>,
    ) -> Result<Option<(Interface, port::Queue)>, String> {
        let config = self.config(Features::ALL, true);
        Ok(self.context(calls)?.map(|context| {
            let (interface, ingress, egress) = cdnafront::open_port(context, &config, meter);
            let queue = port::Queue { ingress: Box::new(ingress), egress: Box::new(egress) };
            (interface, queue)
        }))
    }

    /// Its device and its receiving side, if a card serves it. Its buffers are lent in all `memory` of the context's
    /// domain. `calls` as above.
    pub fn connect_lent(
        &self,
        memory: &LentMemory,
        loan: Loan,
        leftover: &Arc<Leftover>,
        calls: &dyn Fn() -> Box<dyn Hypercalls>,
    ) -> Result<Option<(Interface, LentIngress)>, String> {
        let config = self.config(memory.features, false);
        let region = memory.region.share().ok_or("the guest's memory cannot be shared")?;
        let pages = region.len() / PAGE_SIZE;
        let memory = Memory::new(region, pages, self.opened.base, ()).map_err(text)?;
        let context = self.context_with(calls, &|_| Ok(memory.clone()))?;
        Ok(context.map(|context| cdnafront::open_lent(context, &config, loan, leftover.clone())))
    }

    fn config(&self, receive: Features, promiscuous: bool) -> Config {
        let nic_session::channel::Coalescing {
            tx_frames,
            tx_micros,
            rx_frames,
            rx_micros,
            rx_adaptive,
        } = self.opened.coalescing;
        let rx_adaptive = rx_adaptive != 0;
        let coalescing = Coalescing { tx_frames, tx_micros, rx_frames, rx_micros, rx_adaptive };
        Config { receive, coalescing, promiscuous }
    }

    /// The present assignment, with memory for it.
    fn context(
        &self,
        calls: &dyn Fn() -> Box<dyn Hypercalls>,
    ) -> Result<Option<cdnafront::Context>, String> {
        self.context_with(calls, &|count| self.memory(count))
    }

    /// The same, with this memory, which has room for a number of buffers.
    fn context_with(
        &self,
        calls: &dyn Fn() -> Box<dyn Hypercalls>,
        memory: &dyn Fn(usize) -> Result<Memory, String>,
    ) -> Result<Option<cdnafront::Context>, String> {
        let Some((assigned, pages)) = self.assignment()? else { return Ok(None) };
        let (channel, index) = (self.channel.clone(), self.index);
        Ok(Some(cdnafront::Context {
            mac: self.opened.mac,
            features: assigned.features,
            access: self.access(calls),
            start: assigned.start,
            pages,
            tx_memory: memory(TX_PAGES)?,
            rx_memory: memory(RX_PAGES)?,
            interrupt: self.interrupts.clone(),
            changed: self.changes.clone(),
            release: Box::new(move |_: Duration| {
                // A daemon that has gone has taken it away.
                let _ = channel.close(index);
            }),
        }))
    }

    /// An assignment that the card serves, and of whose end a notice will come.
    fn assignment(&self) -> Result<Option<(Assigned, Pages)>, String> {
        loop {
            self.changes.take();
            let assignment = self.channel.assignment(self.index, self.opened.protection);
            let Some((assigned, files)) = assignment.map_err(text)? else { return Ok(None) };
            let GuestFiles { context, rings, completion, doorbell } = files;
            let pages = Pages::new(context, rings, completion, doorbell).map_err(text)?;
            let deadline = Instant::now() + UP_LIMIT;
            while pages.status() == Some(Status::Down) {
                if Instant::now() > deadline {
                    // The files cannot be mapped twice. Given back, it is assigned anew.
                    self.channel.close(self.index).map_err(text)?;
                    break;
                }
                std::thread::sleep(CHECK_INTERVAL);
            }
            // The notice that the files are there. If it was of the end already, the status says so.
            self.changes.take();
            if pages.status() == Some(Status::Up) {
                return Ok(Some((assigned, pages)));
            }
        }
    }

    fn access(&self, calls: &dyn Fn() -> Box<dyn Hypercalls>) -> Access {
        let handles = || [(); 2].map(|()| calls());
        match (self.opened.protection, self.opened.mappings) {
            (Protection::Hypervisor, _) => Access::Enqueue(handles()),
            (Protection::Iommu, Mappings::PerBuffer) => Access::MapEach(handles()),
            (Protection::None | Protection::Iommu, _) => Access::Direct,
        }
    }

    /// Pages for buffers.
    fn memory(&self, count: usize) -> Result<Memory, String> {
        let guest = self.guest.as_ref().ok_or("its buffers are lent")?;
        let pages = guest.take_pages(count).map_err(|error| {
            format!("no memory for a context ({error}); raise memory_mib in the configuration")
        })?;
        let address = self.opened.base + (pages.first() * PAGE_SIZE) as u64;
        let region = pages.region().map_err(text)?;
        Memory::new(region, count, address, pages).map_err(text)
    }
}
