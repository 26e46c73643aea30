//! The programs, as instructions of `linux/bpf.h`.

use std::os::fd::RawFd;

use crate::sys::bpf::Instruction;

const MOV64_REG: u8 = 0xbf;
const MOV64_IMM: u8 = 0xb7;
const ADD64_IMM: u8 = 0x07;
/// `*(u64 *)(dst + offset) = immediate`
const STORE64_IMM: u8 = 0x7a;
/// `dst = *(u32 *)(src + offset)`
const LOAD32: u8 = 0x61;
/// Two instructions; the immediate may be a map's descriptor.
const LOAD_IMM64: u8 = 0x18;
/// `dst = *(u16 *)(src + offset)`
const LOAD16: u8 = 0x69;
/// `*(u32 *)(dst + offset) = src`
const STORE32: u8 = 0x63;
/// `*(u16 *)(dst + offset) = src`
const STORE16: u8 = 0x6b;
const JUMP: u8 = 0x05;
const JUMP_IF_GREATER: u8 = 0x2d;
const JUMP_IF_NOT_EQUAL: u8 = 0x5d;
const JUMP_IF_EQUAL_IMM: u8 = 0x15;
const JUMP_IF_NOT_EQUAL_IMM: u8 = 0x55;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;

/// `BPF_PSEUDO_MAP_FD`, as the source register of `LOAD_IMM64`.
const MAP_FD: u8 = 1;
const MAP_LOOKUP_ELEM: i32 = 1;
const SKB_LOAD_BYTES: i32 = 26;
const SET_HASH: i32 = 48;
const REDIRECT_MAP: i32 = 51;
/// The stack's end.
const STACK: u8 = 10;
/// Where the key lies on the stack.
const KEY: i16 = -8;
/// `TCX_NEXT`: the frame goes on.
const TCX_NEXT: i32 = -1;
/// `XDP_PASS`: the frame goes to the network stack.
const XDP_PASS: i32 = 2;

/// Members of `struct xdp_md`.
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const RX_QUEUE_INDEX: i16 = 16;

fn op(code: u8, dst: u8, src: u8, offset: i16, immediate: i32) -> Instruction {
    Instruction { code, registers: dst | src << 4, offset, immediate }
}

/// Looks the key up in a map. Register 0 then has the address of its value, or 0.
fn lookup(map: RawFd) -> [Instruction; 5] {
    [
        op(LOAD_IMM64, 1, MAP_FD, 0, map),
        op(0, 0, 0, 0, 0),
        op(MOV64_REG, 2, STACK, 0, 0),
        op(ADD64_IMM, 2, 0, 0, KEY.into()),
        op(CALL, 0, 0, 0, MAP_LOOKUP_ELEM),
    ]
}

/// Looks the destination of a frame up in a map. Without it, the two instructions that follow are left out.
fn find_queue(map: RawFd) -> Vec<Instruction> {
    // The key on the stack: the first six bytes of the frame, and two zeroes.
    let key = [
        op(STORE64_IMM, STACK, 0, KEY, 0),
        op(MOV64_IMM, 2, 0, 0, 0),
        op(MOV64_REG, 3, STACK, 0, 0),
        op(ADD64_IMM, 3, 0, 0, KEY.into()),
        op(MOV64_IMM, 4, 0, 0, 6),
        op(CALL, 0, 0, 0, SKB_LOAD_BYTES),
        op(JUMP_IF_NOT_EQUAL_IMM, 0, 0, 8, 0),
    ];
    let end = [op(JUMP_IF_EQUAL_IMM, 0, 0, 2, 0)];
    [&key[..], &lookup(map), &end].concat()
}

