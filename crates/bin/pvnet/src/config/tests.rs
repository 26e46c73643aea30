//! Tests of the whole configuration.

mod cards;
mod example;
mod uplinks;

use std::time::Duration;

use guard::Sources;
use limit::Limits;
use offload::Features;

use super::capabilities::Capabilities;
use super::*;

fn parse(text: &str) -> Result<Config, String> {
    let config = Config::parse(text).map_err(|fault| fault.to_string())?;
    config.check().map(|()| config)
}

/// A text after a change by the command line.
fn overridden(text: &str, set: &str) -> Result<Config, String> {
    let text = overrides::with_overrides(text, &[set.parse().unwrap()])
        .map_err(|error| error.to_string())?;
    parse(&text)
}

const UP: &str = "[[uplink]]\nname = \"up\"\ntap = \"up0\"\n";
const RED: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n";

#[test]
fn queues_and_workers_follow_the_cpus() {
    let defaults = |cpus| (super::daemon::default_workers(cpus), super::daemon::queues_for(cpus));
    assert_eq!([1, 2, 3, 8, 64].map(defaults), [(1, 1), (1, 2), (3, 3), (4, 8), (4, 8)]);
    assert_eq!(default_queues(), super::daemon::queues_for(super::daemon::cpus()));
}

#[test]
fn how_workers_wait_goes_with_how_long() {
    let limit = |keys: &str| parse(&format!("[daemon]\n{keys}")).unwrap().daemon.poll_limit();
    assert_eq!(limit(""), Duration::from_micros(100));
    assert_eq!(limit("poll = \"adaptive\"\npoll_us = 50\n"), Duration::from_micros(50));
    // Files from before there was `poll`.
    assert_eq!(limit("poll_us = 0\n"), Duration::ZERO);
    assert_eq!(limit("poll = \"never\"\npoll_us = 50\n"), Duration::ZERO);
}

#[test]
fn each_cpu_that_is_named_has_a_worker() {
    let workers = |keys: &str| parse(&format!("[daemon]\n{keys}")).unwrap().daemon.workers();
    assert_eq!(workers("cpus = \"2-4,8\"\n"), 4);
    assert_eq!(workers("cpus = \"2-3\"\nworkers = 2\n"), 2);
    assert_eq!(workers("workers = 3\n"), 3);
    assert_eq!(workers(""), super::daemon::default_workers(super::daemon::cpus()));
}

#[test]
fn coalescing_has_the_same_keys_everywhere() {
    let keys = "coalesce_frames = 16\ncoalesce_us = 30\n";
    let config = parse(&format!("{UP}{keys}{RED}{keys}")).unwrap();
    let expected = Some(port::Coalescing { frames: 16, after: Duration::from_micros(30) });
    assert_eq!(config.uplinks[0].settings.coalescing(), Ok(expected));
    assert_eq!(config.guests[0].vifs[0].settings.coalescing(), Ok(expected));
    let none = parse(&format!("{UP}{RED}")).unwrap();
    assert_eq!(none.guests[0].vifs[0].settings.coalescing(), Ok(None));
    let card = "[[nic]]\nname = \"card\"\nwire = { tap = \"w\" }\n";
    let green = "[[guest]]\nname = \"green\"\nnic = \"card\"\nmac = \"02:00:00:00:00:07\"\n";
    let nic = |card_keys: &str, guest_keys: &str| {
        let config = parse(&format!("{card}{card_keys}{green}{guest_keys}")).unwrap();
        let interrupts = config.guests[0].contexts[0].interrupts(&config.nics[0]);
        (interrupts.rx_frames, interrupts.rx_micros, interrupts.rx_adaptive != 0)
    };
    assert_eq!((nic("", ""), nic(keys, "")), ((32, 50, true), (16, 30, false)));
    let off = nic(keys, "coalesce_frames = 1\n");
    assert_eq!((nic("", keys), off), ((16, 30, false), (0, 0, false)));
    // Only numbers for received frames replace the default.
    let sent = nic("", "coalescing = { tx_frames = 8 }\n");
    let received = nic("", "coalescing = { rx_micros = 20 }\n");
    assert_eq!((sent, received), ((32, 50, true), (32, 20, false)));
    for wrong in ["coalesce_frames = 65\n", "coalesce_frames = 2\ncoalesce_us = 0\n"] {
        for text in [format!("{UP}{wrong}"), format!("{RED}{wrong}"), format!("{card}{wrong}")] {
            assert!(parse(&text).unwrap_err().contains("coalesce_"), "{text}");
        }
    }
}

