//! Xen's shared-ring algorithm, both ends, generic over the slots.

#![forbid(unsafe_code)]
