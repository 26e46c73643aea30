//! Finds the functions of the code that ran.
//!
//! ```text
//!  hypervisor ── Xen's own table
//!  kernel ────── the image's own table, and the guest's /proc/kallsyms for modules
//!  programs ──── the guest's /proc/PID/maps, and the mapped files
//! ```

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use scope_result::{Block, Domain, FileLine, Function, Inlined, Mode, Recording, SourceLine};
use scope_symbols::{AddressSpace, Line, Maps, Named, Process, Program, Symbols};

use crate::guest_report::GuestReport;
use crate::image_symbols::ImageSymbols;
use crate::programs::Programs;

/// The end of Xen's gigabyte, where it writes code for each processor, through which system calls enter. Its table has no
/// names for this code; its source calls it stubs.
const STUBS: Range<u64> = 0xffff_82d0_7fff_0000..0xffff_82d0_8000_0000;

/// Names the code of a recording, and adds source lines.
pub fn name_code(
    recording: &mut Recording,
    symbols: &ImageSymbols,
    report: &GuestReport,
    programs: Programs<'_>,
) {
    let names = Names::of_machine(symbols, report, programs);
    names.apply(recording);
    names.add_lines(recording);
}

/// Names the code of recordings of one machine, without source lines.
pub fn name_all(
    recordings: &mut [Recording],
    symbols: &ImageSymbols,
    report: &GuestReport,
    programs: Programs<'_>,
) {
    let names = Names::of_machine(symbols, report, programs);
    recordings.iter_mut().for_each(|recording| names.apply(recording));
}

/// All symbols of a machine, by address space.
struct Names {
    hypervisor: AddressSpace,
    kernels: BTreeMap<u16, AddressSpace>,
    programs: BTreeMap<u16, Vec<AddressSpace>>,
    /// The kernel without modules, for domains without a report.
    kernel: AddressSpace,
}

impl Names {
    fn of_machine(
        symbols: &ImageSymbols,
        report: &GuestReport,
        mut programs: Programs<'_>,
    ) -> Self {
        let xen = symbols.xen.as_ref().map(|xen| &xen.symbols);
        Self::new(xen, &symbols.kernel, report, |domain, path| programs.open(domain, path))
    }

    /// The symbols of the images, of the guests' report, and of programs. `open` returns the program at a path in a domain.
    fn new(
        hypervisor: Option<&Arc<Symbols>>,
        kernel: &[Arc<Symbols>],
        report: &GuestReport,
        mut open: impl FnMut(u16, &str) -> Option<Arc<Program>>,
    ) -> Self {
        let space = |symbols: &[Arc<Symbols>], by: u64| {
            let mut space = AddressSpace::new();
            symbols.iter().for_each(|symbols| space.add_moved(symbols, by));
            space
        };
        let kernels = report.domains.iter().map(|(domain, domain_report)| {
            let symbols = symbols(&domain_report.kallsyms);
            let mut space = space(kernel, moved(kernel, &symbols));
            let modules = modules(&domain_report.modules, symbols);
            modules.iter().for_each(|symbols| space.add(symbols));
            (*domain, space)
        });
        let spaces = report.domains.iter().map(|(domain, domain_report)| {
            let spaces = domain_report.processes.iter().filter_map(|process| {
                let maps = Maps::parse(&process.maps).ok()?;
                let process = Process { pid: process.pid, name: process.name.clone(), maps };
                Some(process.space(|path| open(*domain, &path.to_string_lossy())))
            });
            (*domain, spaces.collect())
        });
        Self {
            hypervisor: space(hypervisor.map_or(&[], std::slice::from_ref), 0),
            kernels: kernels.collect(),
            programs: spaces.collect(),
            kernel: space(kernel, 0),
        }
    }

    /// Sets the function of every block. Unknown code keeps the empty function.
    fn apply(&self, recording: &mut Recording) {
        let owners = self.owners(recording);
        let mut functions = vec![Function::default()];
        let mut known: HashMap<Function, u32> = HashMap::from([(Function::default(), 0)]);
        for block in &mut recording.blocks {
            let function = self.name(block, &recording.domains, &owners);
            block.function = *known.entry(function.clone()).or_insert_with(|| {
                functions.push(function);
                u32::try_from(functions.len() - 1).unwrap_or(0)
            });
        }
        recording.functions = functions;
    }

