//! An interface that is up: a device, a tap, and the threads that pump frames between them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use control_socket::InterfaceReport;
use netdev::{Device, NotFreed, Queue};
use offload::Features;
use poller::Polling;
use uplink::tap::{Tap, TapOffload};
use wire::ethernet::MacAddr;

use super::options::Options;
use super::pump::{QueueThread, StackQueue};
use crate::context::ContextDevice;
use crate::netns;
use crate::program::text;

/// How long a device may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the other end may take to confirm that it does not use pages any more.
const FREE_TIMEOUT: Duration = Duration::from_secs(1);

/// The stack's end of an interface.
pub(super) struct StackEnd<'a> {
    /// The tap's name.
    pub(super) name: String,
    /// The namespace of the stack, in which this process runs; none for the system's.
    pub(super) namespace: Option<&'a str>,
    /// The offloads that the stack may leave to the device.
    pub(super) offloads: Features,
    pub(super) addresses: Vec<String>,
    pub(super) options: &'a Options,
    /// Those queues of an earlier session whose tap the stack has configured.
    pub(super) kept: Option<Vec<StackQueue>>,
}

/// An interface. Its frames are carried while its device is open and until it is dropped or
/// [closed](Self::close).
pub(super) struct Link {
    name: String,
    /// Copies of the threads' queues, so that the stack's interface stays while the device is away.
    stack: Vec<StackQueue>,
    /// How the threads wait for frames.
    polling: Polling,
    running: Option<Running>,
    /// What comes back after its device has ended, and the offloads that the stack may leave to it.
    context: Option<(ContextDevice, Features)>,
}

/// A device and its threads.
struct Running {
    device: Box<dyn Device>,
    threads: Vec<QueueThread>,
}

impl Running {
    fn start<Q: Queue>(
        name: &str,
        device: impl Device + 'static,
        queues: Vec<Q>,
        stack: &[StackQueue],
        polling: Polling,
    ) -> Result<Self, String> {
        let start = |(number, (queue, stack)): (usize, (Q, &StackQueue))| {
            let StackQueue { tap, unconfirmed } = stack.try_clone()?;
            QueueThread::start(format!("{name}-{number}"), queue, tap, unconfirmed, polling)
        };
        let threads = queues.into_iter().zip(stack).enumerate().map(start);
        let threads = threads.collect::<Result<_, _>>().map_err(text)?;
        Ok(Self { device: Box::new(device), threads })
    }

    fn is_open(&self) -> bool {
        self.device.is_open() && !self.threads.iter().any(QueueThread::has_ended)
    }

    fn close(self) -> Result<(), String> {
        for thread in &self.threads {
            thread.stop();
        }
        let ended: Vec<_> = self.threads.into_iter().map(QueueThread::join).collect();
        // The queues live until the other end has unmapped their pages.
        self.device.close(CLOSE_TIMEOUT);
        ended.into_iter().find_map(|ended| ended.fault).map_or(Ok(()), Err)
    }

    /// Frees at most `count` pages that no frame is in. Returns how many.
    fn free_pages(&mut self, count: usize) -> Result<usize, NotFreed> {
        let mut freed = 0;
        for (number, thread) in self.threads.iter().enumerate() {
            let pages = thread.set_aside(count - freed);
            if pages.is_empty() {
                continue;
            }
            if let Err(error) = self.device.free_pages(number, &pages, FREE_TIMEOUT) {
                thread.put_back(error.pages.clone());
                return Err(error);
            }
            freed += pages.len();
        }
        Ok(freed)
    }
}

impl Link {
    /// Makes a tap for a device and brings it up.
    pub(super) fn open<Q: Queue>(
        device: impl Device + 'static,
        queues: Vec<Q>,
        mut stack: StackEnd<'_>,
    ) -> Result<Self, String> {
        let offload = tap_offload(stack.offloads, device.features());
        let own = stack_queues(device.mac(), queues.len(), offload, &mut stack)?;
        let (name, polling) = (stack.name, stack.options.polling());
        let running = Running::start(&name, device, queues, &own, polling)?;
        Ok(Self { name, stack: own, polling, running: Some(running), context: None })
    }

    /// Makes a tap for a context, and starts it if there is a card.
    pub(super) fn open_context(
        context: ContextDevice,
        mut stack: StackEnd<'_>,
    ) -> Result<Self, String> {
        let own = stack_queues(context.mac(), 1, TapOffload::NONE, &mut stack)?;
        let (name, polling) = (stack.name, stack.options.polling());
        let context = Some((context, stack.offloads));
        let mut this = Self { name, stack: own, polling, running: None, context };
        this.set_carrier(false)?;
        this.reopen()?;
        Ok(this)
    }

    #[cfg(test)]
    pub(super) fn without_tap(name: &str, device: impl Device + 'static) -> Self {
        let running = Running { device: Box::new(device), threads: Vec::new() };
        let (name, running) = (name.to_owned(), Some(running));
        Self { name, stack: Vec::new(), polling: Polling::default(), running, context: None }
    }

    /// See [`Device::keep_mapped`].
    pub(super) fn keep_mapped(&mut self) {
        if let Some(running) = &mut self.running {
            running.device.keep_mapped();
        }
    }

    /// The tap's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Copies of the stack's queues, so that the stack's interface stays after this link's end.
    pub(super) fn keep_queues(&self) -> Result<Vec<StackQueue>, String> {
        self.stack.iter().map(StackQueue::try_clone).collect::<Result<_, _>>().map_err(text)
    }

