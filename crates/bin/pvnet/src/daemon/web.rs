//! The HTTP server at `metrics` in `[daemon]`: Prometheus metrics, and a page that shows the status live. It only reads.

mod request;

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use machine::{Accepted, Acceptor};
use parking_lot::Mutex;

use crate::daemon::clients::{Clients, Timed};
use crate::daemon::error::Error;
use crate::daemon::status::StatusReader;
use crate::daemon::thread::{spawn, spawn_for_client};
use request::{Method, Request};

/// How long a client may take for its whole request, and then to read the whole response.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Clients at a time.
const CLIENTS_MAX: usize = 8;
/// Pages get a status of at most this age, so that many of them cost the control thread no more than one.
const FRESH: Duration = Duration::from_millis(500);

const TEXT: &str = "text/plain; charset=utf-8";
/// The page, and what it loads.
const FILES: [(&str, &str, &str); 3] = [
    ("/", "text/html; charset=utf-8", include_str!("web/page.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("web/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("web/page.js")),
];
/// Browsers run no script but the page's own file, load nothing from elsewhere, show the page in no other page, and let no other
/// site read an answer.
const HEADERS: &str = "Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
     Cross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\nX-Content-Type-Options: nosniff\r\n\
     Cache-Control: no-store\r\nConnection: close\r\n";

/// What clients are answered from.
struct Site {
    status: StatusReader,
    /// The last document that pages got.
    page: Mutex<Option<(Instant, Arc<str>)>>,
    /// Only this host's programs reach the address.
    is_local: bool,
}

struct Response {
    status: &'static str,
    kind: &'static str,
    body: Body,
}

/// Shared by the clients that get the same.
enum Body {
    Text(Cow<'static, str>),
    Shared(Arc<str>),
}

impl Response {
    fn ok(kind: &'static str, body: impl Into<Cow<'static, str>>) -> Self {
        Self { status: "200 OK", kind, body: Body::Text(body.into()) }
    }

    fn error(status: &'static str, why: &str) -> Self {
        Self { status, kind: TEXT, body: Body::Text(format!("{why}\n").into()) }
    }

    fn send(&self, stream: &TcpStream, limit: Duration, with_body: bool) -> io::Result<()> {
        let Self { status, kind, body } = self;
        let body = match body {
            Body::Text(text) => text,
            Body::Shared(text) => &**text,
        };
        let allow = if status.starts_with("405") { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}{HEADERS}\r\n",
            body.len()
        );
        let mut stream = Timed::new(stream, limit);
        stream.write_all(head.as_bytes())?;
        if with_body { stream.write_all(body.as_bytes()) } else { Ok(()) }
    }
}

/// Serves at `address` until the process ends.
pub(super) fn serve(address: SocketAddr, status: StatusReader) -> Result<(), Error> {
    let listener =
        TcpListener::bind(address).map_err(|source| Error::Metrics { address, source })?;
    let site = Site { status, page: Mutex::default(), is_local: address.ip().is_loopback() };
    spawn("metrics", move || accept(&listener, &Arc::new(site), TIMEOUT))?;
    Ok(())
}

/// Serves each client on a thread, so that a slow one delays no other.
fn accept(listener: &TcpListener, site: &Arc<Site>, limit: Duration) {
    let clients = Clients::new(CLIENTS_MAX);
    let mut acceptor = Acceptor::new("clients of the metrics");
    loop {
        let stream = match acceptor.accept(listener) {
            Accepted::Connection(stream) => TcpStream::from(stream),
            Accepted::Excess(_) => continue,
            Accepted::Stopped => return,
        };
        let Some(client) = clients.enter() else {
            let why = format!("{CLIENTS_MAX} clients are connected; try later");
            // This fails if the client has gone. Its socket is fresh, so nothing waits.
            let _ = Response::error("503 Service Unavailable", &why).send(&stream, limit, true);
            continue;
        };
        let site = site.clone();
        // If no thread starts, the client sees its connection end.
        let _ = spawn_for_client("metrics", move || {
            // This fails if the client has gone.
            let _ = answer(&stream, &site, limit);
            drop(client);
        });
    }
}

fn answer(stream: &TcpStream, site: &Site, limit: Duration) -> io::Result<()> {
    let (response, with_body) = match request::read(&mut Timed::new(stream, limit))? {
        Ok(request) => (site.respond(&request), request.method != Method::Head),
        Err(refusal) => (Response::error(refusal.status, refusal.why), true),
    };
    response.send(stream, limit, with_body)
}

impl Site {
    fn respond(&self, request: &Request) -> Response {
        if request.method == Method::Other {
            return Response::error(
                "405 Method Not Allowed",
                "only GET and HEAD: this is read-only",
            );
        }
        if request.path == "/metrics" {
            let format = request.format;
            let text = self.status.counts(TIMEOUT).map_err(|error| error.to_string());
            return match text
                .and_then(|status| format.render(status).map_err(|error| error.to_string()))
            {
                Ok(text) => Response::ok(format.content_type(), text),
                Err(why) => Response::error("503 Service Unavailable", &why),
            };
        }
        // A name that leads here may be anybody's: the page of another site, whose name has this host's address since it was
        // loaded, would be of the same origin.
        if self.is_local && !request.names_this_host() {
            let why = "the page is for this host: ask for it as localhost, or by address";
            return Response::error("421 Misdirected Request", why);
        }
        if request.path == "/status.json" {
            return match self.document() {
                Ok(text) => Response {
                    status: "200 OK",
                    kind: "application/json",
                    body: Body::Shared(text),
                },
                Err(why) => Response::error("503 Service Unavailable", &why),
            };
        }
        match FILES.into_iter().find(|(path, ..)| *path == request.path) {
            Some((_, kind, text)) => Response::ok(kind, text),
            None => Response::error(
                "404 Not Found",
                "metrics are at /metrics, a page at /, and what it shows at /status.json",
            ),
        }
    }

    /// What `pvnet status --json` prints, on one line. Whoever asks while another one does waits for the same answer.
    fn document(&self) -> Result<Arc<str>, String> {
        let mut page = self.page.lock();
        if let Some((read, text)) = page.as_ref()
            && read.elapsed() < FRESH
        {
            return Ok(text.clone());
        }
        let status = self.status.whole(TIMEOUT).map_err(|error| error.to_string())?;
        let text: Arc<str> = document::line(&status).map_err(|error| error.to_string())?.into();
        *page = Some((Instant::now(), text.clone()));
        Ok(text)
    }
}

#[cfg(test)]
mod tests;
