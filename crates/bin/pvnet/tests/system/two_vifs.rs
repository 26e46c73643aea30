//! A guest with two interfaces: a router between two networks.

use std::net::Ipv4Addr;

use lab::{Namespace, Process, TempDir};
use serde_json::Value;

use crate::testbed::{LIMIT, PING_PAUSE, join, port_of, pvnet, requires, status_of, wait};

/// The networks: the router is host 254 in each, the other guest host 1.
const NETWORKS: [u8; 2] = [1, 2];
const BYTES: u64 = 8 << 20;

/// A daemon and its three guests: a router, and one in each network.
struct Networks {
    // Dropped in this order: guests before their daemon.
    guests: Vec<Process>,
    daemon: Process,
    router: Namespace,
    hosts: [Namespace; 2],
    folder: TempDir,
}

fn address(network: u8, host: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 78, network, host)
}

/// A vif's keys.
fn vif(network: u8, host: u8, more: &str) -> String {
    format!(
        "mac = \"02:00:00:01:{network:02x}:{host:02x}\"\naddresses = [\"{}/24\"]\n{more}\n",
        address(network, host)
    )
}

impl Networks {
    fn start() -> Self {
        let [router, left, right] = [(); 3].map(|()| Namespace::create("pvt").unwrap());
        let hosts = [left, right];
        let mut command = router.exec("sh").unwrap();
        command.args(["-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"]);
        lab::run(command, LIMIT).unwrap();
        let folder = TempDir::new().unwrap();
        // It forwards what others send. The vifs have different channels.
        let vifs = [vif(1, 254, "guard = \"off\""), vif(2, 254, "guard = \"off\"\ntx = \"remap\"")];
        let [first, second] = vifs.map(|keys| format!("[[guest.vif]]\n{keys}"));
        let mut tables = format!("[[guest]]\nname = \"{}\"\n{first}{second}", router.name());
        for (host, network) in hosts.iter().zip(NETWORKS) {
            let keys = vif(network, 1, "guard = \"mac\"");
            tables += &format!("[[guest]]\nname = \"{}\"\n{keys}", host.name());
        }
        let directory = folder.path().display();
        let text = format!("[daemon]\ndirectory = \"{directory}\"\nworkers = 1\n{tables}");
        let config = folder.path().join("pvnet.toml");
        std::fs::write(&config, text).unwrap();
        let mut command = pvnet();
        command.args(["run", "--config"]).arg(config);
        let daemon = Process::capture(command).unwrap();
        wait("the daemon's start", || folder.path().join("control.sock").exists());
        let guests = Vec::new();
        let mut this = Self { guests, daemon, router, hosts, folder };
        for name in [this.router.name(), this.hosts[0].name(), this.hosts[1].name()] {
            let guest = join(this.folder.path(), name, &[]);
            this.guests.push(guest);
        }
        this
    }

    fn status(&self) -> Value {
        status_of(self.folder.path())
    }

    /// The status of the router's ports.
    fn ports(&self) -> [Value; 2] {
        let name = self.router.name();
        let status = self.status();
        [name.to_owned(), format!("{name}.1")].map(|name| port_of(&status, &name).unwrap())
    }
}

fn ping(from: &Namespace, to: Ipv4Addr) {
    let ping = lab::ping(from, to, 3, PING_PAUSE).unwrap();
    assert_eq!((ping.sent, ping.received), (3, 3), "{to}");
}

