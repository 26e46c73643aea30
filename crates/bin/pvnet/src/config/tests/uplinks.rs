//! Uplinks over a NIC, and those that guests receive from directly.

use super::{RED, UP, parse};

const NIC: &str = "[[uplink]]\nname = \"up\"\ndevice = \"eth0\"\n";
const PER_GUEST: &str = "queues = \"per-guest\"\n";
const CONTEXT: &str = "[[guest.context]]\nnic = \"card0\"\nmac = \"02:00:00:00:00:0a\"\n";

#[test]
fn an_uplink_may_be_a_nic() {
    for kind in ["macvtap", "af-xdp"] {
        let text = format!("{NIC}kind = \"{kind}\"\n{PER_GUEST}{RED}rx = \"direct\"\n");
        assert_eq!(parse(&text).unwrap().uplinks[0].device, "eth0");
    }
    for kind in ["macvtap", "af-packet"] {
        parse(&format!("{NIC}kind = \"{kind}\"\n")).unwrap();
    }
    let up = "[[uplink]]\nname = \"up\"\n";
    for (text, part) in [
        (format!("{up}kind = \"macvtap\"\n"), "device is missing"),
        (format!("{up}tap = \"up0\"\ndevice = \"eth0\"\n"), "device is for kind"),
        (format!("{NIC}kind = \"macvtap\"\ntap = \"up0\"\n"), "not for a kind with a device"),
        (format!("{NIC}kind = \"af-packet\"\n{PER_GUEST}"), "af-xdp"),
        (format!("{NIC}kind = \"af-xdp\"\n"), "af-packet"),
        (format!("{NIC}kind = \"af-packet\"\naddresses = [\"10.0.0.1/24\"]\n"), "for a tap"),
        (format!("{NIC}kind = \"af-packet\"\npersistent = true\n"), "for a tap"),
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
    for (text, part) in [
        (direct.clone(), "needs an [[uplink]] with queues"),
        (format!("{direct}{UP}"), "needs an [[uplink]] with queues"),
        (format!("{direct}{per_guest}{other}"), "one uplink only"),
        (format!("{direct}queues = 2\n{per_guest}"), "takes one queue"),
        (format!("{UP}guest_queues = 3\n"), "guest_queues is for queues"),
        (format!("{per_guest}guest_queues = 0\n"), "not 1 to 192"),
        (format!("{per_guest}guest_queues = 193\n"), "not 1 to 192"),
        (format!("{card}{context}guest_queues = 2\n"), "guest_queues is for a tap"),
        (format!("{deferred}{direct}{context}"), "deferred"),
        (format!("{few}{direct}{blue}{context}"), "raise contexts"),
        (format!("{xen}[[guest]]\nname = \"red\"\nrx = \"direct\"\n{per_guest}"), "not for Xen"),
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
