//! Ports that operators add, change and remove while the daemon runs. Skipped with a message without the permissions.

mod bridge;
mod mirrors;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../testbed/mod.rs"]
mod testbed;
mod vlans;

use std::io::{ErrorKind, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::{Namespace, Process};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testbed::{LIMIT, PING_PAUSE, Testbed, requires, wait};

const PORT: u16 = 7777;
/// The pause between two datagrams.
const PAUSE: Duration = Duration::from_millis(2);
/// Windows without changes and with changes, in turn.
const ROUNDS: usize = 4;
const WINDOW: Duration = Duration::from_millis(600);

/// What a command printed as JSON, and its error.
fn change(testbed: &Testbed, arguments: &[&str]) -> Result<Value, String> {
    // The folder is an option of the innermost command.
    let words = if matches!(arguments[0], "port" | "mirror" | "worker") { 2 } else { 1 };
    let mut command = testbed::pvnet();
    command.args(&arguments[..words]).arg("--directory").arg(testbed.folder());
    command.args(&arguments[words..]).arg("--json");
    let output = command.output().unwrap();
    match serde_json::from_slice(&output.stdout) {
        Ok(report) => Ok(report),
        Err(_) => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// The steps of a report: what, which port, which keys.
fn steps(report: &Value) -> Vec<String> {
    let steps = report["steps"].as_array().unwrap().iter();
    let text = |step: &Value, key: &str| step[key].as_str().unwrap_or_default().to_owned();
    let keys = |step: &Value| -> Vec<String> {
        let keys = step["keys"].as_array().into_iter().flatten();
        keys.map(|key| key.as_str().unwrap().to_owned()).collect()
    };
    let line = |step: &Value| {
        let words = [text(step, "action"), text(step, "name"), keys(step).join(" ")];
        words.join(" ").trim_end().to_owned()
    };
    steps.map(line).collect()
}

fn file(testbed: &Testbed) -> PathBuf {
    testbed.folder().join("pvnet.toml")
}

/// Datagrams from one guest to another, and when they arrived.
struct Stream {
    end: Arc<AtomicBool>,
    sender: std::thread::JoinHandle<lab::Result<u32>>,
    receiver: std::thread::JoinHandle<lab::Result<Vec<(u32, Instant)>>>,
}

impl Stream {
    fn start(from: &Namespace, to: &Namespace, address: Ipv4Addr) -> Self {
        let end = Arc::<AtomicBool>::default();
        let (listens, listening) = std::sync::mpsc::channel();
        let receiver = to
            .thread(move || {
                let socket = UdpSocket::bind((address, PORT)).unwrap();
                lab::enlarge_receive_buffer(&socket).unwrap();
                listens.send(()).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
                let (mut arrivals, mut bytes) = (Vec::new(), [0; 4]);
                // Two seconds of silence are the end.
                loop {
                    match socket.recv(&mut bytes) {
                        Ok(_) => arrivals.push((u32::from_be_bytes(bytes), Instant::now())),
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => break,
                    }
                }
                Ok(arrivals)
            })
            .unwrap();
        let ends = end.clone();
        let sender = from
            .thread(move || {
                listening.recv().unwrap();
                let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
                let mut number = 0u32;
                while !ends.load(Ordering::Relaxed) {
                    socket.send_to(&number.to_be_bytes(), (address, PORT)).unwrap();
                    number += 1;
                    std::thread::sleep(PAUSE);
                }
                Ok(number)
            })
            .unwrap();
        Self { end, sender, receiver }
    }

    /// How many were sent, and the arrivals.
    fn finish(self) -> (u32, Vec<(u32, Instant)>) {
        self.end.store(true, Ordering::Relaxed);
        (self.sender.join().unwrap().unwrap(), self.receiver.join().unwrap().unwrap())
    }
}

/// The longest time between two arrivals within a window.
fn longest_gap(arrivals: &[(u32, Instant)], (from, to): (Instant, Instant)) -> Duration {
    let within: Vec<_> =
        arrivals.iter().map(|(_, at)| *at).filter(|at| (from..to).contains(at)).collect();
    let inner = within.windows(2).map(|pair| pair[1] - pair[0]);
    let edges = [within.first().map_or(to - from, |first| *first - from)];
    inner.chain(edges).max().unwrap_or(to - from)
}

/// Datagrams come hardly later in windows with changes than in those without. The commands themselves take processor time; a port that was connected
/// again, or a worker that waited for somebody, would be late by far more.
fn assert_in_time(arrivals: &[(u32, Instant)], windows: [&[(Instant, Instant)]; 2]) {
    let [quiet, busy] = windows.map(|windows| {
        let mut gaps: Vec<_> =
            windows.iter().map(|window| longest_gap(arrivals, *window)).collect();
        gaps.sort_unstable();
        gaps
    });
    let (quiet, busy) = (quiet[quiet.len() - 1], busy[busy.len() / 2]);
    println!("longest gaps: {quiet:?} without changes, {busy:?} with them");
    assert!(busy < quiet * 10 + Duration::from_millis(100), "{quiet:?}, with changes {busy:?}");
}

#[test]
fn ports_that_do_not_change_lose_no_frame_and_are_not_late() {
    requires!("ping");
    let mut testbed = Testbed::start(3, "workers = 1\nsandbox = \"devices\"");
    (0..3).for_each(|guest| testbed.join(guest, &[]));
    testbed.ping(0, 1);
    let text = std::fs::read_to_string(file(&testbed)).unwrap();
    let third = testbed.guests[2].namespace.name().to_owned();
    let [from, to] = [&testbed.guests[0], &testbed.guests[1]];
    let stream = Stream::start(&from.namespace, &to.namespace, to.ipv4);
    std::thread::sleep(Duration::from_millis(400));
    let (mut quiet, mut busy, mut changes) = (Vec::new(), Vec::new(), 0);
    for round in 0..ROUNDS {
        let start = Instant::now();
        std::thread::sleep(WINDOW);
        quiet.push((start, Instant::now()));
        let start = Instant::now();
        while start.elapsed() < WINDOW {
            // An uplink and a port that come and go, and a guest whose rules change.
            let socket = testbed.folder().join("vm.sock");
            let more = format!(
                "limit.egress = {{ mbps = {} }}\n[[uplink]]\nname = \"up\"\ntap = \"pvt{}\"\n\
                 [[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nguard = \"off\"\nsocket = \"{}\"\n",
                9 + round,
                std::process::id(),
                socket.display()
            );
            std::fs::write(file(&testbed), format!("{text}{more}")).unwrap();
            let report = change(&testbed, &["reload"]).unwrap();
            let expected = [&*format!("change {third} limit"), "add up", "add vm"];
            assert_eq!(steps(&report), expected, "{report}");
            change(&testbed, &["port", "down", &third]).unwrap();
            std::fs::write(file(&testbed), &text).unwrap();
            let report = change(&testbed, &["reload"]).unwrap();
            assert_eq!(report["steps"].as_array().unwrap().len(), 3, "{report}");
            changes += 1;
        }
        busy.push((start, Instant::now()));
    }
    let (sent, arrivals) = stream.finish();
    assert!(changes >= ROUNDS && sent > 200, "{changes} changes, {sent} datagrams");
    let numbers: Vec<_> = arrivals.iter().map(|(number, _)| *number).collect();
    assert!(numbers.iter().copied().eq(0..sent), "{} of {sent} arrived", numbers.len());
    println!("{changes} changes");
    assert_in_time(&arrivals, [&quiet, &busy]);
}

/// The worker that has a queue.
fn worker_of(testbed: &Testbed, port: &str) -> usize {
    let status = testbed.status();
    let has = |worker: &Value| {
        let mut queues = worker["queues"].as_array().unwrap().iter();
        queues.any(|queue| queue["port"] == port && queue["kind"] == "queue")
    };
    status["workers"].as_array().unwrap().iter().position(has).unwrap()
}

#[test]
fn queues_get_other_workers_and_lose_no_frame() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 2\nrebalance = \"off\"");
    (0..2).for_each(|guest| testbed.join(guest, &["--queues", "1"]));
    testbed.ping(0, 1);
    let [red, blue] = [0, 1].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let [from, to] = [&testbed.guests[0], &testbed.guests[1]];
    let stream = Stream::start(&from.namespace, &to.namespace, to.ipv4);
    std::thread::sleep(Duration::from_millis(400));
    let (mut quiet, mut busy) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        std::thread::sleep(WINDOW);
        quiet.push((start, Instant::now()));
        let start = Instant::now();
        for n in 0..10 {
            let worker = (n % 2).to_string();
            for name in [&red, &blue] {
                let report = change(&testbed, &["worker", "move", &format!("{name}/0"), &worker]);
                let to = &report.unwrap()["moves"][0]["to"];
                assert_eq!(to.as_u64(), Some(n % 2));
            }
            assert_eq!([&red, &blue].map(|name| worker_of(&testbed, name) as u64), [n % 2; 2]);
        }
        busy.push((start, Instant::now()));
    }
    // One of its own, and back.
    change(&testbed, &["port", "set", &red, "worker=own"]).unwrap();
    let [own, other] = [&red, &blue].map(|name| worker_of(&testbed, name));
    assert_ne!(own, other);
    let blue_queue = format!("{blue}/0");
    let error = change(&testbed, &["worker", "move", &blue_queue, &own.to_string()]).unwrap_err();
    assert!(error.contains(&format!("worker {own} is not among those")), "{error}");
    let error = change(&testbed, &["port", "set", &blue, "worker=own"]).unwrap_err();
    assert!(error.contains("one is for the others"), "{error}");
    change(&testbed, &["port", "set", &blue, "workers=[0, 1]"]).unwrap();
    let report = change(&testbed, &["worker", "rebalance", "--dry-run"]).unwrap();
    assert_eq!(report["moves"].as_array().map(Vec::len), Some(0), "{report}");
    let (sent, arrivals) = stream.finish();
    let numbers: Vec<_> = arrivals.iter().map(|(number, _)| *number).collect();
    assert!(sent > 100 && numbers.iter().copied().eq(0..sent), "{} of {sent}", numbers.len());
    assert_in_time(&arrivals, [&quiet, &busy]);
    let listed = change(&testbed, &["worker", "list"]).unwrap();
    let reasons = |reason| {
        let moves = listed["moves"].as_array().unwrap().iter();
        moves.filter(|moved| moved["reason"] == reason).count()
    };
    assert!(reasons("asked") > 20 && reasons("placed") > 0, "{listed}");
}

