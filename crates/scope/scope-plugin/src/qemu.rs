//! QEMU's functions for plugins (`include/qemu/qemu-plugin.h` of QEMU 10.0; no package has the header), and safe wrappers.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// The version of the plugin interface.
pub const VERSION: c_int = 4;

/// QEMU's identifier of this plugin.
pub type Id = u64;

/// `struct qemu_info_t`
#[repr(C)]
pub struct Info {
    target_name: *const c_char,
    version_min: c_int,
    version_current: c_int,
    system_emulation: bool,
    smp_vcpus: c_int,
    max_vcpus: c_int,
}

/// `struct qemu_plugin_tb`
#[repr(C)]
pub struct Translation {
    opaque: [u8; 0],
}

/// `struct qemu_plugin_insn`
#[repr(C)]
struct RawInstruction {
    opaque: [u8; 0],
}

/// `struct qemu_plugin_register`
#[repr(C)]
struct RawRegister {
    opaque: [u8; 0],
}

/// `struct qemu_plugin_hwaddr`
#[repr(C)]
struct RawHardwareAddress {
    opaque: [u8; 0],
}

/// `qemu_plugin_reg_descriptor`
#[repr(C)]
struct Descriptor {
    handle: *mut RawRegister,
    name: *const c_char,
    feature: *const c_char,
}

/// GLib's `GArray`.
#[repr(C)]
struct Array {
    data: *mut c_char,
    len: c_uint,
}

/// GLib's `GByteArray`.
#[repr(C)]
struct ByteArray {
    data: *mut u8,
    len: c_uint,
}

/// `enum qemu_plugin_cb_flags`: what a callback may do with registers.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum CallbackRegisters {
    None = 0,
    Read = 1,
}

/// `enum qemu_plugin_mem_rw`: which accesses of data.
#[derive(Clone, Copy)]
#[repr(C)]
pub enum DataAccess {
    Read = 1,
    Write = 2,
}

type OnProcessor = extern "C" fn(Id, c_uint);
type OnTranslation = extern "C" fn(Id, *mut Translation);
type OnExit = extern "C" fn(Id, *mut c_void);
type OnReset = extern "C" fn(Id);
type OnExecution = extern "C" fn(c_uint, *mut c_void);
/// A data access: the processor, QEMU's descriptor of the access, its virtual address, and the data of the callback.
pub type OnData = extern "C" fn(c_uint, u32, u64, *mut c_void);

