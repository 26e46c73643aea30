//! One Ethernet frame on its way: private header, body pieces, offload metadata.

#![forbid(unsafe_code)]
