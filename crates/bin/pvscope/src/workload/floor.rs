//! The least that a program of dom0 does to carry a frame of 64 KiB between a guest's pages and a tap: a floor for pvnet.
//!
//! It has no rings, no switch and no events. Pages that dom0 grants to itself stand for a guest's pages and for the program's: Xen does the same
//! for them. All that such a frame costs beyond its program's few instructions is the kernel's and Xen's.

use super::scripts::{marked, own};
use crate::mark::{TELL, executable};

/// Which way the frames go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Floor {
    /// From the guest's pages to a tap, behind which the kernel drops them.
    Tx,
    /// The same, and from another tap, where a bridge takes them, to the guest's pages.
    Rx,
}

/// The interface whose frames are counted.
pub const INTERFACE: &str = "floor0";

/// The program's name and file.
pub fn program(floor: Floor) -> (String, Vec<u8>) {
    ("floor".to_owned(), executable(&code(floor)))
}

/// The script of dom0. `line` comes before the traffic.
pub fn script(floor: Floor, milliseconds: u32, line: &str) -> String {
    let devices = match floor {
        Floor::Tx => "floor0",
        Floor::Rx => "floor0 floor1",
    };
    let bridge = match floor {
        Floor::Tx => "",
        Floor::Rx => {
            "ip link add xenbr0 mtu 65521 type bridge stp_state 0 forward_delay 0\nip link set xenbr0 up\n\
             for device in floor0 floor1; do ip link set $device master xenbr0; done\n"
        }
    };
    format!(
        "set -e\nmodprobe -a tun bridge xen-gntalloc xen-gntdev\n{TELL}\ntell_modules 0\n{}floor &\n\
         for device in {devices}; do until [ -e /sys/class/net/$device ]; do sleep 0.05; done\n\
         ip link set $device mtu 65521 up; done\n{bridge}{}\necho '@end'\n",
        own(line),
        marked("", INTERFACE, milliseconds)
    )
}

/// Pages of a frame: as many grants for the guest's side, and for the program's.
const PAGES: u32 = 16;
/// Bytes of a frame, with ten of metadata.
const FRAME: u32 = 65_024;

// Where structures lie in the program's data.
/// `struct ioctl_gntalloc_alloc_gref`; its references begin after 16 bytes.
const ALLOC: u32 = 0;
/// `struct ifreq`
const IFREQ: u32 = 0xa0;
/// `struct ioctl_gntdev_grant_copy`
const COPY: u32 = 0xd0;
/// Its segments.
const SEGMENTS: u32 = 0x100;
const SEGMENT: u32 = 24;

const _: () = {
    assert!(ALLOC + 16 + 8 * PAGES <= IFREQ && IFREQ + 40 <= COPY && COPY + 16 <= SEGMENTS);
    assert!(FRAME <= PAGES * 4096);
};

const ALLOC_GREF: u32 = 0x0018_4705;
const GRANT_COPY: u32 = 0x0010_4708;
const TUNSETIFF: u32 = 0x4004_54ca;

/// The structures, as far as they are known before the program runs.
fn data() -> Vec<u8> {
    let mut data = vec![0; (SEGMENTS + PAGES * SEGMENT) as usize];
    let mut put = |at: u32, bytes: &[u8]| {
        data[at as usize..][..bytes.len()].copy_from_slice(bytes);
    };
    put(ALLOC + 2, &1_u16.to_le_bytes()); // GNTALLOC_FLAG_WRITABLE; the domain is 0, itself
    put(ALLOC + 4, &(2 * PAGES).to_le_bytes());
    put(IFREQ, INTERFACE.as_bytes());
    put(IFREQ + 16, &0x5002_u16.to_le_bytes()); // IFF_TAP, IFF_NO_PI, IFF_VNET_HDR
    put(COPY, &PAGES.to_le_bytes());
    for page in 0..PAGES {
        let segment = SEGMENTS + page * SEGMENT;
        put(segment + 16, &4096_u16.to_le_bytes());
        put(segment + 18, &3_u16.to_le_bytes()); // both ends are grants
    }
    data
}

/// A program that is being written. It has its data at `r12`, gntdev in `ebx`, the taps in `r13d` and `r14d`, and the granted pages at `r15`: the program's behind the
/// guest's.
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
        self.add(&[0x48, 0x8d, 0x3d]).distance_to(format!("{path}\0").as_bytes()); // lea rdi, [rip + …]
        self.add(&[0xbe]).word(2).call(2) // mov esi, O_RDWR
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