    /// What its queues have sent since its device was opened.
    pub(super) fn report(&self) -> InterfaceReport {
        let threads = self.running.iter().flat_map(|running| &running.threads);
        let queues = threads.map(|thread| thread.counters().report()).collect();
        InterfaceReport { name: self.name.clone(), queues }
    }

    /// Descriptors of which one becomes readable when [`is_open`](Self::is_open) may have changed, or
    /// [`reopen`](Self::reopen) may succeed.
    pub(super) fn changes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let away = self.context.iter().map(|(context, _)| context.changes());
        let away = away.filter(|_| self.running.is_none());
        let running = self.running.iter().flat_map(|Running { device, threads }| {
            let ended = threads.iter().map(QueueThread::ended);
            std::iter::once(device.changes()).chain(ended)
        });
        away.chain(running)
    }

    /// See [`Device::take_changes`].
    pub(super) fn take_changes(&self) {
        match (&self.running, &self.context) {
            (Some(running), _) => running.device.take_changes(),
            (None, Some((context, _))) => context.take_changes(),
            (None, None) => {}
        }
    }

    /// Whether its device and all its threads carry frames.
    pub(super) fn is_open(&self) -> bool {
        self.running.as_ref().is_some_and(Running::is_open)
    }

    /// Whether it has a device, which may have ended.
    pub(super) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Whether its device may come back.
    pub(super) fn may_reopen(&self) -> bool {
        self.context.is_some()
    }

    /// Its device will not come back.
    pub(super) fn give_up(&mut self) {
        self.context = None;
    }

    /// Starts its device again, if it is there. Returns whether it is.
    pub(super) fn reopen(&mut self) -> Result<bool, String> {
        let Some((context, own)) = &self.context else { return Ok(false) };
        let Some((device, queue)) = context.connect(*own)? else { return Ok(false) };
        let offload = tap_offload(*own, device.features());
        self.stack.iter().try_for_each(|queue| queue.tap.set_offload(offload)).map_err(text)?;
        let running = Running::start(&self.name, device, vec![queue], &self.stack, self.polling)?;
        self.running = Some(running);
        self.set_carrier(true)?;
        Ok(true)
    }

    /// Stops forwarding and closes the device, as [`close`](Self::close), and keeps the stack's interface,
    /// without a carrier.
    pub(super) fn suspend(&mut self) -> Result<(), String> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let closed = running.close();
        self.set_carrier(false).and(closed)
    }

    fn set_carrier(&self, is_on: bool) -> Result<(), String> {
        self.stack.iter().try_for_each(|queue| queue.tap.set_carrier(is_on)).map_err(text)
    }

    /// Frees at most `count` pages of its device that no frame is in, for other uses. Returns how many.
    ///
    /// # Errors
    /// The other end does not confirm it.
    pub(super) fn free_pages(&mut self, count: usize) -> Result<usize, NotFreed> {
        self.running.as_mut().map_or(Ok(0), |running| running.free_pages(count))
    }

    /// Stops forwarding and closes the interface. The error is why a queue's thread had ended early.
    pub(super) fn close(self) -> Result<(), String> {
        self.running.map_or(Ok(()), Running::close)
    }
}

/// The offloads that a tap offers the stack: those that the stack may leave to the device and that
/// the device does.
fn tap_offload(own: Features, device_does: Features) -> TapOffload {
    TapOffload {
        // A tap does not distinguish IPv4 and IPv6 checksums.
        csum: own.csum_v4 && own.csum_v6 && device_does.csum_v4 && device_does.csum_v6,
        tso4: own.tso_v4 && device_does.tso_v4 && device_does.sg,
        tso6: own.tso_v6 && device_does.tso_v6 && device_does.sg,
        // No guest's device has it.
        uso: false,
    }
}

/// The tap between the stack and a device: that of an earlier session, if there is one.
fn stack_queues(
    mac: MacAddr,
    queues: usize,
    offload: TapOffload,
    stack: &mut StackEnd<'_>,
) -> Result<Vec<StackQueue>, String> {
    let Some(mut kept) = stack.kept.take() else { return open_taps(mac, queues, offload, stack) };
    // The stack spreads its frames over all that are open. Those beyond go when the copies of the earlier session do.
    kept.truncate(queues);
    kept.iter().try_for_each(|queue| queue.tap.set_offload(offload)).map_err(text)?;
    if let Some(missing @ 1..) = queues.checked_sub(kept.len()) {
        let more = Tap::open_multi_queue(&stack.name, missing, offload).map_err(text)?;
        kept.extend(more.into_iter().map(StackQueue::new));
    }
    Ok(kept)
}

/// Makes the tap between the stack and a device.
fn open_taps(
    mac: MacAddr,
    queues: usize,
    offload: TapOffload,
    stack: &StackEnd<'_>,
) -> Result<Vec<StackQueue>, String> {
    let StackEnd { name, namespace, addresses, options, .. } = stack;
    // A later session may have another number of queues.
    let taps = match options.rejoin.is_zero() {
        true => Tap::open(name, queues, offload),
        false => Tap::open_multi_queue(name, queues, offload),
    };
    let taps = taps.map_err(text)?;
    netns::set_mac(*namespace, name, &mac.to_string())?;
    if namespace.is_some() {
        // The system's own stack is its operator's.
        netns::keep_addresses_apart(name)?;
    }
    netns::bring_up(*namespace, name, addresses)?;
    Ok(taps.into_iter().map(StackQueue::new).collect())
}
