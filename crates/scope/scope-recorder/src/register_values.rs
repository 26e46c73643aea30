//! Tracks what registers hold within a block, relative to values that are not known.

use iced_x86::{Instruction, InstructionInfo, Mnemonic, OpAccess, OpKind, Register};

/// What a register holds: an unknown value, which has a number, plus a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Value {
    /// The number of the unknown value.
    pub unknown: u32,
    /// The constant.
    pub plus: i64,
}

impl Value {
    fn plus(self, more: i64) -> Self {
        Self { plus: self.plus.wrapping_add(more), ..self }
    }
}

/// The general registers of 64 bits, and what is known of segments.
pub struct RegisterValues {
    registers: [Value; 16],
    /// Unknown values so far.
    unknown: u32,
    /// Counts instructions that may change the bases of segments.
    segment_changes: u32,
}

impl RegisterValues {
    /// The registers at the start of a block: each holds an unknown value.
    pub fn new() -> Self {
        let mut registers = [Value { unknown: 0, plus: 0 }; 16];
        for (unknown, register) in (0..).zip(&mut registers) {
            register.unknown = unknown;
        }
        Self { registers, unknown: 16, segment_changes: 0 }
    }

    /// What a register holds; none unless it is a general register of 64 bits.
    pub fn value(&self, register: Register) -> Option<Value> {
        register.is_gpr64().then(|| self.registers[register.number()])
    }

    /// How often the bases of segments may have changed.
    pub fn segment_changes(&self) -> u32 {
        self.segment_changes
    }

    /// Applies an instruction.
    pub fn execute(&mut self, instruction: &Instruction, info: &InstructionInfo) {
        let result = self.result(instruction);
        let stack = moves_stack_by_constant(instruction).then(|| {
            let by = i64::from(instruction.stack_pointer_increment());
            self.registers[Register::RSP.number()].plus(by)
        });
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::ReadWrite
                    | OpAccess::CondWrite
                    | OpAccess::ReadCondWrite
            )
        };
        for used in info.used_registers().iter().filter(|used| writes(used.access())) {
            let register = used.register();
            if register.is_gpr() {
                self.unknown += 1;
                let number = register.full_register().number();
                self.registers[number] = Value { unknown: self.unknown, plus: 0 };
            } else if register.is_segment_register() {
                self.segment_changes += 1;
            }
        }
        if matches!(
            instruction.mnemonic(),
            Mnemonic::Swapgs | Mnemonic::Wrmsr | Mnemonic::Wrfsbase | Mnemonic::Wrgsbase
        ) {
            self.segment_changes += 1;
        }
        if let Some(stack) = stack {
            self.registers[Register::RSP.number()] = stack;
        }
        if let Some((register, value)) = result {
            self.registers[register.number()] = value;
        }
    }

    /// The register that an instruction of address arithmetic writes, and the value.
    fn result(&self, instruction: &Instruction) -> Option<(Register, Value)> {
        let to = instruction.op0_register();
        if instruction.op0_kind() != OpKind::Register || !to.is_gpr64() {
            return None;
        }
        let before = self.registers[to.number()];
        let immediate = || {
            (instruction.op1_kind() != OpKind::Register && instruction.op1_kind() != OpKind::Memory)
                .then(|| instruction.immediate(1).cast_signed())
        };
        let value = match instruction.mnemonic() {
            Mnemonic::Mov if instruction.op1_kind() == OpKind::Register => {
                self.value(instruction.op1_register())?
            }
            Mnemonic::Add => before.plus(immediate()?),
            Mnemonic::Sub => before.plus(immediate()?.wrapping_neg()),
            Mnemonic::Inc => before.plus(1),
            Mnemonic::Dec => before.plus(-1),
            Mnemonic::Lea if instruction.memory_index() == Register::None => self
                .value(instruction.memory_base())?
                .plus(instruction.memory_displacement64().cast_signed()),
            _ => return None,
        };
        Some((to, value))
    }
}

/// Whether an instruction moves the stack pointer by a constant only.
fn moves_stack_by_constant(instruction: &Instruction) -> bool {
    instruction.is_stack_instruction()
        && !matches!(instruction.mnemonic(), Mnemonic::Leave | Mnemonic::Enter)
        && !(instruction.mnemonic() == Mnemonic::Pop && instruction.op0_register() == Register::RSP)
}
