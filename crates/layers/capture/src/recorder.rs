//! One side of a queue copies its packets for the captures that run.

use std::sync::Arc;

use offload::{Checksum, Features};
use port::{ALL_SEGMENTS, Body, DropReason, Finisher, Frame};

use crate::filter::{Direction, Packet};
use crate::pcapng::flag;
use crate::sink::Batch;
use crate::sinks::{PortSink, Sinks};

/// Most bytes copied per batch, for all captures of a port together: the worker has other queues.
pub(crate) const COPY_BYTES: usize = 2 << 20;

/// Records the packets of one side of a queue.
pub(crate) struct Recorder {
    sinks: Arc<Sinks>,
    /// Which of each sink's buffers is this side's.
    buffer: usize,
    copier: Copier,
}

impl Recorder {
    pub(crate) fn new(sinks: Arc<Sinks>) -> Self {
        let buffer = sinks.next_buffer();
        // The port's meter does not count the work of captures.
        let finisher = Finisher::new(Features::NONE, |_, _| {});
        Self { sinks, buffer, copier: Copier { finisher, shortened: Frame::empty() } }
    }

    #[inline]
    pub(crate) fn is_active(&self) -> bool {
        self.sinks.is_active()
    }

    /// Records a batch for every capture whose filter takes something of it.
    pub(crate) fn record<'a>(
        &mut self,
        body: Body<'_>,
        packets: &(impl Iterator<Item = Packet<'a>> + Clone),
    ) {
        let Some(sinks) = self.sinks.get() else { return };
        let mut left = COPY_BYTES;
        for PortSink { sink, interface } in sinks.iter() {
            let mut taken = packets.clone().filter(|packet| sink.takes(packet)).peekable();
            if taken.peek().is_none() {
                continue;
            }
            let Some(mut batch) = sink.batch(self.buffer, *interface) else {
                sink.lose(*interface, taken.count() as u64);
                continue;
            };
            for packet in taken {
                let wanted = sink.snaplen.min(packet.frame.len as usize);
                let Some(rest) = left.checked_sub(wanted).filter(|_| batch.has_space(wanted))
                else {
                    sink.lose(*interface, 1);
                    continue;
                };
                left = rest;
                if !(sink.segmented && self.copier.segments(&packet, body, &mut batch)) {
                    self.copier.packet(&packet, body, wanted, &mut batch);
                }
            }
        }
    }
}

/// Copies packets out of the memory that they lie in.
struct Copier {
    finisher: Finisher,
    /// A frame without the bytes that are not recorded.
    shortened: Frame,
}

impl Copier {
    /// Records a packet as it is.
    fn packet(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        wanted: usize,
        batch: &mut Batch<'_>,
    ) {
        let frame = packet.frame;
        let bytes = self.first_bytes(frame, body, wanted);
        let flags = direction_flags(packet.direction) | offload_flags(frame);
        batch.push(bytes, frame.len, flags, packet.drop_reason().map(DropReason::name));
    }

    /// Records the segments of a packet. Returns whether it can be segmented.
    fn segments(&mut self, packet: &Packet<'_>, body: Body<'_>, batch: &mut Batch<'_>) -> bool {
        let flags = direction_flags(packet.direction);
        let drop_reason = packet.drop_reason().map(DropReason::name);
        let push = |segment: &[u8]| {
            let len = u32::try_from(segment.len()).unwrap_or(u32::MAX);
            batch.push(segment, len, flags, drop_reason);
            Ok(())
        };
        self.finisher.contiguous_segments(packet.frame, body, ALL_SEGMENTS, push).is_ok()
    }

    /// The first `wanted` bytes of a frame; the private header alone if the body cannot be read.
    /// Later bytes of the body are not read.
    fn first_bytes<'a>(&'a mut self, frame: &'a Frame, body: Body<'_>, wanted: usize) -> &'a [u8] {
        let header = frame.header();
        if wanted <= header.len() {
            return &header[..wanted];
        }
        let read = if wanted < frame.len as usize {
            self.shorten(frame, wanted);
            self.finisher.whole(&self.shortened, body)
        } else {
            self.finisher.whole(frame, body)
        };
        read.map_or(header, |bytes| bytes)
    }

    /// Makes `shortened` the first `len` bytes of a frame, which are more than its header.
    fn shorten(&mut self, frame: &Frame, len: usize) {
        self.shortened.clone_from(frame);
        self.shortened.truncate(len);
    }
}

fn direction_flags(direction: Direction) -> u32 {
    match direction {
        Direction::Inbound => flag::INBOUND,
        Direction::Outbound => flag::OUTBOUND,
    }
}

fn offload_flags(frame: &Frame) -> u32 {
    let checksum = match frame.checksum {
        Checksum::Partial | Checksum::Elsewhere => flag::CHECKSUM_NOT_READY,
        Checksum::Validated => flag::CHECKSUM_VALID,
        Checksum::Unknown => 0,
    };
    let tcp = frame.gso.filter(|gso| gso.kind.is_tcp());
    checksum | tcp.map_or(0, |_| flag::TCP_SEGMENTATION_OFFLOADED)
}
