//! The channel over which a guest's process gets its contexts from the daemon: one packet each way
//! per request. It comes from [`machine::MachineGuest`], so the daemon knows whose it is.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use cdna::message::Protection;
use machine::GuestEvent;
use shm::{PageSize, Region};
use wire::ethernet::MacAddr;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::files::GuestFiles;

/// Bytes of a call page.
pub const CALL_PAGE_LEN: usize = PageSize::Small.bytes();
/// Bytes of the longest text.
const TEXT_MAX: usize = 192;

/// What a guest asks for; every request names one of its contexts by its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To use the context. The answer is [`Opened`].
    Open,
    /// The files of its present assignment.
    Pages,
    /// The guest has mapped the files of this generation.
    Mapped(u32),
    /// The guest uses the context no more. The answer comes when the card touches none of its memory.
    Close,
}

mod code {
    pub(super) const OPEN: u32 = 1;
    pub(super) const PAGES: u32 = 2;
    pub(super) const MAPPED: u32 = 3;
    pub(super) const CLOSE: u32 = 4;
    pub(super) const OKAY: u32 = 0;
    pub(super) const REFUSED: u32 = 1;
    pub(super) const DOWN: u32 = 2;
}

/// Who maps a buffer before the card may touch it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum Mappings {
    /// Nobody: there is no IOMMU, or all pages are mapped from the start.
    #[default]
    Static = 0,
    /// The guest, by calls.
    PerBuffer = 1,
}

/// When a context is interrupted by default, for the guest's mailboxes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub struct Coalescing {
    /// Interrupt after this many sent frames; 0: not by number.
    pub tx_frames: u32,
    /// This many microseconds after a sent frame; 0: not by time.
    pub tx_micros: u32,
    /// Interrupt after this many received frames.
    pub rx_frames: u32,
    /// This many microseconds after a received frame.
    pub rx_micros: u32,
    /// Not 0: that time counts from the last interrupt.
    pub rx_adaptive: u32,
}

/// What stays the same from one assignment of a context to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Its MAC address.
    pub mac: MacAddr,
    /// The machine address of the guest's first page.
    pub base: u64,
    /// How its memory is protected.
    pub protection: Protection,
    /// Who maps its buffers.
    pub mappings: Mappings,
    /// The defaults of its mailboxes.
    pub coalescing: Coalescing,
}

/// What differs from one assignment to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assigned {
    /// Counts the assignments of the context.
    pub generation: u32,
    /// The index of the first descriptor of either ring.
    pub start: u32,
    /// [`cdna::layout::features`] of the card.
    pub features: u32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct RequestPacket {
    code: u32,
    index: u32,
    generation: u32,
}

/// An answer. What a field means depends on the request.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct AnswerPacket {
    base: u64,
    code: u32,
    protection: u32,
    mappings: u32,
    generation: u32,
    start: u32,
    features: u32,
    coalescing: Coalescing,
    mac: MacAddr,
    reserved: [u16; 3],
    text: [u8; TEXT_MAX],
}

impl AnswerPacket {
    fn new(code: u32) -> Self {
        Self { code, ..zerocopy::FromZeros::new_zeroed() }
    }
}

/// Takes a guest's next request and the index of its context; none if it has gone.
///
/// # Errors
/// The system's, or the packet is no request.
pub fn receive(socket: &OwnedFd) -> io::Result<Option<(usize, Request)>> {
    let Some(packet) = seqpacket::receive::<RequestPacket>(socket)? else { return Ok(None) };
    let request = match packet.code {
        code::OPEN => Request::Open,
        code::PAGES => Request::Pages,
        code::MAPPED => Request::Mapped(packet.generation),
        code::CLOSE => Request::Close,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "an unknown request")),
    };
    Ok(Some((packet.index as usize, request)))
}