    /// Adds the source lines of programs with debug information.
    fn add_lines(&self, recording: &mut Recording) {
        let owners = self.owners(recording);
        let (mut files, mut inlined) = (Interned::default(), Interned::default());
        let mut lines = Vec::new();
        for (number, block) in (0..).zip(&recording.blocks) {
            let space =
                owners.get(&(block.domain, block.space)).filter(|_| block.mode == Mode::User);
            let Some(space) = space else { continue };
            for span in space.spans(block.address, block.code.len() as u64) {
                let mut line =
                    |line: Line| FileLine { file: files.number(line.file), line: line.line };
                let chain = span.source.inlined.into_iter();
                let chain = chain.map(|one| (inlined.number(one.name), line(one.call)));
                let chain = chain.map(|(name, call)| Inlined { name, call }).collect();
                lines.push(SourceLine {
                    block: number,
                    offset: u16::try_from(span.offset).unwrap_or(u16::MAX),
                    instructions: span.instructions,
                    line: line(span.source.line),
                    inlined: chain,
                });
            }
        }
        (recording.lines, recording.files, recording.inlined) = (lines, files.names, inlined.names);
    }

    fn name(
        &self,
        block: &Block,
        domains: &[Domain],
        owners: &HashMap<(u8, u64), &AddressSpace>,
    ) -> Function {
        let space = match block.mode {
            Mode::Hypervisor => Some(&self.hypervisor),
            Mode::Kernel => Some(self.kernel_of(domains.get(usize::from(block.domain)))),
            Mode::User => owners.get(&(block.domain, block.space)).copied(),
        };
        match space.map_or(Named::Unknown, |space| space.name(block.address)) {
            Named::Function { module, function, .. } => Function::new(module, function),
            Named::Module { module, .. } => {
                Function { module: module.to_owned(), name: String::new() }
            }
            Named::Unknown if STUBS.contains(&block.address) => {
                Function { module: "xen".to_owned(), name: "stubs".to_owned() }
            }
            Named::Unknown => Function::default(),
        }
    }

    fn kernel_of(&self, domain: Option<&Domain>) -> &AddressSpace {
        let number = match domain {
            Some(Domain::Xen(number)) => Some(*number),
            Some(Domain::Machine) => Some(0),
            _ => None,
        };
        number.and_then(|number| self.kernels.get(&number)).unwrap_or(&self.kernel)
    }

    /// The program of each address space: the one with names for at least nine tenths of the instructions there.
    fn owners(&self, recording: &Recording) -> HashMap<(u8, u64), &AddressSpace> {
        let mut ran: HashMap<(u8, u64), Vec<&Block>> = HashMap::new();
        for block in &recording.blocks {
            if block.mode == Mode::User {
                ran.entry((block.domain, block.space)).or_default().push(block);
            }
        }
        let owner = |(domain, space): (u8, u64), blocks: &[&Block]| {
            let number = match recording.domains.get(usize::from(domain))? {
                Domain::Xen(number) => *number,
                Domain::Machine => 0,
                Domain::Idle | Domain::Unknown => return None,
            };
            let covered = |program: &AddressSpace| {
                let named = |block: &&&Block| program.name(block.address) != Named::Unknown;
                blocks.iter().filter(named).map(|block| block.total().instructions).sum::<u64>()
            };
            let all: u64 = blocks.iter().map(|block| block.total().instructions).sum();
            let programs = self.programs.get(&number)?;
            let best = programs.iter().map(|program| (covered(program), program));
            let (most, program) = best.max_by_key(|(covered, _)| *covered)?;
            (most * 10 >= all * 9).then_some(((domain, space), program))
        };
        ran.iter().filter_map(|(place, blocks)| owner(*place, blocks)).collect()
    }
}

/// Names, each once.
#[derive(Default)]
struct Interned {
    names: Vec<String>,
    known: HashMap<String, u32>,
}

impl Interned {
    fn number(&mut self, name: String) -> u32 {
        *self.known.entry(name).or_insert_with_key(|name| {
            self.names.push(name.clone());
            u32::try_from(self.names.len() - 1).unwrap_or(0)
        })
    }
}

/// The symbols in a domain's part of the report. Other lines on the console are left out.
fn symbols(kallsyms: &str) -> Vec<Symbols> {
    let whole = scope_symbols::kallsyms_text(kallsyms);
    let sound = |line: &&str| {
        !matches!(scope_symbols::kallsyms_text(line), Err(scope_symbols::Error::Line { .. }))
    };
    let retry = |_| {
        let lines: Vec<&str> = kallsyms.lines().filter(sound).collect();
        scope_symbols::kallsyms_text(&lines.join("\n"))
    };
    whole.or_else(retry).unwrap_or_default()
}

/// How far KASLR has moved a kernel: the reported addresses are compared with those of the image.
fn moved(image: &[Arc<Symbols>], reported: &[Symbols]) -> u64 {
    fn start<'a>(mut symbols: impl Iterator<Item = &'a Symbols>) -> Option<u64> {
        let kernel = symbols.find(|symbols| symbols.module() == KERNEL)?;
        kernel.iter().find(|symbol| symbol.name == "_stext").map(|symbol| symbol.start)
    }
    let both = start(reported.iter()).zip(start(image.iter().map(AsRef::as_ref)));
    both.map_or(0, |(reported, image)| reported.saturating_sub(image))
}

