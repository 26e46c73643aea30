//! The sizes of caches and TLBs that are modelled, and in how many layouts.

/// The number of layouts.
pub const LAYOUTS: usize = 32;

/// Bytes of a cache line.
pub const LINE: usize = 64;

/// The sizes of the unified L2, in bytes.
pub const L2_BYTES: [usize; 7] =
    [256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20];
/// The number of L2 sizes.
pub const L2_SIZES: usize = L2_BYTES.len();

/// The sizes of a TLB for pages of 4 KiB, in entries. The TLB for large pages has half as many.
pub const TLB_ENTRIES: [u16; 7] = [16, 32, 64, 128, 256, 512, 1024];
/// The number of TLB sizes.
pub const TLB_SIZES: usize = TLB_ENTRIES.len();
