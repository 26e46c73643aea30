//! How flows spread over queues, by the hash that the switch uses.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use frame::{Frame, queue_of};
use lab::Namespace;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use wire::ethernet::EtherType;

/// The guests' addresses: the left one, which sends, and the right one.
pub const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 77, 0, 1), Ipv4Addr::new(10, 77, 0, 2)];
/// The server's port: iperf3's own default.
pub const SERVER_PORT: u16 = 5201;

/// Bytes of an Ethernet, an IPv4 and a TCP header.
const HEADERS: usize = 14 + 20 + 20;
/// TCP's protocol number in an IPv4 header.
const TCP: u8 = 6;

/// The switch's hashes of one connection: of its segments with data, and of its acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashes {
    data: u32,
    acknowledgements: u32,
    /// The hash of the article's kernels, which is the same for both directions.
    article: u32,
}

/// How the flows of one set of ports spread over queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spread {
    /// Flows of the busiest queue from the sender.
    pub most: usize,
    /// Queues from the sender with a flow.
    pub used: usize,
    /// Queues to the receiver with a flow.
    pub used_to_receiver: usize,
}

/// The distribution of a number: how often, 0 to 1, it has each value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Shares(BTreeMap<usize, f64>);

/// How sets of flows spread over a number of queues.
#[derive(Clone, Debug, PartialEq, JsonSchema, Serialize)]
pub struct Distribution {
    /// Queues of each guest.
    pub queues: usize,
    /// Flows of the busiest queue.
    pub most: Shares,
    /// Queues with a flow.
    pub used: Shares,
}

impl Hashes {
    /// The hashes of a connection from this port of the left guest to the right one; `None` if the headers made here
    /// are no valid frame.
    pub fn of(port: u16) -> Option<Self> {
        Self::with_key(port, 0)
    }

    /// The same with this key of the article's kernels.
    fn with_key(port: u16, key: u32) -> Option<Self> {
        let ends = [(ADDRESSES[0], port), (ADDRESSES[1], SERVER_PORT)];
        Some(Self {
            data: hash(ends[0], ends[1])?,
            acknowledgements: hash(ends[1], ends[0])?,
            article: flow_hash(ends[0], ends[1], key),
        })
    }

    /// The hashes of sets of ports. The article's kernels have another key for each: each set is another boot.
    pub fn of_sets(sets: &[Vec<u16>]) -> Vec<Vec<Self>> {
        let of = |(set, key): (&Vec<u16>, u32)| {
            // Keys that have nothing in common: multiples of the golden ratio.
            let key = key.wrapping_mul(0x9e37_79b9);
            set.iter().filter_map(|port| Self::with_key(*port, key)).collect()
        };
        sets.iter().zip(1..).map(of).collect()
    }
}

/// The hash of a TCP segment, as of any frame in the switch.
fn hash(from: (Ipv4Addr, u16), to: (Ipv4Addr, u16)) -> Option<u32> {
    let mut bytes = [0; HEADERS];
    bytes[12..14].copy_from_slice(&EtherType::IPV4.0.to_be_bytes());
    let ip = &mut bytes[14..34];
    // Version 4, five words; 40 bytes in all.
    (ip[0], ip[3], ip[8], ip[9]) = (0x45, 40, 64, TCP);
    ip[12..16].copy_from_slice(&from.0.octets());
    ip[16..20].copy_from_slice(&to.0.octets());
    let tcp = &mut bytes[34..];
    tcp[..2].copy_from_slice(&from.1.to_be_bytes());
    tcp[2..4].copy_from_slice(&to.1.to_be_bytes());
    // Five words.
    tcp[12] = 0x50;
    let mut frame = Frame::empty();
    frame.set_header(&bytes).ok()?;
    Some(frame.flow_hash())
}

impl Spread {
    /// Spreads a set of flows over queues.
    ///
    /// The switch chooses the queue to a guest. A guest's tap sends a flow on the queue that the flow's other direction
    /// came in on, so the hash of the acknowledgements decides about the queue from the sender.
    pub fn of(set: &[Hashes], queues: usize) -> Self {
        let from_sender = count(set.iter().map(|flow| flow.acknowledgements), queues);
        let to_receiver = count(set.iter().map(|flow| flow.data), queues);
        let used = |flows: &[usize]| flows.iter().filter(|flows| **flows > 0).count();
        Self {
            most: from_sender.iter().copied().max().unwrap_or(0),
            used: used(&from_sender),
            used_to_receiver: used(&to_receiver),
        }
    }
}

/// The number of flows of each queue.
fn count(hashes: impl Iterator<Item = u32>, queues: usize) -> Vec<usize> {
    let mut flows = vec![0; queues];
    hashes.for_each(|hash| flows[queue_of(hash, queues)] += 1);
    flows
}

impl Shares {
    fn of(values: impl ExactSizeIterator<Item = usize>) -> Self {
        let (mut shares, one) = (BTreeMap::new(), 1.0 / values.len().max(1) as f64);
        values.for_each(|value| *shares.entry(value).or_default() += one);
        Self(shares)
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.0.iter().map(|(value, share)| *value as f64 * share).sum()
    }

