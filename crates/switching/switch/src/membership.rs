//! Which VLANs a port is in, and how its frames say so.

use frame::Frame;

/// A VLAN identifier: 1 to 4094.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Debug, Hash)]
pub struct VlanId(u16);

impl VlanId {
    /// The VLAN of this number, if there is one.
    #[must_use]
    pub fn new(number: u16) -> Option<Self> {
        (1..=4094).contains(&number).then_some(Self(number))
    }

    /// Its number.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0
    }
}

/// A set of VLANs.
#[derive(Clone, Eq, PartialEq, Debug)]
pub struct VlanSet(Box<[u64; 64]>);

impl VlanSet {
    /// Whether a number is that of a VLAN of the set.
    #[inline]
    #[must_use]
    pub fn contains(&self, number: u16) -> bool {
        self.0.get(usize::from(number / 64)).is_some_and(|word| word >> (number % 64) & 1 != 0)
    }

    /// Its VLANs, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = VlanId> {
        (1..=4094).filter(|number| self.contains(*number)).map(VlanId)
    }
}

impl FromIterator<VlanId> for VlanSet {
    fn from_iter<I: IntoIterator<Item = VlanId>>(vlans: I) -> Self {
        let mut words = Box::new([0; 64]);
        for VlanId(number) in vlans {
            words[usize::from(number / 64)] |= 1 << (number % 64);
        }
        Self(words)
    }
}

/// How a port's frames say which VLAN they are in.
#[derive(Clone, Eq, PartialEq, Debug)]
pub enum Tagging {
    /// All of them are in this one, and have no tags.
    Access(VlanId),
    /// By a tag of 802.1Q. Those without a tag are in the native VLAN, if there is one.
    Trunk {
        /// The VLANs whose frames have tags.
        tagged: VlanSet,
        /// The VLAN whose frames have none.
        native: Option<VlanId>,
    },
}

/// What a port may reach.
#[derive(Clone, Eq, PartialEq, Debug, Default)]
pub struct Membership {
    /// None for a port that knows nothing of VLANs: it reaches only others of its kind, and tags are payload.
    pub tagging: Option<Tagging>,
    /// Whether it reaches only ports that are not isolated.
    pub isolated: bool,
}

/// What must happen to a frame's tag before it leaves by a port.
#[derive(Copy, Clone, Eq, PartialEq, Debug)]
pub enum TagChange {
    /// Nothing.
    Keep,
    /// It gets one, of its VLAN.
    Push,
    /// It loses its outermost one.
    Pop,
    /// It must not leave: without its tag, it would show another one, and be taken for a frame of that VLAN.
    Refuse,
}

/// The frames of ports without VLANs are in this domain; those of a VLAN are in the one of its number.
pub const NO_VLAN: u16 = 0;

impl Membership {
    /// The domain of a frame that came in on the port; none if the port may not send it.
    #[inline]
    #[must_use]
    pub fn domain_of(&self, frame: &Frame) -> Option<u16> {
        match &self.tagging {
            None => Some(NO_VLAN),
            Some(Tagging::Access(vlan)) => (!frame.is_tagged()).then_some(vlan.0),
            Some(Tagging::Trunk { native, .. }) if !frame.is_tagged() => native.map(VlanId::number),
            Some(Tagging::Trunk { tagged, .. }) => {
                frame.vlan().filter(|number| tagged.contains(*number))
            }
        }
    }

    /// What must happen to the tag of a frame of this domain before it leaves by the port.
    #[inline]
    #[must_use]
    pub fn change(&self, domain: u16, frame: &Frame) -> TagChange {
        let wants_tag = match &self.tagging {
            None => return TagChange::Keep,
            Some(Tagging::Access(_)) => false,
            Some(Tagging::Trunk { native, .. }) => native.map(VlanId::number) != Some(domain),
        };
        match (frame.is_tagged(), wants_tag) {
            (true, true) | (false, false) => TagChange::Keep,
            (false, true) => TagChange::Push,
            (true, false) if frame.is_tagged_twice() => TagChange::Refuse,
            (true, false) => TagChange::Pop,
        }
    }