unsafe extern "C" {
    fn qemu_plugin_reset(id: Id, callback: OnReset);
    fn qemu_plugin_register_vcpu_init_cb(id: Id, callback: OnProcessor);
    fn qemu_plugin_register_vcpu_tb_trans_cb(id: Id, callback: OnTranslation);
    fn qemu_plugin_register_atexit_cb(id: Id, callback: OnExit, data: *mut c_void);
    fn qemu_plugin_register_vcpu_tb_exec_cb(
        translation: *mut Translation,
        callback: OnExecution,
        registers: CallbackRegisters,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_insn_exec_cb(
        instruction: *mut RawInstruction,
        callback: OnExecution,
        registers: CallbackRegisters,
        data: *mut c_void,
    );
    fn qemu_plugin_register_vcpu_mem_cb(
        instruction: *mut RawInstruction,
        callback: OnData,
        registers: CallbackRegisters,
        which: DataAccess,
        data: *mut c_void,
    );
    fn qemu_plugin_tb_n_insns(translation: *const Translation) -> usize;
    fn qemu_plugin_tb_get_insn(translation: *const Translation, n: usize) -> *mut RawInstruction;
    fn qemu_plugin_insn_data(
        instruction: *const RawInstruction,
        to: *mut c_void,
        len: usize,
    ) -> usize;
    fn qemu_plugin_insn_size(instruction: *const RawInstruction) -> usize;
    fn qemu_plugin_insn_vaddr(instruction: *const RawInstruction) -> u64;
    fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    fn qemu_plugin_get_hwaddr(info: u32, address: u64) -> *mut RawHardwareAddress;
    fn qemu_plugin_hwaddr_is_io(address: *const RawHardwareAddress) -> bool;
    fn qemu_plugin_hwaddr_phys_addr(address: *const RawHardwareAddress) -> u64;
    fn qemu_plugin_get_registers() -> *mut Array;
    fn qemu_plugin_read_register(handle: *mut RawRegister, to: *mut ByteArray) -> c_int;
    fn g_byte_array_new() -> *mut ByteArray;
    fn g_byte_array_set_size(array: *mut ByteArray, len: c_uint) -> *mut ByteArray;
    fn g_array_free(array: *mut Array, data_too: c_int) -> *mut c_char;
}

impl Info {
    /// Whether this machine can be recorded.
    pub fn check(&self) -> Result<(), String> {
        // SAFETY: QEMU's name of the target is a static string.
        let target = unsafe { CStr::from_ptr(self.target_name) };
        if target != c"x86_64" || !self.system_emulation {
            return Err("only whole machines can be recorded: use qemu-system-x86_64".to_owned());
        }
        if !(self.version_min..=self.version_current).contains(&VERSION) {
            let (min, current) = (self.version_min, self.version_current);
            return Err(format!(
                "this QEMU has plugin interfaces {min} to {current}, and {VERSION} is needed: use QEMU 10"
            ));
        }
        if self.max_vcpus != 1 {
            return Err("only one processor can be recorded: use -smp 1".to_owned());
        }
        Ok(())
    }
}

/// The strings of an argument vector.
///
/// # Safety
/// `argv` has `argc` strings.
pub unsafe fn strings(argc: c_int, argv: *const *const c_char) -> Vec<String> {
    let count = usize::try_from(argc).unwrap_or(0);
    // SAFETY: as the caller promises.
    let word = |n| unsafe { CStr::from_ptr(*argv.add(n)) }.to_string_lossy().into_owned();
    (0..count).map(word).collect()
}

/// Drops all translations and callbacks, then calls `callback`.
pub fn reset(id: Id, callback: OnReset) {
    // SAFETY: QEMU calls it once, while no code of the guest is executed.
    unsafe { qemu_plugin_reset(id, callback) }
}

pub fn on_processor(id: Id, callback: OnProcessor) {
    // SAFETY: the callback is a function of this library, which is never unloaded.
    unsafe { qemu_plugin_register_vcpu_init_cb(id, callback) }
}

pub fn on_translation(id: Id, callback: OnTranslation) {
    // SAFETY: as above.
    unsafe { qemu_plugin_register_vcpu_tb_trans_cb(id, callback) }
}

pub fn on_exit(id: Id, callback: OnExit) {
    // SAFETY: as above.
    unsafe { qemu_plugin_register_atexit_cb(id, callback, std::ptr::null_mut()) }
}

/// Calls `callback` with `data` at each execution of the block that is being translated.
pub fn on_block(translation: *mut Translation, callback: OnExecution, data: *mut c_void) {
    // SAFETY: QEMU passed `translation` to the present callback, and returns `data` unchanged.
    unsafe {
        qemu_plugin_register_vcpu_tb_exec_cb(translation, callback, CallbackRegisters::None, data);
    }
}

/// An instruction of the block that is being translated.
pub struct Instruction {
    raw: *mut RawInstruction,
}

/// The most bytes of an instruction.
pub const INSTRUCTION_MAX: usize = 15;

impl Instruction {
    /// The instructions of a block.
    pub fn all(translation: *mut Translation) -> impl Iterator<Item = Self> {
        // SAFETY: QEMU passed `translation` to the present callback.
        let count = unsafe { qemu_plugin_tb_n_insns(translation) };
        // SAFETY: there are `count` of them.
        (0..count).map(move |n| Self { raw: unsafe { qemu_plugin_tb_get_insn(translation, n) } })
    }

    /// Its virtual address.
    pub fn address(&self) -> u64 {
        // SAFETY: it is valid while its block is translated, and is not kept longer.
        unsafe { qemu_plugin_insn_vaddr(self.raw) }
    }

    /// The number of its bytes.
    pub fn size(&self) -> u64 {
        // SAFETY: as above.
        unsafe { qemu_plugin_insn_size(self.raw) as u64 }
    }

    /// Its bytes, padded with zeros.
    pub fn bytes(&self) -> [u8; INSTRUCTION_MAX] {
        let mut bytes = [0; INSTRUCTION_MAX];
        // SAFETY: QEMU writes at most `len` bytes.
        unsafe { qemu_plugin_insn_data(self.raw, bytes.as_mut_ptr().cast(), bytes.len()) };
        bytes
    }

    /// Calls `callback` with `data` before each execution.
    pub fn on_execution(
        &self,
        callback: OnExecution,
        registers: CallbackRegisters,
        data: *mut c_void,
    ) {
        // SAFETY: as for `on_block`.
        unsafe { qemu_plugin_register_vcpu_insn_exec_cb(self.raw, callback, registers, data) }
    }

    /// Calls `callback` with `data` after each data access of this kind.
    pub fn on_data(&self, callback: OnData, which: DataAccess, data: *mut c_void) {
        // SAFETY: as for `on_block`.
        unsafe {
            qemu_plugin_register_vcpu_mem_cb(
                self.raw,
                callback,
                CallbackRegisters::None,
                which,
                data,
            );
        }
    }
}

/// The base-2 logarithm of the bytes of an access.
#[inline]
pub fn data_size_log2(info: u32) -> u32 {
    // SAFETY: the function accepts any descriptor.
    unsafe { qemu_plugin_mem_size_shift(info) }
}

/// The physical address of the access that the present callback is for; none if it is a device's.
pub fn physical_address(info: u32, address: u64) -> Option<u64> {
    // SAFETY: called from the callback of that access, as QEMU demands; the result is valid until the next call.
    unsafe {
        let hardware = qemu_plugin_get_hwaddr(info, address);
        let memory = !hardware.is_null() && !qemu_plugin_hwaddr_is_io(hardware);
        memory.then(|| qemu_plugin_hwaddr_phys_addr(hardware))
    }
}

/// The registers of the processor.
#[derive(Default)]
pub struct Registers {
    by_name: BTreeMap<String, *mut RawRegister>,
    general: [Option<*mut RawRegister>; 16],
}

/// The general registers, in the order of their numbers in instructions.
const GENERAL: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];

