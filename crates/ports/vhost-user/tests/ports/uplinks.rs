//! Unsegmented UDP of a virtual machine, through the switch to taps. Needs root, for a network namespace, and is skipped with a
//! message without it.

use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use datapath::{Config, Datapath, Port};
use hypervisor::{Counted, Meter};
use lab::Namespace;
use offload::Features;
use port::Queue;
use shm::PageSize;
use uplink::tap::{Tap, TapOffload, TapQueue};
use uplink::{BufferOptions, Buffers, TapEgress, TapIngress};
use vhost_user::Device;
use wire::ethernet::MacAddr;

use crate::common::{FrontEnd, HOST_USO, LEN, LINUX, Served, Vm, udp, uso};

const LIMIT: Duration = Duration::from_secs(20);
const PAYLOAD: usize = 3000;
/// Payload bytes of a datagram.
const SIZE: u16 = 1200;
/// What the frames of `udp` go to.
const ADDRESS: &str = "10.0.0.2";

/// Plugs the machine's rings into the switch.
struct Plug(Arc<Datapath>, Mutex<Option<Arc<Port>>>);

impl Device for Plug {
    fn start(&self, queues: Vec<Queue>) {
        *self.1.lock().unwrap() = Some(self.0.attach("machine", queues, Vec::new()));
    }

    fn stop(&self, _: &str) {
        if let Some(port) = self.1.lock().unwrap().take() {
            self.0.detach(port.id());
        }
    }
}

/// A tap as an uplink, and a socket behind it.
struct Behind {
    _namespace: Namespace,
    mac: MacAddr,
    meter: Arc<Meter>,
    socket: UdpSocket,
    takes_datagrams: bool,
}

fn lab_error(what: &str, cause: &impl ToString) -> lab::Error {
    lab::Error::Io { what: what.to_owned(), cause: std::io::Error::other(cause.to_string()) }
}

fn open(namespace: &Namespace, mac: MacAddr) -> (TapQueue, UdpSocket) {
    let tap = namespace.inside(|| {
        let taps =
            Tap::open("pv0", 1, TapOffload::ALL).map_err(|error| lab_error("a tap", &error))?;
        Ok(taps.into_iter().next())
    });
    let tap = tap.unwrap().unwrap();
    for command in [
        format!("link set pv0 address {mac} addrgenmode none"),
        format!("address add {ADDRESS}/24 dev pv0"),
        "link set pv0 up".to_owned(),
    ] {
        namespace.ip(&command.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let socket = namespace
        .inside(|| UdpSocket::bind((ADDRESS, 80)).map_err(|error| lab_error("a socket", &error)));
    (tap, socket.unwrap())
}

impl Behind {
    /// An uplink with these capabilities.
    fn new(datapath: &Datapath, number: u8, features: Features) -> Self {
        let namespace = Namespace::create("pvt").unwrap();
        let mac = MacAddr([2, 0, 0, 0, 1, number]);
        let (tap, socket) = open(&namespace, mac);
        socket.set_read_timeout(Some(LIMIT)).unwrap();
        // A kernel before 6.2 does not know it.
        let takes_datagrams = tap.segments_udp() && features.uso_v4;
        let (tap, meter) = (Arc::new(tap), Arc::new(Meter::default()));
        meter.switch(true);
        let buffers = BufferOptions { large: true, zeroed_pages: false, huge_pages: false };
        let buffers = Buffers::new(buffers).unwrap();
        let queue = Queue {
            ingress: Box::new(TapIngress::new(meter.clone(), tap.clone(), buffers)),
            egress: Box::new(TapEgress::new(meter.clone(), tap, features)),
        };
        let port = datapath.attach("uplink", vec![queue], Vec::new());
        datapath.teach(port.id(), mac).unwrap();
        Self { _namespace: namespace, mac, meter, socket, takes_datagrams }
    }

    /// The payloads of a frame's datagrams, in order.
    fn receive(&self) -> Vec<Vec<u8>> {
        let (mut payloads, mut len) = (Vec::new(), 0);
        while len < PAYLOAD {
            let mut datagram = [0; 4000];
            let part = self.socket.recv(&mut datagram).unwrap();
            payloads.push(datagram[..part].to_vec());
            len += part;
        }
        payloads
    }

    fn segments(&self) -> u64 {
        self.meter.count(Counted::Segments)
    }
}

fn datagram(to: MacAddr) -> Vec<u8> {
    [&to.0[..], &udp(PAYLOAD)[6..]].concat()
}

#[test]
fn a_machines_datagrams_go_whole_to_an_uplink_that_takes_them_and_cut_to_another() {
    lab::requires!("ip");
    let datapath = Arc::new(Datapath::start(&Config::default(), Box::new(drop)).unwrap());
    let with = Behind::new(&datapath, 1, Features::ALL);
    let without = Behind::new(&datapath, 2, Features::NETIF);
    let plug = Arc::new(Plug(datapath.clone(), Mutex::default()));
    let front = FrontEnd::of(1, plug.clone(), Arc::<Served>::default(), Arc::default());
    let file = shm::create_memfd("vm", LEN / 4096, PageSize::Small).unwrap();
    let mut machine = Vm::boot_with(LINUX | HOST_USO, file, front);
    for behind in [&with, &without] {
        let frame = datagram(behind.mac);
        machine.send(&uso(&machine, 34, SIZE), &frame, &[12, 100, 2000], false);
        machine.kick();
        let payloads = behind.receive();
        let lens: Vec<_> = payloads.iter().map(Vec::len).collect();
        // The kernel behind the tap cuts it as the machine wished, or pvnet did.
        assert_eq!(lens, [1200, 1200, 600]);
        assert!(payloads.concat() == frame[42..]);
        assert_eq!(behind.segments(), if behind.takes_datagrams { 0 } else { 3 });
    }
    assert!(!without.takes_datagrams);
    machine.front.end();
}
