//! Which ports a mirror may have.

use std::collections::HashSet;

use super::{Attach, Config, Mirror, Platform, Queues, check_name};

impl Config {
    /// Checks the mirrors.
    pub(super) fn check_mirrors(&self) -> Result<(), String> {
        let (mut names, mut targets) = (HashSet::new(), HashSet::new());
        for mirror in &self.mirrors {
            let Mirror { name, from, to, .. } = mirror;
            check_name(name)?;
            let of_mirror = |reason| format!("mirror {name:?}: {reason}");
            if !names.insert(name) {
                return Err(of_mirror("the name is given twice".into()));
            }
            if from.is_empty() {
                return Err(of_mirror("from names no port".into()));
            }
            for port in from.iter().chain([to]) {
                self.check_mirrored(port).map_err(of_mirror)?;
            }
            self.check_target(to).map_err(of_mirror)?;
            if !targets.insert(to) {
                return Err(of_mirror(format!("port {to:?} gets the copies of another mirror")));
            }
        }
        let sources = self.mirrors.iter().flat_map(|mirror| &mirror.from);
        match sources.into_iter().find(|port| targets.contains(port)) {
            Some(port) => Err(format!(
                "port {port:?} gets the copies of a mirror, and would be mirrored itself: a mirror of a mirror has no end"
            )),
            None => Ok(()),
        }
    }

    /// Checks that there is such a port. On Xen the toolstack makes guests' ports.
    fn check_mirrored(&self, port: &str) -> Result<(), String> {
        let mut vifs =
            self.guests.iter().flat_map(|guest| guest.vif_names().take(guest.vifs.len()));
        let is_known = self.uplinks.iter().any(|uplink| uplink.name == port)
            || self.ports.iter().any(|other| other.name == port)
            || vifs.any(|vif| vif == port);
        match is_known || self.daemon.platform == Platform::Xen {
            true => Ok(()),
            false => Err(format!("there is no port {port:?}")),
        }
    }

    /// Checks that a port can get copies only.
    fn check_target(&self, port: &str) -> Result<(), String> {
        let uplink = self.uplinks.iter().find(|uplink| uplink.name == port);
        if uplink.is_some_and(|uplink| uplink.queues == Queues::PerGuest) {
            return Err(format!(
                "uplink {port:?} has queues for guests, and cannot get copies only"
            ));
        }
        let machine = self.ports.iter().find(|other| other.name == port);
        let vif = self.guests.iter().flat_map(|guest| guest.vif_names().zip(&guest.vifs));
        let mut vif = vif.filter(|(name, _)| name == port);
        let has_device = machine.is_some_and(|port| port.attach == Some(Attach::Device))
            || vif.any(|(name, vif)| self.device_of(vif, Some(&name)).is_some());
        match has_device {
            true => Err(format!("port {port:?} has attach = \"device\", and cannot get copies")),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::Config;

    const PORTS: &str = "[[guest]]\nname = \"red\"\nmac = \"02:00:00:00:00:01\"\n\
                         [[guest]]\nname = \"probe\"\nmac = \"02:00:00:00:00:02\"\n\
                         [[uplink]]\nname = \"up\"\ntap = \"up0\"\n";

    fn check(mirrors: &str) -> Result<(), String> {
        let config = Config::parse(&format!("{PORTS}{mirrors}")).map_err(|e| e.to_string())?;
        config.check()
    }

    fn mirror(name: &str, from: &str, to: &str) -> String {
        format!("[[mirror]]\nname = \"{name}\"\nfrom = [{from}]\nto = \"{to}\"\n")
    }

    #[test]
    fn mirrors_that_cannot_be_are_refused() {
        assert_eq!(check(&mirror("span", "\"red\", \"up\"", "probe")), Ok(()));
        let two = |a: String, b: String| [a, b].concat();
        for (text, said) in [
            (mirror("span", "", "probe"), "names no port"),
            (mirror("span", "\"blue\"", "probe"), "no port \"blue\""),
            (mirror("span", "\"red\"", "blue"), "no port \"blue\""),
            (mirror("span", "\"red\", \"probe\"", "probe"), "a mirror of a mirror"),
            (
                two(mirror("a", "\"red\"", "probe"), mirror("b", "\"probe\"", "up")),
                "a mirror of a mirror",
            ),
            (
                two(mirror("a", "\"red\"", "probe"), mirror("b", "\"up\"", "probe")),
                "another mirror",
            ),
            (two(mirror("a", "\"red\"", "probe"), mirror("a", "\"red\"", "up")), "given twice"),
            (format!("{}colour = 1\n", mirror("a", "\"red\"", "up")), "colour"),
            (format!("{}direction = \"up\"\n", mirror("a", "\"red\"", "up")), "unknown variant"),
        ] {
            let error = check(&text).unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        let device = PORTS.replace("02\"\n", "02\"\nattach = \"device\"\n");
        let config =
            Config::parse(&format!("{device}{}", mirror("a", "\"red\"", "probe"))).unwrap();
        assert!(config.check().unwrap_err().contains("attach = \"device\""));
    }
}
