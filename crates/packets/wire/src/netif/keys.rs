//! The names of a vif's xenstore nodes.
//!
//! netif.h documents most of them. `feature-sg` and `feature-rx-copy` appear in Linux's code only.

/// Both: can handle packets of more than one fragment.
pub const FEATURE_SG: &str = "feature-sg";
/// Both: can take unsegmented TCP over IPv4.
pub const FEATURE_GSO_TCPV4: &str = "feature-gso-tcpv4";
/// Both: can take unsegmented TCP over IPv6.
pub const FEATURE_GSO_TCPV6: &str = "feature-gso-tcpv6";
/// Both: can take blank IPv6 checksums. ABSENT means no.
pub const FEATURE_IPV6_CSUM_OFFLOAD: &str = "feature-ipv6-csum-offload";
/// Frontend: cannot take blank IPv4 checksums. ABSENT means that it can.
pub const FEATURE_NO_CSUM_OFFLOAD: &str = "feature-no-csum-offload";
/// Backend: receives by copy. Linux's netfront refuses a backend without it.
pub const FEATURE_RX_COPY: &str = "feature-rx-copy";
/// Backend: receives by page flip.
pub const FEATURE_RX_FLIP: &str = "feature-rx-flip";
/// Backend: may answer rx requests in any order. Ours: a response names its request by the id, and the
/// GSO extra by its features.
pub const FEATURE_RX_ANY_ORDER: &str = "feature-rx-any-order";
/// Frontend: finds the request of a response by the id, and takes a lent buffer's frame at any offset. ABSENT means that responses must
/// come in the order of the requests, as Linux's netfront expects.
pub const REQUEST_RX_ANY_ORDER: &str = "request-rx-any-order";
/// Frontend: a frame may begin anywhere in the page of a buffer. Ours. ABSENT means that a frame begins at the page's first byte: a
/// frontend may own a part of the page only, as Unikraft's does.
pub const FEATURE_RX_OFFSET: &str = "feature-rx-offset";
/// Frontend: wants reception by copy.
pub const REQUEST_RX_COPY: &str = "request-rx-copy";
/// Frontend: notifies when it posts rx requests.
pub const FEATURE_RX_NOTIFY: &str = "feature-rx-notify";

/// Backend: can leave room for an XDP program before each frame. Linux's.
pub const FEATURE_XDP_HEADROOM: &str = "feature-xdp-headroom";
/// Frontend: the bytes to leave, which it changes in state Reconfiguring. ABSENT means none. Linux's.
pub const XDP_HEADROOM: &str = "xdp-headroom";

/// Backend: can filter multicast by address.
pub const FEATURE_MULTICAST_CONTROL: &str = "feature-multicast-control";
/// Backend: the frontend may ask for that, and not ask any more, while it is connected.
pub const FEATURE_DYNAMIC_MULTICAST_CONTROL: &str = "feature-dynamic-multicast-control";
/// Frontend: wants only the groups that it lists by extras.
pub const REQUEST_MULTICAST_CONTROL: &str = "request-multicast-control";

/// Backend: can take an event channel for each direction.
pub const FEATURE_SPLIT_EVENT_CHANNELS: &str = "feature-split-event-channels";
/// Backend: the most queues it takes.
pub const MULTI_QUEUE_MAX_QUEUES: &str = "multi-queue-max-queues";
/// Frontend: its queues. One queue has its keys beside this; two or more have theirs under
/// `queue-N/` only.
pub const MULTI_QUEUE_NUM_QUEUES: &str = "multi-queue-num-queues";
/// Frontend: the name of a queue's directory, without its number.
pub const QUEUE_PREFIX: &str = "queue-";
/// Frontend: grant of the tx ring's page.
pub const TX_RING_REF: &str = "tx-ring-ref";
/// Frontend: grant of the rx ring's page.
pub const RX_RING_REF: &str = "rx-ring-ref";
/// Frontend: event channel of both directions.
pub const EVENT_CHANNEL: &str = "event-channel";
/// Frontend: event channel of tx.
pub const EVENT_CHANNEL_TX: &str = "event-channel-tx";
/// Frontend: event channel of rx.
pub const EVENT_CHANNEL_RX: &str = "event-channel-rx";

/// Backend: takes headers beside the TX ring; see [`header_channel`](super::header_channel).
pub const FEATURE_HEADER_CHANNEL: &str = "feature-header-channel";
/// Frontend: the grants of a queue's header pages, in order, separated by spaces.
pub const TX_HEADER_REFS: &str = "tx-header-refs";
/// Backend: whether it takes headers from those pages. Written before it is Connected.
pub const HEADER_CHANNEL: &str = "header-channel";

/// Backend: grants received bytes for the guest to copy; see [`guest_copy`](super::guest_copy).
pub const FEATURE_RX_GUEST_COPY: &str = "feature-rx-guest-copy";
/// Frontend: copies such bytes. ABSENT means no.
pub const REQUEST_RX_GUEST_COPY: &str = "request-rx-guest-copy";
/// Backend: how a queue's bytes are copied, and the number of its granted buffers. Written before it
/// is Connected.
pub const RX_GUEST_COPIES: &str = "rx-guest-copies";

/// Backend: has a control ring.
pub const FEATURE_CTRL_RING: &str = "feature-ctrl-ring";
/// Frontend: grant of the control ring's page, written before it is Connected.
pub const CTRL_RING_REF: &str = "ctrl-ring-ref";
/// Frontend: event channel of the control ring, written before it is Connected.
pub const EVENT_CHANNEL_CTRL: &str = "event-channel-ctrl";

/// Toolstack: the hotplug script.
pub const SCRIPT: &str = "script";
/// Toolstack: the frontend's MAC address.
pub const MAC: &str = "mac";
/// Toolstack and frontend: largest IP packet, in bytes. ABSENT means 1500.
pub const MTU: &str = "mtu";
