//! Lists of CPUs, as `taskset` and the kernel write them.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use rustix::thread::CpuSet;

/// CPUs, each once, in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuList(BTreeSet<usize>);

/// A text is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ListError {
    /// It names none.
    #[error("it names no CPU; write CPUs and ranges, such as \"0,2-5\"")]
    Empty,
    /// A part is none of the forms.
    #[error("{0:?} is no CPU and no range of CPUs; write \"3\", \"2-5\" or \"0-6:2\"")]
    Part(String),
    /// The number is beyond what a kernel can have.
    #[error("CPU {0} is beyond the {max} that a kernel can have", max = CpuSet::MAX_CPU)]
    TooLarge(usize),
}

impl CpuList {
    /// The CPUs.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = usize> + '_ {
        self.0.iter().copied()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a CPU is one of them.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// Those that are not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// A list that the kernel wrote; empty if it has none.
    pub(crate) fn of_kernel(text: &str) -> Self {
        text.trim().parse().unwrap_or_default()
    }
}

impl FromIterator<usize> for CpuList {
    fn from_iter<T: IntoIterator<Item = usize>>(cpus: T) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuList {
    type Err = ListError;

    fn from_str(text: &str) -> Result<Self, ListError> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let unknown = || ListError::Part(part.to_owned());
            let number = |text: &str| text.trim().parse::<usize>().map_err(|_| unknown());
            let (range, step) = match part.split_once(':') {
                Some((range, step)) => (range, number(step)?),
                None => (part, 1),
            };
            let (first, last) = match range.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None if part == range => (number(range)?, number(range)?),
                None => return Err(unknown()),
            };
            if step == 0 || first > last {
                return Err(unknown());
            }
            if last >= CpuSet::MAX_CPU {
                return Err(ListError::TooLarge(last));
            }
            cpus.extend((first..=last).step_by(step));
        }
        if cpus.is_empty() { Err(ListError::Empty) } else { Ok(Self(cpus)) }
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut ranges: Vec<(usize, usize)> = Vec::new();
        for cpu in self.iter() {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => ranges.push((cpu, cpu)),
            }
        }
        for (n, (first, last)) in ranges.into_iter().enumerate() {
            let comma = if n == 0 { "" } else { "," };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lists_have_cpus_ranges_and_steps() {
        for (text, cpus) in [
            ("3", &[3][..]),
            ("2-5", &[2, 3, 4, 5]),
            ("0,8-9\n", &[0, 8, 9]),
            ("8, 1-2 ,1", &[1, 2, 8]),
            ("0-6:2", &[0, 2, 4, 6]),
        ] {
            assert_eq!(text.parse(), Ok(cpus.iter().copied().collect::<CpuList>()), "{text:?}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no CPU"),
            (",", "no CPU"),
            ("all", "\"all\""),
            ("1-", "\"1-\""),
            ("5-2", "\"5-2\""),
            ("-1", "\"-1\""),
            ("3:2", "\"3:2\""),
            ("0-3:0", "\"0-3:0\""),
            ("99999", "99999"),
        ] {
            let error = text.parse::<CpuList>().unwrap_err().to_string();
            assert!(error.contains(reason), "{text:?}: {error}");
        }
    }

    proptest! {
        #[test]
        fn a_list_that_is_written_is_read_again(cpus in prop::collection::btree_set(0usize..40, 1..20)) {
            let list = CpuList(cpus);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }
    }
}
