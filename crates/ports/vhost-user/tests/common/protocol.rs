//! Features that drivers accept, and messages of vhost-user.

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

/// Messages.
pub mod message {
    pub const GET_FEATURES: u32 = 1;
    pub const SET_FEATURES: u32 = 2;
    pub const SET_OWNER: u32 = 3;
    pub const RESET_OWNER: u32 = 4;
    pub const SET_MEM_TABLE: u32 = 5;
    pub const SET_LOG_BASE: u32 = 6;
    pub const SET_VRING_NUM: u32 = 8;
    pub const SET_VRING_ADDR: u32 = 9;
    pub const SET_VRING_BASE: u32 = 10;
    pub const GET_VRING_BASE: u32 = 11;
    pub const SET_VRING_KICK: u32 = 12;
    pub const SET_VRING_CALL: u32 = 13;
    pub const GET_PROTOCOL_FEATURES: u32 = 15;
    pub const SET_PROTOCOL_FEATURES: u32 = 16;
    pub const GET_QUEUE_NUM: u32 = 17;
    pub const SET_VRING_ENABLE: u32 = 18;
    pub const SEND_RARP: u32 = 19;
    pub const NET_SET_MTU: u32 = 20;
    pub const SET_BACKEND_REQ_FD: u32 = 21;
    pub const GET_CONFIG: u32 = 24;
    pub const SET_CONFIG: u32 = 25;
    pub const GET_INFLIGHT_FD: u32 = 31;
    pub const SET_INFLIGHT_FD: u32 = 32;
    pub const RESET_DEVICE: u32 = 34;
    pub const GET_MAX_MEM_SLOTS: u32 = 36;
    pub const ADD_MEM_REG: u32 = 37;
    pub const REM_MEM_REG: u32 = 38;
    pub const SET_STATUS: u32 = 39;
    pub const GET_STATUS: u32 = 40;
}
