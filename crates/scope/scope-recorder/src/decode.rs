//! Decodes marks, and the instructions that empty TLBs.

use iced_x86::{Decoder, DecoderOptions, Instruction};
use scope_model::Flush;

/// `nop dword [rax + NUMBER]`, of seven bytes. The number identifies a mark; no compiler chooses it.
const NOP: [u8; 3] = [0x0f, 0x1f, 0x80];
/// The number of the mark that begins recording.
pub const MARK_BEGIN: [u8; 4] = *b"pvb0";
/// The number of the mark that ends recording.
pub const MARK_END: [u8; 4] = *b"pve0";

/// `mov REGISTER, NUMBER` is a mark too: of ten bytes, with one of these numbers, which no compiler chooses. A program can
/// execute it between two of its own instructions, and needs no assembler for it.
const CONSTANT_BEGIN: [u8; 8] = *b"pvs<beg>";
/// The same at the end.
const CONSTANT_END: [u8; 8] = *b"pvs<end>";

/// An instruction that begins or ends recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Recording begins.
    Begin,
    /// Recording ends.
    End,
}

/// The mark that an instruction is, if it is one.
#[must_use]
pub fn mark(code: &[u8]) -> Option<Mark> {
    if let [0x48 | 0x49, 0xb8..=0xbf, number @ ..] = code {
        return match *number.first_chunk()? {
            CONSTANT_BEGIN => Some(Mark::Begin),
            CONSTANT_END => Some(Mark::End),
            _ => None,
        };
    }
    match *code.strip_prefix(&NOP)?.first_chunk()? {
        MARK_BEGIN => Some(Mark::Begin),
        MARK_END => Some(Mark::End),
        _ => None,
    }
}

/// `rdtsc`, which comes before a mark: under QEMU's `-icount` the time stamp counts executed instructions, and those that
/// would have fitted into the time that the processor idled.
pub const TIME_STAMP: [u8; 2] = [0x0f, 0x31];

/// Whether an instruction enters a guest under nested paging: VMRUN, VMLAUNCH or VMRESUME.
#[must_use]
pub fn enters_guest(code: &[u8]) -> bool {
    let code = match code {
        [0x66 | 0x67, rest @ ..] => rest,
        _ => code,
    };
    matches!(code, [0x0f, 0x01, 0xd8 | 0xc2 | 0xc3, ..])
}

/// An instruction that empties TLBs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushInstruction {
    /// `mov cr3, REGISTER`
    Cr3(u8),
    /// `mov cr4, REGISTER`
    Cr4(u8),
    /// `invlpg [ADDRESS]`
    Invlpg(MemoryOperand),
    /// `invpcid REGISTER, [ADDRESS]`: the register with the type, and the address of the descriptor.
    Invpcid(u8, MemoryOperand),
}

/// The address operand of an instruction; registers by their numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryOperand {
    base: Option<u8>,
    index: Option<(u8, u8)>,
    displacement: i32,
}

/// Decodes the instruction at the start of these bytes if it empties TLBs. Segment prefixes and RIP-relative addresses are not
/// decoded: no kernel uses them here.
#[must_use]
pub fn flush_instruction(code: &[u8]) -> Option<FlushInstruction> {
    let (operand_size, code) = match code {
        [0x66, rest @ ..] => (true, rest),
        _ => (false, code),
    };
    let (rex, code) = match code {
        [rex @ 0x40..=0x4f, rest @ ..] => (*rex, rest),
        _ => (0, code),
    };
    match code {
        [0x0f, 0x22, modrm, ..] => {
            let register = modrm & 7 | (rex & 1) << 3;
            // With REX.R it is another control register.
            match (modrm >> 3 & 7, rex & 4) {
                (3, 0) => Some(FlushInstruction::Cr3(register)),
                (4, 0) => Some(FlushInstruction::Cr4(register)),
                _ => None,
            }
        }
        [0x0f, 0x01, rest @ ..] => {
            let modrm = rest.first()?;
            let is_memory = modrm >> 6 != 3;
            (modrm >> 3 & 7 == 7 && is_memory)
                .then(|| MemoryOperand::decode(rex, rest).map(FlushInstruction::Invlpg))?
        }
        [0x0f, 0x38, 0x82, rest @ ..] if operand_size => {
            let register = rest.first()? >> 3 & 7 | (rex & 4) << 1;
            Some(FlushInstruction::Invpcid(register, MemoryOperand::decode(rex, rest)?))
        }
        _ => None,
    }
}

impl MemoryOperand {
    /// Decodes from the ModRM byte on.
    fn decode(rex: u8, code: &[u8]) -> Option<Self> {
        let (&modrm, mut rest) = code.split_first()?;
        let (mode, rm) = (modrm >> 6, modrm & 7);
        let mut address = Self { base: Some(rm | (rex & 1) << 3), ..Self::default() };
        if rm == 4 {
            let (&sib, after) = rest.split_first()?;
            rest = after;
            let index = sib >> 3 & 7 | (rex & 2) << 2;
            address.index = (index != 4).then_some((index, sib >> 6));
            address.base = Some(sib & 7 | (rex & 1) << 3);
            if sib & 7 == 5 && mode == 0 {
                address.base = None;
            }
        } else if rm == 5 && mode == 0 {
            return None;
        }
        address.displacement = match (mode, address.base) {
            (1, _) => i32::from(rest.first()?.cast_signed()),
            (2, _) | (0, None) => i32::from_le_bytes(*rest.first_chunk()?),
            _ => 0,
        };
        Some(address)
    }

