//! Tests of what guests and ports cost.

use super::*;

const DEFAULT: Amounts = Amounts { mappings: 65_530, descriptors: 524_288, threads: 10_000 };
const HELD: Amounts = Amounts { mappings: 200, descriptors: 30, threads: 8 };

const NO_PORTS: PortsCost =
    PortsCost { counts: Amounts { mappings: 0, descriptors: 0, threads: 0 }, memory: 0 };

fn limits_of(limit: Amounts) -> Arc<Limits> {
    Arc::new(Limits::new(limit, HELD, ADDRESS_SPACE))
}

fn port(lines: &str) -> Port {
    let good = "[[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"x\"\n";
    crate::config::Config::parse(&format!("{good}{lines}")).unwrap().ports.remove(0)
}

fn cost(guest: &Guest, queues: u32) -> Cost {
    Cost::of(guest, queues, 0, 0)
}

fn with_vif(vif: Vif) -> Guest {
    Guest { vifs: vec![vif], ..Guest::default() }
}

#[test]
fn two_hundred_and_fifty_six_guests_fit_on_default_limits() {
    let limits = limits_of(DEFAULT);
    for queues in [1, 4] {
        let cost = cost(&Guest::default(), queues);
        let held: Vec<_> = (0..256).map(|_| limits.take(&cost, 256, NO_PORTS).unwrap()).collect();
        let least = GRANTED_MIN * queues as usize;
        assert!(held.iter().all(|held| held.share().mappings >= least));
    }
    assert_eq!(*limits.held.lock(), Amounts::default(), "all of it comes back");
    // A few get all that they can use.
    let few = limits_of(DEFAULT);
    assert_eq!(few.take(&cost(&Guest::default(), 1), 10, NO_PORTS).unwrap().share().mappings, 513);
}

#[test]
fn a_refusal_names_the_limit_and_the_remedy() {
    for (limit, parts) in [
        (
            Amounts { mappings: 1240, ..DEFAULT },
            ["26 mappings", "16 are left", "vm.max_map_count", "sysctl -w"],
        ),
        (
            Amounts { descriptors: 300 + REFUSED_MAX, ..DEFAULT },
            ["22 descriptors", "14 are left", "RLIMIT_NOFILE", "LimitNOFILE"],
        ),
        (Amounts { threads: 105, ..DEFAULT }, ["2 threads", "1 are left", "pids.max", "TasksMax"]),
    ] {
        let limits = limits_of(limit);
        let guest = with_vif(Vif { persistent_grants: 0, ..Vif::default() });
        let why = limits.take(&cost(&guest, 1), 1, NO_PORTS).unwrap_err();
        assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    }
}

#[test]
fn no_guest_takes_the_share_of_one_that_comes_later() {
    let limits = limits_of(DEFAULT);
    let greedy = with_vif(Vif { persistent_grants: 4096, ..Vif::default() });
    let held: Vec<_> =
        (0..100).map(|_| limits.take(&cost(&greedy, 1), 100, NO_PORTS).unwrap()).collect();
    let shares: Vec<_> = held.iter().map(|held| held.share().mappings).collect();
    assert!(shares.iter().all(|share| *share == shares[0]), "{shares:?}");
    // What a guest needs in full, it gets in full or not at all.
    let remap = with_vif(Vif { tx: TxChannel::Remap, ..Vif::default() });
    let limits = limits_of(DEFAULT);
    let held: Vec<_> =
        (0..100).map_while(|_| limits.take(&cost(&remap, 1), 100, NO_PORTS).ok()).collect();
    assert!(held.len() > 50 && held.len() < 60, "{}", held.len());
}

