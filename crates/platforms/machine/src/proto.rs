//! The protocol between a guest's process and the machine: one packet each way per call.
//!
//! A `SOCK_SEQPACKET` socket keeps packets whole; descriptors travel beside them. The store has a
//! separate socket, which comes with the welcome.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use arrayvec::ArrayVec;
use hypervisor::Error;
use hypervisor::guest_copy::GUEST_COPIES_PER_HYPERCALL;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::admission::Token;
use crate::guest_copy::Request;

/// The protocol's version, which both sides must share.
pub(crate) const VERSION: u32 = 4;
/// Page numbers one packet may carry: a ring's worth.
pub(crate) const FRAMES_MAX: usize = 256;

/// Words of the body for each copy that a call is about.
const WORDS_PER_COPY: usize = 3;

/// A guest's calls.
pub(crate) mod call {
    /// Be a domain: `arg` is the version, `text` the name. A token may follow the name's NUL.
    pub(crate) const HELLO: u32 = 1;
    /// Offer an event channel to domain `arg`.
    pub(crate) const ALLOC_UNBOUND: u32 = 2;
    /// Give back `arg` pages of the exchange area, their numbers in the body.
    pub(crate) const SURRENDER: u32 = 3;
    /// Give up ordinary pages: `pages[0]` of them, from number `arg` on.
    pub(crate) const DECREASE_RESERVATION: u32 = 4;
    /// Take ordinary pages back, with the same arguments.
    pub(crate) const INCREASE_RESERVATION: u32 = 5;
    /// The guest has mapped its memory. Only then does the daemon serve a guest of sealed memory.
    pub(crate) const MAPPED: u32 = 6;
    /// Open a channel about the domain's contexts of cards. The answer has its socket.
    pub(crate) const OPEN_CONTEXTS: u32 = 7;
    /// Do `arg` copies out of the driver domain's buffers of queue `pages[0]`: three words each in
    /// the body. In the answer, `pages[0]` and `pages[1]` have a bit for each that was done.
    pub(crate) const COPY_GRANTED: u32 = 8;
    /// Open the pool of queue `arg`. The answer has its file.
    pub(crate) const OPEN_POOL: u32 = 9;
}

/// What a welcome says about the domain's memory.
pub(crate) mod memory {
    /// It has pages of 2 MiB.
    pub(crate) const HUGE: u32 = 1;
    /// It will be sealed once the guest has mapped it.
    pub(crate) const SEALED: u32 = 2;
}

/// A packet, either way.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub(crate) struct Packet {
    /// A call's number; in an answer 0, or another number for an error, with its message in `text`.
    pub(crate) code: u32,
    /// The call's argument; in an answer the domain's or the port's number.
    pub(crate) arg: u32,
    /// In a welcome: the domain's pages, how many of them are grants, and the exchange area's.
    pub(crate) pages: [u32; 3],
    /// In a welcome: [`memory`]'s flags.
    pub(crate) flags: u32,
    /// Text, or page numbers.
    body: [u32; FRAMES_MAX],
}

impl Packet {
    pub(crate) fn new(code: u32, arg: u32, text: &str) -> Self {
        let mut packet = Self { code, arg, pages: [0; 3], flags: 0, body: [0; FRAMES_MAX] };
        let body = packet.body.as_mut_bytes();
        let len = text.floor_char_boundary(body.len());
        body[..len].copy_from_slice(&text.as_bytes()[..len]);
        packet
    }

    /// The first call: the domain's name, and the secret that proves it.
    pub(crate) fn hello(name: &str, token: Option<&Token>) -> Self {
        let mut packet = Self::new(call::HELLO, VERSION, name);
        if let Some(token) = token {
            let place = packet.body.as_mut_bytes().get_mut(name.len() + 1..);
            // No guest has a name so long that no token fits.
            if let Some(place) = place.and_then(|rest| rest.get_mut(..token.bytes().len())) {
                place.copy_from_slice(token.bytes());
            }
        }
        packet
    }

