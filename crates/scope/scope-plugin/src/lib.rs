//! The QEMU plugin that pvscope runs guests under (TCG's plugin interface, version 4: QEMU 10).
//!
//! ```text
//!  QEMU ── blocks, data, control registers ──► Tracer ── a thread ──► scope_model::Model
//!    │                                            └─────────────────► scope_result::Recording, at the second mark
//!    └─ the guest's memory, shared: page tables are read in place
//! ```
//!
//! Until the first mark (a no-op instruction with a number in it) the plugin only searches for that mark. Then it has QEMU
//! translate all code again, with callbacks for the models, until the second mark.
//!
//! This crate contains `unsafe` code: `qemu` declares QEMU's functions, `memory` reads the guest's memory, and QEMU calls the
//! entry points here.

mod memory;
mod qemu;

use std::ffi::{c_char, c_int, c_void};
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use memory::GuestMemory;
use qemu::{CallbackRegisters, DataAccess, Id, Info, Instruction, OnData, Registers, Translation};
use scope_model::{FlushSite, Paging};
use scope_recorder::{
    Arguments, BlockId, ControlRegisters, Covers, FlushInstruction, GroupWord, Mark, TIME_STAMP,
    bytes_at, enters_guest, flush_instruction, mark,
};

type Tracer = scope_recorder::Tracer<GuestMemory>;

/// The version of the interface that this plugin is written for.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// The state of the plugin. With one guest processor QEMU has one thread that executes the guest, and calls the plugin from
/// that thread only.
struct Plugin {
    id: Id,
    arguments: Arguments,
    registers: Registers,
    phase: Phase,
    /// The time stamp at the first mark.
    began: Option<u64>,
    /// Recordings that have ended.
    recorded: usize,
}

enum Phase {
    /// Before the first mark.
    Before,
    /// Between the marks: [`TRACER`].
    Recording,
    /// Recording has ended or failed.
    Over,
}

static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

/// The plugin, for the duration of a callback.
fn plugin() -> Option<&'static mut Plugin> {
    // SAFETY: the pointer is null or that of a box which is never freed. QEMU calls from the one thread that executes the
    // guest (`install` refuses more processors), no callback calls another, and none keeps the reference.
    unsafe { PLUGIN.load(Ordering::Relaxed).as_mut() }
}

/// The tracer; null except between the marks.
static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(std::ptr::null_mut());

/// The tracer between the marks, for the duration of a callback.
#[inline]
fn tracer() -> Option<&'static mut Tracer> {
    // SAFETY: as for `plugin`; the pointer is null or that of a box. Whoever frees the box replaces the pointer first.
    unsafe { TRACER.load(Ordering::Relaxed).as_mut() }
}

/// Prints a message for the program that started QEMU, in one write: that program reads meanwhile, and half a line is no message.
fn say(text: &str) {
    let line = format!("pvscope: {text}\n");
    // Without its reader the message is of no use.
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// QEMU calls this when it loads the plugin.
///
/// # Safety
/// As QEMU calls it: `info` and `argv` are valid for the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: Id,
    info: *const Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    // SAFETY: QEMU passes a valid structure.
    let info = unsafe { &*info };
    // SAFETY: QEMU passes `argc` strings.
    let words = unsafe { qemu::strings(argc, argv) };
    match install(id, info, &words) {
        Ok(()) => 0,
        Err(reason) => {
            say(&reason);
            -1
        }
    }
}

fn install(id: Id, info: &Info, words: &[String]) -> Result<(), String> {
    info.check()?;
    let arguments = Arguments::parse(words)?;
    let plugin = Plugin {
        id,
        arguments,
        registers: Registers::default(),
        phase: Phase::Before,
        began: None,
        recorded: 0,
    };
    PLUGIN.store(Box::into_raw(Box::new(plugin)), Ordering::Relaxed);
    qemu::on_processor(id, on_processor);
    qemu::on_translation(id, search);
    qemu::on_exit(id, on_exit);
    Ok(())
}

extern "C" fn on_processor(_: Id, _: u32) {
    if let Some(plugin) = plugin() {
        plugin.registers = Registers::find();
    }
}

/// Before the first mark: looks at every instruction once, when it is translated.
extern "C" fn search(_: Id, translation: *mut Translation) {
    for instruction in Instruction::all(translation) {
        if mark(&instruction.bytes()) == Some(Mark::Begin) {
            if let Some(plugin) = plugin() {
                hold(&std::mem::take(&mut plugin.arguments.hold), say);
            }
            let address = std::ptr::without_provenance_mut(mark_address(instruction.address()));
            instruction.on_execution(begin, CallbackRegisters::Read, address);
        }
    }
}

