//! Big-endian fields at fixed offsets of a byte slice.
//!
//! The views check a buffer's length once, in `new_checked`, so that these functions cannot fail.

#[inline]
pub(crate) fn array<const N: usize>(bytes: &[u8], at: usize) -> Option<&[u8; N]> {
    bytes.get(at..)?.first_chunk()
}

#[inline]
pub(crate) fn read<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]);
    field
}

#[inline]
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes(read(bytes, at))
}

#[inline]
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(read(bytes, at))
}

#[inline]
pub(crate) fn write<const N: usize>(bytes: &mut [u8], at: usize, field: [u8; N]) {
    bytes[at..at + N].copy_from_slice(&field);
}

#[inline]
pub(crate) fn set_be16(bytes: &mut [u8], at: usize, value: u16) {
    write(bytes, at, value.to_be_bytes());
}

#[inline]
pub(crate) fn set_be32(bytes: &mut [u8], at: usize, value: u32) {
    write(bytes, at, value.to_be_bytes());
}

/// Declares a view, under the name that follows its documentation.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name<T> {
            buffer: T,
        }

        impl<T: AsRef<[u8]>> $name<T> {
            /// A view of `buffer`, which may be too short: the accessors then panic.
            #[inline]
            pub const fn new_unchecked(buffer: T) -> Self {
                Self { buffer }
            }

            /// The bytes viewed.
            #[inline]
            pub fn into_inner(self) -> T {
                self.buffer
            }
        }
    };
}

pub(crate) use view;
