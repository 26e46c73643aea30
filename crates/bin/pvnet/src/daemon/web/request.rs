//! The head of an HTTP request, as far as the server obeys it.

use std::io::{self, BufRead as _, BufReader, Read};
use std::net::IpAddr;

use crate::daemon::metrics::Format;

/// Longest head of a request: browsers send the cookies of all servers of a host.
const HEAD_MAX: u64 = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    Get,
    Head,
    Other,
}

#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: Method,
    /// Without a query.
    pub(super) path: String,
    /// The form of metrics that the client likes best.
    pub(super) format: Format,
    host: Option<String>,
}

/// Why a head is no request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: &'static str,
    pub(super) why: &'static str,
}

/// Reads a head: to its empty line, or to the end of what the client sends.
///
/// # Errors
/// The stream fails; inside, what is wrong with the head.
pub(super) fn read(stream: &mut impl Read) -> io::Result<Result<Request, Refusal>> {
    let mut stream = BufReader::new(stream.take(HEAD_MAX));
    let mut head = Vec::new();
    loop {
        let start = head.len();
        stream.read_until(b'\n', &mut head)?;
        let line = &head[start..];
        if line.ends_with(b"\n") {
            if line.trim_ascii_end().is_empty() {
                break;
            }
        } else if stream.get_ref().limit() == 0 {
            let status = "431 Request Header Fields Too Large";
            return Ok(Err(Refusal { status, why: "the request's head is too long" }));
        } else {
            // The client sends no more.
            break;
        }
    }
    Ok(parse(&String::from_utf8_lossy(&head)))
}

fn parse(head: &str) -> Result<Request, Refusal> {
    let bad = Refusal { status: "400 Bad Request", why: "this is no request of HTTP/1" };
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad);
    };
    if !version.starts_with("HTTP/1.") || !target.starts_with('/') {
        return Err(bad);
    }
    let method = match method {
        "GET" => Method::Get,
        "HEAD" => Method::Head,
        _ => Method::Other,
    };
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let headers = lines.filter_map(|line| line.split_once(':'));
    let headers = headers.map(|(name, value)| (name, value.trim()));
    let all = |name: &str| -> Vec<_> {
        let own = headers.clone().filter(|(other, _)| other.eq_ignore_ascii_case(name));
        own.map(|(_, value)| value).collect()
    };
    let format = accepted(&all("accept").join(","));
    Ok(Request { method, path, format, host: all("host").first().map(|host| (*host).to_owned()) })
}

/// The form that an `Accept` header likes best. Whoever likes all forms, or names none, gets the one that all tools read.
fn accepted(header: &str) -> Format {
    let ranges = header.split(',').map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default();
        let quality = parts.find_map(|part| part.strip_prefix("q=")).map(str::parse::<f32>);
        (name, quality.map_or(1.0, |quality| quality.unwrap_or(0.0)))
    });
    let quality = |names: &[&str]| {
        let own = ranges.clone().filter(|(name, _)| names.contains(name));
        own.map(|(_, quality)| quality).fold(0.0, f32::max)
    };
    let open = quality(&["application/openmetrics-text"]);
    match open > 0.0 && open >= quality(&["text/plain", "text/*"]) {
        true => Format::OpenMetrics,
        false => Format::Text,
    }
}

impl Request {
    /// Whether the client called the server `localhost`, or by an address. Programs that are no browsers may say nothing.
    pub(super) fn names_this_host(&self) -> bool {
        let Some(host) = &self.host else { return true };
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.split(':').next().unwrap_or_default(),
        };
        name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_of(text: &str) -> Result<Request, Refusal> {
        read(&mut text.as_bytes()).unwrap()
    }

    #[test]
    fn a_request_ends_with_an_empty_line_or_the_stream() {
        for text in ["GET /metrics?x=1 HTTP/1.1\r\n\r\nBODY", "GET /metrics HTTP/1.0\n"] {
            let request = read_of(text).unwrap();
            assert_eq!((request.method, &*request.path), (Method::Get, "/metrics"));
            assert_eq!(request.format, Format::Text);
        }
        assert_eq!(read_of("HEAD / HTTP/1.1\r\n\r\n").unwrap().method, Method::Head);
        assert_eq!(read_of("POST / HTTP/1.1\r\n\r\n").unwrap().method, Method::Other);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        let long = format!("GET / HTTP/1.1\r\nCookie: {}\r\n\r\n", "x".repeat(16 << 10));
        let endless = "a: b\r\n".repeat(10_000);
        for (text, status) in [
            ("", "400"),
            ("GET\r\n\r\n", "400"),
            ("GET / HTTP/2\r\n\r\n", "400"),
            ("GET http://x/ HTTP/1.1\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1}", "400"),
            (&long, "431"),
            (&format!("GET / HTTP/1.1\r\n{endless}"), "431"),
        ] {
            let refusal = read_of(text).unwrap_err();
            assert!(refusal.status.starts_with(status), "{refusal:?}");
        }
    }

    #[test]
    fn the_form_that_the_client_likes_best_is_chosen() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (header, format) in [
            ("", Format::Text),
            ("*/*", Format::Text),
            (prometheus, Format::OpenMetrics),
            ("text/plain;version=0.0.4;q=1,application/openmetrics-text;q=0.5", Format::Text),
            ("application/openmetrics-text;q=0", Format::Text),
            ("text/html,application/xhtml+xml,*/*;q=0.8", Format::Text),
        ] {
            assert_eq!(accepted(header), format, "{header}");
        }
    }

    #[test]
    fn only_names_of_this_host_are_its_own() {
        let named = |host: &str| {
            let head = format!("GET / HTTP/1.1\r\nhOsT: {host}\r\n\r\n");
            read_of(&head).unwrap().names_this_host()
        };
        for own in ["localhost:9464", "LOCALHOST", "127.0.0.1:9464", "[::1]:9464", "[::1]"] {
            assert!(named(own), "{own}");
        }
        for other in ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", ""] {
            assert!(!named(other), "{other}");
        }
        assert!(read_of("GET / HTTP/1.0\r\n\r\n").unwrap().names_this_host());
    }
}
