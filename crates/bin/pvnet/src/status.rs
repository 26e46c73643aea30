//! `pvnet status`.

mod cards;

use std::path::Path;

use control_socket::{
    GroStatus, GuardStatus, GuestCopyStatus, GuestQueueStatus, KeptPages, LastDisabled, Learning,
    LockWaits, MappedMemory, MemoryStatus, MeterStatus, MulticastStatus, OwnPagesStatus,
    PersistentStatus, PortStatus, QueueKind, QueueStatus, Rates, Reason, Status, View, VlanStatus,
    WorkerShares, WorkerStatus, XdpQueueStatus,
};
use machine::Coverage;
use report::{Table, human};

use crate::mirrors;
use crate::program::text;

/// Prints the daemon's status.
pub fn show(socket: &Path, json: bool) -> Result<(), String> {
    let status = control_socket::status(socket)?;
    if json {
        print!("{}", document::pretty(&status).map_err(text)?);
        return Ok(());
    }
    print(&status).map_err(|error| error.to_string())
}

fn print(status: &Status) -> std::io::Result<()> {
    let mut table = Table::new()
        .left("port")
        .left("kind")
        .left("state")
        .left("mac")
        .right("queues")
        .right("frames in")
        .right("bytes in")
        .right("frames out")
        .right("bytes out")
        .left("drops");
    for port in &status.ports {
        table.row([
            port.name.clone(),
            port.kind.to_string(),
            port.state.to_string(),
            port.mac.clone().unwrap_or_default(),
            port.queues.to_string(),
            port.ingress.frames.to_string(),
            port.ingress.bytes.to_string(),
            port.egress.frames.to_string(),
            port.egress.bytes.to_string(),
            drops(port),
        ]);
    }
    table.print()?;
    for (number, worker) in status.workers.iter().enumerate() {
        println!("{}", worker_line(number, worker));
    }
    if status.meter.on {
        println!("{}", meter(&status.meter));
    }
    if status.writes_together == Some(false) {
        println!("no io_uring: each frame to an uplink or a device is a system call");
    }
    if let Some(pages) = status.own_pages {
        println!("{}", own_pages(pages));
    }
    for port in &status.ports {
        said_of(port).for_each(|line| println!("{}: {line}", port.name));
    }
    if let Some(MulticastStatus { groups, members, pruned, refused }) = status.multicast {
        let reach = match pruned {
            0 => "every port gets all: no querier has asked twice yet".to_owned(),
            ports => format!("{ports} ports get only theirs"),
        };
        println!(
            "multicast: {groups} groups with {members} members; {reach}; {refused} joins beyond a limit"
        );
    }
    for mirror in &status.mirrors {
        println!("mirror {}: {}", mirror.name, mirrors::line(mirror));
    }
    cards::print(&status.nics)?;
    if !status.absent.is_empty() {
        println!("not started: {}", status.absent.join(", "));
    }
    Ok(())
}

/// What is to be said of a port, line by line.
fn said_of(port: &PortStatus) -> impl Iterator<Item = String> {
    let ignored = port.toolstack.ignored.iter().map(ToString::to_string);
    let fixups = port.gso_checksum_fixups;
    let fixups = (fixups > 0).then(|| {
        format!(
            "{fixups} TCP frames from it to be segmented came without a blank checksum, and got one"
        )
    });
    let hash = "its guest has chosen the hash that spreads its flows";
    let hash = port.guest_hash.then(|| hash.to_owned());
    let huge = port.memory.as_ref().filter(|memory| memory.huge_pages);
    let lines = [
        port.device.as_ref().map(|device| format!("its device on the host is {device}")),
        port.reason.as_ref().map(ToString::to_string),
        disabled_before(port),
        refused(port.refused_connections),
        port.mapped_memory.and_then(mapped_memory),
        hash,
        learning(&port.learning),
        merged(port.gro),
        fixups,
        lock_waits(port.lock_waits),
        port.guest_copy.as_ref().map(guest_copy),
        xdp(&port.xdp),
    ];
    let queues = port.guest_queues.iter().map(guest_queue);
    let pages = [port.persistent_grants.as_ref().and_then(kept_pages), huge.map(coverage)];
    let lines = wrappers(port).into_iter().chain(ignored).chain(lines.into_iter().flatten());
    lines.chain(queues).chain(pages.into_iter().flatten())
}

