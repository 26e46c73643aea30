//! User programs and shared libraries: ELF files.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use addr2line::{Context, Location};
use gimli::{Dwarf, EndianArcSlice, RunTimeEndian};
use iced_x86::{Decoder, DecoderOptions};
use object::elf::PF_X;
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, SectionKind, SegmentFlags, SymbolKind,
};

use crate::table::{Builder, containing, merged};
use crate::{Error, Symbols};

/// The expected file, in error messages.
const WHAT: &str = "the ELF file";
/// The most by which names may be longer than the file; real ones are far shorter.
const EXPANSION: usize = 4;
/// The alignment of mappings; segments need none.
const PAGE: u64 = 4096;

type Reader = EndianArcSlice<RunTimeEndian>;

/// A program or a shared library: its symbols, and on demand the source lines of its code.
///
/// Addresses are those of the file; in a process they are shifted ([`Mapping::bias`](crate::Mapping::bias)).
pub struct Program {
    symbols: Arc<Symbols>,
    segments: Vec<Segment>,
    file: Arc<[u8]>,
    /// The line tables, read at the first lookup; none if the file has no readable ones.
    lines: OnceLock<Option<Mutex<Context<Reader>>>>,
}

/// A source line.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Line {
    /// The path that the compiler recorded.
    pub file: String,
    /// From 1; 0 for code that belongs to no line.
    pub line: u32,
}

/// Where an instruction comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its source line; of inlined code, the line that was inlined.
    pub line: Line,
    /// The functions that were inlined there, the outermost first.
    pub inlined: Vec<InlinedCall>,
}

/// A function that was inlined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InlinedCall {
    /// Its name.
    pub name: String,
    /// Where the function around it calls it.
    pub call: Line,
}

/// Instructions in a row that come from one place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The bytes of code before them.
    pub offset: u64,
    /// The number of instructions.
    pub instructions: u16,
    /// Where they come from.
    pub source: Source,
}

/// A part of the file that is loaded as code.
struct Segment {
    offset: u64,
    file_len: u64,
    address: u64,
}

impl Program {
    /// Reads the symbols of an ELF file: those of `.symtab` or, if that is stripped, of `.dynsym`. The latter has exported
    /// functions only: other code then has no name. A file with neither is a module without symbols. Rust's names are demangled.
    ///
    /// # Errors
    /// [`Error::NotExecutable`] if it is not a valid ELF file, [`Error::Overgrown`] for a hostile one.
    pub fn parse(module: &str, file: impl Into<Arc<[u8]>>) -> Result<Self, Error> {
        let file = file.into();
        let elf = parse(&file)?;
        let symbols = Arc::new(symbols(module, &elf, file.len())?);
        let segments = elf.segments().filter_map(|segment| code(&segment)).collect();
        drop(elf);
        Ok(Self { symbols, segments, file, lines: OnceLock::new() })
    }

    /// The symbols.
    #[must_use]
    pub fn symbols(&self) -> &Arc<Symbols> {
        &self.symbols
    }

    /// The addresses of the loaded segments without code.
    #[must_use]
    pub fn data(&self) -> Vec<Range<u64>> {
        let Ok(elf) = parse(&self.file) else { return Vec::new() };
        let segments = elf.segments().filter(|segment| code(segment).is_none());
        let ranges = segments
            .map(|segment| segment.address()..segment.address().saturating_add(segment.size()));
        ranges.collect()
    }

    /// The address of the code at `offset` bytes into the file. The part of a page before a segment counts too, because mappings
    /// begin at a page.
    #[must_use]
    pub fn address_of(&self, offset: u64) -> Option<u64> {
        let exact = self.segments.iter().find(|segment| segment.holds(offset, segment.offset));
        let paged = || {
            self.segments.iter().find(|segment| segment.holds(offset, segment.offset & !(PAGE - 1)))
        };
        let segment = exact.or_else(paged)?;
        Some(segment.address.wrapping_add(offset.wrapping_sub(segment.offset)))
    }

    /// Where the instructions of `len` bytes at `address` come from. Those without a line are left out. None as for
    /// [`line`](Self::line).
    #[must_use]
    pub fn spans(&self, address: u64, len: u64) -> Vec<Span> {
        let mut spans = Vec::<Span>::new();
        let Some(code) = self.code(address, len) else { return spans };
        let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
        while decoder.can_decode() {
            let at = decoder.ip();
            if decoder.decode().is_invalid() {
                break;
            }
            let Some(source) = self.source(at) else { continue };
            match spans.last_mut().filter(|last| last.source == source) {
                Some(last) => last.instructions = last.instructions.saturating_add(1),
                None => spans.push(Span { offset: at - address, instructions: 1, source }),
            }
        }
        spans
    }

    /// The bytes of the code at `address`.
    fn code(&self, address: u64, len: u64) -> Option<&[u8]> {
        let segment = self.segments.iter().find(|segment| {
            (segment.address..segment.address.saturating_add(segment.file_len)).contains(&address)
        })?;
        let start = segment.offset.checked_add(address - segment.address)?;
        let end = start.checked_add(len)?.min(segment.offset.saturating_add(segment.file_len));
        self.file.get(usize::try_from(start).ok()?..usize::try_from(end).ok()?)
    }

