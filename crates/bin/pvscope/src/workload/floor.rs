//! The least that a program of dom0 does to carry frames between guests' pages and a tap: floors for pvnet. That between guests is
//! `scripts/xen-floor.c`, which serves real ones.
//!
//! There are no rings, no switch, no checks and no guests. Pages that dom0 grants to itself stand for guests' pages and for the program's: Xen does
//! the same for them. All that a frame costs beyond its program's few instructions is the kernel's and Xen's.

use super::scripts::{CARD, marked, own};
use crate::mark::{TELL, executable};

/// What the program carries, again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// A frame of 64 KiB from the guest's pages to a tap, behind which the kernel drops it.
    Tx,
    /// The same, and from another tap, where a bridge takes it, to the guest's pages.
    Rx,
    /// As `Tx`, 32 frames of 64 bytes by one copy, and one call that writes them.
    SmallTx,
    /// As `Rx`, with these.
    SmallRx,
    /// As `SmallTx`, by a bridge to the network card.
    SmallWire,
    /// As `Tx`, one frame of 64 bytes.
    LoneTx,
    /// As `Rx`, with this.
    LoneRx,
}

/// The interface whose frames are counted.
pub const INTERFACE: &str = "floor0";

/// The program's name and file.
pub fn program(floor: Floor) -> (String, Vec<u8>) {
    ("floor".to_owned(), executable(&code(floor)))
}

/// The script of dom0. `line` comes before the traffic.
pub fn script(floor: Floor, milliseconds: u32, line: &str) -> String {
    let (taps, ports) = match floor {
        Floor::SmallWire => ("floor0", "floor0 eth0"),
        _ if floor.has_second_tap() => ("floor0 floor1", "floor0 floor1"),
        _ => ("floor0", ""),
    };
    let bridge = match ports {
        "" => String::new(),
        _ => format!(
            "ip link add xenbr0 mtu 65521 type bridge stp_state 0 forward_delay 0\nip link set xenbr0 up\n\
             for device in {ports}; do ip link set $device master xenbr0 up; done\n"
        ),
    };
    // It begins when its taps lead somewhere. Interfaces say nothing by themselves: the program would take that for its frames.
    format!(
        "set -e\nmodprobe -a tun bridge xen-gntalloc xen-gntdev xen-evtchn\n\
         for scope in all default; do echo 1 >/proc/sys/net/ipv6/conf/$scope/disable_ipv6; done\n{TELL}\ntell_modules 0\n{}floor &\n\
         for device in {taps}; do until [ -e /sys/class/net/$device ]; do sleep 0.05; done\n\
         ip link set $device mtu 65521 up; done\n{bridge}until grep -q stopped /proc/$!/status; do sleep 0.05; done\nkill -CONT $!\n{}\necho '@end'\n",
        own(line),
        marked("", INTERFACE, milliseconds)
    )
}

impl Floor {
    fn has_second_tap(self) -> bool {
        matches!(self, Self::Rx | Self::SmallRx | Self::LoneRx)
    }

    /// The network cards of its machine, as QEMU's arguments.
    pub fn cards(self) -> &'static str {
        if self == Self::SmallWire { CARD } else { "" }
    }

    /// What is copied by one call, and written by one.
    fn shape(self) -> Shape {
        match self {
            Self::Tx | Self::Rx => Shape { segments: 16, segment: 4096, frames: 1, frame: 65_024 },
            Self::SmallTx | Self::SmallRx | Self::SmallWire => {
                Shape { segments: 32, segment: 64, frames: 32, frame: 74 }
            }
            Self::LoneTx | Self::LoneRx => Shape { segments: 1, segment: 64, frames: 1, frame: 74 },
        }
    }
}

struct Shape {
    /// Segments of a copy, each from a page of its own to a page of its own.
    segments: u32,
    /// Bytes of each.
    segment: u16,
    frames: u32,
    /// Bytes of a frame, with ten of metadata.
    frame: u32,
}

