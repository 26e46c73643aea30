//! Where the bytes of a chain lie.

/// A run of bytes of a chain that lies in one region.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    /// Which region of the [memory](crate::GuestMemory::regions).
    pub region: u16,
    /// First byte in it.
    pub offset: u64,
    /// Bytes, at least one.
    pub len: u32,
}