/// The module name of a kernel itself.
const KERNEL: &str = "vmlinux";

/// The symbols of a domain's modules, bounded by the range of each module.
fn modules(modules: &str, symbols: Vec<Symbols>) -> Vec<Arc<Symbols>> {
    let lines = modules.lines().filter(|line| scope_symbols::modules(line).is_ok());
    let lines: Vec<&str> = lines.collect();
    let ranges = scope_symbols::modules(&lines.join("\n")).unwrap_or_default();
    let bounded = symbols.into_iter().filter(|symbols| symbols.module() != KERNEL).map(|symbols| {
        let own = ranges.iter().filter(|module| module.name == symbols.module());
        let own: Vec<_> = own.map(|module| module.range.clone()).collect();
        Arc::new(if own.is_empty() { symbols } else { symbols.within(own) })
    });
    bounded.collect()
}

#[cfg(test)]
mod tests {
    use scope_model::Counters;

    use super::*;

    #[test]
    fn other_lines_on_a_console_cost_no_names() {
        let clean = "ffffffffc0000010 t br_forward\t[bridge]\nffffffff81200000 T _stext\n";
        let noisy = format!("{clean}[  12.5] eth0: link up\n");
        for text in [clean, &noisy] {
            let symbols = symbols(text);
            assert_eq!(symbols.len(), 2, "{text}");
            let image = symbols_at(0xffff_ffff_8100_0000);
            assert_eq!(moved(&image, &symbols), 0x20_0000);
            let list = "bridge 4096 0 - Live 0xffffffffc0000000\n[  12.5] eth0: link up\n";
            let bridge = modules(list, symbols);
            let range = bridge[0].ranges().remove(0);
            assert_eq!((range.start, range.end), (0xffff_ffff_c000_0000, 0xffff_ffff_c000_1000));
        }
        assert_eq!(moved(&symbols_at(0xffff_ffff_8100_0000), &[]), 0);
    }

    fn symbols_at(start: u64) -> Vec<Arc<Symbols>> {
        symbols(&format!("{start:016x} T _stext\n")).into_iter().map(Arc::new).collect()
    }

    #[test]
    fn programs_belong_to_their_domain() {
        let own = std::fs::read("/proc/self/exe").expect("this program");
        let program = Arc::new(Program::parse("tool", own).expect("ELF"));
        let path = std::env::current_exe().expect("a path").display().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
        let of = |domain| format!("@domain {domain}\n@process 7 tool\n{maps}");
        let function: fn(&str) -> GuestReport = GuestReport::parse;
        let address = function as usize as u64;
        let block = |domain| Block {
            space: 5,
            domain,
            counters: vec![(domain, Counters { instructions: 1, ..Counters::default() })],
            ..Block::at(address)
        };
        let mut recording = Recording {
            domains: vec![Domain::Xen(0), Domain::Xen(1)],
            blocks: vec![block(0), block(1)],
            ..Recording::default()
        };
        let of_guests =
            |domain, asked: &str| (domain == 1 && asked == path).then(|| Arc::clone(&program));
        let report = GuestReport::parse(&[of(0), of(1)].concat());
        let names = Names::new(None, &[], &report, of_guests);
        names.apply(&mut recording);
        names.add_lines(&mut recording);
        let name = |block: &Block| recording.functions[block.function as usize].clone();
        let [in_dom0, in_guest] = [0, 1].map(|n| name(&recording.blocks[n]));
        assert!(path.ends_with(&in_dom0.module) && in_dom0.name.is_empty(), "{in_dom0:?}");
        assert_eq!(in_guest.module, "tool");
        // The tests are built with or without debug information.
        assert!(recording.lines.iter().all(|line| line.block == 1), "{:?}", recording.lines);
        assert!(recording.files.iter().all(|file| file.contains("guest_report")));
        assert!(in_guest.name.contains("GuestReport"), "{in_guest:?}");
    }

    #[test]
    fn unknown_code_is_kept_without_a_name() {
        let block = |address, function| Block { function, ..Block::at(address) };
        let mut recording = Recording {
            domains: vec![Domain::Xen(0)],
            blocks: vec![block(0xffff_82d0_4000_0000, 9), block(0x40_0000, 9)],
            ..Recording::default()
        };
        let mut stubs =
            Recording { blocks: vec![block(0xffff_82d0_7fff_e000, 9)], ..recording.clone() };
        Names::new(None, &[], &GuestReport::default(), |_, _| None).apply(&mut stubs);
        assert_eq!(stubs.functions[1].name, "stubs");
        Names::new(None, &[], &GuestReport::default(), |_, _| None).apply(&mut recording);
        assert_eq!(recording.functions, [Function::default()]);
        assert!(recording.blocks.iter().all(|block| block.function == 0));
    }
}