/// That its other side broke the protocol, unless the reason says so.
fn disabled_before(port: &PortStatus) -> Option<String> {
    let LastDisabled { reason, seconds_ago } = port.last_disabled.as_ref()?;
    let is_said = matches!(port.reason, Some(Reason::Disabled(_)));
    (!is_said).then(|| format!("was disabled {seconds_ago} s ago: {reason}"))
}

/// How the NIC of an uplink is read and written, if that is by AF_XDP.
fn xdp(sockets: &[XdpQueueStatus]) -> Option<String> {
    let zero_copy = sockets.iter().filter(|socket| socket.zero_copy).count();
    let dropped: u64 = sockets.iter().map(|socket| socket.dropped).sum();
    let all = sockets.len();
    (all > 0).then(|| {
        format!("{all} AF_XDP sockets, {zero_copy} of them with zero copy; they had no room for {dropped} frames")
    })
}

/// What was merged on its way to a port, if anything was.
fn merged(GroStatus { segments, frames }: GroStatus) -> Option<String> {
    (frames > 0).then(|| format!("{segments} TCP segments for it were merged into {frames} frames"))
}

/// How workers were in each other's way at a port's queues, if they were.
fn lock_waits(LockWaits { count, nanoseconds }: LockWaits) -> Option<String> {
    (count > 0).then(|| {
        let time = human(nanoseconds as f64 / 1e9);
        format!(
            "workers waited {count} times for another one that was sending to it, {time} s in all"
        )
    })
}

/// That others came to a socket that is taken, if any did.
fn refused(connections: u64) -> Option<String> {
    (connections > 0)
        .then(|| format!("{connections} connections were refused: its socket is taken"))
}

/// How much of a machine's memory is mapped, once some is.
fn mapped_memory(MappedMemory { bytes, limit }: MappedMemory) -> Option<String> {
    let mib = |bytes: u64| bytes.div_ceil(1 << 20);
    (bytes > 0).then(|| {
        format!("{} MiB of its memory are mapped, of at most {} MiB", mib(bytes), mib(limit))
    })
}

/// How the pages of a guest that stay mapped are used, once they are.
fn kept_pages(grants: &PersistentStatus) -> Option<String> {
    let PersistentStatus { bound, bytes, tx, rx } = *grants;
    (tx + rx).hit_rate()?;
    let direction = |name, pages: KeptPages| {
        let KeptPages { mapped, hits, misses, evictions } = pages;
        let rate = pages.hit_rate().map_or_else(String::new, |rate| {
            format!(", {:.1} % of {} lookups found theirs", rate * 100.0, hits + misses)
        });
        format!("{name} {mapped}{rate}, {evictions} evictions")
    };
    let (kib, tx, rx) = (bytes / 1024, direction("tx", tx), direction("rx", rx));
    Some(format!("at most {bound} pages stay mapped, now {kib} KiB: {tx}; {rx}"))
}

/// How much of a guest's memory is mapped by large pages.
fn coverage(memory: &MemoryStatus) -> String {
    let share = |view: Option<View>| match view {
        Some(View { large, total }) => {
            format!("{:.0} %", Coverage { large, total }.share() * 100.0)
        }
        None => "an unknown part".to_owned(),
    };
    let mib = memory.reservation >> 20;
    let (daemon, guest) = (share(memory.daemon), share(memory.guest));
    format!("2 MiB pages map {daemon} of its {mib} MiB in the daemon, {guest} in the guest")
}

/// How frames are copied between this domain and guests of Xen.
fn own_pages(status: OwnPagesStatus) -> String {
    match status {
        OwnPagesStatus { granted: 0, .. } => {
            "copies to guests pin pages, which costs more: load xen-gntalloc and restart".to_owned()
        }
        OwnPagesStatus { granted, refused: 0 } => {
            format!("copies to guests name {granted} pages that this domain grants to itself")
        }
        OwnPagesStatus { granted, refused } => format!(
            "copies to guests name {granted} pages that this domain grants to itself; for {refused} queues gntalloc's limit is too low, \
             and their copies pin pages: echo 65536 > /sys/module/xen_gntalloc/parameters/limit, and restart"
        ),
    }
}

fn guest_copy(status: &GuestCopyStatus) -> String {
    let &GuestCopyStatus { pool_pages, granted, expired, hypercalls, copies, bytes, refused } =
        status;
    if pool_pages > 0 {
        return format!("copies an uplink's frames out of a pool of {pool_pages} pages");
    }
    format!(
        "copied {bytes} bytes of an uplink's frames itself, in {copies} copies and {hypercalls} \
         hypercalls; {granted} buffers granted, {expired} not copied in time, {refused} copies refused"
    )
}

