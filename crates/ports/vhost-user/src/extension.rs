//! Messages that crate `vhost` does not know, or does not take when QEMU sends them.

use wire::ethernet::MacAddr;

use crate::channel::Message;
use crate::session::Session;

/// Numbers of messages.
mod request {
    pub(super) const SET_VRING_ENABLE: u32 = 18;
    pub(super) const SEND_RARP: u32 = 19;
    pub(super) const NET_SET_MTU: u32 = 20;
    pub(super) const SET_BACKEND_REQ_FD: u32 = 21;
    pub(super) const SET_STATUS: u32 = 39;
    pub(super) const GET_STATUS: u32 = 40;
}

/// Bits of a message's flags.
mod flag {
    pub(super) const VERSION: u32 = 1;
    pub(super) const REPLY: u32 = 1 << 2;
    pub(super) const NEED_REPLY: u32 = 1 << 3;
}

/// `VHOST_USER_PROTOCOL_F_REPLY_ACK`
const REPLY_ACK: u64 = 1 << 3;
/// The smallest MTU that IPv4 allows (RFC 791).
const MTU_MIN: u64 = 68;

/// A reply with a number.
fn number(request: u32, value: u64) -> Message {
    let header = [request, flag::VERSION | flag::REPLY, 8].map(u32::to_le_bytes).concat();
    let bytes = [&header[..], &value.to_le_bytes()].concat();
    Message { bytes, ..Message::default() }
}

/// Answers a message, or leaves it to crate `vhost`. An error ends the session.
pub(crate) fn answer(
    session: &mut Session,
    message: &mut Message,
) -> Option<Result<Option<Message>, String>> {
    let request = message.request();
    let (name, expected, descriptors) = match request {
        // QEMU switches the rings of a network device on when it plugs it, long before a guest's driver accepts features,
        // and `vhost` ends the session then.
        request::SET_VRING_ENABLE if session.negotiated.is_none() => ("SET_VRING_ENABLE", 8, 0),
        request::SEND_RARP => ("SEND_RARP", 8, 0),
        request::NET_SET_MTU => ("NET_SET_MTU", 8, 0),
        request::SET_BACKEND_REQ_FD => ("SET_BACKEND_REQ_FD", 0, 1),
        request::SET_STATUS => ("SET_STATUS", 8, 0),
        request::GET_STATUS => ("GET_STATUS", 0, 0),
        _ => return None,
    };
    let payload = message.payload();
    let is_request = message.flags() & (flag::VERSION | flag::REPLY) == flag::VERSION;
    if !is_request || payload.len() != expected || message.descriptors.len() != descriptors {
        let (len, descriptors) = (payload.len(), message.descriptors.len());
        return Some(Err(format!("a {name} of {len} bytes with {descriptors} descriptors")));
    }
    let value = payload.try_into().map_or(0, u64::from_le_bytes);
    let done = match request {
        request::GET_STATUS => {
            return Some(Ok(Some(number(request, session.device_status.into()))));
        }
        request::SET_VRING_ENABLE => session.enable_early(value),
        request::SEND_RARP => {
            let [mac @ .., _, _] = value.to_le_bytes();
            session.announce(MacAddr(mac))
        }
        request::NET_SET_MTU => session.set_mtu(value),
        request::SET_STATUS => session.set_status(value),
        _ => {
            session.link.report_to(message.descriptors.pop());
            Ok(())
        }
    };
    let wants_reply = message.flags() & flag::NEED_REPLY != 0 && session.protocol & REPLY_ACK != 0;
    Some(done.map(|()| wants_reply.then(|| number(request, 0))))
}

impl Session {
    /// Switches a ring on or off before features are accepted: its number, and 0 or 1 in the upper half.
    fn enable_early(&mut self, state: u64) -> Result<(), String> {
        let (index, count) = (state & u64::from(u32::MAX), self.rings.len() as u64);
        let ring = self.rings.iter_mut().zip(0..).find(|(_, number)| *number == index);
        let (ring, _) = ring.ok_or_else(|| format!("ring {index} of {count}"))?;
        match state >> 32 {
            state @ 0..=1 => ring.is_enabled = state == 1,
            state => return Err(format!("state {state} of ring {index}")),
        }
        Ok(())
    }

    /// Announces the guest's address as if the guest had.
    fn announce(&mut self, mac: MacAddr) -> Result<(), String> {
        if mac.is_multicast() || mac.is_zero() {
            return Err(format!("{mac} is no address of a guest"));
        }
        self.announcement.set(mac);
        // The ring that the guest sends by first.
        if let Some(ring) = self.rings.get(1) {
            ring.kick.ring();
        }
        Ok(())
    }

    fn set_mtu(&mut self, mtu: u64) -> Result<(), String> {
        let valid = u16::try_from(mtu).ok().filter(|_| mtu >= MTU_MIN);
        self.mtu = valid.ok_or_else(|| format!("an MTU of {mtu} bytes"))?;
        Ok(())
    }

    /// The guest's driver writes the device's status; 0 resets the device.
    fn set_status(&mut self, status: u64) -> Result<(), String> {
        self.device_status = u8::try_from(status).map_err(|_| format!("status {status:#x}"))?;
        if status == 0 {
            self.stop("the guest's driver reset the device");
            (0..self.rings.len()).for_each(|ring| self.forget_inflight(ring));
            self.rings.iter_mut().for_each(|ring| ring.is_started = false);
        }
        Ok(())
    }
}