    /// Where the instruction at `address` comes from. None as for [`line`](Self::line).
    fn source(&self, address: u64) -> Option<Source> {
        let context = self.lines.get_or_init(|| lines(&self.file).map(Mutex::new)).as_ref()?;
        let context = context.lock().unwrap_or_else(PoisonError::into_inner);
        // The innermost function comes first, and the last one was not inlined. Split debug information is not supported.
        let mut frames = context.find_frames(address).skip_all_loads().ok()?;
        let mut found = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            let name = frame.function.as_ref().and_then(|name| name.raw_name().ok());
            let name = name.map(|name| format!("{:#}", rustc_demangle::demangle(&name)));
            found.push((name.unwrap_or_default(), frame.location.as_ref().and_then(line)?));
        }
        let own = found.first()?.1.clone();
        let inlined = found.windows(2).rev().map(|pair| {
            let [(name, _), (_, call)] = pair else { return None };
            Some(InlinedCall { name: name.clone(), call: call.clone() })
        });
        Some(Source { line: own, inlined: inlined.collect::<Option<_>>()? })
    }

    /// The source line of the code at `address`; of inlined code, the line that was inlined. None if the file has no
    /// line tables or has them compressed. The first call reads them, which takes some time and memory: a copy of them.
    #[must_use]
    pub fn line(&self, address: u64) -> Option<Line> {
        let context = self.lines.get_or_init(|| lines(&self.file).map(Mutex::new)).as_ref()?;
        // A panic of another thread leaves at worst a half-filled cache.
        let context = context.lock().unwrap_or_else(PoisonError::into_inner);
        line(&context.find_location(address).ok()??)
    }
}

impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("module", &self.symbols.module()).finish_non_exhaustive()
    }
}

impl Segment {
    /// Whether the segment, taken to begin at `from`, holds `offset`.
    fn holds(&self, offset: u64, from: u64) -> bool {
        (from..self.offset.saturating_add(self.file_len)).contains(&offset)
    }
}

fn parse(file: &[u8]) -> Result<object::File<'_>, Error> {
    let refused = |cause: String| Error::NotExecutable { what: WHAT, cause };
    let parsed = object::File::parse(file).map_err(|cause| refused(cause.to_string()))?;
    match parsed {
        object::File::Elf32(_) | object::File::Elf64(_) => Ok(parsed),
        _ => Err(refused("it has another format".to_owned())),
    }
}

/// `segment`, if it is executable.
fn code<'data>(segment: &impl ObjectSegment<'data>) -> Option<Segment> {
    let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { return None };
    let (offset, file_len) = segment.file_range();
    p_flags.contains(PF_X).then(|| Segment { offset, file_len, address: segment.address() })
}

fn symbols(module: &str, elf: &object::File<'_>, file_len: usize) -> Result<Symbols, Error> {
    let texts = texts(elf);
    let names_code = |symbol: &object::Symbol<'_, '_>| names_code(symbol, &texts);
    let mut found: Vec<_> = elf.symbols().filter(names_code).collect();
    if found.is_empty() {
        // A symbol without a size would cover the functions after it that are not exported.
        let sized = |symbol: &object::Symbol<'_, '_>| symbol.size() != 0;
        found = elf.dynamic_symbols().filter(names_code).filter(sized).collect();
    }
    found.sort_by_key(|symbol| (symbol.address(), preference(symbol)));
    let mut builder = Builder::new(module, file_len.saturating_mul(EXPANSION));
    let mut covered = 0;
    for symbol in found {
        let (start, size) = (symbol.address(), Some(symbol.size()).filter(|size| *size != 0));
        // A label inside a function would cover the rest of it.
        if size.is_none() && start < covered {
            continue;
        }
        covered = covered.max(start.saturating_add(size.unwrap_or_default()));
        let name = String::from_utf8_lossy(symbol.name_bytes().unwrap_or_default());
        builder.push(format_args!("{:#}", rustc_demangle::demangle(&name)), start, size)?;
    }
    Ok(builder.build(texts))
}

/// The ranges of code: the executable sections or, in a file without sections, the executable segments. Sorted and disjoint.
fn texts(elf: &object::File<'_>) -> Vec<Range<u64>> {
    let range = |start: u64, len: u64| start..start.saturating_add(len);
    let sections = elf.sections().filter(|section| section.kind() == SectionKind::Text);
    let mut texts: Vec<_> =
        sections.map(|section| range(section.address(), section.size())).collect();
    if texts.is_empty() {
        let code = elf.segments().filter(|segment| code(segment).is_some());
        texts = code.map(|segment| range(segment.address(), segment.size())).collect();
    }
    merged(texts)
}

/// Whether a symbol is a function, or a label in assembly, that lies in this file.
fn names_code(symbol: &object::Symbol<'_, '_>, texts: &[Range<u64>]) -> bool {
    let kind = matches!(symbol.kind(), SymbolKind::Text | SymbolKind::Label | SymbolKind::Unknown);
    kind && symbol.is_definition()
        && containing(texts, symbol.address()).is_some()
        && symbol.name_bytes().is_ok_and(|name| !name.is_empty())
}

/// The order of several names of one address: the usual name first. The C library has `__write` for what it exports as `write`.
fn preference(symbol: &object::Symbol<'_, '_>) -> (bool, bool, usize, bool) {
    let name = symbol.name_bytes().unwrap_or_default();
    let underscores = name.iter().take_while(|byte| **byte == b'_').count();
    (symbol.size() == 0, symbol.is_local(), underscores, symbol.is_weak())
}

fn line(location: &Location<'_>) -> Option<Line> {
    Some(Line { file: location.file?.to_owned(), line: location.line.unwrap_or(0) })
}

/// The line tables of an ELF file.
fn lines(file: &[u8]) -> Option<Context<Reader>> {
    let elf = parse(file).ok()?;
    let endian = if elf.is_little_endian() { RunTimeEndian::Little } else { RunTimeEndian::Big };
    let dwarf = Dwarf::load(|id| {
        let section = elf.section_by_name(id.name());
        let data = section.and_then(|section| section.uncompressed_data().ok()).unwrap_or_default();
        Ok::<_, gimli::Error>(Reader::new(Arc::from(&*data), endian))
    });
    Context::from_dwarf(dwarf.ok()?).ok()
}
