//! Wire formats: Ethernet to TCP, netif slots, virtio_net_hdr, pcap.

#![forbid(unsafe_code)]
