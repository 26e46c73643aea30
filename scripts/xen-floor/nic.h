/* A NIC's frames: through a packet socket with a receive ring, or through an AF_XDP socket. Long ones are not received, nor sent by AF_XDP. */

#include <linux/bpf.h>
#include <linux/if_packet.h>
#include <linux/if_xdp.h>
#include <stddef.h>

static enum { TAPS, PACKET, XDP } kind;

static unsigned interface(void)
{
	unsigned index = if_nametoindex("eth0");
	if (!index)
		fail("eth0");
	return index;
}

/* As long as the socket is open, the NIC takes frames for the guest's address. */
static void take_all(int fd)
{
	struct packet_mreq all = { .mr_ifindex = interface(), .mr_type = PACKET_MR_PROMISC };
	check(fd);
	check(setsockopt(fd, SOL_PACKET, PACKET_ADD_MEMBERSHIP, &all, sizeof(all)));
}

#define PACKET_SLOT 2048
#define PACKET_SLOTS 2048

static char *packets_in;

static int open_packet(void)
{
	static const int set[][2] = { { PACKET_VNET_HDR, 1 }, { PACKET_IGNORE_OUTGOING, 1 }, { PACKET_VERSION, TPACKET_V2 } };
	struct tpacket_req ring = { 1 << 16, PACKET_SLOT * PACKET_SLOTS >> 16, PACKET_SLOT, PACKET_SLOTS };
	struct sockaddr_ll address = { .sll_family = AF_PACKET, .sll_protocol = 0x300, .sll_ifindex = interface() };
	int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, 0);
	check(fd);
	for (int n = 0; n < 3; n++)
		check(setsockopt(fd, SOL_PACKET, set[n][0], &set[n][1], sizeof(int)));
	check(setsockopt(fd, SOL_PACKET, PACKET_RX_RING, &ring, sizeof(ring)));
	packets_in = mmap(NULL, PACKET_SLOT * PACKET_SLOTS, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (packets_in == MAP_FAILED)
		fail("mmap of the receive ring");
	take_all(fd);
	check(bind(fd, (struct sockaddr *)&address, sizeof(address)));
	return fd;
}

static int read_packet(struct vnet *vnet)
{
	static uint32_t next;
	struct tpacket2_hdr *slot = (void *)(packets_in + next % PACKET_SLOTS * PACKET_SLOT);
	if (!(__atomic_load_n(&slot->tp_status, __ATOMIC_ACQUIRE) & TP_STATUS_USER))
		return -1;
	int len = slot->tp_snaplen + sizeof(*vnet);
	memcpy(vnet, (char *)slot + slot->tp_mac - sizeof(*vnet), len);
	__atomic_store_n(&slot->tp_status, 0, __ATOMIC_RELEASE);
	next++;
	return len;
}

/* The first half of the buffers is for frames in. */
#define BUFFERS 1024
#define HALF (BUFFERS / 2)

static char *buffers;
static int xdp;
static struct xdp_ring { uint32_t *producer, *consumer; void *entries; } fill, completion, in, out;

static struct xdp_ring map_ring(const struct xdp_ring_offset *offset, size_t entry, int option, off_t place)
{
	uint32_t size = HALF;
	check(setsockopt(xdp, SOL_XDP, option, &size, sizeof(size)));
	char *at = mmap(NULL, offset->desc + HALF * entry, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, xdp, place);
	if (at == MAP_FAILED)
		fail("mmap of a ring");
	return (struct xdp_ring){ (void *)(at + offset->producer), (void *)(at + offset->consumer), at + offset->desc };
}

static int bpf(int command, union bpf_attr *attr)
{
	int fd = syscall(SYS_bpf, command, attr, sizeof(*attr));
	check(fd);
	return fd;
}

