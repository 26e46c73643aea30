//! What a guest or a virtual machine's port costs of the limits on this process, and whether another one fits.
//!
//! Without this, one guest could take the mappings, descriptors or threads that the others need, and
//! whoever came too late would fail somewhere in the middle.

#[cfg(test)]
mod tests;

use std::fmt::Write;
use std::sync::Arc;

use frame::{FRAGMENTS_MAX, WINDOW};
use machine::Share;
use netback::{GrantReuse, Offered, RxChannel, TxChannel};
use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tracing::warn;
use vhost_user::{LOGS, MAPPINGS_MAX, ProcessBudget, REFUSED_MAX};
use wire::netif::header_channel;

use crate::config::{Attach, Config, Guest, PlatformKind, Poll, Port, Vif};
use crate::log::OPERATOR;

/// The most queues of a guest's device on the host.
pub(super) const DEVICE_QUEUES_MAX: usize = 8;
/// Descriptors of a guest without queues: its session, its memory, its store connection with an
/// eventfd, and those that pass through while it makes an event channel.
const DESCRIPTORS: usize = 4 + 6;
/// Threads of a guest: its session, and its store connection.
const THREADS: usize = 2;
/// Mappings of a thread: its stack, the guard page, and its heap.
const THREAD_MAPPINGS: usize = 4;
/// Mappings of a guest's memory: one, and what splits off while large pages are made.
const MEMORY_MAPPINGS: usize = 3;
/// Mappings of a ring: its page, and the ledger of its responses.
const RING_MAPPINGS: usize = 2;
/// Mappings for pages that a queue maps one by one, at least: persistent grants whose pages follow
/// each other take a few. Beyond its share a guest's pages are reached by grant copies.
const GRANTED_MIN: usize = 16;
/// Descriptors of a guest with contexts of cards: its channel, both ends for a moment, and what the channel waits with.
const CHANNEL_DESCRIPTORS: usize = 3;
/// Descriptors of a context: its files, their copies while the guest gets them, three event channels, and its call page for
/// a moment.
const CONTEXT_DESCRIPTORS: usize = 5 + 4 + 3 * Share::CHANNEL_DESCRIPTORS + 1;
/// Mappings of a context: its rings, completion page, table and call page.
const CONTEXT_MAPPINGS: usize = 4;
/// Threads of a card's queue for an interface: one that serves it, and one for its channel.
const CARD_QUEUE_THREADS: usize = 2;
/// Descriptors of such a queue: a context whose driver is here too, with the other ends of its event channels, its files while
/// they are mapped, and what stops its thread.
const CARD_QUEUE_DESCRIPTORS: usize = CHANNEL_DESCRIPTORS + CONTEXT_DESCRIPTORS + 4 + 5 + 1;
/// Mappings of such a queue: both ends map the context's pages.
const CARD_QUEUE_MAPPINGS: usize = 2 * CONTEXT_MAPPINGS + CARD_QUEUE_THREADS * THREAD_MAPPINGS;
/// Threads of a virtual machine's port: one that serves it, and one that refuses others meanwhile.
const PORT_THREADS: usize = 2;
/// Descriptors of such a port: its socket, and what stops its thread.
const PORT_DESCRIPTORS: usize = 2;
/// Descriptors of a session: its connection with a copy, what ends it and its watch, the process that speaks and its successor, the channel back
/// to the front-end, a message's, and the files of what is mapped.
const SESSION_DESCRIPTORS: usize = 10 + 32 + MAPPINGS_MAX;
/// Descriptors of a ring: the front-end's two with a successor of one that a worker writes to, and what waits for them, twice while rings
/// are made anew.
const VRING_DESCRIPTORS: usize = 3 + 2 * 2;
/// All front-ends together may have this part of the address space mapped: process guests have memory too.
const FRONT_ENDS_PART: u64 = 2;
/// The address space of a process where /proc does not say how large it is: that of `x86_64`.
const ADDRESS_SPACE: u64 = 1 << 47;
/// For the daemon itself, beyond what it holds before the first guest: clients, captures, metrics, processes that are refused.
const OWN: Amounts = Amounts { mappings: 1024, descriptors: 256 + REFUSED_MAX, threads: 96 };

/// Amounts of the resources that the kernel limits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Amounts {
    mappings: usize,
    descriptors: usize,
    threads: usize,
}

/// What a guest can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cost {
    /// What it can take in any case. Its mappings are those outside of its apertures.
    fixed: Amounts,
    /// Event channels.
    channels: usize,
    /// Mappings in its apertures: at least, and if there are enough for all guests.
    granted: [usize; 2],
}

