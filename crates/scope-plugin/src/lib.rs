//! The plugin of QEMU (TCG's interface, version 4: QEMU 10) that pvscope runs guests under.
//!
//! ```text
//!  QEMU ── blocks, data, control registers ──► Recorder ──► scope_model::Model
//!    │                                            └──────► scope_result::Recording, at the mark's end
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
use qemu::{CallbackRegisters, DataAccess, Id, Info, Instruction, Registers, Translation};
use scope_recorder::{Arguments, BlockId, Mark, Special, Start, mark, special};

type Recorder = scope_recorder::Recorder<GuestMemory>;

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
    /// Between the marks: [`RECORDER`].
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

/// The recorder, for one call of QEMU's; null but between the marks.
static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(std::ptr::null_mut());

/// The recorder, between the marks.
#[inline]
fn recorder() -> Option<&'static mut Recorder> {
    // SAFETY: as for `plugin`: it is null, or a box's that `finish` frees when it has taken the pointer away.
    unsafe { RECORDER.load(Ordering::Relaxed).as_mut() }
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
            instruction.on_execution(begin, CallbackRegisters::Read, std::ptr::null_mut());
        }
    }
}

extern "C" fn begin(_: u32, _: *mut c_void) {
    let Some(plugin) = plugin() else { return };
    if plugin.arguments.wait || !matches!(plugin.phase, Phase::Before) {
        return;
    }
    plugin.phase = match start(plugin) {
        Ok(recorder) => {
            say("recording");
            RECORDER.store(Box::into_raw(Box::new(recorder)), Ordering::Relaxed);
            Phase::Recording
        }
        Err(reason) => {
            say(&reason);
            Phase::Over
        }
    };
    qemu::reset(plugin.id, instrument);
}

fn start(plugin: &Plugin) -> Result<Recorder, String> {
    let memory = GuestMemory::find()?;
    let read = |name| plugin.registers.read(name).ok_or(format!("QEMU has no register {name}"));
    let start = Start { cr3: read("cr3")?, cr4: read("cr4")? };
    Ok(Recorder::new(memory, &plugin.arguments, start))
}

/// Everything that was translated is dropped: from here on with the model.
extern "C" fn instrument(id: Id) {
    qemu::on_exit(id, on_exit);
    if recorder().is_some() {
        qemu::on_translation(id, translated);
    }
}

extern "C" fn translated(_: Id, translation: *mut Translation) {
    let (Some(recorder), Some(plugin)) = (recorder(), plugin()) else { return };
    let instructions: Vec<Instruction> = Instruction::all(translation).collect();
    let Some((first, last)) = instructions.first().zip(instructions.last()) else { return };
    let bytes = last.address() + last.size() - first.address();
    let count = instructions.len();
    let block = recorder.block(first.address(), bytes, count);
    qemu::on_block(translation, executed, pointer(block));
    for instruction in &instructions {
        instruction.on_data(data_read, DataAccess::Read);
        instruction.on_data(data_written, DataAccess::Write);
        if Some(instruction.address()) == plugin.arguments.switch {
            instruction.on_execution(switched, CallbackRegisters::Read, std::ptr::null_mut());
        }
        let probe = plugin.arguments.probes.iter().position(|at| *at == instruction.address());
        if let Some(probe) = probe {
            instruction.on_execution(probed, CallbackRegisters::None, probe as *mut c_void);
        }
        let code = instruction.bytes();
        if let Some(special) = special(&code) {
            // It is read again when it is executed; it lives as long as QEMU, as does what it is for.
            let special = Box::into_raw(Box::new(special));
            instruction.on_execution(flushed, CallbackRegisters::Read, special.cast());
        }
        if mark(&code) == Some(Mark::End) {
            instruction.on_execution(end, CallbackRegisters::None, std::ptr::null_mut());
        }
    }
}

/// A block, as QEMU carries it about.
fn pointer(block: BlockId) -> *mut c_void {
    std::ptr::without_provenance_mut(block.0 as usize)
}

fn block_of(pointer: *mut c_void) -> BlockId {
    // It was made of 32 bits.
    BlockId(u32::try_from(pointer.addr()).unwrap_or(0))
}

extern "C" fn executed(_: u32, block: *mut c_void) {
    if let Some(recorder) = recorder() {
        recorder.execute(block_of(block));
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
    let Some(recorder) = recorder() else { return };
    // What begins in the first half of a line ends in it: TCG has no vectors of more than 32 bytes.
    let bytes = if address % 64 <= 32 && !recorder.checks_hits() {
        1
    } else {
        recorder.sizes.of(info, qemu::data_size_log2)
    };
    recorder.data(address, bytes, write);
    // Where both pages of an access lie is not compared.
    let one_page = address % 4096 + bytes <= 4096;
    if recorder.checks_hits()
        && one_page
        && let Some(physical) = qemu::physical_address(info, address)
    {
        recorder.compare(address, physical);
    }
}

extern "C" fn flushed(_: u32, special: *mut c_void) {
    let (Some(recorder), Some(plugin)) = (recorder(), plugin()) else { return };
    // SAFETY: made by `translated` and never freed.
    let special = unsafe { &*special.cast::<Special>() };
    let registers = |number| plugin.registers.general(number);
    if let Some(flush) = special.flush(registers, |address| recorder.peek(address)) {
        recorder.flush(flush);
    }
}

/// Xen's `context_switch(prev, next)`.
extern "C" fn switched(_: u32, _: *mut c_void) {
    let (Some(recorder), Some(plugin)) = (recorder(), plugin()) else { return };
    /// The registers of the first two arguments.
    const RDI: u8 = 7;
    const RSI: u8 = 6;
    let argument = |number| plugin.registers.general(number).unwrap_or(0);
    recorder.switch(argument(RDI), argument(RSI));
}

extern "C" fn probed(_: u32, probe: *mut c_void) {
    if let Some(recorder) = recorder() {
        recorder.probe(probe as usize);
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
    let recorder = RECORDER.swap(std::ptr::null_mut(), Ordering::Relaxed);
    if recorder.is_null() {
        return;
    }
    // SAFETY: made by `begin` of a box, and taken away just now: nobody else has it.
    let recorder = unsafe { Box::from_raw(recorder) };
    let written = scope_result::write(&plugin.arguments.out, &recorder.finish());
    match written {
        Ok(()) => say("recorded"),
        Err(error) => say(&error.to_string()),
    }
    qemu::reset(plugin.id, nothing);
}

extern "C" fn nothing(_: Id) {}
