//! The keys that all ports have. The tables `[[guest.vif]]`, `[[uplink]]` and `[[port]]` have them after their own.

use datapath::Workers;
use guard::Policy;
use serde::Deserialize;
use switch::Membership;

use super::flooding::Flooding;
use super::limits::Limits;

/// What is enforced of a port, whatever it is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// None if no source is checked.
    pub guard: Option<Policy>,
    /// The rates at which it may send and receive.
    pub limits: Limits,
    /// Whether frames pass at all.
    pub enabled: bool,
    /// In which VLANs the port is; none if in none. The datapath enforces it.
    pub membership: Option<Membership>,
    /// Who gets what it floods. The datapath enforces it.
    pub flooding: Flooding,
    /// Whether what goes to it is merged, where it takes that.
    pub gro: bool,
    /// Which workers may have its queues.
    pub workers: Workers,
}

/// `worker`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OwnWorker {
    /// A worker that serves no other port.
    Own,
}

/// What `workers` and `worker` of a port come to.
pub(super) fn wanted_workers(
    workers: Option<&[usize]>,
    own: Option<OwnWorker>,
) -> Result<Workers, String> {
    match (workers, own) {
        (None, None) => Ok(Workers::Any),
        (None, Some(OwnWorker::Own)) => Ok(Workers::Own),
        (Some([]), None) => Err("workers names none; leave it out for any".to_owned()),
        (Some(workers), None) => Ok(Workers::Of(workers.to_vec())),
        (Some(_), Some(_)) => Err("workers and worker = \"own\" exclude each other".to_owned()),
    }
}

/// The table of a port, with these keys of its own, of which some change in place, as all common ones do, and for others something must be
/// opened again. `ROUTER` of the type is
/// whether multicast routers are behind it if it does not say so.
macro_rules! port_table {
    (
        $(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }
        in_place: $($in_place:ident),* $(; reopened: $($reopened:ident),*)?
    ) => {
        port_table! {
            @with $(#[$meta])* $name { $($own)* } [$($in_place)*] $([$($reopened)*])? {
                /// The rates at which frames may come from it and go to it.
                #[serde(default)]
                pub limit: super::limits::Limits,
                /// Whether it carries frames; otherwise it drops them. The link of a virtual machine is down then.
                #[serde(default = "super::yes")]
                pub enabled: bool,
                /// The VLAN of all its frames, which have no tags.
                pub vlan: Option<u16>,
                /// The VLANs whose frames have tags.
                pub trunk: Option<Vec<u16>>,
                /// With `trunk`: the VLAN of frames without a tag.
                pub native: Option<u16>,
                /// Whether it reaches only ports that are not isolated.
                #[serde(default)]
                pub isolated: bool,
                /// Whether multicast routers are behind it; see `flooding`.
                #[serde(default, deserialize_with = "super::flooding::multicast_router")]
                pub multicast_router: Option<switch::multicast::Router>,
                /// Copies of flooded frames that it may cause per second; as in `[switch]` if absent.
                pub flood_copies_per_second: Option<u32>,
                /// Whether TCP segments on their way to it are merged into frames beyond the MTU, where it takes such.
                #[serde(default)]
                pub gro: bool,
                /// The workers that may have its queues, by number.
                pub workers: Option<Vec<usize>>,
                /// Whether it has one to itself.
                pub worker: Option<super::port_keys::OwnWorker>,
            }
        }
    };
    (
        @with $(#[$meta:meta])* $name:ident
        { $($(#[$own_meta:meta])* pub $own:ident: $own_type:ty,)* }
        [$($in_place:ident)*] $([$($reopened:ident)*])?
        { $($(#[$key_meta:meta])* pub $key:ident: $type:ty,)* }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $($(#[$own_meta])* pub $own: $own_type,)*
            $($(#[$key_meta])* pub $key: $type,)*
        }

        impl $name {
            /// The keys of its table.
            pub(super) const KEYS: &[&str] = &[$(stringify!($own),)* $(stringify!($key),)*];

            /// Those of them that change in place.
            pub(super) const IN_PLACE: &[&str] =
                &[$(stringify!($in_place),)* $(stringify!($key),)*];

            /// The keys with other values than in `new`.
            pub(super) fn differing(&self, new: &Self) -> Vec<&'static str> {
                let differ = [$(self.$own != new.$own,)* $(self.$key != new.$key,)*];
                let keys = Self::KEYS.iter().zip(differ);
                keys.filter_map(|(key, differs)| differs.then_some(*key)).collect()
            }

            /// The same, with those keys of `new` that change in place.
            #[must_use]
            pub fn taking(self, new: &Self) -> Self {
                let new = new.clone();
                Self { $($in_place: new.$in_place,)* $($key: new.$key,)* ..self }
            }

            $(
                /// The keys of its socket and of its device on the host.
                pub(super) const REOPENED: &[&str] = &[$(stringify!($reopened)),*];

                /// The same, with those keys of `old` for which something would have to be opened again.
                #[must_use]
                pub fn keeping_open(self, old: &Self) -> Self {
                    let old = old.clone();
                    Self { $($reopened: old.$reopened,)* ..self }
                }
            )?

            /// In which VLANs it is, and whether it is isolated; none for a port without that.
            ///
            /// # Errors
            /// There is no such VLAN, or the keys do not fit together.
            pub fn membership(&self) -> Result<Option<switch::Membership>, String> {
                let Self { vlan, native, isolated, .. } = *self;
                let trunk = self.trunk.as_deref();
                super::vlans::Keys { vlan, trunk, native, isolated }.membership()
            }

            /// Who gets what it floods, and how much that may be.
            pub fn flooding(&self) -> super::flooding::Flooding {
                let router = self.multicast_router.unwrap_or(Self::ROUTER);
                super::flooding::Flooding { router, copies: self.flood_copies_per_second }
            }

            /// What is enforced of it, with this guard.
            ///
            /// # Errors
            /// Keys do not fit together.
            pub fn rules(&self, guard: Option<guard::Policy>) -> Result<super::Rules, String> {
                Ok(super::Rules {
                    guard,
                    limits: self.limit,
                    enabled: self.enabled,
                    membership: self.membership()?,
                    flooding: self.flooding(),
                    gro: self.gro,
                    workers: self.wanted_workers()?,
                })
            }

            /// Which workers may have its queues.
            ///
            /// # Errors
            /// Keys do not fit together.
            pub fn wanted_workers(&self) -> Result<datapath::Workers, String> {
                super::port_keys::wanted_workers(self.workers.as_deref(), self.worker)
            }
        }
    };
}

pub(super) use port_table;