    /// The text up to its first NUL; invalid UTF-8 is replaced.
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(self.part(0)).into_owned()
    }

    /// The token of a hello, if it has one.
    pub(crate) fn token(&self) -> Option<Token> {
        let token = self.part(1);
        (!token.is_empty()).then(|| Token::offered(token))
    }

    /// A part of the body, up to a NUL or the end; empty if there is none.
    fn part(&self, number: usize) -> &[u8] {
        self.body.as_bytes().split(|byte| *byte == 0).nth(number).unwrap_or_default()
    }

    /// A call about pages, [`FRAMES_MAX`] or fewer.
    pub(crate) fn about_pages(code: u32, frames: &[u32]) -> Result<Self, Error> {
        let count = u32::try_from(frames.len()).unwrap_or(u32::MAX);
        let mut packet = Self::new(code, count, "");
        let body = packet.body.get_mut(..frames.len());
        body.ok_or(Error::Exhausted("room in a packet"))?.copy_from_slice(frames);
        Ok(packet)
    }

    /// A call about pages that follow each other.
    pub(crate) fn about_run(code: u32, pages: &Range<usize>) -> Result<Self, Error> {
        let number = |n| u32::try_from(n).map_err(|_| Error::Exhausted("page numbers"));
        let mut packet = Self::new(code, number(pages.start)?, "");
        packet.pages[0] = number(pages.len())?;
        Ok(packet)
    }

    /// The pages of a call about a run. Their owner is not checked.
    pub(crate) fn run(&self) -> Range<usize> {
        let first = self.arg as usize;
        first..first.saturating_add(self.pages[0] as usize)
    }

    /// The numbers of the pages that a call is about; none when it claims too many.
    pub(crate) fn frames(&self) -> Option<&[u32]> {
        self.body.get(..self.arg as usize)
    }

    /// A call about copies, [`GUEST_COPIES_PER_HYPERCALL`] or fewer.
    pub(crate) fn about_copies(id: u32, requests: &[Request]) -> Result<Self, Error> {
        let too_many = Error::Exhausted("room in a packet");
        if requests.len() > GUEST_COPIES_PER_HYPERCALL {
            return Err(too_many);
        }
        let count = u32::try_from(requests.len()).unwrap_or(u32::MAX);
        let mut packet = Self::new(call::COPY_GRANTED, count, "");
        packet.pages[0] = id;
        for (words, request) in packet.body.chunks_exact_mut(WORDS_PER_COPY).zip(requests) {
            let halves = |low: u16, high: u16| u32::from(low) | u32::from(high) << 16;
            let &Request { number, offset, len, page, page_offset } = request;
            words.copy_from_slice(&[halves(number, offset), halves(len, page_offset), page]);
        }
        Ok(packet)
    }

    /// The copies that a call is about; none when it claims too many. They are not checked.
    pub(crate) fn copies(&self) -> Option<ArrayVec<Request, GUEST_COPIES_PER_HYPERCALL>> {
        let count = self.arg as usize;
        let request = |words: &[u32]| {
            let [first, second, page] = *words else { return Request::default() };
            let halves = |word: u32| {
                let [a, b, c, d] = word.to_le_bytes();
                [u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])]
            };
            let [[number, offset], [len, page_offset]] = [halves(first), halves(second)];
            Request { number, offset, len, page, page_offset }
        };
        (count <= GUEST_COPIES_PER_HYPERCALL)
            .then(|| self.body.chunks_exact(WORDS_PER_COPY).take(count).map(request).collect())
    }

    /// The answer to a call about copies.
    pub(crate) fn about_done(done: u64) -> Self {
        let mut packet = Self::new(0, 0, "");
        let [low, high, _] = &mut packet.pages;
        let [a, b, c, d, e, f, g, h] = done.to_le_bytes();
        (*low, *high) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        packet
    }

    /// The bits of an answer to a call about copies.
    pub(crate) fn done(&self) -> u64 {
        u64::from(self.pages[0]) | u64::from(self.pages[1]) << 32
    }
}

/// Waits for a packet; none when the other side has hung up.
pub(crate) fn receive(socket: impl AsFd) -> io::Result<Option<(Packet, Vec<OwnedFd>)>> {
    seqpacket::receive_with_descriptors(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_has_text_up_to_its_length() {
        let packet = Packet::new(7, 9, &"ü".repeat(600));
        assert_eq!((packet.code, packet.arg), (7, 9));
        assert_eq!(packet.text(), "ü".repeat(512));
    }

    #[test]
    fn a_hello_has_a_name_and_perhaps_a_token() {
        let token = Token::offered(b"0123456789abcdef");
        let hello = Packet::hello("red", Some(&token));
        assert_eq!((hello.text(), hello.token()), ("red".to_owned(), Some(token.clone())));
        assert_eq!(Packet::hello("red", None).token(), None);
        let long = "r".repeat(1020);
        let hello = Packet::hello(&long, Some(&token));
        assert_eq!((hello.text(), hello.token()), (long, None));
    }

    #[test]
    fn copies_are_bounded_and_arrive_as_they_were_sent() {
        let request = |n: u16| Request {
            number: n,
            offset: n + 1,
            len: n + 2,
            page: 0x8000_0000 + u32::from(n),
            page_offset: u16::MAX - n,
        };
        let requests: Vec<_> = (0..64).map(request).collect();
        let mut packet = Packet::about_copies(7, &requests).unwrap();
        assert_eq!((packet.code, packet.pages[0]), (call::COPY_GRANTED, 7));
        assert_eq!(packet.copies().unwrap()[..], requests);
        packet.arg = 65;
        assert_eq!(packet.copies(), None);
        packet.arg = u32::MAX;
        assert_eq!(packet.copies(), None);
        assert!(Packet::about_copies(7, &[request(0); 65]).is_err());
        let done = 0x8000_0001_0000_0003;
        assert_eq!(Packet::about_done(done).done(), done);
    }

    #[test]
    fn page_numbers_are_bounded() {
        let frames: Vec<u32> = (0..256).collect();
        let mut packet = Packet::about_pages(call::SURRENDER, &frames).unwrap();
        assert_eq!(packet.frames(), Some(&frames[..]));
        packet.arg = 257;
        assert_eq!(packet.frames(), None);
        packet.arg = u32::MAX;
        assert_eq!(packet.frames(), None);
        assert!(Packet::about_pages(call::SURRENDER, &[0; 257]).is_err());
    }
}
