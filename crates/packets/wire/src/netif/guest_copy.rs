//! Guest copies: the guest copies received bytes out of the driver domain's memory.
//!
//! An extension of pvnet (Santos et al. 2008, §4.1, have the idea but no format). A backend that
//! writes `feature-rx-guest-copy` also offers `feature-rx-copy`. A frontend that writes
//! `request-rx-guest-copy` posts buffers as for copies, and reads `rx-guest-copies` of each queue
//! once the backend is Connected: how it copies (`hypercall` or `mapped`), a space, and the number
//! of the queue's granted buffers. A response with the flag [`GUEST_COPY`] then has, instead of
//! bytes in the request's page, the number of a granted buffer in `id`, and the bytes' place there in
//! `offset` and `status`. The frontend copies them to the request's page. All other responses are
//! as without this: frames from other guests are copied by the backend.
//!
//! The frontend has copied when it posts the next request in the slot. A hypercall uses up what it
//! copies, so no further acknowledgement is needed.

/// Flag of an [`RxResponse`](super::RxResponse) whose bytes the guest must copy. The highest bit:
/// `netif.h` counts from the lowest.
pub const GUEST_COPY: u16 = 1 << 15;
