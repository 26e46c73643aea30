//! Big-endian fields at fixed offsets of a byte slice.
//!
//! The views check a buffer's length once, in `new_checked`, so that these functions cannot fail.

use core::net::{Ipv4Addr, Ipv6Addr};

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

/// A value that a view reads and writes as it lies on the wire.
pub(crate) trait Field: Sized {
    fn read(bytes: &[u8], at: usize) -> Self;
    fn write(self, bytes: &mut [u8], at: usize);
}

/// Says how types lie on the wire: from bytes, and to bytes.
macro_rules! field_types {
    ($($type:ty: $from:expr, $to:expr;)*) => {$(
        impl $crate::bytes::Field for $type {
            #[inline]
            fn read(bytes: &[u8], at: usize) -> Self {
                $from($crate::bytes::read(bytes, at))
            }

            #[inline]
            fn write(self, bytes: &mut [u8], at: usize) {
                $crate::bytes::write(bytes, at, $to(self));
            }
        }
    )*};
}

field_types! {
    u8: u8::from_be_bytes, u8::to_be_bytes;
    u16: u16::from_be_bytes, u16::to_be_bytes;
    u32: u32::from_be_bytes, u32::to_be_bytes;
    Ipv4Addr: Ipv4Addr::from_octets, |address: Ipv4Addr| address.octets();
    Ipv6Addr: Ipv6Addr::from_octets, |address: Ipv6Addr| address.octets();
}

/// Declares a view, under the name that follows its documentation, and its fields: where each lies, and the functions that
/// read and set it.
macro_rules! view {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$meta:meta])* $get:ident $(, $set:ident)?: $type:ty = $at:expr,)*
    }) => {
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

            $(
                $(#[$meta])*
                #[inline]
                pub fn $get(&self) -> $type {
                    $crate::bytes::Field::read(self.buffer.as_ref(), $at)
                }
            )*
        }

        impl<T: AsRef<[u8]> + AsMut<[u8]>> $name<T> {
            $($(
                #[doc = concat!("Sets what [`", stringify!($get), "`](Self::", stringify!($get), ") reads.")]
                #[inline]
                pub fn $set(&mut self, value: $type) {
                    $crate::bytes::Field::write(value, self.buffer.as_mut(), $at);
                }
            )?)*
        }
    };
}

pub(crate) use field_types;
pub(crate) use view;