#[test]
fn workers_poll_by_default_where_guests_are_processes() {
    let poll = |keys: &str| parse(&format!("[daemon]\n{keys}")).unwrap().daemon.poll_limit();
    assert_eq!(poll(""), poller::POLL);
    assert_eq!(poll("platform = \"xen\"\n"), Duration::ZERO);
    assert_eq!(poll("platform = \"xen\"\npoll_us = 100\n"), Duration::from_micros(100));
    assert_eq!(poll("poll_us = 0\n"), Duration::ZERO);
}

#[test]
fn an_interface_is_a_set_of_offloads_that_can_be_refined() {
    let features =
        |more: &str| parse(&format!("{RED}{more}")).map(|c| c.guests[0].vifs[0].features());
    assert_eq!(features("").unwrap(), Features::NETIF);
    assert_eq!(features("interface = \"basic\"\n").unwrap(), Features::NONE);
    let refined = features("interface = \"basic\"\nscatter_gather = true\n").unwrap();
    assert_eq!(refined, Features { sg: true, ..Features::NONE });
    assert!(features("checksum_offload = false\n").is_err());
}

#[test]
fn answers_are_held_back_only_by_workers_that_sleep() {
    let delay = |platform, poll| Vif::default().offered(1, platform, poll).completion_delay;
    assert!(delay(PlatformKind::Xen, Poll::Adaptive).is_some());
    assert!(delay(PlatformKind::Xen, Poll::Never).is_some());
    assert_eq!(delay(PlatformKind::Xen, Poll::Always), None);
    assert_eq!(delay(PlatformKind::Machine, Poll::Adaptive), None);
}

#[test]
fn what_a_guest_gets_does_not_depend_on_what_it_may_send() {
    let offered = |more: &str| {
        parse(&format!("{RED}{more}")).unwrap().guests[0].vifs[0].offered(
            1,
            PlatformKind::Machine,
            Poll::Adaptive,
        )
    };
    assert!(offered("").guest_offloads && offered("interface = \"basic\"\n").guest_offloads);
    let router = offered("guest_offloads = false\n");
    assert_eq!((router.guest_offloads, router.features), (false, Features::NETIF));
}

#[test]
fn capabilities_are_parsed_as_a_set() {
    let of = |set: &str| {
        parse(&format!("{UP}capabilities = \"{set}\"\n")).unwrap().uplinks[0].capabilities
    };
    let none = Capabilities { csum: false, sg: false, tso: false, uso: false };
    assert_eq!(of("none"), none);
    assert_eq!(of("csum+sg"), Capabilities { csum: true, sg: true, ..none });
    assert_eq!(of("csum+sg+tso"), Capabilities { uso: false, ..Capabilities::default() });
    assert_eq!(of("csum+sg+tso+uso"), Capabilities::default());
    assert_eq!(parse(UP).unwrap().uplinks[0].capabilities, Capabilities::default());
}