/// An address as the data of a callback.
fn mark_address(address: u64) -> usize {
    // Addresses of the host have 64 bits.
    usize::try_from(address).unwrap_or(0)
}

extern "C" fn begin(_: u32, at: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    if plugin.arguments.ignore_marks || !matches!(plugin.phase, Phase::Before) {
        return;
    }
    plugin.phase = match start(plugin, at.addr() as u64) {
        Ok(tracer) => {
            say("recording");
            TRACER.store(Box::into_raw(Box::new(tracer)), Ordering::Relaxed);
            Phase::Recording
        }
        Err(reason) => {
            say(&reason);
            Phase::Over
        }
    };
    qemu::reset(plugin.id, instrument);
}

fn start(plugin: &mut Plugin, at: u64) -> Result<Tracer, String> {
    let read = |name| plugin.registers.read(name).ok_or(format!("QEMU has no register {name}"));
    let start = ControlRegisters { cr3: read("cr3")?, cr4: read("cr4")? };
    check_paging(read("efer")?, start.cr4)?;
    let memory = GuestMemory::find(plugin.arguments.low_memory)?;
    let paging = Paging { root: start.cr3, ..Paging::default() };
    let short = bytes_at::<7>(&memory, paging, at).and_then(|code| mark(&code));
    let is_mark = || bytes_at::<10>(&memory, paging, at).and_then(|code| mark(&code)).is_some();
    if short.is_none() && !is_mark() {
        return Err("the first mark is not at the address that the page tables give: this machine has another device \
                    hole in its memory than pvscope expects; use -m 2G or less"
            .to_owned());
    }
    plugin.began = time_stamp(&plugin.registers, bytes_at(&memory, paging, at.wrapping_sub(2)));
    Tracer::new(memory, &plugin.arguments, start)
}

/// The time stamp that the instruction before a mark has read, if that instruction is [`TIME_STAMP`].
fn time_stamp(registers: &Registers, before: Option<[u8; TIME_STAMP.len()]>) -> Option<u64> {
    const RAX: u8 = 0;
    const RDX: u8 = 2;
    let half = |number| Some(registers.general(number)? & u64::from(u32::MAX));
    (before == Some(TIME_STAMP)).then(|| Some(half(RDX)? << 32 | half(RAX)?))?
}

/// Refuses page tables that do not have four levels.
fn check_paging(efer: u64, cr4: u64) -> Result<(), String> {
    /// EFER.LMA: long mode.
    const LONG: u64 = 1 << 10;
    /// CR4.LA57: page tables have five levels.
    const FIVE_LEVELS: u64 = 1 << 12;
    match (efer & LONG, cr4 & FIVE_LEVELS) {
        (0, _) => Err("the machine does not run a 64-bit system".to_owned()),
        (_, 0) => Ok(()),
        _ => Err("the guest's page tables have five levels, and only four are modelled: remove la57, as in -cpu \
                  max,-la57, or add no5lvl to its kernel's command line"
            .to_owned()),
    }
}

/// Called once QEMU has dropped all translations: adds callbacks to the new ones.
extern "C" fn instrument(id: Id) {
    qemu::on_exit(id, on_exit);
    if tracer().is_some() {
        qemu::on_translation(id, translated);
    }
}

extern "C" fn translated(_: Id, translation: *mut Translation) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    let instructions: Vec<Instruction> = Instruction::all(translation).collect();
    let Some(first) = instructions.first() else { return };
    let code: Vec<_> = instructions.iter().map(Instruction::bytes).collect();
    let code: Vec<&[u8]> = instructions
        .iter()
        .zip(&code)
        .map(|(instruction, bytes)| {
            &bytes[..usize::try_from(instruction.size()).unwrap_or(0).min(bytes.len())]
        })
        .collect();
    let mut has_callbacks = false;
    for (instruction, bytes) in instructions.iter().zip(&code) {
        has_callbacks |= instrument_instruction(plugin, instruction, bytes);
    }
    // QEMU translates for the processor's present privilege level, and translates again for another one.
    let level = plugin.registers.read("cs").map(|selector| (selector & 3) as u8);
    let instrumentation = tracer.translate(first.address(), &code, level, has_callbacks);
    if let Some(block) = instrumentation.block {
        qemu::on_block(translation, executed, pointer(block.0.into()));
    }
    for access in instrumentation.accesses {
        let which = if access.write { DataAccess::Write } else { DataAccess::Read };
        let (callback, data): (OnData, _) = match access.covers {
            Covers::Group(word) => (group_callback(word), pointer(word.0)),
            Covers::Access if access.write => (data_written, std::ptr::null_mut()),
            Covers::Access => (data_read, std::ptr::null_mut()),
        };
        instructions[access.instruction].on_data(callback, which, data);
    }
}

