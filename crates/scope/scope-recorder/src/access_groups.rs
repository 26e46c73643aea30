//! Accesses of a block at fixed distances from each other.

/// The data accesses of a block's instructions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Accesses {
    /// Groups, in the order of their first accesses.
    pub groups: Vec<Group>,
    /// The numbers of the instructions that may access other data too.
    pub others: Vec<usize>,
    /// Where the last call writes its return address, or the last return reads it: the number of a group, and the bytes from the
    /// address of its first access.
    pub return_slot: Option<(usize, i32)>,
}

/// Accesses that are always made, at fixed distances from each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// The number of the instruction that makes the first access.
    pub instruction: usize,
    /// All accesses in their order, the first included.
    pub members: Vec<Member>,
}

/// An access of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Member {
    /// Bytes from the address of the group's first access.
    pub offset: i32,
    /// Bytes that are accessed.
    pub bytes: u8,
    /// Whether it is a write, else a read.
    pub write: bool,
}

/// The bytes between the lowest and the highest that a group accesses: so few that they lie in neighbouring pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    first: i32,
    last: i32,
}

impl Extent {
    /// From the lowest byte of these accesses to the highest.
    #[must_use]
    pub fn of(members: &[Member]) -> Self {
        let firsts = members.iter().map(|member| member.offset);
        let lasts = members.iter().map(|member| member.offset + i32::from(member.bytes) - 1);
        Self { first: firsts.min().unwrap_or(0), last: lasts.max().unwrap_or(0) }
    }

    /// The number of bytes.
    #[must_use]
    pub fn bytes(self) -> i32 {
        self.last - self.first + 1
    }

    /// The lowest byte, relative to the group's first access.
    #[must_use]
    pub fn first(self) -> i32 {
        self.first
    }

    /// The addresses of the lowest and the highest byte, if the group's first access is at `address`.
    #[inline]
    #[must_use]
    pub fn bytes_at(self, address: u64) -> (u64, u64) {
        let at = |offset: i32| address.wrapping_add(i64::from(offset).cast_unsigned());
        (at(self.first), at(self.last))
    }
}

impl Member {
    /// The address of its first byte, if the group's first access is at `address`.
    #[inline]
    #[must_use]
    pub fn first(&self, address: u64) -> u64 {
        address.wrapping_add(i64::from(self.offset).cast_unsigned())
    }

    /// The number of bytes, less one.
    #[inline]
    #[must_use]
    pub fn length(&self) -> u64 {
        u64::from(self.bytes).saturating_sub(1)
    }
}

impl Group {
    /// Whether the first access is a write.
    #[must_use]
    pub fn begins_with_write(&self) -> bool {
        self.members.first().is_some_and(|first| first.write)
    }
}

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
