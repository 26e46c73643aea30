//! Cards, and the contexts that guests have of them.

use super::super::*;
use super::{RED, overridden, parse};

const NIC: &str = "[[nic]]\nname = \"card0\"\nwire = { tap = \"w0\" }\n";

#[test]
fn a_card_gives_contexts_to_guests_in_their_order() {
    let guest = |n: u8, nic: &str, more: &str| {
        format!(
            "[[guest]]\nname = \"g{n}\"\nnic = \"{nic}\"\nmac = \"02:00:00:00:00:0{n}\"\n{more}"
        )
    };
    let iommu = "protection = { iommu = \"strict\", cache_entries = 16 }\n";
    let config = parse(&format!("{NIC}{RED}{}{}", guest(2, "card0", ""), guest(3, "card0", iommu)));
    let config = config.unwrap();
    let nic = &config.nics[0];
    assert_eq!((nic.contexts, nic.rate_mbps, nic.tso), (32, 0, false));
    assert_eq!(nic.protection, Protection::default());
    assert_eq!(nic.protection.mode, contexts::Protection::Hypervisor);
    let all: Vec<_> = config.contexts_of("card0").collect();
    assert_eq!(all.iter().map(|(guest, ..)| &guest.name).collect::<Vec<_>>(), ["g2", "g3"]);
    let protection = all[1].2.protection.unwrap();
    assert_eq!(protection.mode, contexts::Protection::Iommu(contexts::IommuMode::Strict));
    assert_eq!(protection.cache_entries, 16);
    assert!(all[0].0.vifs.is_empty() && config.guests[0].vifs.len() == 1);
    let few = NIC.replace("wire", "contexts = 2\nwire");
    let two = format!("{}{}", guest(2, "card0", ""), guest(3, "card0", ""));
    for (text, reason) in [
        (guest(1, "card0", ""), "no [[nic]] with the name \"card0\""),
        (format!("{few}{two}"), "guests want 2 contexts, and it has 1"),
        (NIC.replace("wire", "contexts = 257\nwire"), "not 2 to 256"),
        (format!("{NIC}{NIC}"), "given twice"),
        (NIC.replace("wire", "protection = \"all\"\nwire"), "\"hypervisor\", \"none\", or"),
        (format!("{NIC}{}", guest(1, "card0", "queues = 2\n")), "unknown key `queues`"),
        (format!("{NIC}{}{}", guest(1, "card0", ""), guest(1, "card0", "")), "given twice"),
        (
            NIC.replace("wire", "protection = { iommu = \"static\", cache_entries = 3 }\nwire"),
            "power",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn the_host_finishes_checksums_of_a_wire_unless_that_is_left_to_the_card() {
    let finishes = |text: &str| parse(text).unwrap().nics[0].wire.checksum_offload;
    assert!(finishes(NIC));
    assert!(!finishes(&NIC.replace("\"w0\"", "\"w0\", checksum_offload = false")));
}

#[test]
fn a_card_and_an_uplink_can_defer_unmappings() {
    let protection = "protection = { iommu = \"deferred\" }\n";
    let uplink = format!(
        "[[uplink]]\nname = \"out\"\nkind = \"cdna\"\nnic = \"card0\"\n\
         mac = \"02:00:00:00:00:09\"\n{protection}"
    );
    let nic = NIC.replace("wire", &format!("{protection}wire"));
    let config = parse(&format!("{nic}{uplink}")).unwrap();
    let after = std::time::Duration::from_millis(10);
    let deferred = contexts::IommuMode::Deferred { pages: 128, after };
    for protection in [config.nics[0].protection, config.uplinks[0].protection] {
        assert_eq!(protection.mode, contexts::Protection::Iommu(deferred));
    }
}

#[test]
fn the_command_line_changes_cards_and_contexts() {
    let text =
        format!("{NIC}[[guest]]\nname = \"g\"\nnic = \"card0\"\nmac = \"02:00:00:00:00:01\"\n");
    let changed = |set: &str| overridden(&text, set).unwrap();
    assert_eq!(changed("card0.rate_mbps=9").nics[0].rate_mbps, 9);
    let none = changed("g.protection=none").guests[0].contexts[0].protection.unwrap();
    assert_eq!(none.mode, contexts::Protection::None);
    let strict = changed("card0.protection={ iommu = \"static\" }").nics[0].protection;
    assert_eq!(strict.mode, contexts::Protection::Iommu(contexts::IommuMode::Static));
}
