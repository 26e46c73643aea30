//! Real namespaces, links and traffic. Without the privileges, see [`lab::able`].

use lab::{
    Children, CpuMeter, Interrupt, Iperf, Namespace, Offloads, OutageProbe, RttProbe, Traffic,
    VethBridge, ping, requires, run, transfer_file,
};
use std::time::Duration;

const PREFIX: &str = "lab-test";
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_namespace_lives_as_long_as_its_value() {
    requires!();
    let first = Namespace::create(PREFIX).expect("create");
    let second = Namespace::create(PREFIX).expect("create");
    assert_ne!(first.name(), second.name());
    assert!(first.ip(&["link", "show", "lo"]).expect("ip").contains("UP"));

    let path = first.path();
    drop(Namespace::open(first.name()).expect("it exists"));
    assert!(path.exists(), "only the creator deletes");
    drop(first);
    assert!(!path.exists());
    assert!(Namespace::open("lab-test-never-made").is_err());
}

#[test]
fn programs_and_threads_run_inside() {
    requires!();
    let namespace = Namespace::create(PREFIX).expect("create");
    let mut identify = namespace.exec("ip").expect("ip");
    identify.args(["netns", "identify"]);
    assert_eq!(run(identify, LIMIT).expect("identify").trim(), namespace.name());

    let link = || std::fs::read_link("/proc/thread-self/ns/net").expect("own namespace");
    let inside = namespace
        .thread(move || Ok(link()))
        .expect("start")
        .join()
        .expect("no panic")
        .expect("entered");
    assert_ne!(inside, link());
}

#[test]
fn connections_begin_with_the_namespaces_congestion_control() {
    requires!();
    let namespace = Namespace::create(PREFIX).expect("create");
    let read = || {
        let path = "/proc/sys/net/ipv4/tcp_congestion_control";
        Ok(std::fs::read_to_string(path).expect("a kernel with TCP"))
    };
    let outside = read().unwrap();
    // Every kernel has Reno, and allows it.
    namespace.set_congestion("reno").expect("it is there");
    assert_eq!(namespace.inside(read).unwrap().trim(), "reno");
    assert_eq!(read().unwrap(), outside);
    let error = namespace.set_congestion("none-such").expect_err("there is none");
    assert!(error.to_string().contains("none-such"), "{error}");
}

#[test]
fn the_bridge_carries_both_families_and_checked_bytes() {
    requires!("ping");
    let VethBridge { left, right, .. } =
        &VethBridge::create(PREFIX, Offloads::ALL).expect("bridge");
    for address in [right.ipv4.into(), std::net::IpAddr::from(right.ipv6)] {
        let result = ping(&left.namespace, address, 3, Duration::from_millis(10)).expect("ping");
        assert_eq!((result.sent, result.received), (3, 3), "{address}");
        assert!(result.rtt.is_some_and(|rtt| rtt.min <= rtt.avg && rtt.avg <= rtt.max));

        let bytes = 8 << 20;
        let transfer =
            transfer_file(&left.namespace, &right.namespace, address, bytes, 1).expect("transfer");
        assert_eq!(transfer.bytes, bytes);
        let again = transfer_file(&right.namespace, &left.namespace, left.ipv4, bytes, 1)
            .expect("transfer");
        assert_eq!(transfer.sha256, again.sha256, "the same seed, the same bytes");
    }
    let nobody = ping(&left.namespace, [10, 77, 0, 99], 1, Duration::from_millis(10))
        .expect("silence is a result");
    assert_eq!((nobody.received, nobody.rtt), (0, None));
}

#[test]
fn round_trips_are_timed() {
    requires!();
    let VethBridge { left, right, .. } =
        &VethBridge::create(PREFIX, Offloads::ALL).expect("bridge");
    let probe = RttProbe::new(&left.namespace, &right.namespace, right.ipv4, 100);
    let udp = probe.udp().expect("udp");
    let tcp = RttProbe { payload: 4000, ..probe }.tcp().expect("tcp");
    let slow = RttProbe { address: right.ipv6.into(), count: 3, ..probe }
        .every(Duration::from_millis(1))
        .udp();
    assert_eq!((udp.len(), tcp.len(), slow.expect("udp over IPv6").len()), (100, 100, 3));
    assert!(udp.iter().chain(&tcp).all(|time| !time.is_zero()));
}

#[test]
fn a_probe_to_an_address_that_is_not_there_fails_with_the_cause() {
    requires!();
    let VethBridge { left, right, .. } =
        &VethBridge::create(PREFIX, Offloads::ALL).expect("bridge");
    let elsewhere = [192, 0, 2, 1];
    let probe = RttProbe::new(&left.namespace, &right.namespace, elsewhere, 1);
    let transfer = transfer_file(&left.namespace, &right.namespace, elsewhere, 1, 1);
    for error in [probe.udp().err(), probe.tcp().err(), transfer.err()] {
        let message = error.expect("not an address of the namespace").to_string();
        assert!(message.contains("192.0.2.1: Cannot assign requested address"), "{message}");
    }
}

