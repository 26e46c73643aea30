//! Counts frames where drivers get or give them, by the kernel's structures.

use scope_result::{FrameCounts, InterfaceFrames};

/// Where Linux has the fields of its structures, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SkbLayout {
    /// The length in `struct sk_buff`.
    pub len: u64,
    /// The pointer to the first byte.
    pub data: u64,
    /// The pointer to the interface.
    pub dev: u64,
    /// The name in `struct net_device`.
    pub name: u64,
}

/// A function that gets frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameProbe {
    /// Its address.
    pub address: u64,
    /// What it does with frames.
    pub entry: FrameEntry,
}

/// What a function that gets frames does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameEntry {
    /// A list of frames is sent, the first in the first argument; they begin with the Ethernet header.
    Sends,
    /// A frame in the first argument was received; it begins behind the Ethernet header.
    Receives,
    /// The same in the second argument.
    ReceivesSecond,
}

impl FrameEntry {
    /// All entries with their names in the plugin's argument.
    pub const NAMES: [(&'static str, Self); 3] =
        [("sends", Self::Sends), ("receives", Self::Receives), ("receives2", Self::ReceivesSecond)];
}

/// Bytes of an Ethernet header.
const ETHERNET: u64 = 14;
/// The longest frame that offloads make, with room for its headers.
const LONGEST: u64 = 256 << 10;
/// The most frames in a list.
const LIST: usize = 1024;

/// Counts of all interfaces.
#[derive(Debug, Default)]
pub struct FrameCounter {
    layout: SkbLayout,
    counts: Vec<InterfaceFrames>,
    /// Calls whose arguments were no frame.
    pub not_understood: u64,
}

impl FrameCounter {
    /// No frames yet.
    pub fn new(layout: SkbLayout) -> Self {
        Self { layout, ..Self::default() }
    }

    /// A function that gets frames is called in a domain, with these first two arguments. `peek` reads eight bytes of memory.
    pub fn called(
        &mut self,
        domain: u8,
        entry: FrameEntry,
        (first, second): (u64, u64),
        peek: impl Fn(u64) -> Option<u64>,
    ) {
        let sent = entry == FrameEntry::Sends;
        let mut skb = if entry == FrameEntry::ReceivesSecond { second } else { first };
        for _ in 0..if sent { LIST } else { 1 } {
            if self.frame(domain, sent, skb, &peek).is_none() {
                self.not_understood += 1;
                return;
            }
            // The next one of a list is the first field.
            skb = if sent { peek(skb).unwrap_or(0) } else { 0 };
            if skb == 0 {
                return;
            }
        }
    }

    fn frame(
        &mut self,
        domain: u8,
        sent: bool,
        skb: u64,
        peek: &impl Fn(u64) -> Option<u64>,
    ) -> Option<()> {
        let field = |offset: u64| peek(skb.wrapping_add(offset));
        let length = field(self.layout.len)? & u64::from(u32::MAX);
        let (data, dev) = (field(self.layout.data)?, field(self.layout.dev)?);
        let interface = name(dev.wrapping_add(self.layout.name), peek)?;
        let network = if sent { data.wrapping_add(ETHERNET) } else { data };
        let behind = if sent { length.checked_sub(ETHERNET)? } else { length };
        if behind > LONGEST {
            return None;
        }
        let counts = self.of(domain, interface, sent);
        counts.bytes += behind + ETHERNET;
        match headers(network, peek) {
            Some((headers, is_tcp)) => match behind.saturating_sub(headers) {
                0 if is_tcp => counts.acks += 1,
                0 => counts.others += 1,
                payload => {
                    counts.data += 1;
                    counts.payload += payload;
                }
            },
            None => counts.others += 1,
        }
        Some(())
    }

    fn of(&mut self, domain: u8, interface: String, sent: bool) -> &mut FrameCounts {
        let key = |known: &InterfaceFrames| {
            (known.domain, known.sent) == (domain, sent) && known.interface == interface
        };
        let place = self.counts.iter().position(key).unwrap_or(self.counts.len());
        if place == self.counts.len() {
            let counts = FrameCounts::default();
            self.counts.push(InterfaceFrames { domain, interface, sent, counts });
        }
        &mut self.counts[place].counts
    }

    /// The counts, in the order of the interfaces' first frames.
    pub fn finish(self) -> Vec<InterfaceFrames> {
        self.counts
    }
}

/// The name at an address: at most 15 printable letters and a zero.
fn name(address: u64, peek: &impl Fn(u64) -> Option<u64>) -> Option<String> {
    let bytes = [peek(address)?, peek(address.wrapping_add(8))?].map(u64::to_le_bytes).concat();
    let end = bytes.iter().position(|byte| *byte == 0).filter(|end| *end > 0)?;
    let name = bytes.get(..end)?;
    name.iter().all(u8::is_ascii_graphic).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Bytes of the headers of IP and of TCP or UDP at an address, and whether it is TCP. None for anything else.
fn headers(address: u64, peek: &impl Fn(u64) -> Option<u64>) -> Option<(u64, bool)> {
    let byte = |at: u64| peek(address.wrapping_add(at)).map(|word| word & 0xff);
    let first = byte(0)?;
    let (ip, protocol) = match first >> 4 {
        4 => ((first & 15) * 4, byte(9)?),
        // Without extension headers.
        6 => (40, byte(6)?),
        _ => return None,
    };
    match protocol {
        6 => Some((ip + (byte(ip + 12)? >> 4) * 4, true)),
        17 => Some((ip + 8, false)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const LAYOUT: SkbLayout = SkbLayout { len: 112, data: 208, dev: 16, name: 0 };

    /// Memory with frames.
    #[derive(Default)]
    struct Memory(BTreeMap<u64, u8>);

    impl Memory {
        fn write(&mut self, at: u64, bytes: &[u8]) {
            self.0.extend((at..).zip(bytes.iter().copied()));
        }

        fn peek(&self, at: u64) -> Option<u64> {
            let byte = |at: u64| self.0.get(&at).copied();
            byte(at)?;
            Some(u64::from_le_bytes(std::array::from_fn(|n| byte(at + n as u64).unwrap_or(0))))
        }

        /// A frame at `skb` whose headers begin at `data`, of an interface.
        fn frame(&mut self, skb: u64, next: u64, (interface, length): (&str, u32), headers: &[u8]) {
            let (data, dev) = (skb + 0x1000, skb + 0x2000);
            self.write(skb, &[0; 256]);
            self.write(skb, &next.to_le_bytes());
            self.write(skb + LAYOUT.len, &length.to_le_bytes());
            self.write(skb + LAYOUT.data, &data.to_le_bytes());
            self.write(skb + LAYOUT.dev, &dev.to_le_bytes());
            self.write(dev, &[0; 16]);
            self.write(dev, interface.as_bytes());
            self.write(data, &[0; 100]);
            self.write(data, headers);
        }
    }

    /// Headers of IPv4 and TCP with twelve bytes of options.
    fn tcp() -> Vec<u8> {
        let mut headers = vec![0; 52];
        (headers[0], headers[9], headers[32]) = (0x45, 6, 0x80);
        headers
    }

    #[test]
    fn frames_acknowledgements_and_payloads_are_counted_apart() {
        let mut memory = Memory::default();
        let sent = [vec![0; 14], tcp()].concat();
        memory.frame(0x10_0000, 0x20_0000, ("eth0", 14 + 52 + 1448), &sent);
        memory.frame(0x20_0000, 0, ("eth0", 14 + 52 + 60_000), &sent);
        memory.frame(0x30_0000, 7, ("vif1.0", 52), &tcp());
        let mut arp = tcp();
        arp[0] = 0;
        memory.frame(0x40_0000, 0, ("vif1.0", 28), &arp);
        let mut udp = vec![0; 28];
        (udp[0], udp[9]) = (0x45, 17);
        memory.frame(0x50_0000, 0, ("vif1.0", 28 + 100), &udp);
        let mut counter = FrameCounter::new(LAYOUT);
        let peek = |at| memory.peek(at);
        counter.called(1, FrameEntry::Sends, (0x10_0000, 0), peek);
        for received in [0x30_0000, 0x40_0000, 0x50_0000] {
            counter.called(0, FrameEntry::ReceivesSecond, (1, received), peek);
        }
        // No frame: unmapped.
        counter.called(0, FrameEntry::Receives, (0x99, 0), peek);
        assert_eq!(counter.not_understood, 1);
        let [sent, received] = &counter.finish()[..] else { panic!() };
        assert_eq!((sent.domain, &*sent.interface, sent.sent), (1, "eth0", true));
        let expected = FrameCounts {
            data: 2,
            bytes: 2 * 66 + 61_448,
            payload: 61_448,
            ..FrameCounts::default()
        };
        assert_eq!(sent.counts, expected);
        assert_eq!((received.domain, &*received.interface, received.sent), (0, "vif1.0", false));
        let expected =
            FrameCounts { data: 1, acks: 1, others: 1, bytes: 66 + 42 + 142, payload: 100 };
        assert_eq!(received.counts, expected);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let mut memory = Memory::default();
        memory.write(0, b"\x01\x02\0");
        memory.write(100, b"0123456789abcdef");
        for address in [0, 100, 200] {
            assert_eq!(name(address, &|at| memory.peek(at)), None);
        }
    }
}