    /// The domains that it is in.
    #[must_use]
    pub fn domains(&self) -> Vec<u16> {
        match &self.tagging {
            None => vec![NO_VLAN],
            Some(Tagging::Access(vlan)) => vec![vlan.0],
            Some(Tagging::Trunk { tagged, native }) => {
                let native = native.filter(|native| !tagged.contains(native.0));
                tagged.iter().chain(native).map(VlanId::number).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vlan(number: u16) -> VlanId {
        VlanId::new(number).unwrap()
    }

    fn trunk(tagged: &[u16], native: Option<u16>) -> Membership {
        let tagged = tagged.iter().copied().map(vlan).collect();
        let tagging = Tagging::Trunk { tagged, native: native.map(vlan) };
        Membership { tagging: Some(tagging), isolated: false }
    }

    fn access(number: u16) -> Membership {
        Membership { tagging: Some(Tagging::Access(vlan(number))), isolated: false }
    }

    /// A frame with these tags: kind and tag.
    fn frame(tags: &[(u16, u16)]) -> Frame {
        let mut bytes = vec![2; 12];
        for (kind, tag) in tags {
            bytes.extend(kind.to_be_bytes());
            bytes.extend(tag.to_be_bytes());
        }
        bytes.extend([0x88, 0xb5]);
        bytes.resize(60, 0);
        let mut frame = Frame::empty();
        frame.set_header(&bytes).unwrap();
        frame
    }

    #[test]
    fn there_are_4094_vlans() {
        assert_eq!(
            [0, 1, 4094, 4095].map(|n| VlanId::new(n).is_some()),
            [false, true, true, false]
        );
        let all: VlanSet = (1..=4094).map(vlan).collect();
        assert_eq!(all.iter().count(), 4094);
        assert!(!all.contains(0) && !all.contains(4095) && !all.contains(u16::MAX));
    }

    #[test]
    fn a_port_sends_in_its_own_vlans_only() {
        let untagged = frame(&[]);
        let [ten, thirty, priority] = [10, 30, 0].map(|number| frame(&[(0x8100, 0x6000 | number)]));
        let service = frame(&[(0x88a8, 10), (0x8100, 10)]);
        for (port, expected) in [
            (Membership::default(), [Some(0); 5]),
            (access(10), [Some(10), None, None, None, None]),
            (trunk(&[10, 20], None), [None, Some(10), None, None, None]),
            (trunk(&[10, 20], Some(5)), [Some(5), Some(10), None, None, None]),
        ] {
            let frames = [&untagged, &ten, &thirty, &priority, &service];
            assert_eq!(frames.map(|frame| port.domain_of(frame)), expected, "{port:?}");
        }
        assert_eq!(trunk(&[10, 20], Some(5)).domains(), [10, 20, 5]);
        assert_eq!(trunk(&[10, 20], Some(20)).domains(), [10, 20]);
    }

    #[test]
    fn a_frame_leaves_with_the_tag_that_the_port_expects() {
        use TagChange::{Keep, Pop, Push, Refuse};
        let untagged = frame(&[]);
        let tagged = frame(&[(0x8100, 10)]);
        let twice = frame(&[(0x8100, 10), (0x8100, 20)]);
        for (port, expected) in [
            (Membership::default(), [Keep, Keep, Keep]),
            (access(10), [Keep, Pop, Refuse]),
            (trunk(&[10], None), [Push, Keep, Keep]),
            (trunk(&[20], Some(10)), [Keep, Pop, Refuse]),
        ] {
            let changes = [&untagged, &tagged, &twice].map(|frame| port.change(10, frame));
            assert_eq!(changes, expected, "{port:?}");
        }
    }
}
