//! The span of a packet in the flow, from the beginning of its transmission to its completion.
//!
//! ```text
//!            one side                                  the other side
//!  transmit  tcp_sendmsg, xennet_start_xmit ─────────► xenvif_tx_action or pvnet, tun_get_user
//!            xennet_tx_buf_gc ◄─────────────────────── xenvif_idx_release or an event
//!  receive   tcp_sendmsg, xenvif_start_xmit or
//!            tun_net_xmit; xenvif_rx_skb or pvnet;
//!            an event ───────────────────────────────► xennet_poll
//! ```

use clap::ValueEnum;
use schemars::JsonSchema;
use scope_result::{Domain, Function, Mode, Recording};
use serde::Serialize;

use super::flow::Flow;
use crate::summary::plain;

named::named! {
    /// The direction of a frame, as the guest sees it.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, JsonSchema, Serialize, ValueEnum)]
    #[serde(rename_all = "lowercase")]
    pub enum Direction {
        /// From the guest.
        Tx => "transmit",
        /// To the guest.
        Rx => "receive",
    }
}

impl Direction {
    /// The direction with more traffic: the guest's driver has functions for each direction whose work grows with the bytes,
    /// while the numbers of frames and of acknowledgements are similar.
    pub fn of(recording: &Recording) -> Self {
        let work = |names: &[&str]| -> u64 {
            let of_names = |function: &Function| {
                function.module == "xen_netfront" && names.contains(&plain(&function.name))
            };
            let blocks = recording.blocks.iter().filter(|block| {
                recording.functions.get(block.function as usize).is_some_and(of_names)
            });
            blocks.map(|block| block.total().instructions).sum()
        };
        let sent = work(&["xennet_tx_setup_grant", "xennet_tx_buf_gc"]);
        let received = work(&["xennet_alloc_rx_buffers", "xennet_get_responses"]);
        if received > sent { Self::Rx } else { Self::Tx }
    }
}

/// Functions that mark the progress of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Landmark {
    /// A program sends.
    Send,
    /// TCP makes a segment.
    Segment,
    /// TCP receives, which can make it send queued data.
    Received,
    /// The guest's driver gets a frame to send.
    FrontSends,
    /// xen-netback or the tap gets a frame for the guest.
    BackSends,
    /// xen-netback reads the guest's ring.
    NetbackTakes,
    /// pvnet reads the guest's ring, or writes a frame to the tap.
    PvnetTakes,
    /// xen-netback or pvnet takes a frame for the guest.
    BackReceives,
    /// xen-netback responds to a frame of the guest.
    Responds,
    /// An event is sent.
    Event,
    /// The guest's driver polls for responses.
    Reaps,
    /// The guest's driver receives.
    Polls,
    /// The guest's driver supplies new buffers.
    Refills,
    /// A caller of `Reaps`.
    Interrupt,
    /// A caller of `Polls`.
    Napi,
    /// A program runs again.
    Program,
}

fn landmark(function: &Function) -> Option<Landmark> {
    let name = plain(&function.name);
    Some(match (function.module.as_str(), name) {
        ("vmlinux", "tcp_sendmsg_locked" | "udp_sendmsg") => Landmark::Send,
        ("vmlinux", "__tcp_transmit_skb") => Landmark::Segment,
        ("vmlinux", "tcp_v4_rcv" | "tcp_v6_rcv") => Landmark::Received,
        ("vmlinux", "net_rx_action" | "__napi_poll") => Landmark::Napi,
        ("xen_netfront", "xennet_start_xmit") => Landmark::FrontSends,
        ("xen_netfront", "xennet_tx_buf_gc") => Landmark::Reaps,
        ("xen_netfront", "xennet_poll") => Landmark::Polls,
        ("xen_netfront", "xennet_alloc_rx_buffers") => Landmark::Refills,
        ("xen_netfront", "xennet_tx_interrupt" | "xennet_handle_tx" | "xennet_interrupt") => {
            Landmark::Interrupt
        }
        ("xen_netback", "xenvif_start_xmit") | ("tun", "tun_net_xmit") => Landmark::BackSends,
        ("xen_netback", "xenvif_tx_action" | "xenvif_tx_build_gops") => Landmark::NetbackTakes,
        ("xen_netback", "xenvif_rx_skb" | "xenvif_rx_action") | ("tun", "tun_do_read") => {
            Landmark::BackReceives
        }
        ("xen_netback", "make_tx_response" | "xenvif_idx_release") => Landmark::Responds,
        ("tun", "tun_get_user" | "tun_chr_write_iter") => Landmark::PvnetTakes,
        ("pvnet", _) if function.name.contains("netback::tx") => Landmark::PvnetTakes,
        ("xen", "evtchn_send") => Landmark::Event,
        _ => return None,
    })
}

#[derive(Clone, Copy, Debug)]
struct Mark {
    /// The place in [`Flow::visits`].
    at: usize,
    landmark: Landmark,
    domain: u8,
    entered: bool,
}

fn marks(flow: &Flow<'_>) -> Vec<Mark> {
    let of_function: Vec<_> = flow.recording.functions.iter().map(landmark).collect();
    let mut marks = Vec::new();
    let mut last = None;
    for (at, visit) in flow.visits.iter().enumerate().filter(|(_, visit)| visit.changed) {
        let domain = visit.domain();
        let starts = visit.mode() == Mode::User && last != Some((Mode::User, domain));
        last = Some((visit.mode(), domain));
        let known = of_function.get(visit.block.function as usize).copied().flatten();
        if let Some(landmark) = known.or(starts.then_some(Landmark::Program)) {
            marks.push(Mark { at, landmark, domain, entered: visit.entered });
        }
    }
    marks
}