/// A queue that is kept for a guest, and what came through it.
fn guest_queue(status: &GuestQueueStatus) -> String {
    let GuestQueueStatus { queue, guest, direct, copied, misdirected, late, dropped, reason } =
        status;
    let copied = copied.iter().map(|(why, count)| format!("{count} copied ({why})"));
    let others = [(misdirected, "misdirected"), (late, "too late"), (dropped, "dropped")];
    let others = others.iter().filter(|(count, _)| **count > 0);
    let others = others.map(|(count, what)| format!("{count} {what}"));
    let parts: Vec<_> =
        std::iter::once(format!("{direct} direct")).chain(copied).chain(others).collect();
    let whose = guest.as_ref().map_or_else(|| "of nobody".to_owned(), |name| format!("of {name}"));
    let end = reason.as_ref().map_or_else(String::new, |why| format!("; not used any more: {why}"));
    format!("queue {queue} {whose}: {} frames{end}", parts.join(", "))
}

/// What became of the source addresses of a port's frames, if it is worth a look.
fn learning(learning: &Learning) -> Option<String> {
    let Learning { moves, refused_moves, refused_addresses } = *learning;
    let parts = [
        (moves, "stations moved to it"),
        (refused_moves, "frames with an address that another port keeps"),
        (refused_addresses, "frames with an address that there was no room to learn"),
    ];
    let parts = parts.iter().filter(|(n, _)| *n > 0);
    let parts: Vec<_> = parts.map(|(n, what)| format!("{n} {what}")).collect();
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// How the port is guarded and limited, if it is.
fn wrappers(port: &PortStatus) -> Option<String> {
    let guard = match &port.guard {
        None | Some(GuardStatus::Off) => None,
        Some(GuardStatus::Mac) => Some("guard mac".to_owned()),
        Some(GuardStatus::Addresses { addresses }) => {
            Some(format!("guard addresses {}", addresses.join(", ")).trim_end().to_owned())
        }
    };
    let limit = |name, rates: Option<Rates>| rates.map(|r| format!("limit {name} {}", limits(r)));
    let [ingress, egress] = port.limit.map_or([None; 2], |limit| [limit.ingress, limit.egress]);
    let vlans = port.vlans.as_ref().map(vlans);
    let whose = if port.toolstack.rate { " (the toolstack's rate)" } else { "" };
    let from_port = limit("ingress", ingress).map(|text| text + whose);
    let parts = [guard, from_port, limit("egress", egress), vlans];
    let parts: Vec<_> = parts.into_iter().flatten().collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// What a port may reach.
fn vlans(VlanStatus { vlan, trunk, native, isolated }: &VlanStatus) -> String {
    let numbers: Vec<_> = trunk.iter().map(ToString::to_string).collect();
    let access = vlan.map(|vlan| format!("vlan {vlan}"));
    let trunk = (!numbers.is_empty()).then(|| format!("trunk {}", numbers.join(",")));
    let native = native.map(|native| format!("native {native}"));
    let isolated = isolated.then(|| "isolated".to_owned());
    let parts = [access, trunk, native, isolated];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// Rates in the units of the configuration.
fn limits(rates: Rates) -> String {
    let megabits = rates.bytes_per_second.map(|rate| format!("{} Mb/s", rate as f64 * 8.0 / 1e6));
    let packets = rates.packets_per_second.map(|rate| format!("{rate} packets/s"));
    let parts: Vec<_> = megabits.into_iter().chain(packets).collect();
    parts.join(", ")
}

/// The meter's counts that are not zero, in a line.
fn meter(meter: &MeterStatus) -> String {
    let seconds = human(meter.nanoseconds as f64 / 1e9);
    let counted = meter.counts.iter().map(|(what, n)| (what.name(), n));
    let counted = counted.chain([("guest_bytes", meter.guest_bytes)]);
    let counted = counted.filter(|(_, n)| *n > 0);
    let counted: String =
        counted.map(|(name, n)| format!(", {} {n}", name.replace('_', " "))).collect();
    format!("meter: {seconds} s in the hypervisor{counted}")
}

fn drops(port: &PortStatus) -> String {
    let drops = port.drops.nonzero().map(|(reason, n)| format!("{} {n}", reason.name()));
    let drops: Vec<_> = drops.collect();
    drops.join(", ")
}

/// Queues that a line names, the busiest of them.
const NAMED: usize = 6;

/// What a worker does, and for whom.
fn worker_line(number: usize, worker: &WorkerStatus) -> String {
    let WorkerShares { carrying, polling, asleep } = worker.recent;
    let percent = |share: f64| format!("{:.0} %", share * 100.0);
    let place = place(worker).map_or_else(String::new, |place| format!(" on {place}"));
    let times = format!(
        "{} carrying, {} polling, {} asleep",
        percent(carrying),
        percent(polling),
        percent(asleep)
    );
    format!("worker {number}{place}: {times}; {}", queues(&worker.queues))
}

/// Where a worker runs, if it is bound.
pub fn place(worker: &WorkerStatus) -> Option<String> {
    let cpu = worker.cpu?;
    Some(match worker.node {
        Some(node) => format!("CPU {cpu} (node {node})"),
        None => format!("CPU {cpu}"),
    })
}

fn queues(queues: &[QueueStatus]) -> String {
    let mut queues: Vec<_> = queues.iter().filter(|queue| queue.kind != QueueKind::Task).collect();
    queues.sort_by(|one, other| other.load.total_cmp(&one.load));
    let named: Vec<_> = queues.iter().take(NAMED).map(|queue| with_load(queue)).collect();
    match queues.len() {
        0 => "no queues".to_owned(),
        all if all > NAMED => format!("{} and {} more", named.join(", "), all - NAMED),
        _ => named.join(", "),
    }
}

fn with_load(queue: &QueueStatus) -> String {
    format!("{queue} {:.0} %", queue.load * 100.0)
}

#[cfg(test)]
pub mod tests {
    use control_socket::{LimitStatus, LimitedPackets, PortKind, PortState, ToolstackStatus};
    use hypervisor::Counted;

    pub use super::cards::tests::nic;
    use super::*;

    #[test]
    fn how_frames_are_copied_to_guests_of_xen_is_said() {
        let line = |granted, refused| own_pages(OwnPagesStatus { granted, refused });
        assert!(line(0, 0).contains("pin pages") && line(0, 0).contains("xen-gntalloc"));
        let all = "copies to guests name 258 pages that this domain grants to itself";
        assert_eq!(line(258, 0), all);
        assert!(line(258, 3).starts_with(all) && line(258, 3).contains("for 3 queues"));
    }

    #[test]
    fn guard_and_limits_are_one_line_if_there_are_any() {
        let port = |guard, limit| PortStatus {
            guard,
            limit,
            ..PortStatus::new("red", PortKind::Guest, PortState::Up)
        };
        assert_eq!(wrappers(&port(None, None)), None);
        assert_eq!(wrappers(&port(Some(GuardStatus::Off), None)), None);
        let line = wrappers(&port(Some(GuardStatus::Mac), None));
        assert_eq!(line.as_deref(), Some("guard mac"));
        let addresses = vec!["10.77.0.1".to_owned(), "fd00:77::/64".to_owned()];
        let ingress =
            Some(Rates { bytes_per_second: Some(12_500_000), packets_per_second: Some(7) });
        let egress = Some(Rates { bytes_per_second: None, packets_per_second: Some(9) });
        let packets = LimitedPackets::default();
        let limit = Some(LimitStatus { ingress, egress, packets });
        let line = wrappers(&port(Some(GuardStatus::Addresses { addresses }), limit));
        let expected = "guard addresses 10.77.0.1, fd00:77::/64; \
            limit ingress 100 Mb/s, 7 packets/s; limit egress 9 packets/s";
        assert_eq!(line.as_deref(), Some(expected));
        let toolstack = ToolstackStatus { rate: true, ignored: Vec::new() };
        let line = wrappers(&PortStatus { toolstack, ..port(None, limit) });
        let expected = "limit ingress 100 Mb/s, 7 packets/s (the toolstack's rate); \
            limit egress 9 packets/s";
        assert_eq!(line.as_deref(), Some(expected));
    }

    #[test]
    fn addresses_that_moved_or_were_refused_are_one_line() {
        assert_eq!(learning(&Learning::default()), None);
        let line = learning(&Learning { moves: 2, refused_moves: 30, refused_addresses: 0 });
        let expected = "2 stations moved to it, 30 frames with an address that another port keeps";
        assert_eq!(line.as_deref(), Some(expected));
    }

    #[test]
    fn workers_that_wait_for_each_other_are_one_line() {
        assert_eq!(lock_waits(LockWaits::default()), None);
        let line = "workers waited 3 times for another one that was sending to it, 1.50 s in all";
        let waits = LockWaits { count: 3, nanoseconds: 1_500_000_000 };
        assert_eq!(lock_waits(waits).as_deref(), Some(line));
    }

    #[test]
    fn connections_to_a_socket_that_is_taken_are_one_line() {
        assert_eq!(refused(0), None);
        let line = "3 connections were refused: its socket is taken";
        assert_eq!(refused(3).as_deref(), Some(line));
    }

    #[test]
    fn the_mapped_memory_of_a_machine_is_shown_with_its_bound() {
        let memory = |bytes| MappedMemory { bytes, limit: 320 << 20 };
        assert_eq!(mapped_memory(memory(0)), None, "no front-end has shared any");
        let line = "256 MiB of its memory are mapped, of at most 320 MiB";
        assert_eq!(mapped_memory(memory(256 << 20)).as_deref(), Some(line));
    }

    #[test]
    fn a_queue_that_is_not_used_any_more_says_why() {
        let status = GuestQueueStatus {
            queue: 3,
            guest: Some("red".to_owned()),
            direct: 5,
            reason: Some("page 7 is not the domain's".to_owned()),
            ..GuestQueueStatus::default()
        };
        let line = "queue 3 of red: 5 direct frames; not used any more: page 7 is not the domain's";
        assert_eq!(guest_queue(&status), line);
    }

    #[test]
    fn guest_copies_are_one_line() {
        let pool = GuestCopyStatus { pool_pages: 256, ..GuestCopyStatus::default() };
        let line = guest_copy(&pool);
        assert_eq!(line, "copies an uplink's frames out of a pool of 256 pages");
        let status = GuestCopyStatus { bytes: 3000, copies: 2, expired: 1, ..Default::default() };
        let line = guest_copy(&status);
        assert!(line.starts_with("copied 3000 bytes of an uplink's frames itself"), "{line}");
        assert!(
            line.ends_with("0 buffers granted, 1 not copied in time, 0 copies refused"),
            "{line}"
        );
    }

    #[test]
    fn pages_that_stay_mapped_are_one_line_once_they_are_used() {
        let rx = KeptPages { mapped: 200, evictions: 3, ..KeptPages::default() };
        let tx = KeptPages { mapped: 56, ..KeptPages::default() };
        let mut grants = PersistentStatus { bound: 512, bytes: 1 << 20, tx, rx };
        assert_eq!(kept_pages(&grants), None);
        (grants.rx.hits, grants.rx.misses) = (999, 1);
        let line = "at most 512 pages stay mapped, now 1024 KiB: tx 56, 0 evictions; \
                    rx 200, 99.9 % of 1000 lookups found theirs, 3 evictions";
        assert_eq!(kept_pages(&grants).as_deref(), Some(line));
    }

    #[test]
    fn the_meter_is_one_line() {
        let status = MeterStatus {
            on: true,
            counts: [(Counted::CopyBatches, 7)].into_iter().collect(),
            nanoseconds: 2_500_000_000,
            guest_bytes: 9,
        };
        let line = "meter: 2.50 s in the hypervisor, copy batches 7, guest bytes 9";
        assert_eq!(meter(&status), line);
    }

    fn queue(queue: u64, load: f64) -> QueueStatus {
        QueueStatus { port: "red".to_owned(), queue: Some(queue), load, ..QueueStatus::default() }
    }

    #[test]
    fn a_worker_has_a_place_and_its_busiest_queues() {
        let recent = WorkerShares { carrying: 0.5, polling: 0.25, asleep: 0.25 };
        let queues = (0..8).map(|n| queue(n, n as f64 / 100.0));
        let task = QueueStatus { kind: QueueKind::Task, ..queue(9, 0.9) };
        let queues = queues.chain([task]).collect();
        let worker =
            WorkerStatus { cpu: Some(3), node: Some(1), recent, queues, ..WorkerStatus::default() };
        assert_eq!(
            worker_line(2, &worker),
            "worker 2 on CPU 3 (node 1): 50 % carrying, 25 % polling, 25 % asleep; \
             red/7 7 %, red/6 6 %, red/5 5 %, red/4 4 %, red/3 3 %, red/2 2 % and 2 more"
        );
        let idle = worker_line(0, &WorkerStatus::default());
        assert_eq!(idle, "worker 0: 0 % carrying, 0 % polling, 0 % asleep; no queues");
    }
}
