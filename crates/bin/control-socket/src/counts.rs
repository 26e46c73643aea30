//! Counts of one thing by another: operations of the hypervisor by kind, dropped frames by reason.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{AddAssign, Sub};

use frame::DropReason;
use hypervisor::Counted;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// What something is counted by.
pub trait Key: Copy + PartialEq + fmt::Debug + 'static {
    /// Every key, in the order in which counts are shown.
    const ALL: &'static [Self];

    /// Its name in JSON and in metrics.
    fn name(self) -> &'static str;
}

impl Key for Counted {
    const ALL: &'static [Self] = &Counted::ALL;

    fn name(self) -> &'static str {
        Counted::name(self)
    }
}

impl Key for DropReason {
    const ALL: &'static [Self] = &DropReason::ALL;

    fn name(self) -> &'static str {
        DropReason::name(self)
    }
}

/// One count for each of `N` keys; `N` is the length of [`Key::ALL`]. In JSON it is an object with
/// the keys' names. A name that is missing there counts as zero, and one that is unknown is ignored:
/// the daemon may be of another version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Counts<K, const N: usize>([u64; N], PhantomData<K>);

/// What the meter counts.
pub type Operations = Counts<Counted, { Counted::ALL.len() }>;

/// Dropped frames by reason.
pub type Drops = Counts<DropReason, { DropReason::ALL.len() }>;

impl<K: Key, const N: usize> Counts<K, N> {
    /// The counts that `count` returns.
    pub fn new(count: impl Fn(K) -> u64) -> Self {
        Self(std::array::from_fn(|index| count(K::ALL[index])), PhantomData)
    }

    /// The count of a key.
    #[must_use]
    pub fn of(&self, key: K) -> u64 {
        self.iter().filter(|(other, _)| *other == key).map(|(_, count)| count).sum()
    }

    /// The sum of all counts.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Every key and its count.
    pub fn iter(&self) -> impl Iterator<Item = (K, u64)> {
        K::ALL.iter().copied().zip(self.0)
    }

    /// The keys with a count above zero.
    pub fn nonzero(&self) -> impl Iterator<Item = (K, u64)> {
        self.iter().filter(|(_, count)| *count > 0)
    }
}

impl<K: Key, const N: usize> Default for Counts<K, N> {
    fn default() -> Self {
        Self([0; N], PhantomData)
    }
}

impl<K: Key, const N: usize> AddAssign for Counts<K, N> {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(count, more)| *count += more);
    }
}

/// What was counted since an earlier reading.
impl<K: Key, const N: usize> Sub for Counts<K, N> {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self::new(|key| self.of(key).saturating_sub(earlier.of(key)))
    }
}

impl<K: Key, const N: usize> FromIterator<(K, u64)> for Counts<K, N> {
    fn from_iter<I: IntoIterator<Item = (K, u64)>>(counts: I) -> Self {
        let counts: Vec<_> = counts.into_iter().collect();
        Self::new(|key| counts.iter().filter(|(other, _)| *other == key).map(|(_, n)| n).sum())
    }
}

impl<K: Key, const N: usize> fmt::Debug for Counts<K, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.nonzero()).finish()
    }
}

impl<K: Key, const N: usize> Serialize for Counts<K, N> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter().map(|(key, count)| (key.name(), count)))
    }
}

/// Leaves out the counts that are zero.
pub(crate) fn serialize_nonzero<K: Key, const N: usize, S: Serializer>(
    counts: &Counts<K, N>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(counts.nonzero().map(|(key, count)| (key.name(), count)))
}

impl<'de, K: Key, const N: usize> Deserialize<'de> for Counts<K, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let counts = BTreeMap::<String, u64>::deserialize(deserializer)?;
        Ok(Self::new(|key| counts.get(key.name()).copied().unwrap_or(0)))
    }
}

/// An object in which any of the keys may be missing, and no other is known.
impl<K: Key, const N: usize> JsonSchema for Counts<K, N> {
    fn schema_name() -> Cow<'static, str> {
        "Counts".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let count = generator.subschema_for::<u64>();
        let properties: BTreeMap<_, _> = K::ALL.iter().map(|key| (key.name(), &count)).collect();
        json_schema!({ "type": "object", "properties": properties })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_survive_json_and_tolerate_other_versions() {
        let drops: Drops =
            [(DropReason::Stalled, 3), (DropReason::NoRoom, 4)].into_iter().collect();
        let json = serde_json::to_string(&drops).unwrap();
        assert_eq!(json.matches(':').count(), DropReason::ALL.len(), "{json}");
        assert_eq!(serde_json::from_str::<Drops>(&json).unwrap(), drops);
        let other: Drops = serde_json::from_str(r#"{"stalled":3,"flux":9}"#).unwrap();
        assert_eq!(other.nonzero().collect::<Vec<_>>(), [(DropReason::Stalled, 3)]);
        assert_eq!((drops.total(), other.total()), (7, 3));
    }

    #[test]
    fn operations_are_kept_apart_and_subtracted() {
        let copies = |n| Operations::new(move |what| if what == Counted::Copies { n } else { 1 });
        let difference = copies(9) - copies(4);
        assert_eq!(difference.of(Counted::Copies), 5);
        assert_eq!(difference.of(Counted::Maps), 0);
        for what in Counted::ALL {
            let one = Operations::new(|other| u64::from(other == what));
            assert_eq!((one.total(), one.of(what)), (1, 1));
        }
    }
}