#[test]
fn iperf_runs_over_tcp_and_udp() {
    requires!("iperf3");
    let VethBridge { left, right, .. } =
        &VethBridge::create(PREFIX, Offloads::ALL).expect("bridge");
    let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, 1);
    let meter = CpuMeter::start(&[std::process::id()], Children::Reaped).expect("meter");
    let forwards = tcp.run().expect("tcp");
    assert!(
        forwards.mbps > 1.0 && forwards.bytes > 1 << 20 && !forwards.per_second.is_empty(),
        "{forwards:?}"
    );
    let usage = meter.read().expect("meter");
    assert!(usage.of(std::process::id()) > Duration::ZERO, "reaped children count: {usage:?}");

    let traffic = Traffic::Tcp { streams: 2 };
    let both = Iperf { address: right.ipv6.into(), traffic, ..tcp }.run().expect("two streams");
    assert!(both.mbps > 1.0, "{both:?}");
    let udp = tcp.udp(8_000_000, 1000).run().expect("udp");
    assert!((500..=2000).contains(&udp.packets) && udp.retransmits == 0, "{udp:?}");
}

#[test]
fn a_stream_by_sendfile_runs_on_chosen_cpus() {
    requires!("iperf3");
    let VethBridge { left, right, .. } =
        &VethBridge::create(PREFIX, Offloads::ALL).expect("bridge");
    let [first, last] = {
        let all = lab::cpus().expect("affinity");
        [all[0], all[all.len() - 1]]
    };
    let device = right.device;
    lab::steer_receive(&right.namespace, device, last).expect("steer");
    let mut show = right.namespace.exec("cat").expect("cat");
    show.arg(format!("/sys/class/net/{device}/queues/rx-0/rps_cpus"));
    let mask = lab::run(show, Duration::from_secs(20)).expect("the file");
    let mask = mask.trim().replace(',', "");
    assert_eq!(u128::from_str_radix(&mask, 16).expect("hexadecimal"), 1 << last);
    let nowhere = lab::steer_receive(&right.namespace, "eth9", last).expect_err("no such device");
    assert!(nowhere.to_string().contains("eth9"), "{nowhere}");

    let tcp = Iperf::tcp(&left.namespace, &right.namespace, right.ipv4, 1);
    let seen = Iperf { zerocopy: true, cpus: [Some(first), Some(last)], ..tcp }.run().expect("tcp");
    assert!(seen.mbps > 1.0, "{seen:?}");
}

#[test]
fn an_iperf_server_that_cannot_listen_says_why() {
    requires!("iperf3");
    let namespace = Namespace::create(PREFIX).expect("create");
    let error =
        Iperf::tcp(&namespace, &namespace, [192, 0, 2, 1], 1).run().expect_err("no such address");
    assert!(error.to_string().contains("unable to start listener"), "{error}");
}

#[test]
fn offloads_are_switched_off_everywhere_on_the_way() {
    requires!("ethtool");
    let bridge = VethBridge::create(PREFIX, Offloads::NONE).expect("bridge");
    let ends = [
        (&bridge.left.namespace, "eth0"),
        (&bridge.right.namespace, "eth0"),
        (bridge.bridge(), "left"),
        (bridge.bridge(), "right"),
    ];
    for (namespace, device) in ends {
        let mut show = namespace.exec("ethtool").expect("ethtool");
        show.args(["-k", device]);
        let features = run(show, LIMIT).expect("ethtool");
        for feature in [
            "rx-checksumming",
            "tx-checksumming",
            "scatter-gather",
            "tcp-segmentation-offload",
            "generic-segmentation-offload",
        ] {
            assert!(features.contains(&format!("{feature}: off")), "{device}: {features}");
        }
    }
    assert!(!Interrupt::requested());
}

#[test]
fn an_outage_is_as_long_as_the_path_was_down() {
    requires!();
    let testbed = VethBridge::create(PREFIX, Offloads::ALL).expect("create");
    let [from, to] = [&testbed.left, &testbed.right];
    let probes: [fn(&lab::Endpoint, &lab::Endpoint) -> lab::Result<OutageProbe>; 2] = [
        |from, to| {
            let interval = Duration::from_millis(1);
            OutageProbe::datagrams(&from.namespace, &to.namespace, to.ipv4, interval)
        },
        |from, to| OutageProbe::stream(&from.namespace, &to.namespace, to.ipv4),
    ];
    for start in probes {
        let probe = start(from, to).expect("start");
        let arrives = |more: u64| {
            let before = probe.bytes();
            while probe.bytes() < before + more {
                Interrupt::sleep(Duration::from_millis(1)).expect("no signal");
            }
        };
        arrives(1000);
        let pause = Duration::from_millis(300);
        testbed.bridge().ip(&["link", "set", "left", "down"]).expect("down");
        std::thread::sleep(pause);
        testbed.bridge().ip(&["link", "set", "left", "up"]).expect("up");
        arrives(1000);
        let outage = probe.finish().expect("no failure");
        // The last arrival before the pause may have been noted late.
        assert!(outage.longest >= pause * 2 / 3 && outage.longest < LIMIT, "{outage:?}");
    }
}