#[test]
fn the_command_line_changes_keys_of_guests_and_uplinks() {
    let text = format!("{RED}{UP}");
    let changed = |set: &str| overridden(&text, set);
    let config = changed("up.capabilities=csum+sg").unwrap();
    assert_eq!(config.uplinks[0].capabilities.features(), {
        Features { sg: true, csum_v4: true, csum_v6: true, tagged: true, ..Features::NONE }
    });
    assert_eq!(changed("*.queues=2").unwrap().guests[0].vifs[0].queues, Some(2));
    let vif = |set: &str| changed(set).unwrap().guests.remove(0).vifs.remove(0);
    assert_eq!(vif("red.guard=off").settings.sources(), Ok(Sources::Any));
    assert_eq!(vif("*.guard_addresses=[\"10.0.0.5\"]").settings.guard_addresses.len(), 1);
    let limited = vif("red.limit={ ingress = { mbps = 8 } }").settings.limit;
    assert_eq!(limited.ingress.bytes_per_second, Some(1_000_000));
    for (set, reason) in [
        ("green.queues=2", "there are: red, up"),
        ("red.colour=2", "colour"),
        ("up.capabilities=lro", "lro"),
        ("red.queues=many", "many"),
    ] {
        let error = changed(set).unwrap_err();
        assert!(error.contains(reason), "{set}: {error}");
    }
}

#[test]
fn a_guest_may_send_from_its_known_addresses() {
    let of = |more: &str| {
        parse(&format!("{RED}{more}")).unwrap().guests[0].vifs[0].settings.sources().unwrap()
    };
    let addresses = |texts: &[&str]| {
        Sources::Addresses(texts.iter().map(|text| text.parse().unwrap()).collect())
    };
    let its = "addresses = [\"10.0.0.4/31\", \"fd00::1/64\"]\n";
    let other = "guard_addresses = [\"10.1.0.0/16\", \"fe80::/64\"]\n";
    assert_eq!(of(""), Sources::OneMac);
    // Only the address, even if it is the first of its network.
    assert_eq!(of(its), addresses(&["10.0.0.4", "fd00::1"]));
    assert_eq!(of(&format!("{its}{other}")), addresses(&["10.1.0.0/16", "fe80::/64"]));
    assert_eq!(of(&format!("{other}guard = \"addresses\"\n")), of(other));
    assert_eq!(of(&format!("{its}{other}guard = \"mac\"\n")), Sources::OneMac);
    assert_eq!(of(&format!("{its}guard = \"off\"\n")), Sources::Any);
    let mac = "02:00:00:00:00:01".parse().unwrap();
    assert_eq!(Sources::Any.policy(mac), None);
    assert_eq!(Sources::OneMac.policy(mac).unwrap().addresses, None);
    assert_eq!(of(its).policy(mac).unwrap().addresses.unwrap().len(), 2);
}

#[test]
fn a_limit_without_a_burst_gets_one_that_fits_its_rate() {
    use limit::Limit;
    let text = "limit.ingress = { mbps = 100, packets = 50000 }\n\
                limit.egress = { mbps = 8, burst_kib = 64 }\n";
    let expected = Limits {
        ingress: Limit::new(Some(12_500_000), Some(50_000)),
        egress: Limit { burst_bytes: 64 << 10, ..Limit::new(Some(1_000_000), None) },
    };
    let config = parse(&format!(
        "{RED}{text}{UP}{text}[[guest]]\nname = \"blue\"\n\
                                 mac = \"02:00:00:00:00:02\"\n"
    ))
    .unwrap();
    let [red, blue] = &config.guests[..] else { panic!() };
    let [red, blue] = [red, blue].map(|guest| &guest.vifs[0]);
    assert_eq!((red.settings.limit, config.uplinks[0].settings.limit), (expected, expected));
    assert!(
        blue.settings.limit.ingress.is_unlimited() && blue.settings.limit.egress.is_unlimited()
    );
    let bursts = "limit.egress = { packets = 9, burst_packets = 7 }\n";
    let egress = parse(&format!("{RED}{bursts}")).unwrap().guests[0].vifs[0].settings.limit.egress;
    assert_eq!((egress.packets_per_second, egress.burst_packets), (Some(9), 7));
}