/// What tun asks for each frame: the queue of the destination in the map, or 0.
pub(super) fn tap(map: RawFd) -> Vec<Instruction> {
    let then = [
        op(LOAD32, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
        // Queue 0.
        op(MOV64_IMM, 0, 0, 0, 0),
        op(EXIT, 0, 0, 0, 0),
    ];
    [&find_queue(map)[..], &then].concat()
}

/// What the interface under a macvtap runs for each frame: sets the flow hash to the queue of the destination in the map, or
/// to `queues`. The macvtap takes the hash modulo the number of its queues; it takes a hash of 0 for none.
pub(super) fn macvtap(map: RawFd, queues: i32) -> Vec<Instruction> {
    let context = [op(MOV64_REG, 6, 1, 0, 0)];
    let then = [
        op(LOAD32, 2, 0, 0, 0),
        op(JUMP, 0, 0, 1, 0),
        // Queue 0.
        op(MOV64_IMM, 2, 0, 0, queues),
        op(MOV64_REG, 1, 6, 0, 0),
        op(CALL, 0, 0, 0, SET_HASH),
        op(MOV64_IMM, 0, 0, 0, TCX_NEXT),
        op(EXIT, 0, 0, 0, 0),
    ];
    [&context[..], &find_queue(map), &then].concat()
}

/// What the driver runs for each frame: one of `longest` bytes at most, whose destination the first map says to be at the
/// queue that it came in, goes to the socket that the second map has for that queue. All others go to the network stack.
pub(crate) fn xdp(stations: RawFd, sockets: RawFd, longest: i32) -> Vec<Instruction> {
    let key = [
        op(MOV64_REG, 6, 1, 0, 0),
        op(LOAD32, 2, 6, DATA, 0),
        op(LOAD32, 3, 6, DATA_END, 0),
        op(MOV64_REG, 4, 2, 0, 0),
        op(ADD64_IMM, 4, 0, 0, 14),
        op(JUMP_IF_GREATER, 4, 3, 22, 0),
        op(MOV64_REG, 4, 2, 0, 0),
        op(ADD64_IMM, 4, 0, 0, longest),
        op(JUMP_IF_GREATER, 3, 4, 19, 0),
        // The key on the stack: the first six bytes of the frame, and two zeroes.
        op(STORE64_IMM, STACK, 0, KEY, 0),
        op(LOAD32, 4, 2, 0, 0),
        op(STORE32, STACK, 4, KEY, 0),
        op(LOAD16, 4, 2, 4, 0),
        op(STORE16, STACK, 4, KEY + 4, 0),
    ];
    let then = [
        op(JUMP_IF_EQUAL_IMM, 0, 0, 8, 0),
        // A socket takes frames of its own queue only.
        op(LOAD32, 2, 0, 0, 0),
        op(LOAD32, 3, 6, RX_QUEUE_INDEX, 0),
        op(JUMP_IF_NOT_EQUAL, 2, 3, 5, 0),
        op(LOAD_IMM64, 1, MAP_FD, 0, sockets),
        op(0, 0, 0, 0, 0),
        op(MOV64_IMM, 3, 0, 0, XDP_PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
        op(MOV64_IMM, 0, 0, 0, XDP_PASS),
        op(EXIT, 0, 0, 0, 0),
    ];
    [&key[..], &lookup(stations), &then].concat()
}

/// What the driver runs for each frame of a NIC that is taken over: the frame goes to the socket that the map has for the queue
/// that it came in, or to the network stack if there is none.
pub(crate) fn xdp_all(sockets: RawFd) -> [Instruction; 6] {
    [
        op(LOAD32, 2, 1, RX_QUEUE_INDEX, 0),
        op(LOAD_IMM64, 1, MAP_FD, 0, sockets),
        op(0, 0, 0, 0, 0),
        op(MOV64_IMM, 3, 0, 0, XDP_PASS),
        op(CALL, 0, 0, 0, REDIRECT_MAP),
        op(EXIT, 0, 0, 0, 0),
    ]
}

/// Sets the transmit queue of each frame to the number of its destination in the map, less one: what tests have instead of
/// a card that steers.
#[cfg(test)]
pub(crate) fn queue_mapping(map: RawFd) -> Vec<Instruction> {
    /// A member of `struct __sk_buff`.
    const QUEUE_MAPPING: i16 = 12;
    let context = [op(MOV64_REG, 6, 1, 0, 0)];
    let then = [
        op(LOAD32, 2, 0, 0, 0),
        op(STORE32, 6, 2, QUEUE_MAPPING, 0),
        op(MOV64_IMM, 0, 0, 0, TCX_NEXT),
        op(EXIT, 0, 0, 0, 0),
    ];
    [&context[..], &find_queue(map), &then].concat()
}
