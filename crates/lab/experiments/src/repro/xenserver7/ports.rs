//! Sets of ports, as this kernel gives them to connections that are opened one after the other.

use std::io;
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use lab::Namespace;

use super::flows::SERVER_PORT;
use crate::error::Result;

/// Opens as many connections as iperf3 does, as often as `sets`, and returns the ports of its streams. They stay in a
/// namespace that is removed afterwards.
pub fn port_sets(sets: usize, streams: usize) -> Result<Vec<Vec<u16>>> {
    let namespace = Namespace::create("pvnet-ports")?;
    let open = move || {
        let failed = |cause| lab::Error::Io { what: "cannot connect".to_owned(), cause };
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, SERVER_PORT)).map_err(failed)?;
        (0..sets).map(|_| set(&listener, streams).map_err(failed)).collect()
    };
    let thread = namespace.thread(open)?;
    Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
}

/// One set. iperf3's first connection controls the others and is no stream.
fn set(listener: &TcpListener, streams: usize) -> io::Result<Vec<u16>> {
    let address = listener.local_addr()?;
    let connect = |_| {
        let client = TcpStream::connect(address)?;
        // The server's end is dropped first: its half-closed connections do not keep ports of the client.
        Ok((listener.accept()?.0, client))
    };
    let open: Vec<(TcpStream, TcpStream)> =
        (0..=streams).map(connect).collect::<io::Result<_>>()?;
    let ports = open.iter().skip(1).map(|(_, client)| Ok(client.local_addr()?.port()));
    ports.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_has_a_port_for_each_stream() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let mut ports = set(&listener, 8).unwrap();
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 8);
    }
}
