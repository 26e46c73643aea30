//! The testbed: a daemon, two good guests, and a hostile one with its orders and the traffic to it.

use std::net::{Ipv4Addr, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use control_socket::{LogEvent, Reason, join_socket};
use lab::{Interrupt, Namespace, Process, TempDir};
use serde_json::Value;
use wire::ethernet::MacAddr;

use super::class::Class;
use super::order::{Order, Report};
use crate::error::{Error, Result};
use crate::testbed::{GuestKind, Setup, Subject as _, Testbed, quoted, this};

/// The hostile guest.
const NAME: &str = "hostile";
const MAC: MacAddr = MacAddr([0x02, 0x70, 0x76, 0x6e, 0x00, 0x66]);
const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 3);
/// The uplink's tap, and the tap's address in the uplink's namespace.
const TAP: &str = "tap0";
const UPLINK: &str = "10.77.0.254/24";
/// The good guests' addresses, as [`Testbed`] gives them.
const VICTIMS: [MacAddr; 2] =
    [MacAddr([0x02, 0x70, 0x76, 0x6e, 0, 1]), MacAddr([0x02, 0x70, 0x76, 0x6e, 0, 2])];
/// How long the hostile process may take to follow an order.
const OBEY: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(5);
/// The stream to a slow receiver: 200 Mb/s.
const DATAGRAM: usize = 1448;
const BITS_PER_MILLISECOND: usize = 200_000;

/// A daemon with two good guests and a hostile one.
pub struct Attacked {
    // Fields are dropped in this order: each before what it uses.
    stream: Option<Stream>,
    hostile: Process,
    orders: PathBuf,
    /// The good guests and the daemon.
    pub testbed: Testbed,
    /// What the hostile guest does.
    pub class: Class,
    workers: usize,
    victims: GuestKind,
    uplink: Option<Namespace>,
    /// The folder of the hostile virtual machine's socket.
    _folder: TempDir,
}

impl Attacked {
    /// Starts everything. The hostile guest is idle.
    pub fn start(class: Class, workers: usize, victims: GuestKind) -> Result<Self> {
        let uplink = class.uplink().map(|_| Namespace::create("pvnet-up")).transpose()?;
        let folder = TempDir::new()?;
        let port = class.is_virtio().then(|| folder.path().join("hostile.sock"));
        let ports =
            port.iter().flat_map(|port| (1..class.ports()).map(|n| spare_port(class, port, n)));
        let more = ports.collect::<String>() + &tables(class, port.as_deref(), uplink.as_ref());
        let setup = Setup { workers: Some(workers), kind: victims, more, ..Setup::default() };
        let testbed = Testbed::start(&setup)?;
        let targets = match &uplink {
            Some(uplink) => vec![teach(uplink, testbed.left().ipv4)?],
            None => VICTIMS.to_vec(),
        };
        let orders = testbed.folder().join("orders");
        let mut command = this(None)?;
        command.args(["bench", "hostile-guest", "--name", NAME, "--class", &class.to_string()]);
        let socket = port.unwrap_or_else(|| join_socket(testbed.folder()));
        command.arg("--socket").arg(socket).arg("--orders").arg(&orders);
        command.args(["--mac", &MAC.to_string()]);
        command.args(targets.iter().flat_map(|mac| ["--target".to_owned(), mac.to_string()]));
        let hostile = Process::capture(command)?;
        let mut attacked = Self {
            stream: None,
            hostile,
            orders,
            testbed,
            class,
            workers,
            victims,
            uplink,
            _folder: folder,
        };
        attacked.order(Order::Idle)?;
        let red = attacked.testbed.left();
        attacked.stream = match &attacked.uplink {
            Some(uplink) if class.is_sent_to_by_uplink() => Some(Stream::start(uplink, TAP)?),
            None if class.is_sent_to_by_red() => Some(Stream::start(&red.namespace, red.device)?),
            _ => None,
        };
        Ok(attacked)
    }

    /// Starts everything again in its place.
    pub fn start_anew(&mut self) -> Result<()> {
        *self = Self::start(self.class, self.workers, self.victims)?;
        Ok(())
    }

    /// Orders the hostile guest to do something, and waits until it begins.
    pub fn order(&mut self, order: Order) -> Result<Report> {
        order.write(&self.orders)?;
        let start = Instant::now();
        loop {
            if let Some(report) = self.report().filter(|report| report.order == order) {
                return Ok(report);
            }
            let said = self.hostile.stderr();
            if let Some(status) = self.hostile.ended()? {
                return Err(Error::Ended { who: "the hostile guest".into(), status, said });
            }
            if start.elapsed() > OBEY {
                let what = format!("the hostile guest's answer to {order:?}");
                return Err(Error::Late { what, limit: OBEY, said });
            }
            Interrupt::sleep(POLL)?;
        }
    }

    /// The hostile guest's last report.
    pub fn report(&self) -> Option<Report> {
        Report::last(&self.hostile.stdout())
    }