static int open_xdp(void)
{
	struct xdp_mmap_offsets offsets;
	socklen_t len = sizeof(offsets);
	struct sockaddr_xdp address = { .sxdp_family = AF_XDP, .sxdp_flags = XDP_USE_NEED_WAKEUP, .sxdp_ifindex = interface() };
	union bpf_attr map = { .map_type = BPF_MAP_TYPE_XSKMAP, .key_size = 4, .value_size = 4, .max_entries = 1 };
	uint32_t queue = 0;
	buffers = mmap(NULL, BUFFERS * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	struct xdp_umem_reg umem = { .addr = (uintptr_t)buffers, .len = BUFFERS * 4096, .chunk_size = 4096 };
	check(xdp = socket(AF_XDP, SOCK_RAW | SOCK_NONBLOCK, 0));
	check(setsockopt(xdp, SOL_XDP, XDP_UMEM_REG, &umem, sizeof(umem)));
	check(getsockopt(xdp, SOL_XDP, XDP_MMAP_OFFSETS, &offsets, &len));
	fill = map_ring(&offsets.fr, sizeof(uint64_t), XDP_UMEM_FILL_RING, XDP_UMEM_PGOFF_FILL_RING);
	completion = map_ring(&offsets.cr, sizeof(uint64_t), XDP_UMEM_COMPLETION_RING, XDP_UMEM_PGOFF_COMPLETION_RING);
	in = map_ring(&offsets.rx, sizeof(struct xdp_desc), XDP_RX_RING, XDP_PGOFF_RX_RING);
	out = map_ring(&offsets.tx, sizeof(struct xdp_desc), XDP_TX_RING, XDP_PGOFF_TX_RING);
	for (int n = 0; n < HALF; n++)
		((uint64_t *)fill.entries)[n] = n * 4096;
	__atomic_store_n(fill.producer, HALF, __ATOMIC_RELEASE);
	take_all(socket(AF_PACKET, SOCK_RAW, 0));
	check(bind(xdp, (struct sockaddr *)&address, sizeof(address)));

	int sockets = bpf(BPF_MAP_CREATE, &map);
	struct bpf_insn insns[] = {
		{ BPF_LDX | BPF_MEM | BPF_W, 2, 1, offsetof(struct xdp_md, rx_queue_index), 0 },
		{ BPF_LD | BPF_IMM | BPF_DW, 1, BPF_PSEUDO_MAP_FD, 0, sockets }, { 0 },
		{ BPF_ALU64 | BPF_MOV | BPF_K, 3, 0, 0, XDP_PASS },
		{ BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_redirect_map },
		{ BPF_JMP | BPF_EXIT },
	};
	union bpf_attr program = { .prog_type = BPF_PROG_TYPE_XDP, .insn_cnt = 6, .insns = (uintptr_t)insns, .license = (uintptr_t)"Apache-2.0" };
	union bpf_attr link = { .link_create = { .prog_fd = bpf(BPF_PROG_LOAD, &program), .target_ifindex = interface(), .attach_type = BPF_XDP } };
	union bpf_attr element = { .map_fd = sockets, .key = (uintptr_t)&queue, .value = (uintptr_t)&xdp };
	bpf(BPF_LINK_CREATE, &link);
	bpf(BPF_MAP_UPDATE_ELEM, &element);
	return xdp;
}

static int read_xdp(struct vnet *vnet)
{
	static uint32_t next;
	if (__atomic_load_n(in.producer, __ATOMIC_ACQUIRE) == next)
		return -1;
	struct xdp_desc frame = ((struct xdp_desc *)in.entries)[next % HALF];
	*vnet = (struct vnet){ 0 };
	memcpy(vnet + 1, buffers + frame.addr, frame.len);
	/* As many buffers are in use as the fill ring has places. */
	((uint64_t *)fill.entries)[next % HALF] = frame.addr & -4096;
	__atomic_store_n(fill.producer, ++next + HALF, __ATOMIC_RELEASE);
	__atomic_store_n(in.consumer, next, __ATOMIC_RELEASE);
	return sizeof(*vnet) + frame.len;
}

/* The network stack would do that for a packet socket. */
static void complete_checksum(const struct vnet *vnet, uint8_t *frame, uint32_t len)
{
	uint32_t sum = 0;
	if (!vnet->flags)
		return;
	for (uint32_t at = vnet->csum_start; at < len; at += 2)
		sum += frame[at] << 8 | (at + 1 < len ? frame[at + 1] : 0);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = ~(sum + (sum >> 16));
	frame[vnet->csum_start + vnet->csum_offset] = sum >> 8;
	frame[vnet->csum_start + vnet->csum_offset + 1] = sum;
}

/* Frames without room are lost, as on a wire that is full. */
static void write_xdp(uint8_t **frames, const uint32_t *lens, int count)
{
	static uint32_t next;
	uint32_t done = __atomic_load_n(completion.producer, __ATOMIC_ACQUIRE);
	__atomic_store_n(completion.consumer, done, __ATOMIC_RELEASE);
	for (int n = 0; n < count && next - done < HALF; n++, next++) {
		struct vnet *vnet = (void *)frames[n];
		uint8_t *buffer = (uint8_t *)buffers + (HALF + next % HALF) * 4096;
		uint32_t len = lens[n] - sizeof(*vnet);
		memcpy(buffer, vnet + 1, len);
		complete_checksum(vnet, buffer, len);
		if (len < 60)
			memset(buffer + len, 0, 60 - len), len = 60;
		((struct xdp_desc *)out.entries)[next % HALF] = (struct xdp_desc){ (HALF + next % HALF) * 4096, len };
	}
	__atomic_store_n(out.producer, next, __ATOMIC_RELEASE);
	sendto(xdp, NULL, 0, MSG_DONTWAIT, NULL, 0);
}

static int read_frame(int tap, struct vnet *vnet)
{
	return kind == PACKET ? read_packet(vnet) : kind == XDP ? read_xdp(vnet) : read(tap, vnet, 66000);
}