#[test]
fn operators_add_set_and_remove_guests() {
    requires!("ping");
    let mut testbed = Testbed::start(3, "workers = 1");
    let [red, blue, green] =
        [0, 1, 2].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let text = std::fs::read_to_string(file(&testbed)).unwrap();
    let answers = |testbed: &Testbed| {
        let [from, to] = [&testbed.guests[0], &testbed.guests[1]];
        lab::ping(&from.namespace, to.ipv4, 2, PING_PAUSE).unwrap().received
    };
    testbed.join(0, &[]);
    testbed.join(1, &[]);
    assert_eq!(answers(&testbed), 2);

    // Down and up.
    let report = change(&testbed, &["port", "down", &blue]).unwrap();
    assert_eq!(steps(&report), [format!("change {blue} enabled")]);
    let port = testbed.named(&blue).unwrap();
    assert_eq!((&port["state"], &port["reason"]["code"]), (&"down".into(), &"set_down".into()));
    assert_eq!(answers(&testbed), 0);
    let drops = testbed.named(&blue).unwrap()["drops"]["set_down"].clone();
    assert!(drops.as_u64() > Some(0), "{drops}");
    change(&testbed, &["port", "up", &blue]).unwrap();
    assert_eq!(answers(&testbed), 2);

    // Rules.
    change(&testbed, &["port", "set", &red, "limit.egress.mbps=8", "guard=mac"]).unwrap();
    let port = testbed.named(&red).unwrap();
    assert_eq!(port["limit"]["egress"]["bytes_per_second"].as_u64(), Some(1_000_000));
    assert_eq!(port["guard"]["mode"], "mac");
    assert_eq!(answers(&testbed), 2);

    // What cannot be done, and why.
    for (arguments, said) in [
        (&["port", "set", "nobody", "limit={}"][..], "no port \"nobody\""),
        (&["port", "del", "nobody"], "no port \"nobody\""),
        (&["port", "set", &red, "colour=1"], "colour"),
        (&["port", "set", &red, "queues=2"], "--reconnect"),
        (&["port", "add", "guest", &*format!("name={red}")], "is in use"),
        (&["port", "add", "uplink", "name=x"], "tap is missing"),
    ] {
        let error = change(&testbed, arguments).unwrap_err();
        assert!(error.contains(said), "{arguments:?}: {error}");
    }

    // A reload says what it takes back, and a dry run does nothing.
    let report = change(&testbed, &["reload", "--dry-run"]).unwrap();
    assert_eq!(steps(&report), [format!("change {red} guard limit")]);
    assert_eq!(report["steps"][0]["reverts_command"], true);
    assert!(testbed.named(&red).unwrap()["limit"].is_object(), "a dry run");
    std::fs::write(file(&testbed), format!("{text}colour = 1\n")).unwrap();
    let error = change(&testbed, &["reload"]).unwrap_err();
    assert!(error.contains("colour") && error.contains("line"), "{error}");
    assert!(testbed.named(&red).unwrap()["limit"].is_object(), "a file with an error");
    std::fs::write(file(&testbed), &text).unwrap();
    let pid = Pid::from_raw(testbed.daemon.pid().cast_signed()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    wait("the signal's reload", || testbed.named(&red).unwrap()["limit"].is_null());
    assert_eq!(answers(&testbed), 2);

    // A guest goes, and another comes.
    let report = change(&testbed, &["port", "del", &blue]).unwrap();
    assert_eq!(steps(&report), [format!("remove {blue}")]);
    testbed.guests[1].wait();
    assert!(testbed.named(&blue).is_none());
    change(&testbed, &["port", "del", &green]).unwrap();
    let mac = format!("mac={}", testbed.guests[2].mac);
    let addresses = format!("addresses=[\"{}/24\"]", testbed.guests[2].ipv4);
    let name = format!("name={green}");
    let report = change(&testbed, &["port", "add", "guest", &name, &mac, &addresses]).unwrap();
    assert_eq!(steps(&report), [format!("add {green}")]);
    testbed.join(2, &[]);
    let [from, to] = [&testbed.guests[0], &testbed.guests[2]];
    let ping = lab::ping(&from.namespace, to.ipv4, 2, PING_PAUSE).unwrap();
    assert_eq!(ping.received, 2);
}

#[test]
fn what_is_saved_is_what_runs_and_the_rest_of_the_file_stays() {
    requires!();
    let mut testbed = Testbed::start(2, "workers = 1");
    testbed.join(0, &[]);
    let [red, blue] = [0, 1].map(|n: usize| testbed.guests[n].namespace.name().to_owned());
    let read = || std::fs::read_to_string(file(&testbed)).unwrap();
    let before = format!("# Ours.\n\n{}\n# The end.\n", read());
    std::fs::write(file(&testbed), &before).unwrap();
    let set = |words: &[&str]| change(&testbed, &[&["port", "set", &red], words].concat());
    let path = std::fs::canonicalize(file(&testbed)).unwrap();
    let report = set(&["limit.egress.mbps=8", "--save"]).unwrap();
    assert_eq!(report["saved"].as_str(), path.to_str(), "{report}");
    let saved = read();
    assert!(saved.starts_with("# Ours.\n\n") && saved.ends_with("\n# The end.\n"), "{saved}");
    assert_eq!(saved.lines().count(), before.lines().count() + 1, "{saved}");
    assert!(steps(&change(&testbed, &["reload"]).unwrap()).is_empty());
    assert!(testbed.named(&red).unwrap()["limit"]["egress"].is_object());

    // Nothing is changed that would not be what runs, or that the daemon refuses.
    set(&["guard=mac"]).unwrap();
    let error = set(&["isolated=true", "--save"]).unwrap_err();
    assert!(error.contains(&format!("guard of {red}")), "{error}");
    assert!(testbed.named(&red).unwrap()["vlans"].is_null(), "{error}");
    let refused = change(&testbed, &["port", "add", "uplink", "name=up", "tap=up0", "--save"]);
    assert!(refused.unwrap_err().contains("sandbox"));
    let tried = set(&["limit.egress.mbps=9", "guard=mac", "--dry-run", "--save"]).unwrap();
    assert!(tried["saved"].is_null() && steps(&tried).len() == 1, "{tried}");
    assert_eq!(read(), saved);
    // What runs already can be saved.
    let report = set(&["guard=mac", "--save"]).unwrap();
    assert!(steps(&report).is_empty() && report["saved"].is_string(), "{report}");
    change(&testbed, &["port", "del", &blue, "--save"]).unwrap();
    let saved = read();
    assert!(saved.contains("guard = \"mac\"") && !saved.contains(&blue), "{saved}");
    assert!(saved.starts_with("# Ours.\n\n") && saved.ends_with("# The end.\n"), "{saved}");
    assert!(steps(&change(&testbed, &["reload"]).unwrap()).is_empty());
    assert!(!testbed.folder().join(".pvnet.toml.new").exists());
}

#[test]
fn what_a_guest_agreed_on_changes_when_it_connects_again() {
    requires!("ping");
    let mut testbed = Testbed::start(2, "workers = 1");
    testbed.join(0, &["--rejoin", "30", "--queues", "2"]);
    testbed.join(1, &[]);
    testbed.ping(0, 1);
    let red = testbed.guests[0].namespace.name().to_owned();
    let text = std::fs::read_to_string(file(&testbed)).unwrap();
    let mac = format!("mac = \"{}\"\n", testbed.guests[0].mac);
    let changed = text.replace(&mac, &format!("{mac}persistent_grants = 16\n"));
    std::fs::write(file(&testbed), changed).unwrap();
    let domain = |testbed: &Testbed| {
        testbed.named(&red).filter(|port| port["state"] == "up")?["domain"].as_u64()
    };
    let before = domain(&testbed);
    let report = change(&testbed, &["reload"]).unwrap();
    assert_eq!(steps(&report), [format!("wait {red} persistent_grants")]);
    testbed.ping(0, 1);
    assert_eq!(domain(&testbed), before, "it stays connected");
    let report = change(&testbed, &["reload", "--reconnect"]).unwrap();
    assert_eq!(steps(&report), [format!("reconnect {red} persistent_grants")]);
    wait("the guest's return", || domain(&testbed).is_some_and(|now| Some(now) != before));
    testbed.ping(0, 1);
    assert!(steps(&change(&testbed, &["reload"]).unwrap()).is_empty());
    let queues = |testbed: &Testbed| {
        let mut list = testbed.guests[0].namespace.exec("ls").unwrap();
        let listed = list.arg("/sys/class/net/eth0/queues").output().unwrap();
        String::from_utf8_lossy(&listed.stdout).matches("tx-").count()
    };
    for count in [1, 2] {
        let before = domain(&testbed);
        let set = ["port", "set", &red, &format!("queues={count}"), "--reconnect"];
        change(&testbed, &set).unwrap();
        wait("the guest's return", || domain(&testbed).is_some_and(|now| Some(now) != before));
        testbed.ping(0, 1);
        wait("so many queues", || queues(&testbed) == count);
    }
}

#[test]
fn uplinks_and_virtual_machines_ports_come_and_go() {
    requires!("ping");
    let testbed = Testbed::start(0, "workers = 1\nsandbox = \"devices\"");
    let outside = Namespace::create("pvt").unwrap();
    let namespace = format!("namespace={}", outside.name());
    let has = |device: &str| outside.ip(&["link", "show", device]).is_ok();
    let add = ["port", "add", "uplink", "name=up", "tap=up0", &namespace];
    change(&testbed, &add).unwrap();
    assert!(has("up0") && testbed.named("up").unwrap()["state"] == "up");
    let error = change(&testbed, &["port", "set", "up", "tap=up1"]).unwrap_err();
    assert!(error.contains("--reconnect"), "{error}");
    change(&testbed, &["port", "set", "up", "tap=up1", "--reconnect"]).unwrap();
    assert!(!has("up0") && has("up1"));
    // A dry run finds what is not there.
    for (keys, said) in [
        (&["name=nic", "kind=af-packet", "device=nic0", &namespace][..], "no interface nic0"),
        (&["name=tap", "tap=up2", "bridge=br0"], "no interface br0"),
        (&["name=tap", "tap=up2", "namespace=nowhere"], "no network namespace nowhere"),
        (&["name=ovs", "kind=virtio-user", "mode=server", "socket=/nowhere/x"], "/nowhere"),
        (&["name=ovs", "kind=virtio-user", "mode=client", "socket=/nowhere/x"], ""),
        (&["name=tap", "tap=up2"], ""),
    ] {
        let add = [&["port", "add", "uplink"], keys, &["--dry-run"]].concat();
        let report = change(&testbed, &add).unwrap();
        let step = &report["steps"][0];
        let found = step["reason"].as_str().unwrap_or_default();
        assert_eq!(step["action"] == "fail", !said.is_empty(), "{step}");
        assert!(found.contains(said), "{keys:?}: {step}");
    }
    // A device that cannot be opened changes nothing.
    let bad = ["port", "add", "uplink", "name=bad", "tap=a-name-that-is-too-long"];
    assert!(change(&testbed, &bad).is_err());
    assert!(testbed.named("bad").is_none());
    let socket = testbed.folder().join("vm.sock");
    let at = format!("socket={}", socket.display());
    change(&testbed, &["port", "add", "port", "name=vm", "kind=vhost-user", "guard=off", &at])
        .unwrap();
    let mut front_end = UnixStream::connect(&socket).unwrap();
    front_end.set_read_timeout(Some(LIMIT)).unwrap();
    change(&testbed, &["port", "del", "vm"]).unwrap();
    assert_eq!(front_end.read(&mut [0; 1]).unwrap(), 0, "its session has ended");
    assert!(!socket.exists() && testbed.named("vm").is_none());
    change(&testbed, &["port", "del", "up"]).unwrap();
    wait("the tap's end", || !has("up1"));
}

#[test]
fn a_daemon_that_cannot_open_devices_any_more_says_what_to_do() {
    requires!("ping");
    let testbed = Testbed::start(0, "workers = 1\nsandbox = \"full\"");
    let add = ["port", "add", "uplink", "name=up", "tap=up0"];
    let error = change(&testbed, &add).unwrap_err();
    assert!(error.contains("sandbox = \"devices\""), "{error}");
    let report = change(&testbed, &[&add[..], &["--dry-run"]].concat()).unwrap();
    let step = &report["steps"][0];
    assert!(step["reason"].as_str().unwrap().contains("sandbox = \"devices\""), "{step}");
    assert!(testbed.named("up").is_none());
}

/// What a dry run says of a socket is what becomes of it.
#[test]
fn a_dry_run_knows_which_folders_the_sandbox_allows() {
    requires!();
    let testbed = Testbed::start(0, "workers = 1");
    let elsewhere = lab::TempDir::new().unwrap();
    for (folder, name) in [(testbed.folder(), "in"), (elsewhere.path(), "out")] {
        let socket = format!("socket={}", folder.join("vm.sock").display());
        let name = format!("name={name}");
        let add = ["port", "add", "port", &*name, "kind=vhost-user", "guard=off", &*socket];
        let tried = change(&testbed, &[&add[..], &["--dry-run"]].concat()).unwrap();
        let reason = tried["steps"][0]["reason"].as_str();
        match change(&testbed, &add) {
            Ok(_) => assert_eq!(reason, None),
            Err(error) => {
                // A kernel without Landlock refuses neither.
                assert_ne!(folder, testbed.folder(), "{error}");
                let reason = reason.expect(&error);
                assert!(reason.contains("makes sockets in"), "{reason}");
                assert!(error.contains("makes sockets in"), "{error}");
            }
        }
    }
}

/// Whoever takes such a daemon over does not reach the sockets of the host's services.
#[test]
fn a_daemon_without_clients_connects_to_no_socket() {
    requires!();
    let testbed = Testbed::start(0, "workers = 1");
    let socket = format!("socket={}", testbed.folder().join("vm.sock").display());
    let port = ["port", "add", "port", "name=vm", "kind=vhost-user", "guard=off", &*socket];
    let uplink = ["port", "add", "uplink", "name=ovs", "kind=virtio-user", &*socket];
    for add in [&port[..], &uplink[..]].map(|add| [add, &["mode=client"]].concat()) {
        let said = "connects to no socket";
        let error = change(&testbed, &add).unwrap_err();
        assert!(error.contains(said), "{error}");
        let tried = change(&testbed, &[&add[..], &["--dry-run"]].concat()).unwrap();
        let reason = tried["steps"][0]["reason"].as_str().unwrap().to_owned();
        assert!(reason.contains(said), "{reason}");
    }
    // A file whose daemon was killed is replaced, one at which somebody listens is not.
    let path = testbed.folder().join("vm.sock");
    let other = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let error = change(&testbed, &port).unwrap_err();
    assert!(error.contains("in use"), "{error}");
    drop(other);
    change(&testbed, &port).unwrap();
}

/// The sandbox refuses the connection that would tell the daemon that nobody listens, so it checks the file itself.
#[test]
fn a_file_that_is_no_socket_is_left_alone_by_a_sandboxed_daemon() {
    requires!();
    let testbed = Testbed::start(0, "workers = 1");
    let path = testbed.folder().join("vm.sock");
    std::fs::write(&path, "precious").unwrap();
    let socket = format!("socket={}", path.display());
    let port = ["port", "add", "port", "name=vm", "kind=vhost-user", "guard=off", &*socket];
    let uplink = ["port", "add", "uplink", "name=ovs", "kind=virtio-user", &*socket];
    for add in [&port[..], &uplink[..]] {
        let error = change(&testbed, add).unwrap_err();
        let said = format!("{}: a file that is no socket", path.display());
        assert!(error.contains(&said), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    }
}

#[test]
fn many_clients_at_once_do_not_stop_the_daemon() {
    requires!("ping");
    let mut testbed = Testbed::start(1, "workers = 1");
    testbed.join(0, &[]);
    let socket = testbed.folder().join("control.sock");
    // Clients that say nothing, half a request, or one that is too long.
    let silent: Vec<_> = (0..300).filter_map(|_| UnixStream::connect(&socket).ok()).collect();
    for (n, client) in silent.iter().enumerate() {
        use std::io::Write;
        let bytes = if n % 3 == 0 { vec![b'x'; 64 << 10] } else { b"change {\"cha".to_vec() };
        client.set_nonblocking(true).unwrap();
        let _ = (&*client).write(&bytes[..bytes.len() * (n % 3) / 2]);
    }
    drop(silent);
    let red = testbed.guests[0].namespace.name().to_owned();
    let set = ["port", "set", &red, "limit.egress.mbps=8"];
    wait("an answer", || change(&testbed, &set).is_ok());
    assert!(testbed.named(&red).unwrap()["limit"].is_object());
    let _: &Process = &testbed.daemon;
}
