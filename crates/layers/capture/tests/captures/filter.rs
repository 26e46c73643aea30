//! What each part of the filter language takes, and how other text is refused.

use crate::common::frames::{Network, Tcp};
use crate::common::tcp_frame;
use capture::{Direction, Filter, FilterError, Packet};
use port::{DropReason, Frame, HEADER_MAX, Outcome, Ticket};
use port_testing::frame;
use proptest::prelude::*;
use wire::headers::Headers;

fn filter(text: &str) -> Filter {
    text.parse().unwrap_or_else(|error: FilterError| panic!("{text}: {error}"))
}

/// Whether a filter takes a frame that comes in and is delivered.
fn takes(text: &str, frame: &Frame) -> bool {
    let (direction, outcome) = (Direction::Inbound, Outcome::Delivered);
    filter(text).matches(&Packet { frame, direction, outcome })
}

fn check(frame: &Frame, taken: &[&str], refused: &[&str]) {
    for text in taken {
        assert!(takes(text, frame), "{text}");
    }
    for text in refused {
        assert!(!takes(text, frame), "{text}");
    }
}

fn error(text: &str) -> FilterError {
    text.parse::<Filter>().unwrap_err()
}

#[test]
fn ipv4_with_tcp_matches_by_address_and_port() {
    // 02:00:00:00:00:01, 10.0.1.1:40000 to 02:00:00:00:00:02, 10.0.2.2:80.
    let frame = frame(&tcp_frame(40_000, 100));
    check(
        &frame,
        &[
            "",
            " ",
            "tcp",
            "ip",
            "ether host 02:00:00:00:00:01",
            "ether host 02:00:00:00:00:02",
            "ether src 02:00:00:00:00:01",
            "ether dst 02:00:00:00:00:02",
            "host 10.0.1.1",
            "host 10.0.2.2",
            "src host 10.0.1.1",
            "dst host 10.0.2.2",
            "ip host 10.0.1.1",
            "net 10.0.0.0/8",
            "src net 10.0.1.0/24",
            "dst net 10.0.2.2/32",
            "net 0.0.0.0/0",
            "port 80",
            "port 40000",
            "src port 40000",
            "dst port 80",
            "tcp port 80",
            "tcp dst port 80",
            "portrange 70-80",
            "tcp src portrange 40000-40000",
            "greater 154",
            "less 154",
            "inbound",
        ],
        &[
            "udp",
            "icmp",
            "icmp6",
            "arp",
            "ip6",
            "vlan",
            "ether src 02:00:00:00:00:02",
            "ether dst 02:00:00:00:00:01",
            "host 10.0.1.2",
            "src host 10.0.2.2",
            "arp host 10.0.1.1",
            "host ::1",
            "net 10.0.3.0/24",
            "src net 10.0.2.0/24",
            "net ::/0",
            "port 81",
            "src port 80",
            "udp port 80",
            "portrange 81-39999",
            "greater 155",
            "less 153",
            "outbound",
            "dropped",
        ],
    );
}

#[test]
fn ipv6_matches_behind_two_tags() {
    let network = Network { vlan_tags: 2, v6: true, options: 1, ident: 7, addresses: 0x0102 };
    let frame = frame(&network.udp_frame((53, 1000), &[0; 300]));
    check(
        &frame,
        &[
            "ip6",
            "udp",
            "vlan",
            "vlan 100",
            "vlan 100 and udp port 53",
            "src host fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd01",
            "dst host fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fdfd:fd02",
            "net fd00::/8",
            "net ::/0",
            "greater 300",
        ],
        &["ip", "tcp", "vlan 200", "vlan 0", "dst net fc00::/8", "net 0.0.0.0/0"],
    );
}

#[test]
fn arp_has_addresses_but_no_ports() {
    let mut bytes = [0xff; 42];
    bytes[12..14].copy_from_slice(&[0x08, 0x06]);
    bytes[14..22].copy_from_slice(&[0, 1, 8, 0, 6, 4, 0, 1]);
    bytes[28..32].copy_from_slice(&[10, 0, 0, 1]);
    bytes[38..42].copy_from_slice(&[10, 0, 0, 2]);
    check(
        &frame(&bytes),
        &["arp", "host 10.0.0.1", "src host 10.0.0.1", "arp dst host 10.0.0.2", "net 10.0.0.0/24"],
        &["ip", "ip host 10.0.0.1", "src host 10.0.0.2", "port 0"],
    );
    check(&frame(&bytes[..30]), &["arp"], &["host 10.0.0.1"]);
    bytes[15] = 6;
    check(&frame(&bytes), &["arp"], &["host 10.0.0.1", "net 0.0.0.0/0"]);
}

