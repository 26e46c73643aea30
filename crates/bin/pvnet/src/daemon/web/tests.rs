use std::io::Read as _;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use control_socket::{PortKind, PortState, PortStatus, Reason, Status, WorkerStatus};
use frame::DropReason;
use tracing_subscriber::layer::SubscriberExt as _;

use super::*;
use crate::daemon::event::Event;
use crate::log::Recent;

/// A server with this limit, what it answers from, and how often it was asked.
struct Server {
    address: SocketAddr,
    asked: Arc<AtomicUsize>,
}

impl Server {
    fn start(limit: Duration, status: Status) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (events, inbox) = mpsc::channel();
        let log = Recent::default();
        let lines = tracing_subscriber::registry().with(log.clone());
        tracing::subscriber::with_default(lines, || tracing::warn!(reason = HOSTILE, "refused"));
        let reader = StatusReader::without_platform(events, log);
        let site = Site { status: reader, page: Mutex::default(), is_local: true };
        std::thread::spawn(move || accept(&listener, &Arc::new(site), limit));
        let asked = Arc::new(AtomicUsize::new(0));
        let count = asked.clone();
        std::thread::spawn(move || {
            for event in inbox {
                if let Event::Status(answer) = event {
                    count.fetch_add(1, Ordering::Relaxed);
                    answer.send(status.clone()).unwrap();
                }
            }
        });
        Self { address, asked }
    }

    fn ask(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    fn get(&self, path: &str) -> String {
        self.ask(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", self.address))
    }
}

/// Long enough that only the test's own limit can end it.
const FOR_EVER: Duration = Duration::from_secs(600);

const HOSTILE: &str = "<img src=x onerror=\"document.title='owned'\"></td><script>document.title='owned'</script>&amp;";

/// Everything that operators and guests can write, as markup.
fn hostile() -> Status {
    let port = PortStatus {
        reason: Some(Reason::Disabled(HOSTILE.to_owned())),
        drops: [(DropReason::Stalled, 7)].into_iter().collect(),
        ..PortStatus::new(HOSTILE, PortKind::Guest, PortState::Down)
    };
    Status {
        ports: vec![port],
        workers: vec![WorkerStatus::default()],
        absent: vec![HOSTILE.to_owned()],
        nics: vec![crate::status::tests::nic(1)],
        ..Status::default()
    }
}

#[test]
fn a_client_that_trickles_delays_no_other() {
    let server = Server::start(FOR_EVER, Status::default());
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.write_all(b"G").unwrap();
    assert!(server.get("/metrics").contains("200 OK"));
    assert!(server.get("/status.json").contains("200 OK"));
    slow.write_all(b"E").unwrap();
}

#[test]
fn a_client_that_trickles_is_closed() {
    let server = Server::start(Duration::from_millis(100), Status::default());
    let mut slow = TcpStream::connect(server.address).unwrap();
    slow.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    for byte in b"GET /".iter().cycle().take(1000) {
        // The close is an end or an error, by whether a byte was on its way.
        let sent = slow.write_all(&[*byte]);
        match slow.read(&mut [0]) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && sent.is_ok() => {}
            _ => return,
        }
    }
    panic!("it is still connected");
}

#[test]
fn clients_are_bounded() {
    let server = Server::start(FOR_EVER, Status::default());
    let idle: Vec<_> =
        (0..CLIENTS_MAX).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    let mut late = TcpStream::connect(server.address).unwrap();
    let mut text = String::new();
    late.read_to_string(&mut text).unwrap();
    assert!(text.contains("503") && text.contains("8 clients"), "{text}");
    drop(idle);
}

#[test]
fn pages_that_ask_at_once_cost_one_status() {
    for _ in 0..10 {
        let server = Server::start(FOR_EVER, Status::default());
        let start = Instant::now();
        let mut answers = 0;
        while answers < 20 && start.elapsed() < FRESH / 2 {
            assert!(server.get("/status.json").contains("200 OK"));
            answers += 1;
        }
        // How many answers fit into the time depends on the machine; that they cost one status does not.
        if start.elapsed() < FRESH {
            assert_eq!(server.asked.load(Ordering::Relaxed), 1, "{answers} answers");
            return;
        }
    }
    panic!("each answer comes too late");
}