#[test]
fn on_xen_the_toolstack_decides_who_is_a_guest() {
    const XEN: &str = "[daemon]\nplatform = \"xen\"\n";
    let config = parse(&format!(
        "{XEN}[[guest]]\nname = \"*\"\nqueues = 3\n[[guest]]\nname = \"web\"\nqueues = 2\n"
    ))
    .unwrap();
    let queues = |name| config.guest(name).map(|guest| (guest.name, guest.vifs[0].queues));
    assert_eq!(queues("web"), Some(("web".to_owned(), Some(2))));
    assert_eq!(queues("any"), Some(("any".to_owned(), Some(3))));
    assert_eq!(parse(XEN).unwrap().guest("any").unwrap().vifs[0].queues, None);
    // It may also know the addresses.
    let guarded = format!("{XEN}[[guest]]\nname = \"*\"\nguard = \"addresses\"\n");
    assert!(parse(&guarded).unwrap().guest("any").unwrap().vifs[0].settings.wants_addresses());
    for (text, reason) in [
        (RED.to_owned(), "leave it out"),
        ("[[guest]]\nname = \"red\"\nrx = \"flip\"\n".to_owned(), "not for Xen"),
        ("[[guest]]\nname = \"red\"\nrx = \"guest-copy-mapped\"\n".to_owned(), "not for Xen"),
        ("[xen]\nguest_copy_pages = 1020\n".to_owned(), "not 17 to 1019"),
        ("[[guest]]\nname = \"red\"\nuid = 5\n".to_owned(), "no process joins"),
        ("[xen]\nbackend = \"a/b\"\n".to_owned(), "folder"),
    ] {
        let error = parse(&format!("{XEN}{text}")).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let error = parse("[[guest]]\nname = \"*\"\n").unwrap_err();
    assert!(error.contains("letters"), "{error}");
}

/// A guest with two vifs.
const TWO: &str = "[[guest]]\nname = \"two\"\nmemory_mib = 128\n\
                   [[guest.vif]]\nmac = \"02:00:00:00:00:03\"\naddresses = [\"10.1.0.1/24\"]\n\
                   [[guest.vif]]\nmac = \"02:00:00:00:00:04\"\nqueues = 2\nguard = \"off\"\n";

#[test]
fn a_guest_can_have_several_vifs() {
    let config = parse(&format!("{RED}{TWO}")).unwrap();
    let [red, two] = &config.guests[..] else { panic!() };
    assert_eq!(red.vif_names().collect::<Vec<_>>(), ["red"]);
    assert_eq!(two.vif_names().collect::<Vec<_>>(), ["two", "two.1"]);
    assert_eq!((two.memory_mib, two.vifs.len()), (128, 2));
    assert_eq!([0, 1].map(|n| two.vifs[n].queues(4)), [4, 2]);
    assert_eq!(
        two.vifs[0].settings.sources(),
        Ok(Sources::Addresses(vec!["10.1.0.1".parse().unwrap()]))
    );
    assert_eq!(two.vifs[1].settings.sources(), Ok(Sources::Any));
    let error = parse(&TWO.replace("off", "on")).unwrap_err();
    assert!(error.contains("line 10") && error.contains("`on`"), "{error}");
    for (text, reason) in [
        (format!("{TWO}mac = \"02:00:00:00:00:04\"\n"), "duplicate key"),
        (TWO.replace(":04", ":03"), "mac 02:00:00:00:00:03 is given twice"),
        (TWO.replace("mac = \"02:00:00:00:00:04\"\n", ""), "vif 1: mac is missing"),
        (format!("{TWO}{}", RED.replace("red", "two.1")), "the name \"two.1\" is given twice"),
        (TWO.replace("memory_mib", "queues = 2\nmemory_mib"), "queues is a vif's"),
        (format!("{TWO}memory_mib = 8\n"), "unknown key `memory_mib`"),
        (
            format!("{RED}vifs = []\nnone = 1\n"),
            "copy_pool, vif, context\nA guest with one interface",
        ),
        ("[[guest]]\nname = \"red\"\nvif = []\n".to_owned(), "it has 0 interfaces, not 1 to 8"),
        (TWO.to_owned() + &"[[guest.vif]]\n".repeat(7), "it has 9 interfaces, not 1 to 8"),
        (
            format!("[daemon]\nplatform = \"xen\"\n{TWO}"),
            "on Xen each interface has a [[guest]] under its own name",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn errors_name_the_line_and_the_reason() {
    let error = parse("[daemon]\nworkres = 2\n").unwrap_err();
    assert!(error.contains("line 2") && error.contains("workres"), "{error}");
    let error = parse("[[guest]]\nname = \"x\"\nmac = \"02:zz\"\n").unwrap_err();
    assert!(error.contains("line 3") && error.contains("02:zz"), "{error}");
    for (text, reason) in [
        (format!("{RED}{RED}"), "twice"),
        (RED.replace("02:", "03:"), "unicast"),
        ("[[guest]]\nname = \"red\"\n".to_owned(), "mac is missing"),
        (RED.replace("red", "r e d"), "letters"),
        (format!("{RED}queues = 0\n"), "queues"),
        (format!("{RED}scatter_gather = false\n"), "needs scatter_gather"),
        (format!("{RED}memory_mib = 1\n"), "memory_mib"),
        (format!("{RED}uid = -1\n"), "uid"),
        ("[daemon]\njoin_mode = 660\n".to_owned(), "such as 0o660"),
        (format!("{RED}persistent_grants = 5000\n"), "persistent_grants"),
        (format!("{RED}copy_pool = 5000\n"), "copy_pool must be 0 to 4096"),
        (format!("{RED}grant_reuse = \"always\"\n"), "not one of agreed, on-demand"),
        (
            "[daemon]\nplatform = \"xen\"\n[[guest]]\nname = \"*\"\ngrant_reuse = \"on-demand\"\n"
                .to_owned(),
            "a guest cannot end a grant that the daemon has mapped",
        ),
        (format!("{RED}tx = \"flip\"\n"), "remap"),
        (format!("{UP}capabilities = \"tso\"\n"), "need csum and sg"),
        (format!("{UP}capabilities = \"csum+uso\"\n"), "need csum"),
        (format!("{UP}capabilities = \"csum+lro\"\n"), "lro"),
        ("[daemon]\nworkers = 0\n".to_owned(), "workers"),
        ("[daemon]\npoll = \"sometimes\"\n".to_owned(), "`adaptive`, `always`, `never`"),
        ("[daemon]\nrebalance_gain = 0\n".to_owned(), "from 1 to 100"),
        ("[daemon]\nrebalance_interval_s = 0\n".to_owned(), "not 1 to 3600"),
        (format!("[daemon]\nworkers = 2\n{RED}workers = [2]\n"), "they are 0 to 1"),
        (format!("{UP}workers = []\n"), "leave it out"),
        (format!("{RED}workers = [0]\nworker = \"own\"\n"), "exclude each other"),
        (format!("[daemon]\nworkers = 1\n{RED}worker = \"own\"\n"), "one is for the others"),
        ("[daemon]\ncpus = \"2-\"\n".to_owned(), "no CPU and no range"),
        ("[daemon]\ncpus = \"\"\n".to_owned(), "it names no CPU"),
        ("[daemon]\ncpus = \"0-64\"\n".to_owned(), "not 1 to 64"),
        ("[daemon]\ncpus = \"2-3\"\nworkers = 3\n".to_owned(), "leave workers out"),
        (format!("{RED}guard = \"on\"\n"), "`addresses`, `mac`, `off`"),
        (format!("{RED}guard = \"addresses\"\n"), "set guard_addresses"),
        (format!("{RED}guard_addresses = [\"10.0.0.0/33\"]\n"), "prefix length from 0 to 32"),
        (format!("{RED}guard_addresses = [\"ff02::1\"]\n"), "not the address of one host"),
        (format!("{RED}addresses = [\"dhcp\"]\n"), "\"dhcp\" is not an IPv4 or IPv6 address"),
        (format!("{UP}guard = \"mac\"\n"), "frames of everybody outside"),
        (format!("{RED}limit = {{ mbps = 1 }}\n"), "expected `ingress` or `egress`"),
        (format!("{RED}limit = {{ ingress = {{ gbps = 1 }} }}\n"), "unknown key `gbps`"),
        (format!("{UP}limit = {{ egress = {{ mbps = 0 }} }}\n"), "for no limit leave it out"),
        (format!("{UP}limit = {{ egress = {{ mbps = 9999999 }} }}\n"), "not 1 to 1000000"),
        (format!("{RED}limit = {{ egress = {{ packets = 0 }} }}\n"), "packets is 0"),
        (format!("{RED}limit.egress = {{ mbps = 1, burst_kib = 0 }}\n"), "for the default"),
        (format!("{RED}limit.egress = {{ burst_kib = 9 }}\n"), "burst_kib needs mbps"),
        (format!("{RED}limit.egress = {{ mbps = 1, burst_packets = 9 }}\n"), "needs packets"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

/// The network behind a device has VLANs of its own.
#[test]
fn a_port_with_a_device_is_in_no_vlan_of_the_switch() {
    let device = "attach = \"device\"\n";
    let vm = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/vm\"\nguard = \"off\"\n";
    let xen = "[daemon]\nplatform = \"xen\"\n";
    let by_default = format!("{xen}[xen]\n{device}[[guest]]\nname = \"*\"\n");
    for table in [format!("{RED}{device}"), format!("{vm}{device}"), by_default] {
        assert_eq!(parse(&table).map(drop), Ok(()));
        for key in ["vlan = 10", "trunk = [10]", "isolated = true"] {
            let error = parse(&format!("{table}{key}\n")).unwrap_err();
            assert!(error.contains("for ports of pvnet's switch"), "{error}");
        }
        let in_switch = table.replace("\"device\"", "\"switch\"");
        assert_eq!(parse(&format!("{in_switch}isolated = true\n")).map(drop), Ok(()));
    }
}

#[test]
fn there_are_few_mirrors() {
    let mirrors = |count: usize| {
        let mirror =
            |n| format!("[[mirror]]\nname = \"m{n}\"\nfrom = [\"red\"]\nfile = \"m{n}\"\n");
        parse(&format!("{RED}{}", (0..count).map(mirror).collect::<String>()))
    };
    mirrors(32).unwrap();
    assert!(mirrors(33).unwrap_err().contains("more than 32 mirrors"));
}

/// What a document shows as a configuration is one. Keys alone are marked with the table that they belong to: `<!-- keys of [[port]] -->`.
#[test]
fn every_configuration_in_a_document_is_valid() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let blocks = lab::documents::blocks(&root).unwrap();
    let mut configurations = 0;
    for block in blocks.iter().filter(|block| block.language == "toml") {
        let table = block.note.as_deref().and_then(|note| note.strip_prefix("keys of "));
        let text = match table {
            None => block.text.clone(),
            Some("[[port]]") => format!(
                "[daemon]\nworkers = 4\n[[port]]\nname = \"vm1\"\nkind = \"vhost-user\"\nsocket = \"/run/pvnet/vm1.sock\"\n\
                 mac = \"52:54:00:00:00:01\"\n{}",
                block.text
            ),
            Some(other) => format!("{other}\n{}", block.text),
        };
        if let Err(error) = parse(&text) {
            panic!("{}: {error}", block.place);
        }
        // The lines that are commented out are valid too, each alone.
        for line in text.lines().filter(|line| line.starts_with('#') && line.contains(" = ")) {
            if line.contains("# instead") {
                continue;
            }
            let text = text.replace(line, &line[1..]);
            // A group of another machine is none of this one.
            let error = parse(&text).err().filter(|error| !error.contains("no group"));
            assert_eq!(error, None, "{}: {line}", block.place);
        }
        configurations += 1;
    }
    assert!(configurations > 10, "{configurations}");
}