#[test]
fn other_protocols_have_neither_address_nor_port() {
    let other = [0xee; 60];
    let taken = ["ether host ee:ee:ee:ee:ee:ee", "not ip", "less 60"];
    check(&frame(&other), &taken, &["host 238.238.238.238", "port 0", "tcp", "icmp", "vlan"]);
    let mut fragment = tcp_frame(80, 100);
    fragment[20] = 0x20;
    assert!(Headers::parse(&fragment).is_ok());
    check(&frame(&fragment), &["ip", "host 10.0.1.1"], &["tcp", "port 80"]);
}

#[test]
fn a_filter_matches_direction_and_outcome() {
    let frame = frame(&[0xee; 60]);
    let takes = |text, direction, outcome| {
        filter(text).matches(&Packet { frame: &frame, direction, outcome })
    };
    let (inbound, outbound) = (Direction::Inbound, Direction::Outbound);
    let dropped = Outcome::Dropped(DropReason::SpoofedMac);
    assert!(takes("outbound and dropped", outbound, dropped));
    assert!(takes("dropped", inbound, Outcome::SourceFault));
    assert!(!takes("outbound and dropped", inbound, dropped));
    for outcome in [Outcome::Delivered, Outcome::InFlight(Ticket(0))] {
        assert!(takes("not dropped", inbound, outcome));
    }
}

#[test]
fn an_error_has_its_place_and_what_was_expected() {
    let message = |text| error(text).to_string();
    assert_eq!(
        message("tcp port http"),
        "filter, character 10: found `http`, expected a port from 0 to 65535"
    );
    assert_eq!(
        message("host 10.0.0.1 and"),
        "filter, character 18: found the end, expected ether, host, net, port, portrange, src, \
         dst, tcp, udp, icmp, icmp6, arp, ip, ip6, vlan, less, greater, dropped, inbound, \
         outbound, not or ("
    );
    assert_eq!(message("ip tcp"), "filter, character 4: found `tcp`, expected and, or, or the end");
    assert_eq!(message("(ip"), "filter, character 4: found the end, expected and, or, or )");
    assert_eq!(
        message("net 10.0.0.1/8"),
        "filter, character 5: found `10.0.0.1/8`, expected a network such as 10.0.0.0/8, with no \
         address bit set behind the prefix"
    );
    // In characters, not in bytes.
    assert_eq!((error("ip & ü").position, error("ip && ü& ip").position), (4, 7));
}

#[test]
fn unknown_words_are_refused() {
    for (text, position) in [
        ("ip)", 3),
        ("and", 1),
        ("not", 4),
        ("()", 2),
        ("ip & tcp", 4),
        ("ip | tcp", 4),
        ("host", 5),
        ("src 10.0.0.1", 5),
        ("host 10.0.0.0/8", 6),
        ("net 10.0.0.0", 5),
        ("net 10.0.0.0/33", 5),
        ("net ::/129", 5),
        ("net ff::1/16", 5),
        ("portrange 80", 11),
        ("portrange 80-70", 11),
        ("port 65536", 6),
        ("port -1", 6),
        ("vlan 4096", 6),
        ("less", 5),
        ("greater many", 9),
        ("ether 02:00:00:00:00:01", 7),
        ("ether host 02:00", 12),
        ("tcp host 10.0.0.1", 5),
        ("ip port 80", 4),
        ("icmp port 80", 6),
        ("IP", 1),
    ] {
        assert_eq!(error(text).position, position, "{text}");
    }
}

#[test]
fn a_filter_is_bounded_in_depth_and_not_in_length() {
    let nested = |depth| format!("{}ip{}", "(".repeat(depth), ")".repeat(depth));
    filter(&nested(32));
    assert_eq!(error(&nested(33)).position, 33);
    assert_eq!(error(&"(".repeat(1_000_000)).position, 33);
    let frame = frame(&tcp_frame(1, 1));
    assert!(takes(&format!("{}tcp", "udp or ".repeat(100_000)), &frame));
    assert!(!takes(&format!("{}tcp", "not ".repeat(100_001)), &frame));
}

/// A filter as a tree, with every parenthesis that its text needs.
#[derive(Clone, Debug)]
enum Tree {
    Is(bool),
    Not(Box<Tree>),
    And(Box<Tree>, Box<Tree>),
    Or(Box<Tree>, Box<Tree>),
}

