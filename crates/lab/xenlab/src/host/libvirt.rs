//! libvirt's XML for guests.

use std::fmt::Write as _;

use super::domu::DomuConfig;
use super::qemu::KERNEL;

impl DomuConfig {
    /// The XML of this domain as a paravirtual guest. More lines of `xl.cfg` are left out.
    #[must_use]
    pub fn xml(&self) -> String {
        let Self { name, memory_mib, vcpus, kernel_arguments, .. } = self;
        let interfaces: String = self.vifs.iter().map(|vif| interface_xml(vif)).collect();
        format!(
            "<domain type='xen'>\n<name>{name}</name>\n<memory unit='MiB'>{memory_mib}</memory>\n<vcpu>{vcpus}</vcpu>\n\
             <os>\n<type>xen</type>\n<kernel>/lab/guests/vmlinux</kernel>\n<initrd>/lab/guests/domu.cpio</initrd>\n\
             <cmdline>console=hvc0 quiet loglevel=1 {KERNEL} lab.name={name} {kernel_arguments}</cmdline>\n</os>\n\
             <on_reboot>{}</on_reboot>\n<on_crash>destroy</on_crash>\n\
             <devices>\n{interfaces}<console type='pty'><target type='xen'/></console>\n</devices>\n</domain>\n",
            if self.restarts { "restart" } else { "destroy" },
        )
    }
}

/// The XML of an interface, from `xl.cfg`'s words: `mac=00:16:3e:00:00:01,bridge=xenbr0`. With a bridge its type is `bridge`, else
/// `ethernet`. Keys without an element in libvirt are left out.
#[must_use]
pub fn interface_xml(vif: &str) -> String {
    let pairs = || vif.split(',').filter_map(|word| word.split_once('='));
    let kind = if pairs().any(|(key, _)| key == "bridge") { "bridge" } else { "ethernet" };
    let mut xml = format!("<interface type='{kind}'>\n");
    for (key, value) in pairs() {
        let (element, attribute) = match key {
            "mac" => ("mac", "address"),
            "bridge" => ("source", "bridge"),
            "script" => ("script", "path"),
            "backend" => ("backenddomain", "name"),
            _ => continue,
        };
        let _ = writeln!(xml, "<{element} {attribute}='{value}'/>");
    }
    xml + "</interface>\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_of_xl_is_one_of_libvirt() {
        assert_eq!(
            interface_xml("backend=drv,mac=00:16:3e:00:00:01,bridge=xenbr0,script=vif-bridge"),
            "<interface type='bridge'>\n<backenddomain name='drv'/>\n<mac address='00:16:3e:00:00:01'/>\n\
             <source bridge='xenbr0'/>\n<script path='vif-bridge'/>\n</interface>\n"
        );
        assert_eq!(
            interface_xml("mac=00:16:3e:00:00:01,script=/bin/true"),
            "<interface type='ethernet'>\n<mac address='00:16:3e:00:00:01'/>\n<script path='/bin/true'/>\n</interface>\n"
        );
    }

    #[test]
    fn a_domain_of_xl_is_one_of_libvirt() {
        let config = DomuConfig::new("u1").vif("mac=00:16:3e:00:00:01,bridge=xenbr0");
        let xml = DomuConfig { restarts: true, ..config }.xml();
        for line in [
            "<name>u1</name>",
            "<memory unit='MiB'>256</memory>",
            "<on_reboot>restart</on_reboot>",
            "<mac address='00:16:3e:00:00:01'/>",
        ] {
            assert!(xml.lines().any(|other| other == line), "{line} in {xml}");
        }
    }
}