/// Adds callbacks for `context_switch`, probes, flushes and marks. Returns whether the instruction has any.
fn instrument_instruction(plugin: &Plugin, instruction: &Instruction, bytes: &[u8]) -> bool {
    let mut callbacks = 0;
    let mut call = |callback, registers, data| {
        callbacks += 1;
        instruction.on_execution(callback, registers, data);
    };
    if Some(instruction.address()) == plugin.arguments.switch {
        call(switched, CallbackRegisters::Read, std::ptr::null_mut());
    }
    let probe = plugin.arguments.probes.iter().position(|at| *at == instruction.address());
    if let Some(probe) = probe {
        call(probed, CallbackRegisters::None, probe as *mut c_void);
    }
    let mut frames = plugin.arguments.frame_probes.iter();
    if let Some(place) = frames.position(|probe| probe.address == instruction.address()) {
        call(frames_come, CallbackRegisters::Read, place as *mut c_void);
    }
    if let Some(flush) = flush_instruction(bytes) {
        let is_new_space = plugin.arguments.new_space.contains(&instruction.address());
        let site = if is_new_space { FlushSite::NewSpace } else { FlushSite::Elsewhere };
        // The callback reads it at each execution, as long as QEMU runs: it is never freed.
        let flush = Box::into_raw(Box::new((flush, site)));
        call(flushed, CallbackRegisters::Read, flush.cast());
    }
    if mark(bytes) == Some(Mark::End) {
        let address = std::ptr::without_provenance_mut(mark_address(instruction.address()));
        call(end, CallbackRegisters::Read, address);
    }
    if enters_guest(bytes) {
        call(refuse_guest, CallbackRegisters::None, std::ptr::null_mut());
    }
    callbacks > 0
}

/// A number as the data of a callback.
fn pointer(number: u64) -> *mut c_void {
    // Pointers of the host have 64 bits.
    std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or_default())
}

fn block_of(pointer: *mut c_void) -> BlockId {
    // `translated` made it of 32 bits.
    BlockId(u32::try_from(pointer.addr()).unwrap_or(0))
}

extern "C" fn executed(_: u32, block: *mut c_void) {
    if let Some(tracer) = tracer() {
        tracer.execute(block_of(block));
    }
}

/// The callback for a group of this shape.
fn group_callback(word: GroupWord) -> OnData {
    match word.shape() {
        (false, false) => group_accessed::<false, false>,
        (false, true) => group_accessed::<false, true>,
        (true, false) => group_accessed::<true, false>,
        (true, true) => group_accessed::<true, true>,
    }
}

extern "C" fn group_accessed<const BEGINS: bool, const INDEXED: bool>(
    _: u32,
    _: u32,
    address: u64,
    word: *mut c_void,
) {
    if let Some(tracer) = tracer() {
        tracer.group::<BEGINS, INDEXED>(GroupWord(word.addr() as u64), address);
    }
}

extern "C" fn data_read(_: u32, info: u32, address: u64, _: *mut c_void) {
    accessed(info, address, false);
}

extern "C" fn data_written(_: u32, info: u32, address: u64, _: *mut c_void) {
    accessed(info, address, true);
}

#[inline]
fn accessed(info: u32, address: u64, write: bool) {
    let Some(tracer) = tracer() else { return };
    // An access that begins in the first half of a line ends in that line: TCG's vectors have at most 32 bytes.
    let bytes = if address % 64 <= 32 && !tracer.checks_hits() {
        1
    } else {
        tracer.sizes.of(info, qemu::data_size_log2)
    };
    tracer.data(address, bytes, write);
    // Accesses to two pages are not compared.
    let one_page = address % 4096 + u64::from(bytes) <= 4096;
    if tracer.checks_hits()
        && one_page
        && let Some(physical) = qemu::physical_address(info, address)
    {
        tracer.compare(address, physical);
    }
}

