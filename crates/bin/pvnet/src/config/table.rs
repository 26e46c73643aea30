//! What a table of the file has: keys, each with its documentation, its default, and what it takes to change it while the daemon runs.

use serde::Deserialize;

/// What it takes to change a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// The port goes on meanwhile.
    InPlace,
    /// It is agreed with the front-end when it connects.
    Connection,
    /// The device is opened again.
    Device,
    /// The daemon must start again, for this reason.
    Restart(&'static str),
}

impl Effort {
    /// Why the daemon must start again, if it must.
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Restart(reason) => Some(reason),
            _ => None,
        }
    }
}

/// Why keys of the daemon wait for its next start.
pub(super) const AT_START: Effort = Effort::Restart("it is read when the daemon starts");
/// The same of cards.
pub(super) const CARDS: Effort =
    Effort::Restart("cards and their contexts are set up when the daemon starts");

/// Keys, with what it takes to change each.
pub(super) type Changes = Vec<(&'static str, Effort)>;

/// A table, as [`table!`] makes it.
pub trait Table: Clone {
    /// What is known of a key: what it takes to change it, or that by kind of port.
    type Key: Copy + 'static;
    /// Its keys.
    const KEYS: &'static [(&'static str, Self::Key)];

    /// Its name, which is its first key; empty for a table without one.
    fn name(&self) -> &str;

    /// For each key, in their order, whether it has another value in `new`.
    fn differs(&self, new: &Self) -> Vec<bool>;

    /// The same, with those keys of `other` that `takes` names.
    #[must_use]
    fn with_keys_of(self, other: &Self, takes: &dyn Fn(&str) -> bool) -> Self;

    /// What is known of a key, if it is one.
    fn key(name: &str) -> Option<Self::Key> {
        Self::KEYS.iter().find(|(own, _)| *own == name).map(|(_, known)| *known)
    }

    /// The keys with other values than in `new`.
    fn differing(&self, new: &Self) -> Vec<(&'static str, Self::Key)> {
        let keys = Self::KEYS.iter().zip(self.differs(new));
        keys.filter_map(|(key, differs)| differs.then_some(*key)).collect()
    }
}

/// A table with those keys of another one that change in place.
pub(super) fn in_place<T: Table<Key = Effort>>(old: &T, new: &T) -> T {
    old.clone().with_keys_of(new, &|key| T::key(key) == Some(Effort::InPlace))
}

/// Defines a table: `NAME [what is known of a key = what that usually is] { KEY: TYPE = DEFAULT, what is known of this one; … }`.
macro_rules! table {
    (
        $(#[$meta:meta])*
        $name:ident [$known:ty = $usual:expr] {
            $($(#[$key_meta:meta])* $key:ident: $type:ty = $default:expr $(, $own:expr)?;)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields, default)]
        pub struct $name {
            $($(#[$key_meta])* pub $key: $type,)*
        }

        impl Default for $name {
            fn default() -> Self {
                Self { $($key: $default,)* }
            }
        }

        impl $crate::config::table::Table for $name {
            type Key = $known;
            const KEYS: &'static [(&'static str, $known)] =
                &[$((stringify!($key), table!(@either $usual $(, $own)?)),)*];

            fn name(&self) -> &str {
                table!(@name self, $($key)*)
            }

            fn differs(&self, new: &Self) -> Vec<bool> {
                vec![$(self.$key != new.$key,)*]
            }

            fn with_keys_of(self, other: &Self, takes: &dyn Fn(&str) -> bool) -> Self {
                let other = other.clone();
                Self { $($key: if takes(stringify!($key)) { other.$key } else { self.$key },)* }
            }
        }
    };
    // The table of a port.
    (
        $(#[$meta:meta])*
        $name:ident is $kind:ident [$usual:expr] { $($keys:tt)* }
    ) => {
        table! {
            $(#[$meta])*
            $name [$crate::config::Effort = $usual] {
                $($keys)*
                /// The keys that all ports have.
                settings: $crate::config::PortSettings = Default::default();
            }
        }

        impl $crate::config::PortTable for $name {
            const KIND: control_socket::TableKind = control_socket::TableKind::$kind;

            fn settings(&self) -> &$crate::config::PortSettings {
                &self.settings
            }

            fn settings_mut(&mut self) -> &mut $crate::config::PortSettings {
                &mut self.settings
            }
        }
    };
    (@name $table:expr, name $($key:ident)*) => { &$table.name };
    (@name $table:expr, $($key:ident)*) => { "" };
    (@either $usual:expr) => { $usual };
    (@either $usual:expr, $own:expr) => { $own };
}

pub(super) use table;

/// Parses a string as the type does.
pub(super) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|error| serde::de::Error::custom(format!("{text:?}: {error}")))
}

/// As [`parsed`], for a key that may be absent.
pub(super) fn parsed_if_any<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: serde::Deserializer<'de>,
    T: std::str::FromStr<Err: std::fmt::Display>,
{
    parsed(deserializer).map(Some)
}