/// A card's queue for an interface has threads and descriptors that the guest's own do not show.
#[test]
fn a_cards_queues_for_guests_are_counted() {
    let guest = with_vif(Vif { rx: RxChannel::Direct, ..Vif::default() });
    let cost = |card_queues| Cost::of(&guest, 1, 0, card_queues);
    let Amounts { mappings, descriptors, threads } = cost(0).fixed;
    let with = cost(2).fixed;
    assert_eq!(with.threads - threads, 2 * 2);
    assert_eq!(with.descriptors - descriptors, 2 * CARD_QUEUE_DESCRIPTORS);
    assert_eq!(with.mappings - mappings, 2 * CARD_QUEUE_MAPPINGS);
    // Of what is left for guests, the first takes all but one thread.
    let limit = Amounts { threads: HELD.threads + OWN.threads + 7, ..DEFAULT };
    let limits = limits_of(limit);
    let first = limits.take(&cost(2), 2, NO_PORTS).unwrap();
    let why = limits.take(&cost(1), 2, NO_PORTS).unwrap_err();
    let parts = ["needs 4 threads", "1 are left", "TasksMax"];
    assert!(parts.iter().all(|part| why.contains(part)), "{why}");
    drop(first);
    assert!(limits.take(&cost(1), 2, NO_PORTS).is_ok(), "they come back with the guest");
}

#[test]
fn a_guest_costs_the_sum_of_its_vifs() {
    let vifs = [1, 3].map(|queues| Vif { queues: Some(queues), ..Vif::default() });
    let alone = vifs.clone().map(|vif| cost(&with_vif(vif), 1));
    let both = cost(&Guest { vifs: vifs.into(), ..Guest::default() }, 1);
    let sum = |of: fn(&Cost) -> usize| alone.iter().map(of).sum::<usize>();
    assert_eq!(both.channels, sum(|cost| cost.channels));
    assert_eq!(both.granted, [0, 1].map(|n| alone[0].granted[n] + alone[1].granted[n]));
    // A second session, store connection or memory costs nothing.
    let none = cost(&Guest { vifs: Vec::new(), ..Guest::default() }, 1).fixed;
    let Amounts { mappings, descriptors, threads } = both.fixed;
    assert_eq!(mappings + none.mappings, sum(|cost| cost.fixed.mappings));
    assert_eq!(descriptors + none.descriptors, sum(|cost| cost.fixed.descriptors));
    assert_eq!(threads, THREADS);
}

#[test]
fn ports_that_fit_together_leave_the_guests_shares_alone() {
    let limits = limits_of(DEFAULT);
    let ports: Vec<_> = (0..256).map(|_| port("queues = 4\nmemory_mib = 8192\n")).collect();
    let all = PortsCost::of(&ports);
    assert_eq!(limits.shortages(all), Vec::<String>::new());
    // Whoever comes first.
    let cost = cost(&Guest::default(), 1);
    let first: Vec<_> = (0..256).map(|_| limits.take(&cost, 256, all).unwrap()).collect();
    let held: Vec<_> = ports.iter().map(|port| limits.take_port(port).unwrap()).collect();
    drop(first);
    let last: Vec<_> = (0..256).map(|_| limits.take(&cost, 256, all).unwrap()).collect();
    assert!(last.iter().all(|held| held.share().mappings >= GRANTED_MIN));
    drop((held, last));
    assert_eq!(*limits.held.lock(), Amounts::default(), "all of it comes back");
}

#[test]
fn what_ports_may_take_beyond_the_limits_is_named() {
    let limits = limits_of(Amounts {
        mappings: 1240 + 80,
        descriptors: 300 + 150 + REFUSED_MAX,
        threads: 107,
    });
    let fits = port("memory_mib = 67108864\n");
    let few = PortsCost::of(&[port("")]);
    assert_eq!(limits.shortages(few), Vec::<String>::new());
    let many = PortsCost::of(&[fits.clone(), port("")]);
    let said = limits.shortages(many).join("; ");
    let parts = [
        "148 mappings",
        "96 are there",
        "248 descriptors",
        "164 are there",
        "4 threads",
        "67108864 MiB can",
    ];
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    let _first = limits.take_port(&fits).unwrap();
    let why = limits.take_port(&fits).unwrap_err();
    assert!(why.contains("needs 74 mappings, and 22 are left"), "{why}");
}

#[test]
fn the_address_space_ends_behind_the_stack() {
    let maps = "558e-558f r-xp 0 00:00 0\n7ffd1a2b3000-7ffd1a2d4000 rw-p 00000000 00:00 0   [stack]\n\
                ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]\n";
    assert_eq!(end_of_addresses(maps), Some(1 << 47));
    assert_eq!(end_of_addresses("7fd1a2b3-7fd1a2d4 rw-p 0 00:00 0 [stack]"), Some(1 << 31));
    assert_eq!(end_of_addresses(""), None);
    assert!(address_space() > 1 << 30);
}