    /// The values that occur.
    pub fn values(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// How often it has this value.
    pub fn at(&self, value: usize) -> f64 {
        self.0.get(&value).copied().unwrap_or(0.0)
    }

    /// How often independent numbers never rise from one to the next.
    pub fn never_rise<'a>(mut all: impl Iterator<Item = &'a Self>) -> f64 {
        let mut so_far = all.next().cloned().unwrap_or_default();
        for next in all {
            let from = |least: usize| so_far.0.range(least..).map(|(_, share)| share).sum::<f64>();
            let shares = next.0.iter().map(|(value, share)| (*value, share * from(*value)));
            so_far = Self(shares.collect());
        }
        so_far.0.values().sum()
    }

    /// How often this number is greater than an independent other one.
    pub fn exceeds(&self, other: &Self) -> f64 {
        let below = |value| other.0.range(..value).map(|(_, share)| share).sum::<f64>();
        let all = self.0.iter().map(|(value, share)| share * below(*value));
        // An empty sum is −0.
        all.fold(0.0, |sum, share| sum + share)
    }
}

impl JsonSchema for Shares {
    fn schema_name() -> Cow<'static, str> {
        "Shares".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        BTreeMap::<usize, f64>::json_schema(generator)
    }
}

impl Serialize for Shares {
    /// An object with the numbers as names, and shares of four digits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let round = |share: f64| (share * 1e4).round() / 1e4;
        serializer.collect_map(self.0.iter().map(|(value, share)| (value, round(*share))))
    }
}

impl Distribution {
    /// The distribution for these sets of flows, by the switch's hash.
    pub fn of_sets(sets: &[Vec<Hashes>], queues: usize) -> Self {
        let spreads: Vec<Spread> = sets.iter().map(|set| Spread::of(set, queues)).collect();
        Self {
            queues,
            most: Shares::of(spreads.iter().map(|spread| spread.most)),
            used: Shares::of(spreads.iter().map(|spread| spread.used)),
        }
    }

    /// The same by the hash of the article's kernels: netfront and netback take it modulo the number of queues.
    pub fn of_sets_there(sets: &[Vec<Hashes>], queues: usize) -> Self {
        let of = |set: &Vec<Hashes>| {
            let mut flows = vec![0; queues];
            set.iter().for_each(|flow| flows[flow.article as usize % queues] += 1);
            flows
        };
        let all: Vec<Vec<usize>> = sets.iter().map(of).collect();
        let used = |flows: &Vec<usize>| flows.iter().filter(|flows| **flows > 0).count();
        Self {
            queues,
            most: Shares::of(all.iter().map(|flows| flows.iter().copied().max().unwrap_or(0))),
            used: Shares::of(all.iter().map(used)),
        }
    }

    /// The exact distribution for `flows` flows with independent and even hashes. Such is the hash of Linux's flow
    /// dissector with its random key, which netfront and netback take modulo the number of queues.
    pub fn uniform(flows: usize, queues: usize) -> Self {
        let used = uniform_used(flows, queues);
        let up_to: Vec<f64> = (0..=flows).map(|most| uniform_up_to(flows, queues, most)).collect();
        let most = (1..=flows).map(|most| (most, up_to[most] - up_to[most - 1]));
        let positive = |shares: &mut dyn Iterator<Item = (usize, f64)>| {
            Shares(shares.filter(|(_, share)| *share > 1e-12).collect())
        };
        Self {
            queues,
            most: positive(&mut most.into_iter()),
            used: positive(&mut used.into_iter().enumerate()),
        }
    }
}

/// How often 0, 1, 2 … queues are used: each further flow is on a used queue, or on a new one.
fn uniform_used(flows: usize, queues: usize) -> Vec<f64> {
    let mut shares = vec![0.0; queues + 1];
    shares[0] = 1.0;
    let of = |used: usize| used as f64 / queues as f64;
    for _ in 0..flows {
        for used in (1..=queues).rev() {
            shares[used] = shares[used] * of(used) + shares[used - 1] * (1.0 - of(used - 1));
        }
        shares[0] = 0.0;
    }
    shares
}

/// How often no queue has more than `most` flows. The coefficient of x^flows in (Σ x^k ÷ k!)^queues, k up to `most`,
/// counts the ways.
fn uniform_up_to(flows: usize, queues: usize, most: usize) -> f64 {
    let mut ways = vec![0.0; flows + 1];
    ways[0] = 1.0;
    for _ in 0..queues {
        for total in (0..=flows).rev() {
            let mut term = 1.0;
            let mut sum = 0.0;
            for here in 0..=most.min(total) {
                if here > 0 {
                    // A flow's chance of this queue, over the factorial.
                    term /= here as f64 * queues as f64;
                }
                sum += ways[total - here] * term;
            }
            ways[total] = sum;
        }
    }
    let factorial: f64 = (1..=flows).map(|n| n as f64).product();
    ways[flows] * factorial
}

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

