//! The plugin of QEMU (TCG's interface, version 4: QEMU 10) that pvscope runs guests under.
//!
//! ```text
//!  QEMU ── blocks, data, control registers ──► Tracer ── a thread ──► scope_model::Model
//!    │                                            └─────────────────► scope_result::Recording, at the mark's end
//!    └─ the guest's memory, shared: page tables are read where they lie
//! ```
//!
//! Until the first mark (an instruction that does nothing, with a number in it) nothing is
//! instrumented but the search for it. Then everything that was translated is dropped and translated
//! anew, with the model attached, until the second.
//!
//! `unsafe` is what this crate is for: `qemu` declares QEMU's functions, `memory` reads the guest's
//! memory; the others are safe but for the entry points that QEMU calls.

mod memory;
mod qemu;

use std::ffi::{c_char, c_int, c_void};
use std::sync::atomic::{AtomicPtr, Ordering};

use memory::GuestMemory;
use qemu::{CallbackRegisters, DataAccess, Id, Info, Instruction, OnData, Registers, Translation};
use scope_model::Paging;
use scope_recorder::{
    Arguments, BlockId, Mark, Special, Start, Told, What, bytes_at, mark, special,
};

type Tracer = scope_recorder::Tracer<GuestMemory>;

/// The version of the interface that this is for.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// All there is. QEMU has one thread that executes, since there is one processor, and calls from no other
/// while it does.
struct Plugin {
    id: Id,
    arguments: Arguments,
    registers: Registers,
    phase: Phase,
}

enum Phase {
    /// The first mark was not met.
    Before,
    /// Between the marks: [`TRACER`].
    Recording,
    /// It is over, well or not.
    Over,
}

static PLUGIN: AtomicPtr<Plugin> = AtomicPtr::new(std::ptr::null_mut());

/// The plugin, for one call of QEMU's.
fn plugin() -> Option<&'static mut Plugin> {
    // SAFETY: the pointer is null or that of a box which is never freed. QEMU calls from the one thread
    // that executes the guest (`install` refuses more processors), no callback calls another, and
    // none keeps the reference.
    unsafe { PLUGIN.load(Ordering::Relaxed).as_mut() }
}

/// The tracer, for one call of QEMU's; null but between the marks.
static TRACER: AtomicPtr<Tracer> = AtomicPtr::new(std::ptr::null_mut());

/// The tracer, between the marks.
#[inline]
fn tracer() -> Option<&'static mut Tracer> {
    // SAFETY: as for `plugin`: it is null, or a box's that `finish` frees when it has taken the pointer away.
    unsafe { TRACER.load(Ordering::Relaxed).as_mut() }
}

/// Tells whoever has started QEMU.
fn say(text: &str) {
    eprintln!("pvscope: {text}");
}

/// QEMU loads the plugin.
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
    let plugin = Plugin { id, arguments, registers: Registers::default(), phase: Phase::Before };
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

/// Before the first mark: a look at every instruction, once.
extern "C" fn search(_: Id, translation: *mut Translation) {
    for instruction in Instruction::all(translation) {
        if mark(&instruction.bytes()) == Some(Mark::Begin) {
            let address = std::ptr::without_provenance_mut(mark_address(instruction.address()));
            instruction.on_execution(begin, CallbackRegisters::Read, address);
        }
    }
}

/// An address, as QEMU carries it about.
fn mark_address(address: u64) -> usize {
    // QEMU runs where addresses have 64 bits: its plugin interface is for no other.
    usize::try_from(address).unwrap_or(0)
}

