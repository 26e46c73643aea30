//! The classes of hostile guests.

use std::fmt;

use clap::ValueEnum;

/// What a hostile guest does. All classes but the honest one test that a guest can hurt only itself. Each help text names the shared resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Class {
    /// Receives for 10 ms and stands still for 150 ms, in turn, while red sends it 200 Mb/s (red's window).
    SlowStops,
    /// Posts one buffer per millisecond, while red sends it 200 Mb/s (red's window).
    SlowDrips,
    /// Posts 256 buffers every 199 ms, just before it counts as stalled, while red sends it 200 Mb/s (red's window).
    SlowBursts,
    /// Posts no more buffers, while red sends it 200 Mb/s (red's window).
    SlowNever,
    /// Broadcasts without pause (the worker, every guest's receive ring).
    BroadcastStorm,
    /// Sends to addresses that nobody has (the worker, every guest's receive ring).
    UnknownStorm,
    /// Sends to multicast groups (the worker, every guest's receive ring).
    MulticastStorm,
    /// Sends packets that are refused, back to back (the worker).
    Malformed,
    /// Notifies without pause (the worker).
    EventStorm,
    /// Has pages mapped and unmapped over its control ring without pause (the worker, the process's mappings).
    ControlFlood,
    /// Revokes and renews the grants of all its buffers while it sends (the worker).
    GrantRevocation,
    /// The same, of pages that the backend keeps mapped on demand (the worker, the process's mappings).
    StaleGrants,
    /// Copies nothing and posts nothing again, while an uplink sends it 200 Mb/s to copy (the uplink's buffers).
    HoardedCopies,
    /// Posts nothing again, while an uplink sends it 200 Mb/s in its own queue (the worker, the uplink).
    EmptyQueue,
    /// Gives up memory and takes it back, in a loop (the machine's locks, the process's address space).
    Balloon,
    /// Punches holes into its pages while they are in use (the worker, in page faults).
    Holes,
    /// Joins, connects and leaves, in a loop (the control thread, descriptors, threads).
    AttachDetach,
    /// Sends TCP frames to an uplink without TSO, to cut into 192 segments of 8 bytes (the worker, the uplink).
    TinySegments,
    /// Sends from the other guests' addresses, without a guard (the switch's table).
    MacFlapping,
    /// Writes, watches and opens transactions in the store without pause (the store, the control thread).
    StoreFlood,
    /// A virtual machine notifies without pause (the worker).
    VirtioKickStorm,
    /// A virtual machine sends chains and frames that are refused, back to back (the worker).
    VirtioMalformed,
    /// A virtual machine sends short frames in the longest indirect tables that are accepted, most of whose descriptors are empty (the worker).
    VirtioLongTables,
    /// A virtual machine breaks its rings by loops, nested tables and wrong indices, and starts anew, in a loop (the worker, the control thread).
    VirtioBrokenRings,
    /// A virtual machine posts one buffer per millisecond, while red sends it 200 Mb/s (red's window).
    VirtioSlowDrips,
    /// A virtual machine posts no more buffers, while red sends it 200 Mb/s (red's window).
    VirtioSlowNever,
    /// No attack: an honest machine takes red's 200 Mb/s each millisecond. Its ratios show how far those of other classes may differ from 1
    /// by chance.
    VirtioHonest,
    /// A virtual machine broadcasts without pause (the worker, every guest's receive ring).
    VirtioBroadcastStorm,
    /// A virtual machine sends to addresses that nobody has (the worker, every guest's receive ring).
    VirtioUnknownStorm,
    /// A front-end connects, describes its rings and goes, in a loop (the control thread, descriptors).
    VirtioAttachDetach,
    /// A virtual machine's driver stops and starts its rings, in a loop (the control thread).
    VirtioResets,
    /// A front-end changes its memory table while it sends, in a loop (the control thread, the process's mappings).
    VirtioMemoryTables,
    /// A front-end sends messages that change nothing without pause (the CPUs, the rings that the worker serves).
    VirtioControlFlood,
    /// A front-end shares memory of half a process's addresses, and then as much as it may. Its buffers, which red's 200 Mb/s fill, lie 2
    /// MiB apart (the process's address space and page tables).
    VirtioSparseMemory,
    /// Front-ends fill the 32 eventfds by which their rings are notified, and come again by another port (the worker).
    VirtioFullCalls,
    /// A front-end has thousands of descriptors wait for the eventfd by which a ring is notified (the worker, in the call that notifies).
    VirtioSlowCalls,
    /// Front-ends punch holes of a gigabyte where the frames are that they send, and come again by another port (the worker, in page faults).
    VirtioHoles,
    /// The same with holes that last some milliseconds and are filled at once: no check finds that the memory
    /// shrinks.
    VirtioFilledHoles,
    /// As `virtio-holes`, in the bodies of their broadcasts and in the buffers that red's 200 Mb/s fill (the queues of all guests that exchange
    /// frames with them).
    VirtioSharedHoles,
    /// As `virtio-full-calls`, with another process for each port.
    VirtioForkedCalls,
    /// As `virtio-holes`, with another process for each port.
    VirtioForkedHoles,
}

