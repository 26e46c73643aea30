//! How many bytes an access has.

/// The sizes of accesses by QEMU's descriptors, which it decodes once each.
#[derive(Debug)]
pub struct AccessSizes([(u32, u8); 64]);

impl Default for AccessSizes {
    fn default() -> Self {
        Self([(0, 0); 64])
    }
}

impl AccessSizes {
    /// The bytes of an access with this descriptor; `log2` has QEMU decode one.
    #[inline]
    pub fn of(&mut self, info: u32, log2: impl Fn(u32) -> u32) -> u8 {
        let place = &mut self.0[(info ^ info >> 6) as usize % 64];
        if place.0 != info || place.1 == 0 {
            *place = (info, 1 << log2(info).min(7));
        }
        place.1
    }
}
