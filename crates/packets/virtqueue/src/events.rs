//! When a side is notified.

/// Whether a publication from `old` to `new` needs a notification for a side that wants one at `event`: exactly
/// when the entry `event` is among those published (VIRTIO 1.2 §2.7.7.2).
#[inline]
#[must_use]
pub fn must_notify(old: u16, new: u16, event: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
}

/// The words of a split ring that both sides use to decide who is notified. Loom's model implements it too.
pub trait EventWords {
    /// Reads the available index. Entries read after it are at least as new (acquire).
    fn available(&self) -> u16;
    /// Writes the used index. Entries written before it are visible with it (release).
    fn set_used(&self, index: u16);
    /// Reads at which used index the driver wants a notification.
    fn used_event(&self) -> u16;
    /// Writes at which available index the device wants one.
    fn set_available_event(&self, index: u16);
    /// A full barrier: it also orders earlier stores before later loads.
    fn full_barrier(&self);
}

/// Whether the driver must be notified of the used entries from `old` to `new`, which it was shown.
///
/// The driver writes its event index and then reads the used index; this side does the reverse. Without the
/// barrier both could miss the other's write.
#[inline]
#[must_use]
pub fn wants_split(words: &impl EventWords, old: u16, new: u16) -> bool {
    words.full_barrier();
    must_notify(old, new, words.used_event())
}

/// Asks for a notification at the next entry after `taken`, and looks again. Returns the available index: if it
/// is not `taken`, the caller must not sleep.
#[inline]
pub fn arm_split(words: &impl EventWords, taken: u16) -> u16 {
    words.set_available_event(taken);
    words.full_barrier();
    words.available()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn notify_iff_the_event_entry_was_published(old in any::<u16>(), n in 0u16..300, d in -400i32..400) {
            let new = old.wrapping_add(n);
            let event = u16::try_from((i32::from(old) + d).rem_euclid(1 << 16)).unwrap();
            prop_assert_eq!(must_notify(old, new, event), d >= 0 && d < i32::from(n));
        }
    }
}