impl Cost {
    /// The cost of a guest whose vifs have `queues` queues by default, and `card_queues` of which receive through a card's context.
    pub(super) fn of(
        guest: &Guest,
        queues: u32,
        exchange_pages: usize,
        card_queues: usize,
    ) -> Self {
        let vifs = || guest.vifs.iter().map(|vif| (vif, vif.queues(queues)));
        let channels = vifs().map(|(_, queues)| channels(queues)).sum();
        let has_contexts = !guest.contexts.is_empty();
        // Its contexts have one thread.
        let own_threads = THREADS + usize::from(has_contexts);
        let threads = own_threads + card_queues * CARD_QUEUE_THREADS;
        let mappings = MEMORY_MAPPINGS
            + exchange_pages
            + vifs().map(|(_, queues)| ring_mappings(queues)).sum::<usize>()
            + guest.contexts.len() * CONTEXT_MAPPINGS
            + vifs().map(|(vif, queues)| pools(vif, queues)).sum::<usize>()
            + vifs().map(|(vif, _)| device_queues(vif)).sum::<usize>()
            + card_queues * CARD_QUEUE_MAPPINGS
            + own_threads * THREAD_MAPPINGS;
        let descriptors = DESCRIPTORS
            + channels * Share::CHANNEL_DESCRIPTORS
            + guest.contexts.len() * CONTEXT_DESCRIPTORS
            + card_queues * CARD_QUEUE_DESCRIPTORS
            + vifs().map(|(vif, queues)| copy_descriptors(vif, queues)).sum::<usize>()
            + vifs().map(|(vif, _)| device_queues(vif)).sum::<usize>()
            + if has_contexts { CHANNEL_DESCRIPTORS } else { 0 };
        let granted = vifs().map(|(vif, queues)| granted(vif, queues));
        let granted = granted.fold([0; 2], |[least, most], [l, m]| [least + l, most + m]);
        let fixed = Amounts { mappings, descriptors, threads };
        Self { fixed, channels, granted }
    }

    /// The cost of a virtual machine's port while a front-end is connected.
    pub(super) fn of_port(port: &Port) -> Self {
        let device = if port.device().is_some() { DEVICE_QUEUES_MAX } else { 0 };
        let rings = 2 * usize::from(port.queues);
        let fixed = Amounts {
            mappings: MAPPINGS_MAX + device + PORT_THREADS * THREAD_MAPPINGS,
            descriptors: PORT_DESCRIPTORS
                + SESSION_DESCRIPTORS
                + rings * VRING_DESCRIPTORS
                + device,
            threads: PORT_THREADS,
        };
        Self { fixed, channels: 0, granted: [0; 2] }
    }
}

/// What the virtual machines' ports of a configuration can take together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortsCost {
    counts: Amounts,
    /// Bytes of memory that their front-ends may have mapped.
    memory: u64,
}

impl PortsCost {
    pub(super) fn of(ports: &[Port]) -> Self {
        ports.iter().fold(Self::default(), |sum, port| {
            let Amounts { mappings, descriptors, threads } = Cost::of_port(port).fixed;
            let counts = Amounts {
                mappings: sum.counts.mappings + mappings,
                descriptors: sum.counts.descriptors + descriptors,
                threads: sum.counts.threads + threads,
            };
            let memory = port.memory().saturating_add(LOGS).saturating_add(sum.memory);
            Self { counts, memory }
        })
    }
}

/// Event channels of a vif: two per queue and one for the control ring. Twice, because a frontend that
/// connects again may make its new channels before the old ones are closed.
fn channels(queues: usize) -> usize {
    2 * (2 * queues + 1)
}

/// Mappings of a vif's rings: two and a header channel per queue, and a control ring with the settings of its hash.
fn ring_mappings(queues: usize) -> usize {
    queues * (2 * RING_MAPPINGS + header_channel::PAGES) + RING_MAPPINGS + 1
}

/// Pools that the guest copies from: a file and a mapping each.
fn pools(vif: &Vif, queues: usize) -> usize {
    if vif.rx == RxChannel::GuestCopyMapped { queues } else { 0 }
}

/// Descriptors of a vif whose guest copies: its pools', and one for the time limit.
fn copy_descriptors(vif: &Vif, queues: usize) -> usize {
    pools(vif, queues) + usize::from(vif.rx.guest_copy().is_some())
}

/// Queues of a vif's device on the host. Each is a descriptor, and a mapping of buffers.
fn device_queues(vif: &Vif) -> usize {
    if vif.settings.attach == Some(Attach::Device) { DEVICE_QUEUES_MAX } else { 0 }
}

