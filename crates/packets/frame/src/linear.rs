//! Frames in one piece of private memory.

use arrayvec::ArrayVec;
use hypervisor::CopyOut;

use crate::{Body, FRAME_MAX, Frame, Memory, Outcome, PIECES_MAX, Piece, Place};

/// Copies a frame to private memory, whole. `whole` has the frame's length. Returns how many of
/// the bytes this domain copied itself, rather than the hypervisor.
///
/// # Errors
/// [`Outcome::SourceFault`] where the sender's memory cannot be read.
pub fn linearise(frame: &Frame, body: Body<'_>, whole: &mut [u8]) -> Result<u64, Outcome> {
    let (header, rest) =
        whole.split_at_mut_checked(frame.header_len.into()).ok_or(Outcome::SourceFault)?;
    header.copy_from_slice(frame.header());
    let copied = copy_body(frame, body, rest)?;
    Ok(copied + u64::from(frame.header_len))
}

/// Copies a frame's body, all that follows the private header, to `rest`. Returns how many of the
/// bytes this domain copied itself.
fn copy_body(frame: &Frame, body: Body<'_>, mut rest: &mut [u8]) -> Result<u64, Outcome> {
    let mut copies = ArrayVec::<CopyOut<'_>, PIECES_MAX>::new();
    let mut copied = 0;
    for piece in &frame.pieces {
        let (to, after) =
            rest.split_at_mut_checked(piece.len.into()).ok_or(Outcome::SourceFault)?;
        rest = after;
        match (piece.place, body) {
            (Place::Grant(from), Body::Granted { .. }) => copies.push(CopyOut { from, to }),
            (Place::Region { index, offset }, body) => {
                let regions = body.regions().ok_or(Outcome::SourceFault)?;
                let offset = usize::try_from(offset).unwrap_or(usize::MAX);
                let region = regions.get(usize::from(index)).ok_or(Outcome::SourceFault)?;
                region.copy_out(offset, to).map_err(|_| Outcome::SourceFault)?;
                copied += u64::from(piece.len);
            }
            _ => return Err(Outcome::SourceFault),
        }
    }
    // Else the last bytes would be those of an earlier frame in the same buffer.
    if !rest.is_empty() {
        return Err(Outcome::SourceFault);
    }
    if let (Body::Granted { memory, mapped }, false) = (body, copies.is_empty())
        && !memory.copy_out(mapped, &mut copies)
    {
        return Err(Outcome::SourceFault);
    }
    Ok(copied)
}

/// A bounce buffer: a private copy of a frame whose memory the egress port's platform cannot
/// reach.
#[derive(Debug)]
pub struct Bounce {
    bytes: Box<[u8]>,
    frame: Frame,
}

impl Default for Bounce {
    fn default() -> Self {
        Self { bytes: vec![0; FRAME_MAX].into(), frame: Frame::empty() }
    }
}

impl Bounce {
    /// Copies a frame's body here. Returns the frame, and the memory that its pieces lie in.
    ///
    /// # Errors
    /// [`Outcome::SourceFault`] where the sender's memory cannot be read.
    pub fn copy<P>(
        &mut self,
        frame: &Frame,
        body: Body<'_>,
    ) -> Result<(&Frame, Memory<'_, P>), Outcome> {
        let len = (frame.len as usize).saturating_sub(frame.header_len.into());
        let bytes = self.bytes.get_mut(..len).ok_or(Outcome::SourceFault)?;
        copy_body(frame, body, bytes)?;
        self.frame.clone_from(frame);
        self.frame.pieces.clear();
        if let Ok(len) = u16::try_from(len)
            && len > 0
        {
            self.frame.pieces.push(Piece::in_region(0, 0, len));
        }
        Ok((&self.frame, Memory::Private(&self.bytes)))
    }
}