impl Tree {
    fn value(&self) -> bool {
        match self {
            Self::Is(value) => *value,
            Self::Not(inner) => !inner.value(),
            Self::And(left, right) => left.value() && right.value(),
            Self::Or(left, right) => left.value() || right.value(),
        }
    }

    /// The text. The left side of `and` and `or` needs no parentheses: they bind alike.
    fn text(&self, words: bool) -> String {
        let (not, and, or) = if words { ("not ", " and ", " or ") } else { ("!", "&&", "||") };
        match self {
            Self::Is(true) => "tcp".into(),
            Self::Is(false) => "udp".into(),
            Self::Not(inner) => format!("{not}{}", inner.term(words)),
            Self::And(left, right) => format!("{}{and}{}", left.text(words), right.term(words)),
            Self::Or(left, right) => format!("{}{or}{}", left.text(words), right.term(words)),
        }
    }

    /// The text, in parentheses where `not` or the right side of `and` needs them.
    fn term(&self, words: bool) -> String {
        match self {
            Self::Is(_) | Self::Not(_) => self.text(words),
            Self::And(..) | Self::Or(..) => format!("({})", self.text(words)),
        }
    }
}

fn tree() -> impl Strategy<Value = Tree> {
    any::<bool>().prop_map(Tree::Is).prop_recursive(6, 40, 2, |inner| {
        let pair = (inner.clone().prop_map(Box::new), inner.clone().prop_map(Box::new));
        prop_oneof![
            inner.prop_map(|tree| Tree::Not(Box::new(tree))),
            pair.clone().prop_map(|(left, right)| Tree::And(left, right)),
            pair.prop_map(|(left, right)| Tree::Or(left, right)),
        ]
    })
}

/// Text of the language's words, in any order.
fn words() -> impl Strategy<Value = String> {
    let word = prop_oneof![
        "ether|host|net|port|portrange|src|dst|tcp|udp|icmp|icmp6|arp|ip|ip6|vlan|less|greater",
        "dropped|inbound|outbound|and|or|not|&&|[|][|]|!|[(]|[)]|&|[|]",
        "10[.]0[.]0[.]1|::1|10[.]0[.]0[.]0/8|02:00:00:00:00:01|80|1-9|ü",
    ];
    prop::collection::vec(word, 0..20).prop_map(|words| words.join(" "))
}

proptest! {
    #[test]
    fn any_text_is_a_filter_or_an_error(text in prop_oneof![any::<String>(), words()]) {
        let frame = frame(&tcp_frame(80, 100));
        match text.parse::<Filter>() {
            Ok(filter) => {
                let (direction, outcome) = (Direction::Inbound, Outcome::Delivered);
                let _ = filter.matches(&Packet { frame: &frame, direction, outcome });
            }
            Err(error) => prop_assert!((1..=text.chars().count() + 1).contains(&error.position)),
        }
    }

    #[test]
    fn not_binds_closest_and_and_and_or_bind_alike(tree in tree(), words in any::<bool>()) {
        let frame = frame(&tcp_frame(80, 100));
        prop_assert_eq!(takes(&tree.text(words), &frame), tree.value(), "{}", tree.text(words));
    }

    #[test]
    fn a_network_matches_by_its_prefix(address in any::<u32>(), bit in 0u8..32, prefix in 0u8..=32) {
        let other = address ^ 1 << (31 - bit);
        let network = if prefix == 0 { 0 } else { address >> (32 - prefix) << (32 - prefix) };
        let text = format!("src net {}/{prefix}", std::net::Ipv4Addr::from_bits(network));
        let mut bytes = tcp_frame(1, 1);
        bytes[26..30].copy_from_slice(&other.to_be_bytes());
        prop_assert_eq!(takes(&text, &frame(&bytes)), bit >= prefix);
        bytes[26..30].copy_from_slice(&address.to_be_bytes());
        prop_assert!(takes(&text, &frame(&bytes)));
    }

    #[test]
    fn a_filter_accepts_any_frame_without_panic(network in crate::common::frames::network(), cut in 0usize..60) {
        let tcp = Tcp { seq: 1, flags: 0, options: 0 };
        let bytes = network.tcp_frame(&tcp, &[0; 9]);
        let mut frame = Frame::empty();
        if frame.set_header(&bytes[..bytes.len().saturating_sub(cut).min(HEADER_MAX)]).is_ok() {
            takes("host ::1 or net 0.0.0.0/0 and port 1 or vlan 4", &frame);
        }
    }
}
