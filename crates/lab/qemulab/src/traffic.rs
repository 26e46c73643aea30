//! Traffic between virtual machines and namespaces.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use lab::{Interrupt, Namespace, Ping, Process, Random, Throughput, hexadecimal};
use sha2::{Digest as _, Sha256};
use xenlab::{Error, Result, Shell, scenario};

use crate::COMMAND;

/// The TCP ports for files and for iperf3.
pub(crate) const FILE_PORT: u16 = 5555;
const IPERF_PORT: u16 = 5201;
/// How often an attempt to connect is repeated.
const POLL: Duration = Duration::from_millis(50);

/// One end of the traffic.
#[derive(Clone, Copy, Debug)]
pub enum Peer<'a> {
    /// In a virtual machine.
    Machine(&'a Shell),
    /// In a namespace of this machine.
    Namespace(&'a Namespace),
}

/// Pings an address.
pub fn ping(from: Peer<'_>, to: &str, count: u32) -> Result<Ping> {
    match from {
        Peer::Machine(shell) => scenario::ping(shell, to, count),
        Peer::Namespace(namespace) => {
            Ok(lab::ping(namespace, number(to)?, count, Duration::from_millis(200))?)
        }
    }
}

fn number(address: &str) -> Result<IpAddr> {
    address.parse().map_err(|cause| parse(address, &cause))
}

/// Measures TCP from a machine to an address of `server`, or the other way round if `reverse`.
pub fn tcp(
    client: &Shell,
    server: Peer<'_>,
    address: &str,
    seconds: u32,
    reverse: bool,
) -> Result<Throughput> {
    let limit = COMMAND + Duration::from_secs(seconds.into());
    // The server is stopped when this is dropped.
    let _server = match server {
        Peer::Machine(shell) => {
            shell.spawn("iperf3 -s -1")?;
            scenario::listens(shell, IPERF_PORT)?;
            None
        }
        Peer::Namespace(namespace) => {
            let mut command = namespace.exec("iperf3")?;
            command.args(["--server", "--one-off", "--forceflush", "--bind", address]);
            let mut server = Process::capture(command)?;
            server.says("Server listening on", COMMAND)?;
            Some(server)
        }
    };
    let reverse = if reverse { "--reverse" } else { "" };
    let command = format!("iperf3 --json -C cubic -t {seconds} {reverse} -c {address}");
    let output = client.sh(&command, limit)?;
    Ok(Throughput::parse(&output.text, address)?)
}

/// Sends `mib` MiB of random bytes from a machine to an address of `to`. Returns whether the digests at both ends are
/// the same.
pub fn file(from: &Shell, to: Peer<'_>, address: &str, mib: u32) -> Result<bool> {
    let namespace = match to {
        Peer::Machine(shell) => return scenario::same_file(from, shell, address, mib),
        Peer::Namespace(namespace) => namespace,
    };
    let receiver = receiver(namespace)?;
    let script = format!(
        "set -e\ndd if=/dev/urandom of=/run/file bs=1M count={mib} 2>/dev/null\n\
         nc {address} {FILE_PORT} </run/file >/dev/null\nsha256sum </run/file\nrm /run/file"
    );
    let printed = from.run(&script, COMMAND * 2)?;
    let joined = receiver.join();
    let received = joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
    match printed.split_whitespace().next() {
        Some(sent) if sent.len() == 64 => Ok(sent == received),
        _ => Err(parse(&printed, "no digest")),
    }
}

/// Starts a thread in a namespace that accepts a connection and returns the digest of the bytes that arrive.
pub(crate) fn receiver(namespace: &Namespace) -> Result<JoinHandle<lab::Result<String>>> {
    let listening = namespace.inside(|| {
        TcpListener::bind(("0.0.0.0", FILE_PORT)).map_err(|cause| lab_error("cannot listen", cause))
    })?;
    Ok(namespace.thread(move || receive(&listening))?)
}

/// Copies a host's file from a namespace to `/run/NAME` of the machine at `address`.
pub(crate) fn upload(
    from: &Namespace,
    to: &Shell,
    address: &str,
    path: &Path,
    name: &str,
) -> Result<()> {
    let receiver = to.spawn(&format!("nc -l -p {FILE_PORT} >/run/{name}"))?;
    scenario::listens(to, FILE_PORT)?;
    let mut file =
        File::open(path).map_err(|cause| Error::Path { path: path.to_owned(), cause })?;
    let address = address.to_owned();
    from.inside(move || {
        let copied = std::io::copy(&mut file, &mut connect(&address)?);
        copied.map(drop).map_err(|cause| lab_error("cannot send a file", cause))
    })?;
    receiver.wait(COMMAND)?;
    Ok(())
}

/// Sends `mib` MiB from a namespace to the machine at `address`, and compares digests.
pub(crate) fn file_to(from: &Namespace, to: &Shell, address: &str, mib: u32) -> Result<bool> {
    let receiver = to.spawn(&format!("nc -l -p {FILE_PORT} | sha256sum"))?;
    scenario::listens(to, FILE_PORT)?;
    let sent = send_from(from, address, mib)?;
    let printed = receiver.wait(COMMAND)?.text;
    Ok(printed.split_whitespace().next() == Some(sent.as_str()))
}

/// Sends `mib` MiB from a namespace to an address, once somebody listens there. Returns their digest.
pub(crate) fn send_from(from: &Namespace, address: &str, mib: u32) -> Result<String> {
    let address = address.to_owned();
    Ok(from.inside(move || send(&connect(&address)?, mib))?)
}

/// Sends `mib` MiB from a namespace to an address in another one. Digests that differ are an error.
pub(crate) fn file_between(
    from: &Namespace,
    to: &Namespace,
    address: &str,
    mib: u64,
) -> Result<()> {
    lab::transfer_file(from, to, number(address)?, mib << 20, 1)?;
    Ok(())
}

fn connect(address: &str) -> lab::Result<TcpStream> {
    let end = Instant::now() + COMMAND;
    loop {
        match TcpStream::connect((address, FILE_PORT)) {
            Ok(stream) => return Ok(stream),
            Err(cause) if Instant::now() > end => return Err(lab_error("cannot connect", cause)),
            Err(_) => Interrupt::sleep(POLL)?,
        }
    }
}

fn send(mut stream: &TcpStream, mib: u32) -> lab::Result<String> {
    let failed = |cause| lab_error("cannot send a file", cause);
    let mut digest = Sha256::new();
    let mut random = Random::new(1);
    let mut chunk = vec![0; 64 * 1024];
    for _ in 0..mib * 16 {
        random.fill(&mut chunk);
        digest.update(&chunk);
        stream.write_all(&chunk).map_err(failed)?;
    }
    stream.shutdown(Shutdown::Write).map_err(failed)?;
    // Wait until the other end has all of it, and closes.
    let _ = stream.read(&mut [0]);
    Ok(hexadecimal(&digest.finalize()))
}

fn receive(listener: &TcpListener) -> lab::Result<String> {
    let failed = |cause| lab_error("cannot receive a file", cause);
    let (mut stream, _) = listener.accept().map_err(failed)?;
    stream.set_read_timeout(Some(COMMAND)).map_err(failed)?;
    let mut digest = Sha256::new();
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let count = stream.read(&mut chunk).map_err(failed)?;
        if count == 0 {
            return Ok(hexadecimal(&digest.finalize()));
        }
        digest.update(&chunk[..count]);
    }
}

fn lab_error(what: &str, cause: std::io::Error) -> lab::Error {
    lab::Error::Io { what: what.to_owned(), cause }
}

fn parse(text: &str, cause: &(impl ToString + ?Sized)) -> Error {
    Error::parse("the test's traffic", cause, text)
}
