//! The Toeplitz hash of receive-side scaling, as Microsoft's RSS specification and Xen's netif.h
//! define it.

/// Bytes of a key: the longest input (two IPv6 addresses and two ports) and one more 32-bit window.
pub const KEY_LEN: usize = 40;

/// The key of Microsoft's "Verifying the RSS Hash Calculation", which most drivers start from.
pub const MICROSOFT_KEY: [u8; KEY_LEN] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0,
    0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c,
    0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
];

/// A key, expanded so that one input byte costs one load.
///
/// The hash is linear: the XOR of each byte's contribution at its place. 40 KiB, of which an IPv4
/// flow reads 12 cache lines. Keep it in a `static` or a box.
#[derive(Clone, Debug)]
pub struct Table {
    /// For each byte of the input, the contribution of each value.
    places: [[u32; 256]; KEY_LEN],
}

impl Table {
    /// Expands `key`. A shorter key is padded with zeros (netif.h, `SET_HASH_KEY`).
    #[must_use]
    pub const fn new(key: &[u8; KEY_LEN]) -> Self {
        let mut places = [[0; 256]; KEY_LEN];
        let mut place = 0;
        while place < KEY_LEN {
            expand(key, place, &mut places[place]);
            place += 1;
        }
        Self { places }
    }

    /// The hash of `input`. Bytes beyond [`KEY_LEN`] contribute nothing.
    #[inline]
    #[must_use]
    pub fn hash(&self, input: &[u8]) -> u32 {
        self.hash_at(0, input)
    }

    /// The contribution of `part` at byte `place` of an input. The hash of a concatenation is the
    /// XOR of its parts' contributions.
    #[inline]
    #[must_use]
    pub fn hash_at(&self, place: usize, part: &[u8]) -> u32 {
        let tables = self.places.get(place..).unwrap_or_default();
        tables.iter().zip(part).fold(0, |hash, (table, byte)| hash ^ table[usize::from(*byte)])
    }
}

/// Fills the table of input byte `place`. A value's entry is that without its lowest bit, XOR the
/// bit's.
const fn expand(key: &[u8], place: usize, table: &mut [u32; 256]) {
    let mut value = 1usize;
    while value < 256 {
        let bit = 7 - value.trailing_zeros() as usize;
        table[value] = table[value & (value - 1)] ^ window(key, 8 * place + bit);
        value += 1;
    }
}

/// The 32 bits of `key` from `bit` on, zeros after its end.
const fn window(key: &[u8], bit: usize) -> u32 {
    let mut window = 0u64;
    let mut i = 0;
    while i < 5 {
        let byte = if bit / 8 + i < key.len() { key[bit / 8 + i] } else { 0 };
        window = window << 8 | byte as u64;
        i += 1;
    }
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the 32 bits below the shifted-out ones are the window"
    )]
    let bits = (window >> (8 - bit % 8)) as u32;
    bits
}

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, SocketAddr};
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    static TABLE: Table = Table::new(&MICROSOFT_KEY);

    /// The definition of the hash, bit by bit, for keys of any length.
    fn hash_bitwise(key: &[u8], input: &[u8]) -> u32 {
        let set = |bit: &usize| input[bit / 8] & (0x80 >> (bit % 8)) != 0;
        (0..8 * input.len()).filter(set).fold(0, |hash, bit| hash ^ window(key, bit))
    }

    /// Source, destination, hash of the addresses, hash of addresses and ports: Microsoft's
    /// "Verifying the RSS Hash Calculation".
    const PUBLISHED: [(&str, &str, u32, u32); 8] = [
        ("66.9.149.187:2794", "161.142.100.80:1766", 0x323e_8fc2, 0x51cc_c178),
        ("199.92.111.2:14230", "65.69.140.83:4739", 0xd718_262a, 0xc626_b0ea),
        ("24.19.198.95:12898", "12.22.207.184:38024", 0xd2d0_a5de, 0x5c2b_394a),
        ("38.27.205.30:48228", "209.142.163.6:2217", 0x8298_9176, 0xafc7_327f),
        ("153.39.163.191:44251", "202.188.127.2:1303", 0x5d18_09c5, 0x10e8_28a2),
        ("[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766", 0x2cc1_8cd5, 0x4020_7d3d),
        ("[3ffe:501:8::260:97ff:fe40:efab]:14230", "[ff02::1]:4739", 0x0f0c_461c, 0xdde5_1bbf),
        (
            "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251",
            "[fe80::200:f8ff:fe21:67cf]:38024",
            0x4b61_e985,
            0x02d1_feef,
        ),
    ];

    fn octets(address: &SocketAddr) -> Vec<u8> {
        match address.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        }
    }

    #[test]
    fn published_vectors_have_their_hashes() {
        for (src, dst, of_addresses, of_flow) in PUBLISHED {
            let [src, dst]: [SocketAddr; 2] = [src, dst].map(|text| text.parse().unwrap());
            let addresses = [octets(&src), octets(&dst)].concat();
            let ports = [src.port().to_be_bytes(), dst.port().to_be_bytes()].concat();
            let flow = [&addresses[..], &ports].concat();
            assert_eq!(TABLE.hash(&addresses), of_addresses, "{src} {dst}");
            assert_eq!(TABLE.hash(&flow), of_flow, "{src} {dst}");
            assert_eq!(hash_bitwise(&MICROSOFT_KEY, &flow), of_flow, "{src} {dst}");
        }
    }

    #[test]
    fn bits_beyond_the_key_contribute_nothing() {
        assert_eq!(TABLE.hash(&[0xff; 40]), TABLE.hash(&[0xff; 64]));
        assert_eq!(TABLE.hash_at(KEY_LEN, &[0xff; 4]), 0);
        assert_eq!(TABLE.hash_at(usize::MAX, &[0xff; 4]), 0);
        assert_eq!(hash_bitwise(&[], &[0xff; 64]), 0);
    }

    proptest! {
        #[test]
        fn the_table_agrees_with_the_definition(
            key in prop::array::uniform32(any::<u8>()),
            key_end in prop::array::uniform8(any::<u8>()),
            input in prop::collection::vec(any::<u8>(), 0..48),
            cut in 0usize..48,
        ) {
            let key: [u8; KEY_LEN] = [&key[..], &key_end].concat().try_into().unwrap();
            let table = Table::new(&key);
            let expected = hash_bitwise(&key, &input);
            prop_assert_eq!(table.hash(&input), expected);
            let (front, back) = input.split_at(cut.min(input.len()));
            prop_assert_eq!(table.hash(front) ^ table.hash_at(front.len(), back), expected);
        }
    }
}
