//! What this side wants, and what both sides have agreed on.

use offload::Features;
use vhost_user::shared::bit;
use virtqueue::Layout;

/// What this side wants of a back-end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The most pairs of rings.
    pub queues: u16,
    /// Whether rings may be packed.
    pub packed: bool,
    /// Offloads that the back-end may be asked for. What it does not offer is done in software.
    pub sends: Features,
    /// Offloads with which frames may come from it.
    pub receives: Features,
}

impl Options {
    /// The most pairs of rings: a message has 8 bits for the number of a ring.
    pub const QUEUES_MAX: u16 = 64;

    /// The feature bits that this side accepts of those offered. A feature whose condition is missing is not accepted.
    pub(crate) fn accept(&self, offered: u64) -> Agreed {
        let csum = |features: Features| features.csum_v4 && features.csum_v6;
        let (sends, receives) = (self.sends, self.receives);
        let wanted = [
            (true, bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::MRG_RXBUF | bit::IN_ORDER),
            (self.queues > 1, bit::MQ),
            (self.packed && offered & bit::VERSION_1 != 0, bit::RING_PACKED),
            (csum(sends), bit::CSUM),
            (csum(receives), bit::GUEST_CSUM),
        ];
        let of_csum = [
            (sends.tso_v4, bit::HOST_TSO4),
            (sends.tso_v6, bit::HOST_TSO6),
            (sends.uso_v4 && sends.uso_v6, bit::HOST_USO),
        ];
        let of_guest_csum = [
            (receives.tso_v4, bit::GUEST_TSO4),
            (receives.tso_v6, bit::GUEST_TSO6),
            (receives.uso_v4 && receives.uso_v6, bit::GUEST_USO4 | bit::GUEST_USO6),
        ];
        let all = |choices: &[(bool, u64)]| {
            choices.iter().filter(|(is_wanted, _)| *is_wanted).fold(0, |all, (_, bits)| all | bits)
        };
        let mut accepted = offered & all(&wanted);
        if accepted & bit::CSUM != 0 {
            accepted |= offered & all(&of_csum);
        }
        if accepted & bit::GUEST_CSUM != 0 {
            accepted |= offered & all(&of_guest_csum);
        }
        Agreed { features: accepted, queues: 1 }
    }
}

/// What both sides have agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Feature bits.
    pub(crate) features: u64,
    /// Pairs of rings.
    pub queues: u16,
}

impl Agreed {
    pub(crate) fn has(self, bit: u64) -> bool {
        self.features & bit != 0
    }

    /// How the rings are laid out.
    #[must_use]
    pub fn layout(self) -> Layout {
        if self.has(bit::RING_PACKED) { Layout::Packed } else { Layout::Split }
    }

    /// Bytes of the header before each frame.
    pub(crate) fn header_len(self) -> usize {
        if self.has(bit::VERSION_1 | bit::MRG_RXBUF) { 12 } else { 10 }
    }

    /// What the back-end takes of this side.
    #[must_use]
    pub fn sends(self) -> Features {
        let csum = self.has(bit::CSUM);
        Features {
            sg: true,
            csum_v4: csum,
            csum_v6: csum,
            tso_v4: self.has(bit::HOST_TSO4),
            tso_v6: self.has(bit::HOST_TSO6),
            uso_v4: self.has(bit::HOST_USO),
            uso_v6: self.has(bit::HOST_USO),
            tagged: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Options =
        Options { queues: 2, packed: true, sends: Features::ALL, receives: Features::ALL };

    #[test]
    fn only_what_is_offered_and_wanted_is_accepted() {
        let offered = bit::VERSION_1 | bit::CSUM | bit::HOST_TSO4 | bit::GUEST_TSO4 | 1 << 5;
        let agreed = ALL.accept(offered);
        assert_eq!(agreed.features, bit::VERSION_1 | bit::CSUM | bit::HOST_TSO4, "no GUEST_CSUM");
        let sends = agreed.sends();
        assert!(sends.tso_v4 && !sends.tso_v6 && !sends.uso_v4);
        let none = Options { sends: Features::NONE, receives: Features::NONE, ..ALL };
        let accepted = Options { queues: 1, packed: false, ..none }.accept(u64::MAX).features;
        let always = bit::VERSION_1 | bit::PROTOCOL_FEATURES | bit::MRG_RXBUF | bit::IN_ORDER;
        assert_eq!(accepted, always);
        assert_eq!(ALL.accept(bit::RING_PACKED).layout(), Layout::Split, "a legacy device");
        assert_eq!(ALL.accept(u64::MAX).sends(), Features::ALL);
    }
}