/// A packet's span in the flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    pub direction: Direction,
    /// Its first visit: an index into [`Flow::visits`].
    pub from: usize,
    /// The index after its last visit.
    pub to: usize,
    /// Where the other side takes the packet.
    pub taken: Option<usize>,
    /// Where the driver domain responds.
    pub done: Option<usize>,
    /// Where completion begins.
    pub completion: Option<usize>,
    /// Whether it is complete; otherwise the flow ends before.
    pub complete: bool,
    /// Frames that are sent in it, including this one.
    pub frames: u64,
}

/// Every packet of a flow, in the order of transmission.
pub fn spans(flow: &Flow<'_>, direction: Direction) -> Vec<Span> {
    let marks = marks(flow);
    let sends = match direction {
        Direction::Tx => Landmark::FrontSends,
        Direction::Rx => Landmark::BackSends,
    };
    let is_a_domain = |mark: &Mark| {
        let domain = flow.recording.domains.get(usize::from(mark.domain));
        matches!(domain, Some(Domain::Xen(_)))
    };
    let sent = marks.iter().enumerate();
    let sent = sent.filter(|(_, mark)| mark.landmark == sends && mark.entered && is_a_domain(mark));
    let sent: Vec<usize> = sent.map(|(n, _)| n).collect();
    let find = |n: &usize| SpanFinder { marks: &marks, end: flow.visits.len() }.span(*n, direction);
    sent.iter().map(find).collect()
}

/// Finds spans by the marks of a flow.
struct SpanFinder<'a> {
    marks: &'a [Mark],
    end: usize,
}

impl SpanFinder<'_> {
    /// The first mark after an index that satisfies `is`.
    fn first(&self, after: usize, is: impl Fn(&Mark) -> bool) -> Option<Mark> {
        let from = self.marks.partition_point(|mark| mark.at <= after);
        self.marks[from..].iter().find(|mark| is(mark)).copied()
    }

    /// The first call of one of these landmarks in a domain that satisfies `is`.
    fn call(&self, after: Mark, landmarks: &[Landmark], is: impl Fn(u8) -> bool) -> Option<Mark> {
        self.first(after.at, |mark| {
            mark.entered && landmarks.contains(&mark.landmark) && is(mark.domain)
        })
    }

    fn span(&self, n: usize, direction: Direction) -> Span {
        let sent = self.marks[n];
        let (taken, done, last, completion) = match direction {
            Direction::Tx => self.transmit(sent),
            Direction::Rx => self.receive(sent),
        };
        let from = self.beginning(n);
        let to = last.unwrap_or(self.end);
        let frames = self.marks.iter().filter(|mark| {
            mark.entered && mark.landmark == sent.landmark && (from..to).contains(&mark.at)
        });
        Span {
            direction,
            from,
            to,
            taken: taken.map(|mark| mark.at),
            done: done.map(|mark| mark.at),
            completion,
            complete: last.is_some(),
            frames: frames.count() as u64,
        }
    }

    /// Where the packet is taken, where the response is, where its span ends, and where completion begins.
    fn transmit(&self, sent: Mark) -> (Option<Mark>, Option<Mark>, Option<usize>, Option<usize>) {
        let guest = sent.domain;
        let takes = [Landmark::NetbackTakes, Landmark::PvnetTakes];
        let taken = self.call(sent, &takes, |domain| domain != guest);
        let done = taken.and_then(|taken| {
            // An event of xen-netback may be for frames to the guest, such as acknowledgements.
            let answer = if taken.landmark == Landmark::NetbackTakes {
                Landmark::Responds
            } else {
                Landmark::Event
            };
            self.call(taken, &[answer], |domain| domain == taken.domain)
        });
        let reaped =
            done.and_then(|done| self.call(done, &[Landmark::Reaps], |domain| domain == guest));
        let callers = [Landmark::FrontSends, Landmark::Polls, Landmark::Interrupt];
        let last = reaped.and_then(|reaped| {
            self.first(reaped.at, |mark| mark.domain == guest && callers.contains(&mark.landmark))
        });
        (taken, done, last.map(|mark| mark.at), done.map(|mark| mark.at))
    }

    fn receive(&self, sent: Mark) -> (Option<Mark>, Option<Mark>, Option<usize>, Option<usize>) {
        let own = |domain| domain == sent.domain;
        let taken = self.call(sent, &[Landmark::BackReceives], own);
        let done = taken.and_then(|taken| self.call(taken, &[Landmark::Event], own));
        let polled =
            done.and_then(|done| self.call(done, &[Landmark::Polls], |domain| !own(domain)));
        let last = polled.and_then(|polled| {
            self.first(polled.at, |mark| {
                mark.domain == polled.domain && mark.landmark == Landmark::Napi
            })
        });
        let refilled = polled.and_then(|polled| {
            self.call(polled, &[Landmark::Refills], |domain| domain == polled.domain)
        });
        (taken, done, last.map(|mark| mark.at), refilled.map(|mark| mark.at))
    }

    /// Where the transmission begins: at the program's call, if the frame is sent during it; otherwise where TCP makes the
    /// segment; otherwise at the driver.
    fn beginning(&self, n: usize) -> usize {
        let sent = self.marks[n];
        let mut beginning = sent.at;
        for mark in self.marks[..n].iter().rev().filter(|mark| mark.domain == sent.domain) {
            match mark.landmark {
                Landmark::Send if mark.entered => return mark.at,
                Landmark::Segment if mark.entered && beginning == sent.at => beginning = mark.at,
                Landmark::Received | Landmark::Program => break,
                same if same == sent.landmark && mark.entered => break,
                _ => {}
            }
        }
        beginning
    }
}