    /// Lets it attack until its port is disabled, and returns why.
    pub fn why_disabled(&mut self) -> Result<String> {
        self.order(Order::Attack)?;
        let start = Instant::now();
        let why = loop {
            let status = self.testbed.status()?;
            let port = status.ports.into_iter().find(|port| port.name == NAME);
            if let Some(Reason::Disabled(why)) = port.and_then(|port| port.reason) {
                break why;
            }
            // The port starts anew some milliseconds later, and a status may take longer.
            if let Some(why) = logged(&status.events) {
                break why;
            }
            if start.elapsed() > OBEY {
                let what = "the end of the hostile guest's port".to_owned();
                return Err(Error::Late { what, limit: OBEY, said: self.hostile.stderr() });
            }
            Interrupt::sleep(Duration::from_millis(1))?;
        };
        self.order(Order::Idle)?;
        Ok(why)
    }

    /// The daemon's process and the hostile guest's.
    pub fn pids(&self) -> [u32; 2] {
        [self.testbed.pid(), self.hostile.pid()]
    }
}

/// The reason why the hostile guest's port failed last, if the log's last lines have it.
fn logged(events: &[LogEvent]) -> Option<String> {
    let start = format!("port failed port={NAME:?} reason=\"");
    let reason =
        |event: &LogEvent| event.text.strip_prefix(&start)?.strip_suffix('"').map(str::to_owned);
    events.iter().find_map(reason)
}

/// The tables of the hostile guest and the uplink.
fn tables(class: Class, port: Option<&Path>, uplink: Option<&Namespace>) -> String {
    let kind = match port {
        Some(socket) => format!("[[port]]\nkind = \"vhost-user\"\nsocket = {}\n", quoted(socket)),
        None => "[[guest]]\n".to_owned(),
    };
    let guest = format!("{kind}name = \"{NAME}\"\nmac = \"{MAC}\"\n{}", class.guest());
    let uplink = uplink.map_or(String::new(), |namespace| {
        format!(
            "\n[[uplink]]\nname = \"uplink\"\ntap = \"{TAP}\"\nnamespace = \"{}\"\n\
             addresses = [\"{UPLINK}\"]\n{}",
            namespace.name(),
            class.uplink().unwrap_or_default()
        )
    });
    guest + &uplink
}

/// The socket of the hostile virtual machine's port of this number. The first port has `socket`.
pub(super) fn port_socket(socket: &Path, number: usize) -> PathBuf {
    match number {
        0 => socket.to_owned(),
        number => socket.with_extension(number.to_string()),
    }
}

/// The table of a further port.
fn spare_port(class: Class, socket: &Path, number: usize) -> String {
    format!(
        "[[port]]\nkind = \"vhost-user\"\nsocket = {}\nname = \"{NAME}-{number}\"\nguard = \"off\"\n{}",
        quoted(&port_socket(socket, number)),
        class.guest()
    )
}

/// Makes the switch learn the uplink's address: its host pings a guest. Returns the address.
fn teach(uplink: &Namespace, guest: Ipv4Addr) -> Result<MacAddr> {
    lab::ping(uplink, guest, 1, Duration::from_millis(10))?;
    let json = uplink.ip(&["-j", "link", "show", "dev", TAP])?;
    let links: Vec<Value> = serde_json::from_str(&json).unwrap_or_default();
    let mac = links.first().and_then(|link| link["address"].as_str()?.parse().ok());
    mac.ok_or_else(|| Error::Failed(format!("`ip -j link show dev {TAP}` has no address: {json}")))
}

/// Datagrams to the hostile guest at a fixed rate, whether or not they arrive.
struct Stream {
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<lab::Result<()>>>,
}

impl Stream {
    /// Starts to send from a namespace, through this device.
    fn start(from: &Namespace, device: &str) -> Result<Self> {
        // The hostile guest answers no ARP.
        let neighbour = [ADDRESS.to_string(), MAC.to_string()];
        let [address, mac] = &neighbour;
        from.ip(&["neigh", "replace", address, "lladdr", mac, "dev", device])?;
        let done = Arc::new(AtomicBool::new(false));
        let stop = done.clone();
        let thread = from.thread(move || {
            send(&stop);
            Ok(())
        })?;
        Ok(Self { done, thread: Some(thread) })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        // The thread has nothing to report.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Sends some datagrams each millisecond until stopped. A datagram that finds no room is lost, as on a wire.
fn send(stop: &AtomicBool) {
    let Ok(socket) = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)) else { return };
    let _ = socket.set_nonblocking(true);
    let began = Instant::now();
    let mut sent = 0;
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
        let due = began.elapsed().as_micros() * BITS_PER_MILLISECOND as u128 / 1000;
        let due = usize::try_from(due).unwrap_or(usize::MAX) / (8 * DATAGRAM);
        while sent < due {
            let _ = socket.send_to(&[0; DATAGRAM], (ADDRESS, 9));
            sent += 1;
        }
    }
}
