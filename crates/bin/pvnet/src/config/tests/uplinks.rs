//! Uplinks over a NIC, and those that guests receive from directly.

use super::{RED, UP, parse};

const NIC: &str = "[[uplink]]\nname = \"up\"\ndevice = \"eth0\"\n";
const PER_GUEST: &str = "queues = \"per-guest\"\n";
const CONTEXT: &str = "[[guest.context]]\nnic = \"card0\"\nmac = \"02:00:00:00:00:0a\"\n";

#[test]
fn an_uplink_may_be_a_nic() {
    for kind in ["macvtap", "af-xdp"] {
        let text = format!("{NIC}kind = \"{kind}\"\n{PER_GUEST}{RED}rx = \"direct\"\n");
        assert_eq!(parse(&text).unwrap().uplinks[0].nic_name(), "eth0");
    }
    for kind in ["macvtap", "af-packet", "af-xdp"] {
        parse(&format!("{NIC}kind = \"{kind}\"\n")).unwrap();
    }
    let up = "[[uplink]]\nname = \"up\"\n";
    for (text, part) in [
        (format!("{up}kind = \"macvtap\"\n"), "device is missing"),
        (format!("{up}tap = \"up0\"\ndevice = \"eth0\"\n"), "device is for kind"),
        (format!("{NIC}kind = \"macvtap\"\ntap = \"up0\"\n"), "tap is for kind = \"tap\""),
        (format!("{NIC}kind = \"af-packet\"\n{PER_GUEST}"), "af-xdp"),
        (
            format!("{NIC}kind = \"af-xdp\"\nreceive_buffers = \"zeroed-pages\"\n"),
            "receive_buffers",
        ),
        (
            format!("{NIC}kind = \"af-packet\"\naddresses = [\"10.0.0.1/24\"]\n"),
            "for kind = \"tap\"",
        ),
        (format!("{NIC}kind = \"af-packet\"\npersistent = true\n"), "for kind = \"tap\""),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn two_uplinks_are_not_at_one_device() {
    let other = |lines: &str| format!("{UP}[[uplink]]\nname = \"other\"\n{lines}");
    parse(&other("tap = \"up1\"\n")).unwrap();
    parse(&other("tap = \"up0\"\nnamespace = \"n\"\n")).unwrap();
    let at_nic = |kind: &str| format!("device = \"eth0\"\nkind = \"{kind}\"\n");
    let third = |lines: &str| format!("[[uplink]]\nname = \"third\"\n{lines}");
    let card = |number: u8, name: &str| {
        let wire = format!("[[nic]]\nname = \"{name}\"\nwire = {{ tap = \"w{number}\" }}\n");
        (wire, format!("kind = \"cdna\"\nnic = \"{name}\"\nmac = \"02:00:00:00:00:0{number}\"\n"))
    };
    let [(wire, context), (other_wire, other_context)] = [card(1, "card0"), card(2, "card1")];
    let cards = other(&context) + &third(&other_context) + &wire + &other_wire;
    parse(&cards).unwrap();
    for text in [
        other("tap = \"up0\"\n"),
        other(&at_nic("af-packet")) + &third(&at_nic("af-xdp")),
        other(&context) + &third(&context.replace(":01", ":03")) + &wire,
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains("has its device, socket or context already"), "{error}");
    }
}

/// `run --check` knows them before a device is made.
#[test]
fn names_that_the_kernel_refuses_are_refused() {
    let long = "a".repeat(16);
    let bridged = |bridge: &str| format!("{UP}bridge = \"{bridge}\"\n");
    let socket = format!("kind = \"virtio-user\"\nsocket = \"/{}\"\n", "a".repeat(107));
    for (text, part) in [
        (UP.replace("up0", &long), "is no interface's name"),
        (UP.replace("up0", "a b"), "is no interface's name"),
        (bridged("a/b"), "bridge = \"a/b\" is no interface's name"),
        (NIC.replace("eth0", &long) + "kind = \"af-xdp\"\n", "is no interface's name"),
        (format!("[[nic]]\nname = \"c\"\nwire.tap = \"{long}\"\n"), "is no interface's name"),
        (format!("{UP}addresses = [\"10.0.0.1/33\"]\n"), "prefix length from 0 to 32"),
        (format!("{UP}addresses = [\"dhcp\"]\n"), "not an IPv4 or IPv6 address"),
        (UP.replace("tap = \"up0\"\n", &socket), "more than 107 characters"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_tap_may_be_in_a_bridge() {
    let bridged = format!("{UP}bridge = \"br0\"\n");
    assert_eq!(parse(&bridged).unwrap().uplinks[0].bridge.as_deref(), Some("br0"));
    parse(&format!("{bridged}persistent = true\n{PER_GUEST}{RED}rx = \"direct\"\n")).unwrap();
    for (text, part) in [
        (format!("{bridged}addresses = [\"10.0.0.1/24\"]\n"), "belong to the bridge"),
        (format!("{NIC}kind = \"af-packet\"\nbridge = \"br0\"\n"), "bridge is for kind"),
        (format!("{UP}bridge = \"\"\n"), "bridge is empty"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn direct_receiving_needs_an_uplink_for_it() {
    let direct = format!("{RED}rx = \"direct\"\n");
    let per_guest = format!("{UP}queues = \"per-guest\"\n");
    let config = parse(&format!("{direct}{per_guest}")).unwrap();
    let vifs: Vec<_> =
        config.direct_vifs().map(|(guest, index, _)| (&*guest.name, index)).collect();
    assert_eq!(vifs, [("red", 0)]);
    assert_eq!(config.guests[0].vifs[0].queues(4), 1, "its only queue");
    let card = "[[nic]]\nname = \"card0\"\nwire.tap = \"w0\"\n";
    let context = "[[uplink]]\nname = \"c\"\nkind = \"cdna\"\nnic = \"card0\"\nmac = \"02:00:00:00:00:09\"\n\
                   queues = \"per-guest\"\n";
    let config = parse(&format!("{card}{direct}{context}")).unwrap();
    assert_eq!((config.queues_of("card0").count(), config.queues_of("card1").count()), (1, 0));
    let other = per_guest.replace("\"up", "\"down");
    let deferred = card.replace("wire", "protection = { iommu = \"deferred\" }\nwire");
    let few = card.replace("wire", "contexts = 2\nwire");
    let blue = direct.replace("red", "blue").replace(":01", ":02");
    let xen = "[daemon]\nplatform = \"xen\"\n";
    let copies = "[[guest]]\nname = \"red\"\nrx = \"guest-copy\"\n";
    assert_eq!(parse(&format!("{xen}{copies}{per_guest}")).unwrap().direct_vifs().count(), 1);
    for (text, part) in [
        (direct.clone(), "needs an [[uplink]] with queues"),
        (format!("{direct}{UP}"), "needs an [[uplink]] with queues"),
        (format!("{direct}{per_guest}{other}"), "one uplink only"),
        (format!("{direct}queues = 2\n{per_guest}"), "takes one queue"),
        (format!("{UP}guest_queues = 3\n"), "guest_queues is for queues"),
        (format!("{per_guest}guest_queues = 0\n"), "must be 1 to 192"),
        (format!("{per_guest}guest_queues = 193\n"), "must be 1 to 192"),
        (format!("{card}{context}guest_queues = 2\n"), "guest_queues is for a tap"),
        (format!("{deferred}{direct}{context}"), "deferred"),
        (format!("{few}{direct}{blue}{context}"), "raise contexts"),
        (format!("{xen}[[guest]]\nname = \"red\"\nrx = \"direct\"\n{per_guest}"), "not for Xen"),
        (format!("{xen}{copies}queues = 2\n{per_guest}"), "takes one queue"),
        (format!("{xen}{copies}{UP}"), "rx = \"guest-copy\" needs an [[uplink]] with queues"),
        (format!("{xen}{copies}{NIC}kind = \"af-xdp\"\n{PER_GUEST}"), "on Xen"),
        (format!("{NIC}kind = \"af-xdp\"\n{PER_GUEST}{direct}balloon = true\n"), "balloon = false"),
        (
            format!("{card}{NIC}kind = \"af-xdp\"\n{PER_GUEST}{direct}{CONTEXT}"),
            "[[guest.context]]",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(part), "{text}: {error}");
    }
}

#[test]
fn guests_in_the_switch_get_the_smallest_mtu_or_their_own() {
    let up = |name: &str, mtu: &str| {
        format!(
            "[[uplink]]\nname = \"{name}\"\nkind = \"virtio-user\"\nsocket = \"/{name}\"\n{mtu}"
        )
    };
    let announced = |text: &str| {
        let config = parse(text).unwrap();
        config.mtu_of(&config.guests[0].vifs[0])
    };
    let [plain, small, smaller] = [up("a", ""), up("b", "mtu = 1450\n"), up("c", "mtu = 1442\n")];
    assert_eq!(announced(&format!("{RED}{plain}")), None);
    assert_eq!(announced(&format!("{RED}{plain}{small}{smaller}")), Some(1442));
    assert_eq!(announced(&format!("{RED}mtu = 1400\n{small}")), Some(1400));
    let error = parse(&up("a", "mtu = 60\n")).unwrap_err();
    assert!(error.contains("at least 68"), "{error}");
    let machine =
        "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/y\"\nguard = \"off\"\n";
    let error = parse(&format!("{machine}mtu = 1442\n")).unwrap_err();
    assert!(error.contains("host_mtu"), "{error}");
}