    fn value(&self, registers: impl Fn(u8) -> Option<u64>) -> Option<u64> {
        let base = self.base.map_or(Some(0), &registers)?;
        let index = match self.index {
            Some((register, scale)) => registers(register)? << scale,
            None => 0,
        };
        let displacement = i64::from(self.displacement).cast_unsigned();
        Some(base.wrapping_add(index).wrapping_add(displacement))
    }
}

impl FlushInstruction {
    /// What the instruction flushes, with these registers. `peek` reads eight bytes of the guest's memory.
    pub fn flush(
        &self,
        registers: impl Fn(u8) -> Option<u64>,
        peek: impl Fn(u64) -> Option<u64>,
    ) -> Option<Flush> {
        Some(match self {
            Self::Cr3(register) => Flush::Cr3(registers(*register)?),
            Self::Cr4(register) => Flush::Cr4(registers(*register)?),
            Self::Invlpg(address) => Flush::Page(address.value(registers)?),
            Self::Invpcid(register, address) => {
                let descriptor = address.value(&registers)?;
                let pcid = (peek(descriptor)? & 0xfff) as u16;
                Flush::Pcid(registers(*register)?, pcid, peek(descriptor + 8)?)
            }
        })
    }
}

/// The instructions of a block at `address`; `code` has the bytes of each. Bytes that are no instruction give an invalid one.
#[must_use]
pub fn decoded(address: u64, code: &[&[u8]]) -> Vec<Instruction> {
    let mut at = address;
    let decode = |bytes: &&[u8]| {
        let instruction = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE).decode();
        at = at.wrapping_add(bytes.len() as u64);
        instruction
    };
    code.iter().map(decode).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each register holds a thousand times its number.
    fn registers(number: u8) -> Option<u64> {
        Some(u64::from(number) * 1000)
    }

    fn flush(code: &[u8]) -> Option<Flush> {
        let mut padded = [0x90; 15];
        padded[..code.len()].copy_from_slice(code);
        flush_instruction(&padded)?.flush(registers, |address| Some(address + 1))
    }

    // As GNU as assembles them.
    #[test]
    fn instructions_that_empty_tlbs_are_decoded() {
        for (code, expected) in [
            (&[0x0f, 0x22, 0xd8][..], Flush::Cr3(0)),
            (&[0x0f, 0x22, 0xdf], Flush::Cr3(7000)),
            (&[0x41, 0x0f, 0x22, 0xdd], Flush::Cr3(13000)),
            (&[0x0f, 0x22, 0xe1], Flush::Cr4(1000)),
            (&[0x0f, 0x01, 0x3f], Flush::Page(7000)),
            (&[0x41, 0x0f, 0x01, 0x3c, 0x24], Flush::Page(12000)),
            (&[0x0f, 0x01, 0x7d, 0xf8], Flush::Page(4992)),
            (&[0x0f, 0x01, 0xbb, 0x00, 0x10, 0x00, 0x00], Flush::Page(3000 + 4096)),
            (&[0x0f, 0x01, 0x3c, 0xc8], Flush::Page(8000)),
            (&[0x4a, 0x0f, 0x01, 0x3c, 0x88], Flush::Page(36000)),
            (&[0x0f, 0x01, 0x3c, 0x25, 0x00, 0x10, 0x00, 0x00], Flush::Page(4096)),
            (&[0x66, 0x0f, 0x38, 0x82, 0x0c, 0x24], Flush::Pcid(1000, 4001 & 0xfff, 4009)),
            (&[0x66, 0x44, 0x0f, 0x38, 0x82, 0x07], Flush::Pcid(8000, 7001 & 0xfff, 7009)),
        ] {
            assert_eq!(flush(code), Some(expected), "{code:02x?}");
        }
    }

    #[test]
    fn other_instructions_are_ignored() {
        for code in [
            // mov cr0; mov cr8; mov from cr3; swapgs; lgdt; pcmpeq.
            &[0x0f, 0x22, 0xc0][..],
            &[0x44, 0x0f, 0x22, 0xd8],
            &[0x0f, 0x20, 0xd8],
            &[0x0f, 0x01, 0xf8],
            &[0x0f, 0x01, 0x17],
            &[0x0f, 0x38, 0x82, 0x07],
        ] {
            assert_eq!(flush(code), None, "{code:02x?}");
        }
    }

    #[test]
    fn only_instructions_that_enter_guests_are_refused() {
        for (code, enters) in [
            (&[0x0f, 0x01, 0xd8][..], true),
            (&[0x67, 0x0f, 0x01, 0xd8], true),
            (&[0x0f, 0x01, 0xc2], true),
            (&[0x0f, 0x01, 0xc3], true),
            // VMLOAD, with which Xen loads segments for its PV guests; VMMCALL; SWAPGS.
            (&[0x0f, 0x01, 0xda], false),
            (&[0x0f, 0x01, 0xd9], false),
            (&[0x0f, 0x01, 0xf8], false),
        ] {
            assert_eq!(enters_guest(code), enters, "{code:02x?}");
        }
    }

    #[test]
    fn marks_are_instructions_that_do_nothing() {
        assert_eq!(mark(b"\x0f\x1f\x80pvb0\x90"), Some(Mark::Begin));
        assert_eq!(mark(b"\x0f\x1f\x80pve0"), Some(Mark::End));
        assert_eq!(mark(&[0x0f, 0x1f, 0x80, 0, 0, 0, 0]), None);
        assert_eq!(mark(b"\x0f\x1f\x80pv"), None);
        // movabs rax, r15
        assert_eq!(mark(b"\x48\xb8pvs<beg>"), Some(Mark::Begin));
        assert_eq!(mark(b"\x49\xbfpvs<end>\x90"), Some(Mark::End));
        assert_eq!(mark(b"\x48\xb8pvs<enx>"), None);
        assert_eq!(mark(b"\x48\xb8pvs"), None);
    }
}
