//! An uplink in a bridge that was there before.

use lab::Namespace;

use crate::testbed::{LIMIT, PING_PAUSE, Testbed, requires, wait};

const BRIDGE: std::net::Ipv4Addr = std::net::Ipv4Addr::new(10, 77, 1, 254);

/// A host with a bridge of an unusual MTU, which has an address.
fn host() -> Namespace {
    let host = Namespace::create("pvt").unwrap();
    let address = format!("{BRIDGE}/24");
    for arguments in [
        &["link", "add", "br0", "mtu", "1400", "type", "bridge"][..],
        &["address", "add", &address, "dev", "br0"],
        &["link", "set", "br0", "up"],
    ] {
        ip(&host, arguments);
    }
    host
}

fn ip(host: &Namespace, arguments: &[&str]) -> String {
    let mut command = host.exec("ip").unwrap();
    command.args(arguments);
    lab::run(command, LIMIT).unwrap()
}

/// What is in the bridge.
fn members(host: &Namespace) -> String {
    ip(host, &["-o", "link", "show", "master", "br0"])
}

#[test]
fn an_uplink_joins_a_bridge_and_leaves_it() {
    requires!("ping");
    let uplink = "[[uplink]]\nname = \"up\"\ntap = \"pvt0\"\nbridge = \"br0\"\n";
    let mut testbed = Testbed::start_in(Some(host()), 1, "workers = 1", |_| uplink);
    testbed.join(0, &[]);
    let host = || testbed.host.as_ref().unwrap();
    let reaches = || {
        let guest = &testbed.guests[0].namespace;
        lab::ping(guest, BRIDGE, 1, PING_PAUSE).unwrap().received == 1
    };
    wait("the bridge", reaches);
    assert!(members(host()).contains("pvt0") && members(host()).contains("mtu 1400"));

    // The reason is reported to whoever takes it out, who may put it back.
    let reason = || testbed.named("up").unwrap()["reason"].to_string();
    ip(host(), &["link", "set", "pvt0", "nomaster"]);
    wait("the reason", || reason().contains("not in bridge br0"));
    ip(host(), &["link", "set", "pvt0", "master", "br0"]);
    wait("the end of the reason", || reason() == "null");

    // The next daemon puts its tap there again. A bridge that is not there is an error that says so.
    assert!(testbed.daemon.stop().unwrap().success(), "{}", testbed.daemon.stderr());
    assert_eq!(members(testbed.host.as_ref().unwrap()), "");
    let host = testbed.host.as_ref().unwrap();
    for (bridge, said) in [("br1", "there is no bridge br1"), ("lo", "lo is no Linux bridge")] {
        let mut command = host.exec(env!("CARGO_BIN_EXE_pvnet")).unwrap();
        command.arg("run").arg("--config").arg(testbed.folder().join("pvnet.toml"));
        command.args(["--set", &format!("up.bridge={bridge}")]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && text.contains(said), "{text}");
    }
    testbed.restart();
    assert!(members(testbed.host.as_ref().unwrap()).contains("pvt0"));
}
