//! The rings of a network interface (`public/io/netif.h`).

use wire::netif::{CtrlRequest, CtrlResponse, RxRequest, RxResponse, TxRequest, TxResponse};

use crate::Slots;

/// Frames from the guest: 256 slots of 12 bytes.
#[derive(Debug)]
pub struct Tx;

impl Slots for Tx {
    type Request = TxRequest;
    type Response = TxResponse;
}

/// Buffers for frames to the guest: 256 slots of 8 bytes.
#[derive(Debug)]
pub struct Rx;

impl Slots for Rx {
    type Request = RxRequest;
    type Response = RxResponse;
}

/// Control requests of the frontend: 128 slots of 16 bytes.
#[derive(Debug)]
pub struct Ctrl;

impl Slots for Ctrl {
    type Request = CtrlRequest;
    type Response = CtrlResponse;
}

const _: () = assert!(Tx::SLOT_LEN == 12 && Tx::COUNT == 256);
const _: () = assert!(Rx::SLOT_LEN == 8 && Rx::COUNT == 256);
const _: () = assert!(Ctrl::SLOT_LEN == 16 && Ctrl::COUNT == 128);