#[test]
fn a_guest_with_two_vifs_joins_two_networks() {
    requires!("ping");
    let mut networks = Networks::start();
    let router = networks.router.name().to_owned();
    assert!(networks.guests[0].stdout().contains(&format!("guest {router} is up: eth0, eth1")));
    for (host, network) in networks.hosts.iter().zip(NETWORKS) {
        ping(host, address(network, 254));
        ping(&networks.router, address(network, 1));
        lab::transfer_file(&networks.router, host, address(network, 1), BYTES, 1).unwrap();
        lab::transfer_file(host, &networks.router, address(network, 254), BYTES, 2).unwrap();
    }
    for port in networks.ports() {
        assert_eq!((&port["state"], &port["kind"]), (&"up".into(), &"guest".into()), "{port}");
        assert!(port["ingress"]["bytes"].as_u64() > Some(BYTES), "{port}");
        assert!(port["egress"]["bytes"].as_u64() > Some(BYTES), "{port}");
    }

    // From one network into the other, through both vifs.
    for (host, network) in networks.hosts.iter().zip(NETWORKS) {
        let gateway = address(network, 254).to_string();
        host.ip(&["route", "add", "default", "via", &gateway]).unwrap();
    }
    let [left, right] = &networks.hosts;
    ping(left, address(2, 1));
    lab::transfer_file(left, right, address(2, 1), BYTES, 3).unwrap();

    // A capture names the port as `pvnet status` does.
    let mut command = pvnet();
    command.args(["capture", "--directory"]).arg(networks.folder.path());
    command.args([&format!("{router}.1"), "-c", "2", "icmp"]);
    let mut capture = Process::capture(command).unwrap();
    wait("an echo", || {
        ping(left, address(2, 1));
        capture.ended().unwrap().is_some()
    });
    assert!(capture.stdout().contains("10.78.2.1"), "{}", capture.stdout());

    assert!(networks.guests[0].stop().unwrap().success(), "{}", networks.guests[0].stderr());
    wait("the guest's end", || networks.status()["absent"][0] == router);
    assert!(networks.daemon.ended().unwrap().is_none());
}

/// Both networks are on one switch.
#[test]
fn an_interface_does_not_answer_for_another_ones_address() {
    requires!("ping");
    let networks = Networks::start();
    let name = networks.router.name();
    let captures = [name.to_owned(), format!("{name}.1")].map(|port| {
        let mut command = pvnet();
        command.args(["capture", "--directory"]).arg(networks.folder.path()).args([&port, "arp"]);
        Process::capture(command).unwrap()
    });
    let answers = |of: usize| {
        let shown = captures[of].stdout();
        let answers = shown.lines().filter(|line| line.contains(" is at "));
        answers.map(str::to_owned).collect::<Vec<_>>()
    };
    let question = "who has 10.78.1.99";
    wait("the captures", || {
        // Nobody has it, so both interfaces hear the question.
        let _ = lab::ping(&networks.hosts[0], address(1, 99), 1, PING_PAUSE);
        captures.iter().all(|capture| capture.stdout().contains(question))
    });
    // An answer shows that the interface gave none to the questions before.
    for (asked, (of, network)) in [(1, (0, 1)), (1, (1, 2)), (2, (0, 1))] {
        networks.hosts[of].ip(&["neigh", "flush", "all"]).unwrap();
        ping(&networks.hosts[of], address(network, 254));
        wait("an answer", || answers(of).len() >= asked);
    }
    for (of, network) in NETWORKS.into_iter().enumerate() {
        let own = address(network, 254).to_string();
        let answers = answers(of);
        assert!(answers.iter().all(|line| line.contains(&own)), "{answers:?}");
    }
}

#[test]
fn options_of_a_guest_name_its_interfaces() {
    requires!("ping");
    let mut networks = Networks::start();
    let router = networks.router.name().to_owned();
    let directory = networks.folder.path().to_owned();
    assert!(networks.guests[0].stop().unwrap().success());
    let refusal = |flags: &[&str]| {
        let mut command = pvnet();
        command.args(["guest", "--directory"]).arg(&directory).args(flags).arg(&router);
        lab::run(command, LIMIT).unwrap_err().to_string()
    };
    let gone = || networks.status()["absent"][0] == router;
    for (flags, part) in [
        (
            &["--address", "eth2=10.78.3.254/24"][..],
            "no interface \"eth2\" (there are: eth0, eth1)",
        ),
        (&["--device", "a", "--device", "b", "--device", "c"], "the number of interfaces is 2"),
    ] {
        wait("the guest's end", gone);
        let why = refusal(flags);
        assert!(why.contains(part) && why.contains("[[guest.vif]]"), "{why}");
    }
    wait("the guest's end", gone);
    // The second network gets another address for the router; the first keeps the configured one.
    let flags = ["--device", "lan", "--device", "wan", "--address", "wan=10.78.2.253/24"];
    networks.guests[0] = join(&directory, &router, &flags);
    assert!(networks.guests[0].stdout().contains("is up: lan, wan"));
    ping(&networks.hosts[0], address(1, 254));
    ping(&networks.hosts[1], address(2, 253));
    let shown = networks.router.ip(&["-4", "-o", "address", "show", "dev", "wan"]).unwrap();
    assert!(shown.contains("10.78.2.253/24") && !shown.contains("10.78.2.254"), "{shown}");
}
