//! An interface that is up: a device, a tap, and the threads that pump frames between them.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use netdev::{Device, Queue};
use offload::Features;
use uplink::tap::{Tap, TapOffload, TapQueue};

use super::pump::QueueThread;
use crate::error::text;
use crate::netns;

/// How long a device may take to close.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The stack's end of an interface.
pub(super) struct StackEnd<'a> {
    /// The tap's name.
    pub(super) name: String,
    /// The namespace of the stack, in which this process runs; none for the system's.
    pub(super) namespace: Option<&'a str>,
    /// The offloads that the stack may leave to the device.
    pub(super) offloads: Features,
    /// Its addresses.
    pub(super) addresses: Vec<String>,
}

/// An interface that is up. Its frames are carried until it is dropped or [closed](Self::close).
pub(super) struct Link {
    name: String,
    device: Box<dyn Device>,
    threads: Vec<QueueThread>,
}

impl Link {
    /// Makes a tap for a device and brings it up.
    pub(super) fn open<Q: Queue>(
        device: impl Device + 'static,
        queues: Vec<Q>,
        stack: StackEnd<'_>,
    ) -> Result<Self, String> {
        let taps = open_tap(&device, queues.len(), &stack)?;
        let StackEnd { name, .. } = stack;
        let threads = queues
            .into_iter()
            .zip(taps)
            .enumerate()
            .map(|(number, (queue, tap))| {
                QueueThread::start(format!("{name}-{number}"), queue, tap)
            })
            .collect::<Result<_, _>>()
            .map_err(text)?;
        Ok(Self { name, device: Box::new(device), threads })
    }

    /// A link without a tap.
    #[cfg(test)]
    pub(super) fn without_tap(name: &str, device: impl Device + 'static) -> Self {
        Self { name: name.to_owned(), device: Box::new(device), threads: Vec::new() }
    }

    /// The tap's name.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Descriptors of which one becomes readable when [`is_open`](Self::is_open) may have changed.
    pub(super) fn changes(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let ended = self.threads.iter().map(QueueThread::ended);
        std::iter::once(self.device.changes()).chain(ended)
    }

    /// See [`Device::take_changes`].
    pub(super) fn take_changes(&self) {
        self.device.take_changes();
    }

    /// Whether its device and all its threads carry frames.
    pub(super) fn is_open(&self) -> bool {
        self.device.is_open() && !self.threads.iter().any(QueueThread::has_ended)
    }

    /// Stops forwarding and closes the interface. The error is why a queue's thread had ended early.
    pub(super) fn close(self) -> Result<(), String> {
        for thread in &self.threads {
            thread.stop();
        }
        let faults: Vec<String> = self.threads.into_iter().filter_map(QueueThread::join).collect();
        self.device.close(CLOSE_TIMEOUT);
        faults.into_iter().next().map_or(Ok(()), Err)
    }
}

/// The tap between the stack and a device. It offers the stack only those offloads that the stack may
/// leave to the device and that the device does.
fn open_tap(
    device: &dyn Device,
    queues: usize,
    stack: &StackEnd<'_>,
) -> Result<Vec<TapQueue>, String> {
    let StackEnd { name, namespace, offloads: own, addresses } = stack;
    let device_does = device.features();
    let offload = TapOffload {
        // A tap does not distinguish IPv4 and IPv6 checksums.
        csum: own.csum_v4 && own.csum_v6 && device_does.csum_v4 && device_does.csum_v6,
        tso4: own.tso_v4 && device_does.tso_v4 && device_does.sg,
        tso6: own.tso_v6 && device_does.tso_v6 && device_does.sg,
    };
    let taps = Tap::open(name, queues, offload).map_err(text)?;
    netns::set_mac(*namespace, name, &device.mac().to_string())?;
    netns::bring_up(*namespace, name, addresses)?;
    Ok(taps)
}
