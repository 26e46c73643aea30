//! Debian releases.

use std::fmt;
use std::str::FromStr;

use crate::UnknownName;

named::named! {
    /// A release of Debian whose packages are known to work.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Suite {
        /// Debian 12: Xen 4.17, Linux 6.1.
        Bookworm => "bookworm",
        /// Debian 13: Xen 4.20, Linux 6.12.
        Trixie => "trixie",
    }
}

impl Suite {
    /// The release of this machine, so that programs built here find their C library in the domains too. On a machine
    /// with another system, the oldest release.
    #[must_use]
    pub fn of_this_machine() -> Self {
        Self::from_os_release(&std::fs::read_to_string("/etc/os-release").unwrap_or_default())
    }

    fn from_os_release(text: &str) -> Self {
        let codename = text.lines().find_map(|line| line.strip_prefix("VERSION_CODENAME="));
        let codename = codename.map(|name| name.trim_matches(['"', '\'']));
        codename.and_then(|name| name.parse().ok()).unwrap_or(Self::Bookworm)
    }

    /// Its version of Xen, as in package names.
    #[must_use]
    pub fn xen(self) -> &'static str {
        match self {
            Self::Bookworm => "4.17",
            Self::Trixie => "4.20",
        }
    }
}

impl fmt::Display for Suite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Suite {
    type Err = UnknownName;

    fn from_str(name: &str) -> Result<Self, UnknownName> {
        let known = Self::ALL.into_iter().find(|suite| suite.name() == name);
        known.ok_or_else(|| UnknownName::new("suite", name, &Self::ALL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suite_of_the_machine_is_used_if_it_is_known() {
        for (release, suite) in [
            ("NAME=\"Debian GNU/Linux\"\nVERSION_CODENAME=bookworm\nID=debian\n", Suite::Bookworm),
            ("VERSION_CODENAME=trixie\n", Suite::Trixie),
            ("VERSION_CODENAME=\"trixie\"\n", Suite::Trixie),
            ("VERSION_CODENAME=forky\n", Suite::Bookworm),
            ("ID=fedora\n", Suite::Bookworm),
            ("", Suite::Bookworm),
        ] {
            assert_eq!(Suite::from_os_release(release), suite, "{release}");
        }
    }

    #[test]
    fn a_name_is_read_back_and_an_unknown_one_lists_the_known_ones() {
        for suite in Suite::ALL {
            assert_eq!(suite.name().parse::<Suite>().expect("known"), suite);
        }
        let message = "sid".parse::<Suite>().expect_err("unknown").to_string();
        assert_eq!(message, "no suite sid: choose one of bookworm, trixie");
    }
}
