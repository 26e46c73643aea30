//! When a side is notified.

/// Whether a publication from `old` to `new` needs a notification for a side that wants one at `event`: exactly
/// when the entry `event` is among those published (VIRTIO 1.2 §2.7.7.2).
#[inline]
#[must_use]
pub fn must_notify(old: u16, new: u16, event: u16) -> bool {
    new.wrapping_sub(event).wrapping_sub(1) < new.wrapping_sub(old)
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
