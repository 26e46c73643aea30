//! Names for code addresses: which function of which module an address of Xen, a kernel or a program lies in.
//!
//! ```text
//! xen-4.17-amd64 ──► xen_image ───────┐
//! vmlinux ─────────► linux_image ─────┤   (and vdso ──► Program)
//! /proc/kallsyms ──► kallsyms_text ───┼──► Symbols ──► AddressSpace::add ───┐
//! /proc/modules ───► modules ─────────┘                                     ├──► AddressSpace::name(address) ──► Named
//! ELF file ────────► Program (symbols, segments, source lines) ──┐          │
//! /proc/PID/maps ──► Maps ──► Process ───────────────────────────┴─► space ─┘
//! ```
//!
//! All functions take bytes or text, so they work on files of guests as well as of the host; none opens a file. Guests write
//! some of the input: no input makes a function panic, and memory is bounded by the input's length. An unknown name is a value
//! ([`Named::Unknown`]), so that the sums of a profile are complete.
//!
//! ```
//! # use std::sync::Arc;
//! # use scope_symbols::{AddressSpace, Error, kallsyms_text, modules};
//! # fn main() -> Result<(), Error> {
//! let kallsyms = "ffffffff81000000 T _stext\nffffffffc0a01000 t xenvif_poll\t[xen_netback]\n";
//! let loaded = modules("xen_netback 73728 0 - Live 0xffffffffc0a00000\n")?;
//! let mut domain = AddressSpace::new();
//! for symbols in kallsyms_text(kallsyms)? {
//!     let module = loaded.iter().find(|module| module.name == symbols.module());
//!     domain.add(&Arc::new(match module {
//!         Some(module) => symbols.within([module.range.clone()]),
//!         None => symbols,
//!     }));
//! }
//! assert_eq!(domain.name(0xffff_ffff_c0a0_1024).to_string(), "xenvif_poll+0x24 [xen_netback]");
//! assert_eq!(domain.name(0x1000).to_string(), "unknown");
//! # Ok(())
//! # }
//! ```

#![forbid(unsafe_code)]

mod btf;
mod bytes;
mod error;
mod linux;
mod packed;
mod proc;
mod program;
mod space;
mod table;
mod xen;

pub use btf::Btf;
pub use error::Error;
pub use linux::{linux_image, vdso};
pub use proc::{Mapping, Maps, Module, Process, kallsyms_text, modules};
pub use program::{InlinedCall, Line, Program, Source, Span};
pub use space::{AddressSpace, Named};
pub use table::{Symbol, Symbols};
pub use xen::xen_image;
