//! `vlan`, `trunk`, `native` and `isolated`: what a port may reach.

use switch::{Membership, Tagging, VlanId};

use super::PortSettings;

impl PortSettings {
    /// In which VLANs it is, and whether it is isolated; none for a port without that.
    ///
    /// # Errors
    /// There is no such VLAN, or the keys do not fit together.
    pub fn membership(&self) -> Result<Option<Membership>, String> {
        let Self { vlan, native, isolated, .. } = *self;
        let id = |key: &str, number: u16| {
            VlanId::new(number).ok_or_else(|| format!("{key} is {number}, not 1 to 4094"))
        };
        let native = native.map(|number| id("native", number)).transpose()?;
        let tagging = match (vlan, &self.trunk) {
            (Some(_), Some(_)) => {
                return Err("vlan is for frames without tags, and trunk for those with tags: set one of them".into());
            }
            (_, None) if native.is_some() => return Err("native is for a port with trunk".into()),
            (Some(number), None) => Some(Tagging::Access(id("vlan", number)?)),
            (None, Some(numbers)) => {
                let tagged = numbers.iter().map(|number| id("trunk", *number));
                Some(Tagging::Trunk { tagged: tagged.collect::<Result<_, _>>()?, native })
            }
            (None, None) => None,
        };
        let membership = Membership { tagging, isolated };
        Ok((membership != Membership::default()).then_some(membership))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_do_not_fit_are_refused() {
        let keys = |vlan, trunk: Option<&[u16]>, native| {
            let trunk = trunk.map(<[u16]>::to_vec);
            PortSettings { vlan, trunk, native, ..PortSettings::default() }
        };
        for (keys, said) in [
            (keys(Some(0), None, None), "vlan is 0"),
            (keys(Some(4095), None, None), "vlan is 4095"),
            (keys(None, Some(&[10, 4095][..]), None), "trunk is 4095"),
            (keys(None, Some(&[10][..]), Some(0)), "native is 0"),
            (keys(Some(10), Some(&[10][..]), None), "one of them"),
            (keys(Some(10), None, Some(10)), "for a port with trunk"),
            (keys(None, None, Some(10)), "for a port with trunk"),
        ] {
            let error = keys.membership().unwrap_err();
            assert!(error.contains(said), "{error}");
        }
        assert_eq!(keys(None, None, None).membership(), Ok(None));
        let isolated = PortSettings { isolated: true, ..keys(None, None, None) };
        assert!(isolated.membership().unwrap().unwrap().isolated);
    }
}