#[test]
fn each_path_has_its_kind_and_all_have_the_policy() {
    let server = Server::start(FOR_EVER, Status::default());
    for (path, status, kind) in [
        ("/", "200", "text/html"),
        ("/?x", "200", "text/html"),
        ("/page.css", "200", "text/css"),
        ("/page.js", "200", "text/javascript"),
        ("/status.json", "200", "application/json"),
        ("/metrics", "200", "text/plain; version=0.0.4"),
        ("/../etc/passwd", "404", "text/plain"),
    ] {
        let answer = server.get(path);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {answer}");
        assert!(answer.contains(&format!("\r\nContent-Type: {kind}")), "{path}: {answer}");
        assert!(answer.contains("\r\nContent-Security-Policy: default-src 'none'; "), "{answer}");
        assert!(!answer.contains("unsafe-inline"), "{answer}");
        assert!(answer.contains("\r\nCross-Origin-Resource-Policy: same-origin\r\n"), "{answer}");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{path}: {head}");
    }
}

#[test]
fn prometheus_gets_open_metrics() {
    let server = Server::start(FOR_EVER, Status::default());
    let accept = "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5";
    let answer = server.ask(&format!("GET /metrics HTTP/1.1\r\n{accept}\r\n\r\n"));
    assert!(answer.contains("Content-Type: application/openmetrics-text; version=1.0.0"));
    assert!(answer.ends_with("# EOF\n"), "{answer}");
}

#[test]
fn head_has_the_head_alone_and_nothing_is_written() {
    let server = Server::start(FOR_EVER, Status::default());
    for path in ["/", "/metrics", "/status.json"] {
        let answer = server.ask(&format!("HEAD {path} HTTP/1.1\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\n"), "{answer}");
        assert!(!answer.contains("Content-Length: 0\r\n"), "{answer}");
    }
    let answer = server.ask("POST / HTTP/1.1\r\n\r\n");
    assert!(answer.starts_with("HTTP/1.1 405 ") && answer.contains("\r\nAllow: GET, HEAD\r\n"));
}

/// A page of another site, whose name leads to this host by now, is of the same origin for its browser.
#[test]
fn another_sites_page_reads_nothing() {
    let server = Server::start(FOR_EVER, hostile());
    for path in ["/", "/status.json"] {
        let answer = server.ask(&format!("GET {path} HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 421 ") && !answer.contains("onerror"), "{answer}");
    }
}

#[test]
fn the_document_is_that_of_the_command() {
    let server = Server::start(FOR_EVER, hostile());
    let answer = server.get("/status.json");
    let body = answer.split_once("\r\n\r\n").unwrap().1;
    let value: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(document::errors(&document::schema::<Status>(), &value), [""; 0]);
    assert_eq!(value["schema"], "pvnet-status/1");
    assert_eq!(value["ports"][0]["reason_text"], format!("disabled: {HOSTILE}"));
}

/// The script puts text into the page, and never markup.
#[test]
fn the_script_makes_no_markup() {
    for file in FILES {
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "document.write",
            "eval(",
            "Function(",
            "srcdoc",
            "http://",
            "https://",
            "style=",
            "onclick",
        ] {
            assert!(!file.2.contains(way), "{way} in {}", file.0);
        }
    }
}

/// What the page is after its script has run in a browser, and has asked twice.
#[test]
fn a_browser_shows_everything_as_text() {
    let server = Server::start(FOR_EVER, hostile());
    let url = format!("http://{}/", server.address);
    let Some(mut browser) = lab::needed(lab::Browser::open(&url)) else { return };
    // Its rates are there: it has seen a second status.
    browser.wait("document.querySelector('#ports .number')?.textContent === '0'").unwrap();
    let page = browser.value("document.documentElement.outerHTML").unwrap();
    let page = page.as_str().unwrap();
    assert!(page.contains("<title>pvnet</title>"), "{page}");
    // The port, its reason, the guest that is absent, and the event.
    assert_eq!(page.matches("&lt;img src=x onerror=").count(), 4, "{page}");
    assert!(!page.contains("<img") && page.matches("<script").count() == 1, "{page}");
    assert!(page.contains("stalled: 7") && page.contains("0 of 1 ports up"), "{page}");
    let headings = ["Ports", "Contexts of cards", "Workers", "Last events"];
    for heading in headings {
        assert!(page.contains(&format!(">{heading}</h2>")), "{page}");
    }
    assert_eq!(browser.faults(), [""; 0]);
}
