//! Programs of a few instructions that send and receive: what they cost is the kernel's work alone.

use crate::mark::executable;

/// Where a program's file is mapped, as a page: what is sent.
const PAGE: [u8; 4] = 0x0040_0000_u32.to_le_bytes();
/// `syscall`
const CALL: [u8; 2] = [0x0f, 0x05];
/// `mov edi, ebx`: the socket.
const SOCKET: [u8; 2] = [0x89, 0xdf];

/// An internet address and a port.
pub type Address = ([u8; 4], u16);

/// A program that sends datagrams of `bytes` bytes without end: bursts of `count`, and after each a pause of `pause` microseconds.
pub fn bursts(to: Address, bytes: u32, (count, pause): (u32, u32)) -> Vec<u8> {
    let send = Code::socket(DATAGRAMS, to).named(CONNECT);
    send.forever(|code| code.repeat(count, |code| code.write(bytes)).sleep(pause)).file()
}

/// A program that sends datagrams of `bytes` bytes without end or pause.
pub fn flood(to: Address, bytes: u32) -> Vec<u8> {
    Code::socket(DATAGRAMS, to).named(CONNECT).forever(|code| code.write(bytes)).file()
}

/// A program that takes datagrams at a port without end.
pub fn drain(port: u16) -> Vec<u8> {
    let any = ([0; 4], port);
    Code::socket(DATAGRAMS, any).named(BIND).forever(|code| code.read(2048)).file()
}

/// A program that connects, sends `bytes` bytes and waits for as many, without end.
pub fn ask(to: Address, bytes: u32) -> Vec<u8> {
    let client = Code::socket(STREAM, to).named(CONNECT);
    client.forever(|code| code.write(bytes).read(bytes)).file()
}

/// A program that takes a connection, and answers each `bytes` bytes with as many.
pub fn answer(port: u16, bytes: u32) -> Vec<u8> {
    let server = Code::socket(STREAM, ([0; 4], port)).named(BIND).accept();
    server.forever(|code| code.read(bytes).write(bytes)).file()
}

const STREAM: u8 = 1;
const DATAGRAMS: u8 = 2;
const CONNECT: u8 = 42;
const BIND: u8 = 49;

/// A program that is being written. It has its socket in `ebx`.
struct Code {
    bytes: Vec<u8>,
    /// A `struct sockaddr_in`, which follows the instructions.
    address: [u8; 16],
    /// A `struct timespec`, which follows the address.
    time: [u8; 16],
    /// Where the instructions have the distance to each.
    to_address: Vec<usize>,
    to_time: Vec<usize>,
}

impl Code {
    fn socket(kind: u8, (host, port): Address) -> Self {
        let mut address = [0; 16];
        address[0] = 2; // AF_INET
        address[2..4].copy_from_slice(&port.to_be_bytes());
        address[4..8].copy_from_slice(&host);
        let code = Self {
            bytes: Vec::new(),
            address,
            time: [0; 16],
            to_address: Vec::new(),
            to_time: Vec::new(),
        };
        // push 41; pop rax; push 2; pop rdi; push KIND; pop rsi; cdq
        code.add(&[0x6a, 41, 0x58, 0x6a, 2, 0x5f, 0x6a, kind, 0x5e, 0x99])
            .add(&CALL)
            .add(&[0x89, 0xc3]) // mov ebx, eax
    }