extern "C" fn flushed(_: u32, instruction: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    // SAFETY: made by `translated` and never freed.
    let (instruction, site) = unsafe { &*instruction.cast::<(FlushInstruction, FlushSite)>() };
    let registers = |number| plugin.registers.general(number);
    if let Some(flush) = instruction.flush(registers, |address| tracer.peek(address)) {
        tracer.flush(flush, *site);
    }
}

/// The first two arguments of a function that is called.
fn arguments(plugin: &Plugin) -> (u64, u64) {
    const RDI: u8 = 7;
    const RSI: u8 = 6;
    let argument = |number| plugin.registers.general(number).unwrap_or(0);
    (argument(RDI), argument(RSI))
}

/// Xen's `context_switch(prev, next)`.
extern "C" fn switched(_: u32, _: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    let (before, next) = arguments(plugin);
    tracer.switch(before, next);
}

/// A function of Linux that gets frames.
extern "C" fn frames_come(_: u32, place: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    if let Some(probe) = plugin.arguments.frame_probes.get(place as usize) {
        tracer.frames(probe.entry, arguments(plugin));
    }
}

extern "C" fn probed(_: u32, probe: *mut c_void) {
    if let Some(tracer) = tracer() {
        tracer.probe(probe as usize);
    }
}

extern "C" fn end(_: u32, at: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    let before = tracer.bytes_at(at.addr() as u64 - TIME_STAMP.len() as u64);
    let ended = time_stamp(&plugin.registers, before);
    let clock = plugin.began.zip(ended).map(|(began, ended)| ended.wrapping_sub(began));
    finish(clock);
}

/// The machine enters a guest under nested paging.
extern "C" fn refuse_guest(_: u32, _: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    let tracer = TRACER.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if tracer.is_null() {
        return;
    }
    // SAFETY: as in `finish`.
    drop(unsafe { Box::from_raw(tracer) });
    plugin.phase = Phase::Over;
    say(
        "the machine runs a guest with the processor's own virtualisation (VMRUN, VMLAUNCH or VMRESUME), and nested page \
         tables are not modelled: run PV guests only (type=\"pv\" in Xen), and no KVM, HVM or PVH guests",
    );
    qemu::reset(plugin.id, nothing);
}

/// QEMU ends. Without a second mark nothing is written.
extern "C" fn on_exit(_: Id, _: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    match plugin.phase {
        Phase::Before if plugin.recorded > 0 => {}
        Phase::Before => say("the machine ended before the first mark"),
        Phase::Recording => say("the machine ended before the second mark"),
        Phase::Over => {}
    }
}

fn finish(clock: Option<u64>) {
    let Some(plugin) = plugin() else { return };
    plugin.phase = Phase::Over;
    let tracer = TRACER.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if tracer.is_null() {
        return;
    }
    // SAFETY: `begin` made it of a box, and the swap has removed the only other copy.
    let tracer = unsafe { Box::from_raw(tracer) };
    let written = tracer.finish().and_then(|mut recording| {
        recording.checks.clock = clock;
        let file = plugin.arguments.file(plugin.recorded);
        scope_result::write(&file, &recording).map_err(|error| error.to_string())
    });
    plugin.recorded += 1;
    match written {
        Ok(()) => say("recorded"),
        Err(reason) => {
            say(&reason);
            qemu::reset(plugin.id, nothing);
            return;
        }
    }
    if plugin.arguments.windows {
        plugin.phase = Phase::Before;
        qemu::reset(plugin.id, search_again);
    } else {
        qemu::reset(plugin.id, nothing);
    }
}

/// Called once QEMU has dropped all translations: looks for the next mark.
extern "C" fn search_again(id: Id) {
    qemu::on_exit(id, on_exit);
    qemu::on_translation(id, search);
}

extern "C" fn nothing(_: Id) {}

/// The longest time to hold the machine.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// Holds the machine before its first mark, so that it can be saved there: waits while `file` exists, which the program that started QEMU has made.
/// Without a path it does not wait. QEMU translates the first mark here, and does not execute the translation if it was told to stop meanwhile.
fn hold(file: &Path, say: fn(&str)) {
    if file.as_os_str().is_empty() {
        return;
    }
    say("held");
    let start = Instant::now();
    while file.exists() && start.elapsed() < HOLD_MAX {
        std::thread::sleep(Duration::from_millis(1));
    }
}