/// As many pages have the guest and the program, and as many operations its ring twice.
const PAGES: u32 = 32;
const PAGES_BYTE: u8 = PAGES.to_le_bytes()[0];

// Where structures lie in the program's data.
/// `struct ioctl_gntalloc_alloc_gref`; its references begin after 16 bytes.
const ALLOC: u32 = 0;
/// `struct ifreq`
const IFREQ: u32 = 0x118;
/// `struct ioctl_gntdev_grant_copy`
const COPY: u32 = 0x140;
const SEGMENTS: u32 = 0x160;
const SEGMENT: u32 = 24;
/// `struct io_uring_params`, and the address of the ring.
const PARAMS: u32 = 0x460;
const RING: u32 = 0x4d8;
const END: u32 = 0x4e0;

const _: () = {
    assert!(ALLOC + 16 + 8 * PAGES <= IFREQ && IFREQ + 40 <= COPY && COPY + 16 <= SEGMENTS);
    assert!(SEGMENTS + PAGES * SEGMENT <= PARAMS && PARAMS + 120 <= RING);
};

const ALLOC_GREF: u32 = 0x0018_4705;
const GRANT_COPY: u32 = 0x0010_4708;
const TUNSETIFF: u32 = 0x4004_54ca;

/// The structures, as far as they are known before the program runs.
fn data(shape: &Shape) -> Vec<u8> {
    let mut data = vec![0; END as usize];
    let mut put = |at: u32, bytes: &[u8]| {
        data[at as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    put(ALLOC + 2, &1_u16.to_le_bytes()); // GNTALLOC_FLAG_WRITABLE; the domain is 0, itself
    put(ALLOC + 4, &(2 * PAGES).to_le_bytes());
    put(IFREQ, INTERFACE.as_bytes());
    put(IFREQ + 16, &0x5002_u16.to_le_bytes()); // IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
    put(COPY, &shape.segments.to_le_bytes());
    for page in 0..PAGES {
        let segment = SEGMENTS + page * SEGMENT;
        put(segment + 16, &shape.segment.to_le_bytes());
        put(segment + 18, &3_u16.to_le_bytes()); // both ends are grants
    }
    data
}

/// A frame's metadata, and its header: a protocol that nobody takes.
const HEADER: [u8; 24] =
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x52, 0x54, 0, 0, 0, 9, 0x52, 0x54, 0, 0, 0, 8, 0x88, 0xb5];

/// A program that is being written. It has its data at `r12`, gntdev in `ebx`, the taps in `r13d` and `r14d`, the ring in `ebp`, and the
/// granted pages at `r15`: the program's behind the guest's.
#[derive(Default)]
struct Code {
    bytes: Vec<u8>,
    /// Where the instructions have the distance to what follows them: the data, or a name.
    to: Vec<(usize, usize)>,
    behind: Vec<u8>,
}

impl Code {
    fn add(&mut self, bytes: &[u8]) -> &mut Self {
        self.bytes.extend(bytes);
        self
    }

    fn word(&mut self, word: u32) -> &mut Self {
        self.add(&word.to_le_bytes())
    }

    /// The distance to these bytes, which follow the code.
    fn distance_to(&mut self, bytes: &[u8]) -> &mut Self {
        self.to.push((self.bytes.len(), self.behind.len()));
        self.behind.extend(bytes);
        self.word(0)
    }

    fn call(&mut self, number: u32) -> &mut Self {
        self.add(&[0xb8]).word(number).add(&[0x0f, 0x05]) // mov eax, NUMBER; syscall
    }

    fn open(&mut self, path: &str) -> &mut Self {
        self.open_with(path, 2) // O_RDWR
    }

    fn open_with(&mut self, path: &str, flags: u32) -> &mut Self {
        self.add(&[0x48, 0x8d, 0x3d]).distance_to(format!("{path}\0").as_bytes()); // lea rdi, [rip + …]
        self.add(&[0xbe]).word(flags).call(2) // mov esi, FLAGS
    }

    /// `mmap` of `bytes` bytes, shared, of the descriptor in `r8d` at the offset in `r9`.
    fn map(&mut self, bytes: u32) -> &mut Self {
        self.add(&[0x31, 0xff, 0xbe]).word(bytes); // xor edi, edi; mov esi, BYTES
        self.add(&[0xba]).word(3).add(&[0x41, 0xba]).word(1).call(9) // mov edx, PROT_READ | PROT_WRITE; mov r10d, MAP_SHARED
    }

    /// `read` or `write` of `bytes` bytes, by the descriptor, at the address of the granted page.
    fn transfer(&mut self, call: u32, descriptor: &[u8], page: u32, bytes: u32) -> &mut Self {
        self.add(descriptor).add(&[0x49, 0x8d, 0xb7]).word(page * 4096); // lea rsi, [r15 + …]
        self.add(&[0xba]).word(bytes).call(call) // mov edx, BYTES
    }

    /// Submits the ring's next `operations` operations, and waits for them.
    fn submit(&mut self, operations: u8) -> &mut Self {
        self.advance(44, operations); // the tail of submissions
        self.add(&[0x89, 0xef, 0xbe]).word(operations.into()); // mov edi, ebp; mov esi, OPERATIONS
        self.add(&[0x89, 0xf2, 0x41, 0xba]).word(1); // mov edx, esi; mov r10d, IORING_ENTER_GETEVENTS
        self.add(&[0x45, 0x31, 0xc0, 0x45, 0x31, 0xc9]).call(426); // xor r8d, r8d; xor r9d, r9d
        self.advance(80, operations) // the head of completions
    }

    /// Adds to the word of the ring whose offset is at a place of its parameters.
    fn advance(&mut self, place: u32, operations: u8) -> &mut Self {
        self.add(&[0x49, 0x8b, 0xbc, 0x24]).word(RING); // mov rdi, [r12 + …]
        self.add(&[0x41, 0x8b, 0x84, 0x24]).word(PARAMS + place); // mov eax, [r12 + …]
        self.add(&[0x83, 0x04, 0x07, operations]) // add dword [rdi + rax], OPERATIONS
    }

    /// `ioctl` of the descriptor in `edi` with a structure of the data.
    fn ioctl(&mut self, descriptor: &[u8], number: u32, structure: u32) -> &mut Self {
        self.add(descriptor).add(&[0xbe]).word(number); // mov esi, NUMBER
        self.add(&[0x49, 0x8d, 0x94, 0x24]).word(structure).call(16) // lea rdx, [r12 + STRUCTURE]
    }

    fn file(self) -> Vec<u8> {
        let Self { mut bytes, to, behind } = self;
        for (place, target) in to {
            let distance = bytes.len() + target - (place + 4);
            bytes[place..place + 4].copy_from_slice(&distance.to_le_bytes()[..4]);
        }
        [bytes, behind].concat()
    }
}

/// `mov edi, …`
const GNTDEV: &[u8] = &[0x89, 0xdf];
const FIRST_TAP: &[u8] = &[0x44, 0x89, 0xef];
const SECOND: &[u8] = &[0x44, 0x89, 0xf7];

const READ: u32 = 0;
const WRITE: u32 = 1;

fn code(floor: Floor) -> Vec<u8> {
    let shape = floor.shape();
    let mut code = Code::default();
    code.prepare_copies(&data(&shape));
    let flags = if shape.frames > 1 { 0x802 } else { 2 }; // O_RDWR, O_NONBLOCK, without which a ring does not write at once
    code.open_with("/dev/net/tun", flags).add(&[0x41, 0x89, 0xc5]); // mov r13d, eax
    code.ioctl(FIRST_TAP, TUNSETIFF, IFREQ);
    if floor.has_second_tap() {
        code.add(&[0x41, 0xc6, 0x84, 0x24]).word(IFREQ + 5).add(b"1"); // mov byte [r12 + …], '1'
        code.open_with("/dev/net/tun", flags).add(&[0x41, 0x89, 0xc6]); // mov r14d, eax
        code.ioctl(SECOND, TUNSETIFF, IFREQ);
    }
    code.stop();
    let is_by_ring = shape.frames > 1;
    if is_by_ring {
        code.prepare_ring(floor, &shape);
    }
    let forever = code.bytes.len();
    code.ioctl(GNTDEV, GRANT_COPY, COPY);
    let frames = u8::try_from(shape.frames).unwrap_or(u8::MAX);
    match is_by_ring {
        true => code.submit(frames),
        false => code.transfer(WRITE, FIRST_TAP, PAGES, shape.frame),
    };
    if floor.has_second_tap() {
        match is_by_ring {
            true => code.submit(frames),
            false => code.transfer(READ, SECOND, 0, shape.frame),
        };
        code.ioctl(GNTDEV, GRANT_COPY, COPY);
    }
    code.add(&[0xe9]);
    back_to(&mut code, forever);
    code.file()
}

impl Code {
    /// The data, the granted pages with a frame's header in each, the segments of copies, and gntdev.
    fn prepare_copies(&mut self, data: &[u8]) {
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        // The data, on the stack.
        self.add(&[0x48, 0x81, 0xec]).word(0x1000); // sub rsp, 0x1000
        self.add(&[0x49, 0x89, 0xe4, 0x48, 0x8d, 0x35]).distance_to(data); // mov r12, rsp; lea rsi, [rip + …]
        self.add(&[0x4c, 0x89, 0xe7, 0xb9]).word(len).add(&[0xf3, 0xa4]); // mov rdi, r12; mov ecx, LEN; rep movsb
        // Pages that are granted to this domain.
        self.open("/dev/xen/gntalloc").add(&[0x41, 0x89, 0xc6]); // mov r14d, eax
        self.ioctl(SECOND, ALLOC_GREF, ALLOC);
        self.add(&[0x45, 0x89, 0xf0, 0x4d, 0x8b, 0x8c, 0x24]).word(ALLOC + 8); // mov r8d, r14d; mov r9, [r12 + …]
        self.map(2 * PAGES * 4096).add(&[0x49, 0x89, 0xc7]); // mov r15, rax
        // Segment by segment, from a page of the first half to one of the second.
        self.add(&[0x31, 0xdb]); // xor ebx, ebx
        let start = self.bytes.len();
        self.add(&[0x41, 0x8b, 0x84, 0x9c]).word(ALLOC + 16); // mov eax, [r12 + rbx * 4 + …]
        self.add(&[0x6b, 0xd3, 24]); // imul edx, ebx, SEGMENT
        self.add(&[0x41, 0x89, 0x84, 0x14]).word(SEGMENTS); // mov [r12 + rdx + …], eax
        self.add(&[0x41, 0x8b, 0x84, 0x9c]).word(ALLOC + 16 + 4 * PAGES);
        self.add(&[0x41, 0x89, 0x84, 0x14]).word(SEGMENTS + 8);
        self.add(&[0x89, 0xdf, 0xc1, 0xe7, 12, 0x4c, 0x01, 0xff]); // mov edi, ebx; shl edi, 12; add rdi, r15
        self.add(&[0x48, 0x8d, 0x35]).distance_to(&HEADER); // lea rsi, [rip + …]
        self.add(&[0xb9]).word(24).add(&[0xf3, 0xa4]); // mov ecx, 24; rep movsb
        self.add(&[0xff, 0xc3, 0x83, 0xfb, PAGES_BYTE, 0x0f, 0x82]); // inc ebx; cmp ebx, PAGES; jb …
        back_to(self, start);
        self.add(&[0x49, 0x8d, 0x84, 0x24]).word(SEGMENTS); // lea rax, [r12 + …]
        self.add(&[0x49, 0x89, 0x84, 0x24]).word(COPY + 8); // mov [r12 + …], rax
        self.open("/dev/xen/gntdev").add(&[0x89, 0xc3]); // mov ebx, eax
    }

    /// Stops this process, until it is told to go on.
    fn stop(&mut self) {
        self.call(39).add(&[0x89, 0xc7, 0xbe]).word(19).call(62); // getpid; mov edi, eax; mov esi, SIGSTOP; kill
    }

    /// A ring with an operation for each frame, and behind these another: reads where there is a second tap, the same writes where not.
    fn prepare_ring(&mut self, floor: Floor, shape: &Shape) {
        self.add(&[0xbf]).word(2 * shape.frames); // mov edi, OPERATIONS
        self.add(&[0x49, 0x8d, 0xb4, 0x24]).word(PARAMS).call(425).add(&[0x89, 0xc5]); // lea rsi, [r12 + …]; mov ebp, eax
        self.add(&[0x41, 0x89, 0xe8, 0x45, 0x31, 0xc9]).map(4096); // mov r8d, ebp; xor r9d, r9d
        self.add(&[0x49, 0x89, 0x84, 0x24]).word(RING); // mov [r12 + …], rax
        self.add(&[0x41, 0x89, 0xe8, 0x41, 0xb9]).word(0x1000_0000).map(4096); // mov r8d, ebp; mov r9d, IORING_OFF_SQES
        // The operation, the tap's register and its first page.
        let write = (23, 0x68, PAGES);
        let second = if floor.has_second_tap() { (22, 0x70, 0) } else { write };
        for (operation, tap, page) in [write, second] {
            self.add(&[0x31, 0xc9]); // xor ecx, ecx
            let start = self.bytes.len();
            self.add(&[0xc6, 0x00, operation, 0x44, 0x89, tap, 4]); // mov byte [rax], OPERATION; mov [rax + 4], TAP
            self.add(&[0x89, 0xca, 0xc1, 0xe2, 12]); // mov edx, ecx; shl edx, 12
            self.add(&[0x49, 0x8d, 0x94, 0x17]).word(page * 4096); // lea rdx, [r15 + rdx + …]
            self.add(&[0x48, 0x89, 0x50, 16, 0xc7, 0x40, 24]).word(shape.frame); // mov [rax + 16], rdx; mov dword [rax + 24], BYTES
            self.add(&[0x48, 0x83, 0xc0, 64]); // add rax, 64
            self.add(&[0xff, 0xc1, 0x83, 0xf9, PAGES_BYTE, 0x0f, 0x82]); // inc ecx; cmp ecx, FRAMES; jb …
            back_to(self, start);
        }
        // Each place of the ring has the operation of its number.
        self.add(&[0x49, 0x8b, 0xbc, 0x24]).word(RING); // mov rdi, [r12 + …]
        self.add(&[0x41, 0x8b, 0x84, 0x24]).word(PARAMS + 64); // mov eax, [r12 + …]
        self.add(&[0x48, 0x01, 0xc7, 0x31, 0xc9]); // add rdi, rax; xor ecx, ecx
        let start = self.bytes.len();
        self.add(&[0x89, 0x0c, 0x8f]); // mov [rdi + rcx * 4], ecx
        self.add(&[0xff, 0xc1, 0x83, 0xf9, 2 * PAGES_BYTE, 0x0f, 0x82]); // inc ecx; cmp ecx, OPERATIONS; jb …
        back_to(self, start);
    }
}

/// The distance of a jump back.
fn back_to(code: &mut Code, start: usize) {
    let distance = start.wrapping_sub(code.bytes.len() + 4);
    code.add(&distance.to_le_bytes()[..4]);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The operands that an instruction could get wrong without a fault.
    #[test]
    fn segments_lie_where_the_copy_says() {
        let data = data(&Floor::SmallRx.shape());
        let word = |at: u32| u32::from_le_bytes(data[at as usize..][..4].try_into().unwrap());
        assert_eq!((word(ALLOC), word(ALLOC + 4)), (1 << 16, 64));
        assert_eq!(word(COPY), 32);
        for page in 0..PAGES {
            assert_eq!(word(SEGMENTS + page * SEGMENT + 16), 3 << 16 | 64);
        }
    }
}