    fn add(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// `connect` or `bind` with the address.
    fn named(self, call: u8) -> Self {
        let mut code = self.add(&SOCKET).add(&[0x48, 0x8d, 0x35]); // lea rsi, [rip + …]
        code.to_address.push(code.bytes.len());
        // push 16; pop rdx; push CALL; pop rax
        code.add(&[0; 4]).add(&[0x6a, 16, 0x5a, 0x6a, call, 0x58]).add(&CALL)
    }

    /// `listen` and `accept`.
    fn accept(self) -> Self {
        self.add(&SOCKET)
            .add(&[0x6a, 1, 0x5e, 0x6a, 50, 0x58]) // push 1; pop rsi; push 50; pop rax
            .add(&CALL)
            .add(&SOCKET)
            .add(&[0x31, 0xf6, 0x31, 0xd2, 0x6a, 43, 0x58]) // xor esi, esi; xor edx, edx; push 43; pop rax
            .add(&CALL)
            .add(&[0x89, 0xc3]) // mov ebx, eax
    }

    fn write(self, bytes: u32) -> Self {
        self.add(&SOCKET)
            .add(&[0xbe]) // mov esi, PAGE
            .add(&PAGE)
            .add(&[0xba]) // mov edx, BYTES
            .add(&bytes.to_le_bytes())
            .add(&[0x6a, 1, 0x58]) // push 1; pop rax
            .add(&CALL)
    }

    fn read(self, bytes: u32) -> Self {
        self.add(&SOCKET)
            .add(&[0x48, 0x8d, 0xb4, 0x24, 0, 0xf0, 0xff, 0xff]) // lea rsi, [rsp - 4096]
            .add(&[0xba]) // mov edx, BYTES
            .add(&bytes.to_le_bytes())
            .add(&[0x31, 0xc0]) // xor eax, eax
            .add(&CALL)
    }

    /// `nanosleep`
    fn sleep(mut self, microseconds: u32) -> Self {
        let nanoseconds = u64::from(microseconds) * 1000;
        self.time[..8].copy_from_slice(&(nanoseconds / 1_000_000_000).to_le_bytes());
        self.time[8..].copy_from_slice(&(nanoseconds % 1_000_000_000).to_le_bytes());
        let mut code = self.add(&[0x48, 0x8d, 0x3d]); // lea rdi, [rip + …]
        code.to_time.push(code.bytes.len());
        code.add(&[0; 4]).add(&[0x31, 0xf6, 0x6a, 35, 0x58]).add(&CALL) // xor esi, esi; push 35; pop rax
    }

    fn repeat(self, count: u32, body: impl FnOnce(Self) -> Self) -> Self {
        let code = self.add(&[0x41, 0xbc]).add(&count.to_le_bytes()); // mov r12d, COUNT
        let start = code.bytes.len();
        let code = body(code).add(&[0x41, 0xff, 0xcc, 0x0f, 0x85]); // dec r12d; jnz …
        code.back_to(start)
    }

    fn forever(self, body: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        body(self).add(&[0xe9]).back_to(start) // jmp …
    }

    /// The distance of a jump from behind it.
    fn back_to(self, start: usize) -> Self {
        let distance = distance(self.bytes.len() + 4, start);
        self.add(&distance)
    }

    fn file(self) -> Vec<u8> {
        let Self { mut bytes, address, time, to_address, to_time } = self;
        let ends = [(to_address, bytes.len()), (to_time, bytes.len() + address.len())];
        for (places, target) in ends {
            for place in places {
                bytes[place..place + 4].copy_from_slice(&distance(place + 4, target));
            }
        }
        executable(&[&bytes[..], &address, &time].concat())
    }
}

/// The distance between two places of a program, backwards if the second is the earlier one.
fn distance(from: usize, to: usize) -> [u8; 4] {
    let [a, b, c, d, ..] = to.wrapping_sub(from).to_le_bytes();
    [a, b, c, d]
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
    use std::os::unix::fs::PermissionsExt as _;
    use std::process::{Child, Command};
    use std::time::Duration;

    use super::*;

    const LOCAL: [u8; 4] = [127, 0, 0, 1];

    /// A program that runs, and is killed at the end of the test.
    struct Running(Child, #[allow(dead_code, reason = "its folder has the file")] lab::TempDir);

    impl Running {
        fn start(file: &[u8]) -> Self {
            let folder = lab::TempDir::new().unwrap();
            let path = folder.path().join("program");
            std::fs::write(&path, file).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
            Self(Command::new(&path).spawn().unwrap(), folder)
        }
    }

    impl Drop for Running {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn port_of(address: std::net::SocketAddr) -> Address {
        (LOCAL, address.port())
    }

    /// A port that nobody listens at.
    fn free_port() -> u16 {
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
    }

    #[test]
    fn senders_send_datagrams_of_their_size_again_and_again() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let to = port_of(socket.local_addr().unwrap());
        for (bytes, file) in [(22, flood(to, 22)), (30, bursts(to, 30, (3, 1000)))] {
            let _program = Running::start(&file);
            let mut buffer = [0; 100];
            // Those of the first sender may still be there.
            let mut found = 0;
            while found < 10 {
                found += usize::from(socket.recv(&mut buffer).unwrap() == bytes);
            }
            assert_eq!(&buffer[..4], b"\x7fELF");
        }
    }

    #[test]
    fn a_request_is_answered_with_as_many_bytes() {
        let port = free_port();
        let _server = Running::start(&answer(port, 100));
        let connected = (0..3000).find_map(|_| {
            std::thread::sleep(Duration::from_millis(10));
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).ok()
        });
        let mut stream = connected.unwrap();
        for _ in 0..3 {
            stream.write_all(&[7; 100]).unwrap();
            let mut answer = [0; 100];
            stream.read_exact(&mut answer).unwrap();
        }
    }

    #[test]
    fn a_client_asks_again_when_it_has_an_answer() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let _client = Running::start(&ask(port_of(listener.local_addr().unwrap()), 100));
        let (mut stream, _) = listener.accept().unwrap();
        for _ in 0..3 {
            let mut request = [0; 100];
            stream.read_exact(&mut request).unwrap();
            stream.write_all(&request).unwrap();
        }
    }

    #[test]
    fn a_drain_takes_what_comes() {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = free_port();
        let _drain = Running::start(&drain(port));
        socket.connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        // Until it listens the port is refused: the error of a datagram is that of the next call.
        let taken = (0..3000).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            socket.send(&[1; 22]).is_ok() && socket.send(&[1; 22]).is_ok()
        });
        assert!(taken);
    }
}
