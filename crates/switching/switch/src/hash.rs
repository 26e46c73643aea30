//! The keyed hash that spreads addresses over buckets.

use std::hash::{BuildHasher, RandomState};

/// Four secret words, drawn once per table.
///
/// A guest chooses its source addresses. With a known hash it would choose eight that share a victim's
/// bucket and so keep the victim from being learnt; with secret keys it can only guess.
pub(crate) struct HashKey([u64; 4]);

impl HashKey {
    /// Fresh keys from the system's randomness (through the standard library's hash map seed).
    pub(crate) fn random() -> Self {
        let seed = RandomState::new();
        Self(std::array::from_fn(|i| seed.hash_one(i)))
    }

    /// Two keyed multiply-and-fold rounds: the second hides the first round's linearity, which a guest
    /// could otherwise exploit with regularly spaced addresses.
    pub(crate) fn hash(&self, word: u64) -> u64 {
        let [k0, k1, k2, k3] = self.0;
        let once = fold(word ^ k0, k1 | 1);
        fold(once ^ k2, k3 | 1)
    }
}

/// The two halves of the 128-bit product, added without carry.
#[expect(clippy::cast_possible_truncation, reason = "both halves of the product are taken")]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_between_tables() {
        assert_ne!(HashKey::random().0, HashKey::random().0);
    }

    /// Consecutive addresses (what a guest would send) reach every bucket about evenly.
    #[test]
    fn consecutive_addresses_spread() {
        const BUCKETS: u64 = 64;
        const PER_BUCKET: u64 = 256;
        let key = HashKey::random();
        let mut load = [0u64; 64];
        for word in 0..BUCKETS * PER_BUCKET {
            let bucket =
                usize::try_from(key.hash(0x5254_0000_0000 + word) % BUCKETS).expect("small");
            load[bucket] += 1;
        }
        // Standard deviation is 16: a bucket outside 128..=384 is eight of them away.
        for (bucket, &count) in load.iter().enumerate() {
            assert!((128..=384).contains(&count), "bucket {bucket} holds {count}");
        }
    }
}
