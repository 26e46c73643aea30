//! Features that drivers accept.

pub const CSUM: u64 = 1;
pub const GUEST_CSUM: u64 = 1 << 1;
pub const GUEST_TSO4: u64 = 1 << 7;
pub const GUEST_TSO6: u64 = 1 << 8;
pub const HOST_TSO4: u64 = 1 << 11;
pub const HOST_TSO6: u64 = 1 << 12;
pub const MRG_RXBUF: u64 = 1 << 15;
pub const MQ: u64 = 1 << 22;
pub const LOG_ALL: u64 = 1 << 26;
pub const INDIRECT_DESC: u64 = 1 << 28;
pub const EVENT_IDX: u64 = 1 << 29;
pub const PROTOCOL_FEATURES: u64 = 1 << 30;
pub const VERSION_1: u64 = 1 << 32;
pub const RING_PACKED: u64 = 1 << 34;
pub const GUEST_USO4: u64 = 1 << 54;
pub const GUEST_USO6: u64 = 1 << 55;
pub const HOST_USO: u64 = 1 << 56;
/// The protocol feature by which a front-end asks for answers.
pub const PROTOCOL_REPLY_ACK: u64 = 1 << 3;
/// The one by which it adds and removes parts of the memory.
pub const PROTOCOL_MEM_SLOTS: u64 = 1 << 15;
/// What a Linux guest accepts.
pub const LINUX: u64 = CSUM
    | GUEST_CSUM
    | GUEST_TSO4
    | HOST_TSO4
    | MRG_RXBUF
    | INDIRECT_DESC
    | EVENT_IDX
    | PROTOCOL_FEATURES
    | VERSION_1;
