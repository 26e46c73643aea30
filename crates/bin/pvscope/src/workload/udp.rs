//! A program that sends UDP.

use crate::mark::executable;

/// The name of the program and its file: it sends datagrams of 1448 bytes to port 9 of 10.0.0.9 without end, and sleeps after
/// each for `pause` microseconds if there is a pause.
pub fn sender(pause: Option<u32>) -> (String, Vec<u8>) {
    let code = pause.map_or_else(|| CODE.to_vec(), |pause| [PAUSING, &timespec(pause)].concat());
    ("send-udp".to_owned(), executable(&code))
}

/// A `struct timespec`.
fn timespec(microseconds: u32) -> [u8; 16] {
    let time = std::time::Duration::from_micros(microseconds.into());
    let fields = u128::from(time.as_secs()) | u128::from(time.subsec_nanos()) << 64;
    fields.to_le_bytes()
}

/// The file is mapped at 0x400000, as a page, which is what is sent.
#[rustfmt::skip]
const CODE: &[u8] = &[
    // socket(AF_INET, SOCK_DGRAM, 0)
    0x6a, 41, 0x58,                                 // push 41; pop rax
    0x6a, 2, 0x5f,                                  // push 2; pop rdi
    0x6a, 2, 0x5e,                                  // push 2; pop rsi
    0x99,                                           // cdq
    0x0f, 0x05,                                     // syscall
    // connect(socket, address, 16)
    0x97,                                           // xchg edi, eax
    0x48, 0x8d, 0x35, 25, 0, 0, 0,                  // lea rsi, [rip + 25]
    0x6a, 16, 0x5a,                                 // push 16; pop rdx
    0x6a, 42, 0x58,                                 // push 42; pop rax
    0x0f, 0x05,                                     // syscall
    // write(socket, 0x400000, 1448), for ever
    0xbe, 0, 0, 0x40, 0,                            // mov esi, 0x400000
    0xba, 0xa8, 0x05, 0, 0,                         // mov edx, 1448
    0x6a, 1, 0x58,                                  // push 1; pop rax
    0x0f, 0x05,                                     // syscall
    0xeb, 0xf9,                                     // back to push 1
    // struct sockaddr_in
    2, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// The same with a pause, whose `struct timespec` follows.
#[rustfmt::skip]
const PAUSING: &[u8] = &[
    // socket(AF_INET, SOCK_DGRAM, 0)
    0x6a, 41, 0x58,                                 // push 41; pop rax
    0x6a, 2, 0x5f,                                  // push 2; pop rdi
    0x6a, 2, 0x5e,                                  // push 2; pop rsi
    0x99,                                           // cdq
    0x0f, 0x05,                                     // syscall
    // connect(socket, address, 16)
    0x97,                                           // xchg edi, eax
    0x89, 0xfb,                                     // mov ebx, edi
    0x48, 0x8d, 0x35, 41, 0, 0, 0,                  // lea rsi, [rip + 41]
    0x6a, 16, 0x5a,                                 // push 16; pop rdx
    0x6a, 42, 0x58,                                 // push 42; pop rax
    0x0f, 0x05,                                     // syscall
    // write(socket, 0x400000, 1448)
    0x89, 0xdf,                                     // mov edi, ebx
    0xbe, 0, 0, 0x40, 0,                            // mov esi, 0x400000
    0xba, 0xa8, 0x05, 0, 0,                         // mov edx, 1448
    0x6a, 1, 0x58,                                  // push 1; pop rax
    0x0f, 0x05,                                     // syscall
    // nanosleep(time, NULL), for ever
    0x48, 0x8d, 0x3d, 25, 0, 0, 0,                  // lea rdi, [rip + 25]
    0x31, 0xf6,                                     // xor esi, esi
    0x6a, 35, 0x58,                                 // push 35; pop rax
    0x0f, 0x05,                                     // syscall
    0xeb, 0xdf,                                     // back to mov edi, ebx
    // struct sockaddr_in
    2, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0,
];

#[cfg(test)]
mod tests {
    use super::{CODE, PAUSING, timespec};

    /// Where the code takes an address from that is relative to its place.
    fn target(code: &[u8], lea: [u8; 3]) -> usize {
        let at = code.windows(3).position(|part| part == lea).unwrap();
        at + 7 + usize::from(code[at + 3])
    }

    #[test]
    fn a_pausing_sender_finds_its_address_its_time_and_its_loop() {
        let address = target(PAUSING, [0x48, 0x8d, 0x35]);
        assert_eq!(PAUSING[address..], [2, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(target(PAUSING, [0x48, 0x8d, 0x3d]), PAUSING.len(), "what follows");
        let back = address - usize::from(PAUSING[address - 1].wrapping_neg());
        assert_eq!(PAUSING[back..back + 2], [0x89, 0xdf]);
        let time = timespec(2_000_003);
        assert_eq!(
            (time[0], u32::from_le_bytes([time[8], time[9], time[10], time[11]])),
            (2, 3000)
        );
    }

    #[test]
    fn the_address_lies_where_the_code_takes_it_from() {
        let lea = CODE.windows(3).position(|code| code == [0x48, 0x8d, 0x35]).unwrap();
        let address = lea + 7 + usize::from(CODE[lea + 3]);
        assert_eq!(CODE[address..], [2, 0, 0, 9, 10, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0]);
        // The jump goes back to the last `push`.
        let jump = address - 2;
        assert_eq!(CODE[jump], 0xeb);
        let target = jump + 2 - usize::from(CODE[jump + 1].wrapping_neg());
        assert_eq!(CODE[target..target + 3], [0x6a, 1, 0x58]);
    }
}