/// The daemon's answer to a request.
#[derive(Clone, Copy, Debug)]
pub enum Answer<'a> {
    /// To [`Request::Open`], with the call page, and three event channels: calls, interrupts, changes.
    Opened(Opened, BorrowedFd<'a>, [&'a GuestEvent; 3]),
    /// To [`Request::Pages`].
    Assigned(Assigned, [BorrowedFd<'a>; 4]),
    /// To [`Request::Pages`] while no card serves the context.
    Down,
    /// To the others.
    Done,
    /// Why not, in a sentence.
    Refused(&'a str),
}

/// Answers a request.
///
/// # Errors
/// The guest has gone.
pub fn answer(socket: &OwnedFd, answer: Answer<'_>) -> io::Result<()> {
    let send =
        |packet: AnswerPacket, files: &[BorrowedFd<'_>]| seqpacket::send(socket, &packet, files);
    let packet = AnswerPacket::new(code::OKAY);
    match answer {
        Answer::Opened(opened, call_page, events) => {
            let Opened { mac, base, protection, mappings, coalescing } = opened;
            let (protection, mappings) = (protection as u32, mappings as u32);
            let packet = AnswerPacket { mac, base, protection, mappings, coalescing, ..packet };
            let [calls, interrupts, changes] = events.map(GuestEvent::fds);
            // Only calls go both ways.
            let files = [call_page, calls[0], calls[1], interrupts[0], changes[0]];
            send(packet, &files)
        }
        Answer::Assigned(Assigned { generation, start, features }, files) => {
            send(AnswerPacket { generation, start, features, ..packet }, &files)
        }
        Answer::Down => send(AnswerPacket::new(code::DOWN), &[]),
        Answer::Done => send(packet, &[]),
        Answer::Refused(why) => {
            let mut packet = AnswerPacket::new(code::REFUSED);
            let len = why.floor_char_boundary(TEXT_MAX);
            packet.text[..len].copy_from_slice(&why.as_bytes()[..len]);
            send(packet, &[])
        }
    }
}

/// A context that a guest may use.
#[derive(Debug)]
pub struct Context {
    /// What stays the same.
    pub opened: Opened,
    /// The page for calls.
    pub call_page: Region,
    /// Readable when a call is answered, and an eventfd that tells the daemon of a call.
    pub calls: [OwnedFd; 2],
    /// Readable with an interrupt; [`read`](GuestEvent) until it is empty.
    pub interrupts: OwnedFd,
    /// Readable when the assignment may have changed.
    pub changes: OwnedFd,
}

/// The guest's end of the channel. It has one request at a time.
#[derive(Debug)]
pub struct GuestEnd {
    socket: Mutex<OwnedFd>,
}

impl GuestEnd {
    /// The end of a channel.
    #[must_use]
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket: socket.into() }
    }

    fn ask(&self, index: usize, request: Request) -> io::Result<(AnswerPacket, Vec<OwnedFd>)> {
        let (code, generation) = match request {
            Request::Open => (code::OPEN, 0),
            Request::Pages => (code::PAGES, 0),
            Request::Mapped(generation) => (code::MAPPED, generation),
            Request::Close => (code::CLOSE, 0),
        };
        let index = u32::try_from(index).unwrap_or(u32::MAX);
        let socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        seqpacket::send(&*socket, &RequestPacket { code, index, generation }, &[])?;
        let gone = io::Error::from(io::ErrorKind::ConnectionReset);
        let (packet, files) =
            seqpacket::receive_with_descriptors::<AnswerPacket>(&*socket)?.ok_or(gone)?;
        if packet.code == code::REFUSED {
            let text = packet.text.split(|byte| *byte == 0).next().unwrap_or_default();
            return Err(io::Error::other(String::from_utf8_lossy(text).into_owned()));
        }
        Ok((packet, files))
    }

    /// Opens one of the contexts that the configuration gives to the guest, by its index there.
    ///
    /// # Errors
    /// The daemon refuses or has gone.
    pub fn open(&self, index: usize) -> io::Result<Context> {
        let (packet, files) = self.ask(index, Request::Open)?;
        let malformed = || io::Error::new(io::ErrorKind::InvalidData, "a malformed answer");
        let [call_page, answers, doorbell, interrupts, changes] =
            files.try_into().map_err(|_| malformed())?;
        let protection = match packet.protection {
            0 => Protection::None,
            1 => Protection::Hypervisor,
            2 => Protection::Iommu,
            _ => return Err(malformed()),
        };
        let mappings = match packet.mappings {
            0 => Mappings::Static,
            1 => Mappings::PerBuffer,
            _ => return Err(malformed()),
        };
        let AnswerPacket { mac, base, coalescing, .. } = packet;
        Ok(Context {
            opened: Opened { mac, base, protection, mappings, coalescing },
            call_page: Region::map(call_page, 0, CALL_PAGE_LEN)?,
            calls: [answers, doorbell],
            interrupts,
            changes,
        })
    }

    /// The present assignment of an open context, mapped; none while no card serves the context. From now
    /// on the card serves it.
    ///
    /// # Errors
    /// The daemon refuses or has gone, or the files cannot be mapped.
    pub fn assignment(
        &self,
        index: usize,
        protection: Protection,
    ) -> io::Result<Option<(Assigned, GuestFiles)>> {
        let (packet, files) = self.ask(index, Request::Pages)?;
        if packet.code == code::DOWN {
            return Ok(None);
        }
        let malformed = |_| io::Error::new(io::ErrorKind::InvalidData, "files are missing");
        let files = GuestFiles::map(protection, files.try_into().map_err(malformed)?)?;
        let AnswerPacket { generation, start, features, .. } = packet;
        self.ask(index, Request::Mapped(generation))?;
        Ok(Some((Assigned { generation, start, features }, files)))
    }

    /// Gives a context back, and returns when the card touches none of its memory.
    ///
    /// # Errors
    /// The daemon refuses or has gone.
    pub fn close(&self, index: usize) -> io::Result<()> {
        self.ask(index, Request::Close).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use hypervisor::EventChannel;
    use machine::event_channel;
    use shm::create_memfd;

    use super::*;
    use crate::files::{CardFiles, Files};

    const OPENED: Opened = Opened {
        mac: MacAddr([2, 0, 0, 0, 0, 1]),
        base: 7 << 21,
        protection: Protection::Hypervisor,
        mappings: Mappings::PerBuffer,
        coalescing: Coalescing {
            tx_frames: 1,
            tx_micros: 2,
            rx_frames: 3,
            rx_micros: 4,
            rx_adaptive: 1,
        },
    };

    #[test]
    fn a_guest_gets_its_context_over_the_channel() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        let assigned = Assigned { generation: 9, start: 0, features: 7 };
        let daemon = std::thread::spawn(move || {
            let expect = |wanted| assert_eq!(receive(&ours).unwrap(), Some(wanted));
            expect((1, Request::Open));
            let call_page = create_memfd("test", 1, PageSize::Small).unwrap();
            let [(calls, a), (interrupts, b), (changes, c)] =
                [(); 3].map(|()| event_channel().unwrap());
            for event in [&calls, &interrupts, &changes] {
                event.notify().unwrap();
            }
            answer(&ours, Answer::Opened(OPENED, call_page.as_fd(), [&a, &b, &c])).unwrap();
            drop((a, b, c));
            expect((1, Request::Pages));
            answer(&ours, Answer::Down).unwrap();
            expect((1, Request::Pages));
            let files = Files::create(OPENED.protection, 0, 0).unwrap();
            let card = files.for_card().into_iter();
            let card =
                CardFiles::map(card.map(|file| file.try_clone_to_owned().unwrap()).collect())
                    .unwrap();
            answer(&ours, Answer::Assigned(assigned, files.for_guest().unwrap())).unwrap();
            expect((1, Request::Mapped(9)));
            files.mapped().unwrap();
            answer(&ours, Answer::Done).unwrap();
            expect((1, Request::Close));
            answer(&ours, Answer::Done).unwrap();
            expect((5, Request::Open));
            answer(&ours, Answer::Refused("it has 2 contexts")).unwrap();
            assert_eq!(receive(&ours).unwrap(), None);
            assert_eq!(card.context.read(0), Ok(3u32));
        });
        let guest = GuestEnd::new(theirs);
        let context = guest.open(1).unwrap();
        assert_eq!(context.opened, OPENED);
        for fd in [&context.calls[0], &context.interrupts, &context.changes] {
            assert_eq!(rustix::io::read(fd, &mut [0u8; 8]), Ok(1));
        }
        assert!(guest.assignment(1, OPENED.protection).unwrap().is_none());
        let (now, files) = guest.assignment(1, OPENED.protection).unwrap().unwrap();
        assert_eq!(now, assigned);
        files.context.write(0, 3u32).unwrap();
        guest.close(1).unwrap();
        assert_eq!(guest.open(5).unwrap_err().to_string(), "it has 2 contexts");
        drop(guest);
        daemon.join().unwrap();
    }

    #[test]
    fn what_is_no_request_is_an_error() {
        let (ours, theirs) = seqpacket::pair().unwrap();
        for code in [0, 5, u32::MAX] {
            let packet = RequestPacket { code, index: 0, generation: 0 };
            seqpacket::send(&theirs, &packet, &[]).unwrap();
            assert!(receive(&ours).is_err());
        }
        seqpacket::send(&theirs, &[0u8; 3], &[]).unwrap();
        assert!(receive(&ours).is_err());
    }
}