impl Class {
    /// All classes.
    pub fn all() -> &'static [Self] {
        Self::value_variants()
    }

    /// Whether red sends to the hostile guest.
    pub fn is_sent_to_by_red(self) -> bool {
        let is_netif =
            matches!(self, Self::SlowStops | Self::SlowDrips | Self::SlowBursts | Self::SlowNever);
        let is_virtio = matches!(
            self,
            Self::VirtioSlowDrips
                | Self::VirtioSlowNever
                | Self::VirtioHonest
                | Self::VirtioSparseMemory
                | Self::VirtioSharedHoles
        );
        is_netif || is_virtio
    }

    /// Whether the hostile guest is a virtual machine, with a vhost-user port.
    pub fn is_virtio(self) -> bool {
        self.to_string().starts_with("virtio-")
    }

    /// Whether it punches holes in a virtual machine's memory. Holes cost time in the kernel wherever they are made.
    pub fn makes_holes(self) -> bool {
        matches!(
            self,
            Self::VirtioHoles
                | Self::VirtioFilledHoles
                | Self::VirtioSharedHoles
                | Self::VirtioForkedHoles
        )
    }

    /// Whether the first attack exposes its process or its name, which is refused from then on.
    pub fn attacks_once(self) -> bool {
        matches!(
            self,
            Self::Holes
                | Self::VirtioFullCalls
                | Self::VirtioHoles
                | Self::VirtioFilledHoles
                | Self::VirtioSharedHoles
        )
    }

    /// Whether an uplink sends to the hostile guest, which takes nothing.
    pub fn is_sent_to_by_uplink(self) -> bool {
        matches!(self, Self::HoardedCopies | Self::EmptyQueue)
    }

    /// The keys of the uplink, if there is one.
    pub fn uplink(self) -> Option<&'static str> {
        match self {
            Self::TinySegments => Some("capabilities = \"csum+sg\"\n"),
            Self::HoardedCopies => Some(""),
            Self::EmptyQueue => Some("queues = \"per-guest\"\n"),
            _ => None,
        }
    }

    /// More keys of the hostile guest.
    pub fn guest(self) -> &'static str {
        match self {
            Self::MacFlapping => "guard = \"off\"\n",
            Self::Balloon | Self::Holes => "balloon = true\n",
            Self::StaleGrants => "grant_reuse = \"on-demand\"\n",
            Self::HoardedCopies => "rx = \"guest-copy\"\n",
            Self::EmptyQueue => "rx = \"direct\"\n",
            Self::VirtioSparseMemory => "memory_mib = 65536\n",
            Self::VirtioFullCalls | Self::VirtioForkedCalls => "queues = 16\n",
            _ => "",
        }
    }

    /// The number of the hostile guest's ports. A port is closed once its front-end was found to be hostile.
    pub fn ports(self) -> usize {
        match self {
            Self::VirtioFullCalls
            | Self::VirtioHoles
            | Self::VirtioFilledHoles
            | Self::VirtioSharedHoles
            | Self::VirtioForkedCalls
            | Self::VirtioForkedHoles => 128,
            _ => 1,
        }
    }

    /// Whether the hostile guest agrees to persistent grants. Revoking grants takes effect only if they are checked
    /// per frame.
    pub fn has_persistent_grants(self) -> bool {
        !matches!(self, Self::GrantRevocation | Self::StaleGrants)
    }
}

impl fmt::Display for Class {
    /// The name on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.to_possible_value().map_or(Ok(()), |value| f.write_str(value.get_name()))
    }
}
