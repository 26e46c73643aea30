//! The hash of the article's kernels: Bob Jenkins' lookup3, as Linux 3.16 has it (`include/linux/jhash.h`).

use std::net::Ipv4Addr;

const INITVAL: u32 = 0xdead_beef;

/// A connection's hash, the same for both directions (`__skb_get_hash` in `net/core/flow_dissector.c`). The key is
/// drawn at each boot.
pub fn flow_hash(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16), key: u32) -> u32 {
    // The kernel compares and hashes words in network order as they are, on a little-endian machine.
    let address = |end: (Ipv4Addr, u16)| u32::from_le_bytes(end.0.octets());
    let port = |end: (Ipv4Addr, u16)| end.1.swap_bytes();
    let is_swapped = (address(to), port(to)) < (address(from), port(from));
    let (source, destination) = if is_swapped { (to, from) } else { (from, to) };
    let ports = u32::from(port(source)) | u32::from(port(destination)) << 16;
    jhash_3words(address(destination), address(source), ports, key).max(1)
}

fn jhash_3words(a: u32, b: u32, c: u32, key: u32) -> u32 {
    let (mut a, mut b, mut c) =
        (a.wrapping_add(INITVAL), b.wrapping_add(INITVAL), c.wrapping_add(key));
    let mix = |x: &mut u32, y: u32, bits: u32| *x = (*x ^ y).wrapping_sub(y.rotate_left(bits));
    mix(&mut c, b, 14);
    mix(&mut a, c, 11);
    mix(&mut b, a, 25);
    mix(&mut c, b, 16);
    mix(&mut a, c, 4);
    mix(&mut b, a, 14);
    mix(&mut c, b, 24);
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_are_mixed_as_in_the_kernel() {
        // Worked out with another program.
        assert_eq!(jhash_3words(1, 2, 3, 4), 0x13ed_7f7b);
        assert_eq!(jhash_3words(0, 0, 0, 0), 0xc0b0_a2c2);
    }

    #[test]
    fn both_directions_have_one_hash_and_a_key_changes_it() {
        let ends = [(Ipv4Addr::new(10, 77, 0, 1), 40_000), (Ipv4Addr::new(10, 77, 0, 2), 5201)];
        let [one, other] = ends;
        assert_eq!(flow_hash(one, other, 7), flow_hash(other, one, 7));
        assert_ne!(flow_hash(one, other, 7), flow_hash(one, other, 8));
    }
}
