//! `/proc/modules`: the addresses of a kernel's modules.

use std::ops::Range;

use super::{hex, line_error};
use crate::Error;

const FILE: &str = "/proc/modules";
const FORM: &str = "NAME SIZE COUNT USERS STATE ADDRESS";

/// A loaded module of a Linux kernel.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Module {
    /// The name, with underscores: `xen_netback`.
    pub name: String,
    /// The addresses of its code and data. Kernels since 6.4 place a module in several areas: the range then starts with the
    /// code and is as long as all areas together.
    pub range: Range<u64>,
}

/// The modules in the text of `/proc/modules`, which may be empty.
///
/// # Errors
/// [`Error::Restricted`] if the kernel hid an address from the reader, and [`Error::Line`] for a line of
/// another form.
pub fn modules(text: &str) -> Result<Vec<Module>, Error> {
    let line = |(number, line): (usize, &str)| {
        let module = parse(line).ok_or_else(|| line_error(FILE, number, line, FORM))?;
        if module.range.start == 0 { Err(Error::Restricted) } else { Ok(module) }
    };
    text.lines().enumerate().map(line).collect()
}

fn parse(line: &str) -> Option<Module> {
    let mut words = line.split(' ');
    let (name, size) = (words.next()?.to_owned(), words.next()?.parse::<u64>().ok()?);
    // Skip the use count, the users and the state.
    let start = hex(words.nth(3)?)?;
    Some(Module { name, range: start..start.saturating_add(size) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_covers_its_size() {
        let text = "xen_netback 73728 0 - Live 0xffffffffc0a00000 (E)\next4 1019904 2 - Live 0xffffffffc0500000\n";
        let modules = modules(text).expect("modules");
        assert_eq!(modules.len(), 2);
        assert_eq!(modules[0].name, "xen_netback");
        assert_eq!(modules[0].range, 0xffff_ffff_c0a0_0000..0xffff_ffff_c0a1_2000);
    }

    #[test]
    fn hidden_addresses_and_wrong_lines_are_errors() {
        let hidden = "ext4 1019904 2 - Live 0x0000000000000000\n";
        assert_eq!(modules(hidden), Err(Error::Restricted));
        assert!(matches!(modules("ext4 1019904 2"), Err(Error::Line { line: 1, .. })));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in "([a-z]{0,4}[ \n0-9x-]{0,20}){0,20}") {
            let _ = modules(&text);
        }
    }
}
