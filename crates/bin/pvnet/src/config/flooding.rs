//! `multicast` in `[switch]`, and `multicast_router` and `flood_copies_per_second` of a port: who gets what a port floods, and how
//! much that may be.

use schemars::JsonSchema;
use serde::Deserialize;
use switch::multicast::Router;

/// `multicast`: who gets the frames of multicast groups.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Multicast {
    /// All ports.
    #[default]
    Flood,
    /// The members that IGMP and MLD name, and routers.
    Snoop,
}

/// What is said of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flooding {
    /// Whether multicast routers are behind it.
    pub router: Router,
    /// Copies of flooded frames that it may cause per second; 0 for no limit, none for the limit in `[switch]`.
    pub copies: Option<u32>,
}

/// `multicast_router` as it is written.
#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "is not true, false or \"auto\"")]
pub(super) enum RouterKey {
    Is(bool),
    Learnt(Auto),
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Auto {
    Auto,
}

/// `multicast_router`: a truth, or `"auto"`.
pub(super) fn multicast_router<'de, D: serde::Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Router>, D::Error> {
    Ok(Some(match RouterKey::deserialize(deserializer)? {
        RouterKey::Is(true) => Router::Always,
        RouterKey::Is(false) => Router::Never,
        RouterKey::Learnt(Auto::Auto) => Router::Learnt,
    }))
}

#[cfg(test)]
mod tests {
    use switch::multicast::Router;
    use wire::ethernet::MacAddr;

    use crate::config::Config;

    const PORTS: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n#red\n\
                         [[port]]\nname = \"vm\"\nkind = \"vhost-user\"\nsocket = \"/vm\"\nguard = \"off\"\n#vm\n\
                         [[uplink]]\nname = \"up\"\ntap = \"up0\"\n#up\n";

    fn routers(keys: &[(&str, &str)]) -> Result<[Router; 3], String> {
        let text = keys.iter().fold(PORTS.to_owned(), |text, (port, key)| {
            text.replace(&format!("#{port}\n"), &format!("multicast_router = {key}\n"))
        });
        let config = Config::parse(&text).map_err(|error| error.to_string())?;
        config.check()?;
        let [vif, port, uplink] = [
            config.guests[0].vifs[0].rules(MacAddr([2, 0, 0, 0, 0, 1]))?,
            config.ports[0].rules()?,
            config.uplinks[0].rules()?,
        ];
        Ok([vif, port, uplink].map(|rules| rules.flooding.router))
    }

    #[test]
    fn routers_are_behind_uplinks_unless_a_port_says_otherwise() {
        use Router::{Always, Learnt, Never};
        assert_eq!(routers(&[]), Ok([Never, Never, Always]));
        let keys = [("red", "true"), ("vm", "\"auto\""), ("up", "false")];
        assert_eq!(routers(&keys), Ok([Always, Learnt, Never]));
        let error = routers(&[("red", "\"learn\"")]).unwrap_err();
        assert!(error.contains("true, false or \"auto\""), "{error}");
    }
}