/// Mappings of a vif's packets: at least, and if there are enough.
fn granted(vif: &Vif, queues: usize) -> [usize; 2] {
    // These are as many on each platform.
    let offered = vif.offered(0, PlatformKind::Machine, Poll::default());
    if vif.grant_reuse == GrantReuse::OnDemand && vif.persistent_grants > 0 {
        return cached(&offered, queues);
    }
    // A packet whose pages cannot be mapped is lost, so this much is needed.
    let packets = if vif.tx == TxChannel::Remap { WINDOW * FRAGMENTS_MAX + 1 } else { 0 };
    let persistent = mappings(offered.persistent_pages());
    [packets + persistent.min(GRANTED_MIN), packets + persistent].map(|one| queues * one)
}

/// As [`granted`], for pages that stay mapped on demand. A packet that must be mapped is lost if it
/// cannot be, so a window of them is needed.
fn cached(offered: &Offered, queues: usize) -> [usize; 2] {
    let [tx, rx] = offered.cached_pages().map(mappings);
    let least = match offered.tx {
        TxChannel::Remap => tx,
        TxChannel::Header => tx.min(GRANTED_MIN / 2),
    };
    [queues * (least + rx.min(GRANTED_MIN / 2)), queues * (tx + rx)]
}

/// Mappings for `pages` pages one by one, and one for their list.
fn mappings(pages: u16) -> usize {
    if pages == 0 { 0 } else { usize::from(pages) + 1 }
}

/// The kernel's limits on this process, and what guests hold of them.
#[derive(Debug)]
pub(super) struct Limits {
    /// The limits themselves, for messages.
    limit: Amounts,
    /// What guests can have in all.
    available: Amounts,
    held: Mutex<Amounts>,
    /// The memory of virtual machines.
    front_ends: Arc<ProcessBudget>,
}

impl Limits {
    /// The limits of this process. What it holds already is not for guests.
    pub(super) fn of_this_process() -> Self {
        Self::new(limits(), own(), address_space())
    }

    fn new(limit: Amounts, own: Amounts, address_space: u64) -> Self {
        let left = |limit: usize, own: usize, more: usize| limit.saturating_sub(own + more);
        let available = Amounts {
            mappings: left(limit.mappings, own.mappings, OWN.mappings),
            descriptors: left(limit.descriptors, own.descriptors, OWN.descriptors),
            threads: left(limit.threads, own.threads, OWN.threads),
        };
        let front_ends = ProcessBudget::new(address_space / FRONT_ENDS_PART);
        Self { limit, available, held: Mutex::default(), front_ends }
    }

    /// What all front-ends may have mapped.
    pub(super) fn front_ends(&self) -> &Arc<ProcessBudget> {
        &self.front_ends
    }

    /// Says what the virtual machines' ports of a configuration may take beyond this, unless it was said of the one before.
    pub(super) fn warn_of_shortages(&self, config: &Config, before: Option<&Config>) {
        let cost = PortsCost::of(&config.ports);
        if before.is_some_and(|before| PortsCost::of(&before.ports) == cost) {
            return;
        }
        for shortage in self.shortages(cost) {
            warn!(
                target: OPERATOR,
                ports = config.ports.len(),
                "the virtual machines' ports together may take {shortage}; front-ends that come last may be refused"
            );
        }
    }

    /// What does not fit if all virtual machines' ports take what they may, in words: those that come last are refused then.
    fn shortages(&self, ports: PortsCost) -> Vec<String> {
        let PortsCost { counts, memory } = ports;
        let Amounts { mappings, descriptors, threads } = self.available;
        let mib = |bytes: u64| bytes >> 20;
        let counts = [
            ("mappings (vm.max_map_count)", counts.mappings, mappings),
            ("descriptors (LimitNOFILE)", counts.descriptors, descriptors),
            ("threads (TasksMax)", counts.threads, threads),
        ];
        let short = counts.into_iter().filter(|(_, needed, available)| needed > available);
        let short = short.map(|(what, needed, available)| {
            format!("{needed} {what}, and {available} are there for all guests")
        });
        let max = self.front_ends.max();
        let memory = (memory > max).then(|| {
            let (memory, max) = (mib(memory), mib(max));
            format!(
                "{memory} MiB of memory (memory_mib of each, and logs), and {max} MiB can be mapped"
            )
        });
        short.chain(memory).collect()
    }

