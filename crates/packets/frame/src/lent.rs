//! Frames whose bodies were put into their receiver's buffers before the switch saw them.

use arrayvec::ArrayVec;

/// Most buffers that one frame takes: the pages of 64 KiB, and one for the GSO extra.
pub const LENT_MAX: usize = 17;

/// The buffers of an egress queue in which a frame's body lies already.
///
/// An ingress queue borrowed them. If the frame is for the queue that lent them, its body is not
/// copied. For any other, the body is where the frame's pieces say, as that of any frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lent {
    /// Which egress queue lent them. No two of a process have the same number.
    pub lender: u64,
    /// Their tokens, in order. Each but the last is full. If the frame is
    /// unsegmented, there is one more, without bytes.
    pub tokens: ArrayVec<u32, LENT_MAX>,
    /// Whether the first `header_len` bytes lie there too. Otherwise they are missing, and the lender
    /// writes them.
    pub has_header: bool,
    /// Where the frame begins in the first buffer. Other than 0 only if there is one buffer.
    pub offset: u16,
}

impl Lent {
    /// A frame that lies in no lent buffer.
    pub const NONE: Self =
        Self { lender: 0, tokens: ArrayVec::new_const(), has_header: false, offset: 0 };

    /// Whether the frame lies in lent buffers.
    #[inline]
    #[must_use]
    pub fn is_any(&self) -> bool {
        !self.tokens.is_empty()
    }
}