/// Opens as many connections as iperf3 does, `sets` times, and returns the ports of the streams. They stay in a
/// namespace that is removed afterwards.
pub fn port_sets(sets: usize, streams: usize) -> crate::error::Result<Vec<Vec<u16>>> {
    let namespace = Namespace::create("pvnet-ports")?;
    let open = move || {
        let failed = |cause| lab::Error::Io { what: "cannot connect".to_owned(), cause };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, SERVER_PORT)).map_err(failed)?;
        (0..sets).map(|_| set(&listener, streams).map_err(failed)).collect()
    };
    let thread = namespace.thread(open)?;
    Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
}

/// One set. iperf3's first connection controls the others and is no stream.
fn set(listener: &TcpListener, streams: usize) -> io::Result<Vec<u16>> {
    let address = listener.local_addr()?;
    let connect = |_| {
        let client = TcpStream::connect(address)?;
        // The server's end is dropped first: its half-closed connections do not keep ports of the client.
        Ok((listener.accept()?.0, client))
    };
    let open: Vec<(TcpStream, TcpStream)> =
        (0..=streams).map(connect).collect::<io::Result<_>>()?;
    let ports = open.iter().skip(1).map(|(_, client)| Ok(client.local_addr()?.port()));
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(here: f64, there: f64) {
        assert!((here - there).abs() < 1e-9, "{here} {there}");
    }

    /// Ports as Linux gives them to connections that are opened one after the other: even, a few apart.
    fn sets(count: u16, flows: u16) -> Vec<Vec<Hashes>> {
        let port = |set: u16, flow: u16| 32_768 + 2 * (set * 13 + flow * 5 + flow * flow % 3);
        let ports: Vec<Vec<u16>> =
            (0..count).map(|set| (0..flows).map(|flow| port(set, flow)).collect()).collect();
        Hashes::of_sets(&ports)
    }

    #[test]
    fn the_hash_is_that_of_the_switch() {
        // By Microsoft's key, bit by bit, over 10.77.0.1:40000 → 10.77.0.2:5201 and back.
        let Hashes { data, acknowledgements, .. } = Hashes::of(40_000).unwrap();
        assert_eq!((data, acknowledgements), (0x9302_3658, 0x7994_b643));
        assert_eq!(queue_of(u32::MAX, 8), 7);
    }

    #[test]
    fn every_flow_is_in_one_queue() {
        for queues in 1..=8 {
            let shares = Distribution::of_sets(&sets(200, 8), queues);
            near(shares.most.0.values().sum(), 1.0);
            near(shares.used.0.values().sum(), 1.0);
            let used = shares.used.0.keys().copied().max().unwrap();
            assert!(used <= queues, "{shares:?}");
        }
        let one = Distribution::of_sets(&sets(200, 8), 1);
        near(one.most.at(8), 1.0);
    }

    #[test]
    fn an_even_hash_spreads_as_dice_do() {
        let two = Distribution::uniform(2, 2);
        near(two.most.at(1), 0.5);
        near(two.used.at(2), 0.5);
        // Eight flows on five queues: 8! ÷ (2! 2! 2!) ways to place 2, 2, 2, 1 and 1, in 10 orders, and 2, 2, 2, 2 and 0.
        let five = Distribution::uniform(8, 5);
        near(five.most.at(2), 5040.0 * 10.0 / 390_625.0 + 2520.0 * 5.0 / 390_625.0);
        for queues in 1..=8 {
            let shares = Distribution::uniform(8, queues);
            near(shares.most.0.values().sum(), 1.0);
            near(shares.used.0.values().sum(), 1.0);
            let some = queues as f64 * (1.0 - (1.0 - 1.0 / queues as f64).powi(8));
            near(shares.used.mean(), some);
        }
    }

    #[test]
    fn the_switchs_hash_is_about_as_even() {
        for queues in 2..=8 {
            let here = Distribution::of_sets(&sets(1000, 8), queues);
            let even = Distribution::uniform(8, queues);
            let off = (here.used.mean() - even.used.mean()).abs();
            assert!(off < 0.15 * even.used.mean(), "{queues}: {here:?}");
        }
    }

    #[test]
    fn the_hash_of_the_articles_kernels_is_as_even_as_dice() {
        for queues in 2..=8 {
            let there = Distribution::of_sets_there(&sets(1000, 8), queues);
            let even = Distribution::uniform(8, queues);
            let off = [there.used.mean() / even.used.mean(), there.most.mean() / even.most.mean()];
            assert!(off.iter().all(|off| (off - 1.0).abs() < 0.05), "{queues}: {off:?}");
        }
    }

    #[test]
    fn a_dip_is_a_number_above_an_independent_one() {
        let low = Shares([(1, 0.5), (2, 0.5)].into());
        let high = Shares([(2, 1.0)].into());
        near(high.exceeds(&low), 0.5);
        near(low.exceeds(&high), 0.0);
        near(Shares::never_rise([&high, &low, &low].into_iter()), 0.75);
        let json = serde_json::to_value(&low).unwrap();
        assert_eq!(json, serde_json::json!({ "1": 0.5, "2": 0.5 }));
    }

    #[test]
    fn the_words_are_mixed_as_in_the_kernel() {
        // Computed with another program.
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

    #[test]
    fn a_set_has_a_port_for_each_stream() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ports = set(&listener, 8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }
}
