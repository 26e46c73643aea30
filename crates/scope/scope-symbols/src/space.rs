//! An address space: a domain's kernel, a process, or Xen.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::{Line, Program, Span, Symbols};

/// The modules of an address space, and their addresses.
#[derive(Clone, Debug, Default)]
pub struct AddressSpace {
    /// Sorted by start. Of two that overlap, the one that starts later counts.
    placed: Vec<Placed>,
}

#[derive(Clone, Debug)]
struct Placed {
    range: Range<u64>,
    /// The difference from addresses of the module to those of this space.
    bias: u64,
    symbols: Arc<Symbols>,
    /// The program with the source lines.
    program: Option<Arc<Program>>,
}

/// The name of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Named<'a> {
    /// Inside a function.
    Function {
        /// The function's module.
        module: &'a str,
        /// The function.
        function: &'a str,
        /// Bytes from the function's start.
        offset: u64,
    },
    /// Inside a module, but in no known function.
    Module {
        /// The module.
        module: &'a str,
        /// The address in the module's file; the address itself for a kernel and its modules.
        address: u64,
    },
    /// In no module.
    Unknown,
}

/// The form of a kernel's call trace: `schedule+0x1f [vmlinux]`, `0x1040 [libc.so.6]`, `unknown`.
impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Function { module, function, offset } => {
                write!(f, "{function}+{offset:#x} [{module}]")
            }
            Self::Module { module, address } => write!(f, "{address:#x} [{module}]"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl AddressSpace {
    /// An address space without names.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a module at the addresses of its symbols: Xen, a kernel, a kernel's module.
    pub fn add(&mut self, symbols: &Arc<Symbols>) {
        self.add_moved(symbols, 0);
    }

    /// Adds a module that lies `by` bytes above the addresses of its symbols: a kernel that KASLR has moved.
    pub fn add_moved(&mut self, symbols: &Arc<Symbols>, by: u64) {
        for range in symbols.ranges() {
            let range = range.start.saturating_add(by)..range.end.saturating_add(by);
            self.insert(Placed { range, bias: by, symbols: Arc::clone(symbols), program: None });
        }
    }

    /// Adds code of a program at `range`. An address of this space minus `bias` is one of the program's file, modulo 2^64.
    pub fn place_program(&mut self, range: Range<u64>, bias: u64, program: Arc<Program>) {
        let symbols = Arc::clone(program.symbols());
        self.insert(Placed { range, bias, symbols, program: Some(program) });
    }

    /// Adds code at `range` of which only the module's name is known. Its addresses count from the range's start.
    pub fn place_nameless(&mut self, range: Range<u64>, module: &str) {
        let symbols = Arc::new(Symbols::nameless(module));
        self.insert(Placed { bias: range.start, range, symbols, program: None });
    }

    /// The name of the code at `address`.
    #[must_use]
    pub fn name(&self, address: u64) -> Named<'_> {
        let Some(placed) = self.find(address) else { return Named::Unknown };
        let module = placed.symbols.module();
        let address = address.wrapping_sub(placed.bias);
        match placed.symbols.lookup(address) {
            Some(symbol) => {
                Named::Function { module, function: symbol.name, offset: symbol.offset }
            }
            None => Named::Module { module, address },
        }
    }

    /// The source line of the code at `address`, if it belongs to a program with line tables.
    #[must_use]
    pub fn line(&self, address: u64) -> Option<Line> {
        let placed = self.find(address)?;
        placed.program.as_ref()?.line(address.wrapping_sub(placed.bias))
    }

    /// Where the instructions of `len` bytes at `address` come from; nothing for code that belongs to no program with line tables.
    #[must_use]
    pub fn spans(&self, address: u64, len: u64) -> Vec<Span> {
        let placed = self.find(address);
        let program = placed.and_then(|placed| Some((placed.program.as_ref()?, placed.bias)));
        program
            .map(|(program, bias)| program.spans(address.wrapping_sub(bias), len))
            .unwrap_or_default()
    }

    fn find(&self, address: u64) -> Option<&Placed> {
        let after = self.placed.partition_point(|placed| placed.range.start <= address);
        self.placed.get(after.checked_sub(1)?).filter(|placed| address < placed.range.end)
    }

    fn insert(&mut self, placed: Placed) {
        let at = self.placed.partition_point(|other| other.range.start <= placed.range.start);
        self.placed.insert(at, placed);
    }
}

#[cfg(test)]
mod tests {
    use std::iter;

    use super::*;
    use crate::table::Builder;

    fn module(name: &str, function: &str, start: u64, len: u64) -> Arc<Symbols> {
        let mut builder = Builder::new(name, 100);
        builder.push(function, start, Some(len)).expect("room");
        Arc::new(builder.build(iter::once(0xffff_8000..0xffff_9000)))
    }

    #[test]
    fn every_address_has_a_name_or_is_unknown() {
        let mut space = AddressSpace::new();
        space.add(&module("vmlinux", "schedule", 0xffff_8010, 16));
        space.place_nameless(0x1000..0x2000, "[vdso]");
        let schedule = Named::Function { module: "vmlinux", function: "schedule", offset: 15 };
        assert_eq!(space.name(0xffff_801f), schedule);
        let hole = Named::Module { module: "vmlinux", address: 0xffff_8020 };
        assert_eq!(space.name(0xffff_8020), hole);
        assert_eq!(space.name(0x1004), Named::Module { module: "[vdso]", address: 4 });
        assert_eq!(space.name(0x2000), Named::Unknown);
        assert_eq!(space.name(0), Named::Unknown);
        let written = [0xffff_801f, 0x1004, 0].map(|address| space.name(address).to_string());
        assert_eq!(written, ["schedule+0xf [vmlinux]", "0x4 [[vdso]]", "unknown"]);
    }

    #[test]
    fn a_kernel_that_has_moved_keeps_its_names() {
        let mut space = AddressSpace::new();
        space.add_moved(&module("vmlinux", "schedule", 0xffff_8010, 16), 0x20_0000);
        assert_eq!(space.name(0x1_001f_801f).to_string(), "schedule+0xf [vmlinux]");
        assert_eq!(space.name(0xffff_801f), Named::Unknown);
    }
}