    /// Takes the share of one of the guests that may join, beside these ports.
    ///
    /// # Errors
    /// It does not fit; the end of a sentence about the guest, for an operator.
    pub(super) fn take(
        self: &Arc<Self>,
        cost: &Cost,
        guests: usize,
        ports: PortsCost,
    ) -> Result<Held, String> {
        let Cost { fixed, channels, granted: [least, most] } = *cost;
        let for_guests = self.available.mappings.saturating_sub(ports.counts.mappings);
        let each = for_guests / guests.max(1);
        let granted = each.saturating_sub(fixed.mappings).clamp(least, most);
        let needed = Amounts { mappings: fixed.mappings + granted, ..fixed };
        let mut held = self.held.lock();
        let Amounts { mappings, descriptors, threads } = *held;
        let Self { limit, available, .. } = &**self;
        for (what, name, [needed, held, available, limit], remedy) in [
            (
                "mappings",
                "vm.max_map_count",
                [needed.mappings, mappings, available.mappings, limit.mappings],
                "raise it (`sysctl -w vm.max_map_count=N`), or give guests fewer queues or \
                 persistent_grants",
            ),
            (
                "descriptors",
                "RLIMIT_NOFILE",
                [needed.descriptors, descriptors, available.descriptors, limit.descriptors],
                "raise it (LimitNOFILE of the service, `ulimit -Hn N`), or give guests fewer queues",
            ),
            (
                "threads",
                "RLIMIT_NPROC, kernel.threads-max or pids.max",
                [needed.threads, threads, available.threads, limit.threads],
                "raise the lowest of them (TasksMax of the service, `ulimit -Hu N`)",
            ),
        ] {
            if held + needed > available {
                let mut why = format!("needs {needed} {what}, and {} are left: ", available - held);
                // Writing to a string cannot fail.
                let _ =
                    write!(why, "guests hold {held} and the limit is {limit} ({name}); {remedy}");
                return Err(why);
            }
        }
        held.mappings += needed.mappings;
        held.descriptors += needed.descriptors;
        held.threads += needed.threads;
        let share = Share { channels, mappings: granted };
        Ok(Held { limits: self.clone(), counts: needed, share })
    }

    /// Takes the share of a virtual machine's port whose front-end has come.
    ///
    /// # Errors
    /// It does not fit; the end of a sentence about the port, for an operator.
    pub(super) fn take_port(self: &Arc<Self>, port: &Port) -> Result<Held, String> {
        self.take(&Cost::of_port(port), 1, PortsCost::default())
    }
}

/// A guest's share, until it is dropped.
#[derive(Debug)]
pub(super) struct Held {
    limits: Arc<Limits>,
    counts: Amounts,
    share: Share,
}

impl Held {
    /// What the machine must keep a guest to.
    pub(super) fn share(&self) -> Share {
        self.share
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut held = self.limits.held.lock();
        held.mappings -= self.counts.mappings;
        held.descriptors -= self.counts.descriptors;
        held.threads -= self.counts.threads;
    }
}

/// The kernel's limits on this process.
fn limits() -> Amounts {
    let number = |path: &str| std::fs::read_to_string(path).ok()?.trim().parse().ok();
    let resource = |resource| {
        getrlimit(resource).current.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
    };
    let threads = [
        resource(Resource::Nproc),
        number("/proc/sys/kernel/threads-max").unwrap_or(usize::MAX),
        // "max", or absent in the root group: no limit.
        control_group()
            .and_then(|folder| number(&format!("{folder}/pids.max")))
            .unwrap_or(usize::MAX),
    ];
    Amounts {
        // The kernel's default.
        mappings: number("/proc/sys/vm/max_map_count").unwrap_or(65_530),
        descriptors: resource(Resource::Nofile),
        threads: threads.into_iter().min().unwrap_or(usize::MAX),
    }
}

/// Bytes that this process can map: as far as its stack, which is at the end of the addresses, or what its limit is.
fn address_space() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let end = end_of_addresses(&maps).unwrap_or(ADDRESS_SPACE);
    getrlimit(Resource::As).current.map_or(end, |limit| limit.min(end))
}

/// The end of the addresses in a list of mappings.
fn end_of_addresses(maps: &str) -> Option<u64> {
    let stack = maps.lines().find(|line| line.ends_with("[stack]"))?;
    let (_, end) = stack.split_ascii_whitespace().next()?.split_once('-')?;
    u64::from_str_radix(end, 16).ok()?.checked_next_power_of_two()
}

/// The folder of this process's control group (version 2).
fn control_group() -> Option<String> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    Some(format!("/sys/fs/cgroup{}", path.trim_end_matches('/')))
}

/// What this process holds now; nothing where /proc does not say.
fn own() -> Amounts {
    let entries = |path| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    Amounts {
        mappings: maps.lines().count(),
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
    }
}