fn code(floor: Floor) -> Vec<u8> {
    let (data, mut code) = (data(), Code::default());
    let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
    // The data, on the stack.
    code.add(&[0x48, 0x81, 0xec]).word(0x1000); // sub rsp, 0x1000
    code.add(&[0x49, 0x89, 0xe4, 0x48, 0x8d, 0x35]).distance_to(&data); // mov r12, rsp; lea rsi, [rip + …]
    code.add(&[0x4c, 0x89, 0xe7, 0xb9]).word(len).add(&[0xf3, 0xa4]); // mov rdi, r12; mov ecx, LEN; rep movsb
    // Pages that are granted to this domain.
    code.open("/dev/xen/gntalloc").add(&[0x41, 0x89, 0xc6]); // mov r14d, eax
    code.ioctl(SECOND, ALLOC_GREF, ALLOC);
    code.add(&[0x31, 0xff, 0xbe]).word(2 * PAGES * 4096); // xor edi, edi; mov esi, BYTES
    code.add(&[0xba]).word(3).add(&[0x41, 0xba]).word(1); // mov edx, PROT_READ | PROT_WRITE; mov r10d, MAP_SHARED
    code.add(&[0x45, 0x89, 0xf0, 0x4d, 0x8b, 0x8c, 0x24]).word(ALLOC + 8); // mov r8d, r14d; mov r9, [r12 + …]
    code.call(9).add(&[0x49, 0x89, 0xc7]); // mmap; mov r15, rax
    // Segment by segment, from a page of the first half to one of the second.
    code.add(&[0x31, 0xc9]); // xor ecx, ecx
    let start = code.bytes.len();
    code.add(&[0x41, 0x8b, 0x84, 0x8c]).word(ALLOC + 16); // mov eax, [r12 + rcx * 4 + …]
    code.add(&[0x6b, 0xd1, 24]); // imul edx, ecx, SEGMENT
    code.add(&[0x41, 0x89, 0x84, 0x14]).word(SEGMENTS); // mov [r12 + rdx + …], eax
    code.add(&[0x41, 0x8b, 0x84, 0x8c]).word(ALLOC + 16 + 4 * PAGES);
    code.add(&[0x41, 0x89, 0x84, 0x14]).word(SEGMENTS + 8);
    code.add(&[0xff, 0xc1, 0x83, 0xf9, 16, 0x0f, 0x82]); // inc ecx; cmp ecx, PAGES; jb …
    back_to(&mut code, start);
    code.add(&[0x49, 0x8d, 0x84, 0x24]).word(SEGMENTS); // lea rax, [r12 + …]
    code.add(&[0x49, 0x89, 0x84, 0x24]).word(COPY + 8); // mov [r12 + …], rax
    code.open("/dev/xen/gntdev").add(&[0x89, 0xc3]); // mov ebx, eax
    code.open("/dev/net/tun").add(&[0x41, 0x89, 0xc5]); // mov r13d, eax
    code.ioctl(FIRST_TAP, TUNSETIFF, IFREQ);
    if floor == Floor::Rx {
        code.add(&[0x41, 0xc6, 0x84, 0x24]).word(IFREQ + 5).add(b"1"); // mov byte [r12 + …], '1'
        code.open("/dev/net/tun").add(&[0x41, 0x89, 0xc6]); // mov r14d, eax
        code.ioctl(SECOND, TUNSETIFF, IFREQ);
    }
    let forever = code.bytes.len();
    code.ioctl(GNTDEV, GRANT_COPY, COPY);
    code.add(FIRST_TAP).add(&[0x49, 0x8d, 0xb7]).word(PAGES * 4096); // lea rsi, [r15 + …]
    code.add(&[0xba]).word(FRAME).call(1); // write
    if floor == Floor::Rx {
        code.add(SECOND).add(&[0x4c, 0x89, 0xfe]); // mov rsi, r15
        code.add(&[0xba]).word(FRAME).call(0); // read
        code.ioctl(GNTDEV, GRANT_COPY, COPY);
    }
    code.add(&[0xe9]);
    back_to(&mut code, forever);
    code.file()
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
        let data = data();
        let word = |at: u32| u32::from_le_bytes(data[at as usize..][..4].try_into().unwrap());
        assert_eq!((word(ALLOC), word(ALLOC + 4)), (1 << 16, 32));
        assert_eq!(word(COPY), PAGES);
        for page in 0..PAGES {
            assert_eq!(word(SEGMENTS + page * SEGMENT + 16), 3 << 16 | 4096);
        }
    }
}