extern "C" fn begin(_: u32, at: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    if plugin.arguments.wait || !matches!(plugin.phase, Phase::Before) {
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

fn start(plugin: &Plugin, at: u64) -> Result<Tracer, String> {
    let read = |name| plugin.registers.read(name).ok_or(format!("QEMU has no register {name}"));
    let start = Start { cr3: read("cr3")?, cr4: read("cr4")? };
    known_paging(read("efer")?, start.cr4)?;
    let memory = GuestMemory::find(plugin.arguments.low_memory)?;
    let paging = Paging { root: start.cr3, ..Paging::default() };
    /// The bytes of a mark.
    const MARK: usize = 7;
    let code = bytes_at::<MARK>(&memory, paging, at);
    if code.and_then(|code| mark(&code)) != Some(Mark::Begin) {
        return Err("the first mark is not where the page tables lead: this machine's memory has another hole for \
                    devices than is known here; use -m 2G or less"
            .to_owned());
    }
    Tracer::new(memory, &plugin.arguments, start)
}

/// Refuses page tables that are not of four levels.
fn known_paging(efer: u64, cr4: u64) -> Result<(), String> {
    /// EFER.LMA: it is a 64-bit system.
    const LONG: u64 = 1 << 10;
    /// CR4.LA57: page tables have five levels.
    const FIVE_LEVELS: u64 = 1 << 12;
    match (efer & LONG, cr4 & FIVE_LEVELS) {
        (0, _) => Err("the machine runs a system of 32 bits or less, and 64 are needed".to_owned()),
        (_, 0) => Ok(()),
        _ => Err("the guest's page tables have five levels, and four are modelled: take la57 away, as in \
                  -cpu max,-la57, or give its kernel no5lvl"
            .to_owned()),
    }
}

/// Everything that was translated is dropped: from here on with the model.
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
    let mut alone = false;
    for (instruction, bytes) in instructions.iter().zip(&code) {
        alone |= watch_for_itself(plugin, instruction, bytes);
    }
    let plan = tracer.translate(first.address(), &code, alone);
    if let Some(block) = plan.block {
        qemu::on_block(translation, executed, pointer(block.0.into()));
    }
    for watch in plan.watches {
        let which = if watch.write { DataAccess::Write } else { DataAccess::Read };
        let (callback, data): (OnData, _) = match watch.what {
            What::Group(told) => (group_accessed, pointer(told.0)),
            What::Access if watch.write => (data_written, std::ptr::null_mut()),
            What::Access => (data_read, std::ptr::null_mut()),
        };
        instructions[watch.instruction].on_data(callback, which, data);
    }
}

/// Has the plugin called at an instruction that matters for itself. Answers whether it is one.
fn watch_for_itself(plugin: &Plugin, instruction: &Instruction, bytes: &[u8]) -> bool {
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
    if let Some(special) = special(bytes) {
        // It is read again when it is executed; it lives as long as QEMU, as does what it is for.
        let special = Box::into_raw(Box::new(special));
        call(flushed, CallbackRegisters::Read, special.cast());
    }
    if mark(bytes) == Some(Mark::End) {
        call(end, CallbackRegisters::None, std::ptr::null_mut());
    }
    callbacks > 0
}

/// A number, as QEMU carries it about.
fn pointer(number: u64) -> *mut c_void {
    // QEMU with this plugin is a program of 64 bits: all fit.
    std::ptr::without_provenance_mut(usize::try_from(number).unwrap_or_default())
}

fn block_of(pointer: *mut c_void) -> BlockId {
    // It was made of 32 bits.
    BlockId(u32::try_from(pointer.addr()).unwrap_or(0))
}

extern "C" fn executed(_: u32, block: *mut c_void) {
    if let Some(tracer) = tracer() {
        tracer.execute(block_of(block));
    }
}

extern "C" fn group_accessed(_: u32, _: u32, address: u64, told: *mut c_void) {
    if let Some(tracer) = tracer() {
        tracer.group(Told(told.addr() as u64), address);
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
    // What begins in the first half of a line ends in it: TCG has no vectors of more than 32 bytes.
    let bytes = if address % 64 <= 32 && !tracer.checks_hits() {
        1
    } else {
        tracer.sizes.of(info, qemu::data_size_log2)
    };
    tracer.data(address, bytes, write);
    // Where both pages of an access lie is not compared.
    let one_page = address % 4096 + u64::from(bytes) <= 4096;
    if tracer.checks_hits()
        && one_page
        && let Some(physical) = qemu::physical_address(info, address)
    {
        tracer.compare(address, physical);
    }
}

extern "C" fn flushed(_: u32, special: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    // SAFETY: made by `translated` and never freed.
    let special = unsafe { &*special.cast::<Special>() };
    let registers = |number| plugin.registers.general(number);
    if let Some(flush) = special.flush(registers, |address| tracer.peek(address)) {
        tracer.flush(flush);
    }
}

/// Xen's `context_switch(prev, next)`.
extern "C" fn switched(_: u32, _: *mut c_void) {
    let (Some(tracer), Some(plugin)) = (tracer(), plugin()) else { return };
    /// The registers of the first two arguments.
    const RDI: u8 = 7;
    const RSI: u8 = 6;
    let argument = |number| plugin.registers.general(number).unwrap_or(0);
    tracer.switch(argument(RDI), argument(RSI));
}

extern "C" fn probed(_: u32, probe: *mut c_void) {
    if let Some(tracer) = tracer() {
        tracer.probe(probe as usize);
    }
}

extern "C" fn end(_: u32, _: *mut c_void) {
    finish();
}

/// Also without a second mark: what there is so far is of no use, and nothing is written.
extern "C" fn on_exit(_: Id, _: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    match plugin.phase {
        Phase::Before => say("the machine ended before the first mark"),
        Phase::Recording => say("the machine ended before the second mark"),
        Phase::Over => {}
    }
}

fn finish() {
    let Some(plugin) = plugin() else { return };
    plugin.phase = Phase::Over;
    let tracer = TRACER.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if tracer.is_null() {
        return;
    }
    // SAFETY: made by `begin` of a box, and taken away just now: nobody else has it.
    let tracer = unsafe { Box::from_raw(tracer) };
    let written = tracer.finish().and_then(|recording| {
        scope_result::write(&plugin.arguments.out, &recording).map_err(|error| error.to_string())
    });
    match written {
        Ok(()) => say("recorded"),
        Err(reason) => say(&reason),
    }
    qemu::reset(plugin.id, nothing);
}

extern "C" fn nothing(_: Id) {}