impl Registers {
    /// Finds the registers. Call this when QEMU initialises the processor.
    pub fn find() -> Self {
        // SAFETY: called from the callback that QEMU demands; it returns an array of descriptors.
        let array = unsafe { qemu_plugin_get_registers() };
        let mut by_name = BTreeMap::new();
        // SAFETY: the array is valid, or null without registers.
        if let Some(Array { data, len }) = unsafe { array.as_ref() } {
            for n in 0..*len as usize {
                // SAFETY: there are `len` descriptors, each with a static name.
                let (name, handle) = unsafe {
                    let descriptor = &*data.cast::<Descriptor>().add(n);
                    (CStr::from_ptr(descriptor.name), descriptor.handle)
                };
                by_name.insert(name.to_string_lossy().into_owned(), handle);
            }
            // SAFETY: the plugin owns the array.
            unsafe { g_array_free(array, 1) };
        }
        let general = GENERAL.map(|name| by_name.get(name).copied());
        Self { by_name, general }
    }

    /// Reads a register, from a callback that may.
    pub fn read(&self, name: &str) -> Option<u64> {
        self.by_name.get(name).and_then(|handle| value(*handle))
    }

    /// Reads a general register by its number.
    pub fn general(&self, number: u8) -> Option<u64> {
        self.general[usize::from(number & 15)].and_then(value)
    }
}

fn value(handle: *mut RawRegister) -> Option<u64> {
    thread_local! {
        // SAFETY: GLib allocates the array, which lives as long as the thread.
        static BYTES: *mut ByteArray = unsafe { g_byte_array_new() };
    }
    BYTES.with(|bytes| {
        // SAFETY: the handle is QEMU's, the array GLib's; QEMU appends the register's bytes to it.
        let read = unsafe {
            g_byte_array_set_size(*bytes, 0);
            qemu_plugin_read_register(handle, *bytes)
        };
        // SAFETY: the array is valid and has `len` bytes.
        let bytes = unsafe { std::slice::from_raw_parts((**bytes).data, (**bytes).len as usize) };
        let bytes = bytes.get(..usize::try_from(read).ok()?)?;
        let mut value = [0; 8];
        value.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u64::from_le_bytes(value))
    })
}
