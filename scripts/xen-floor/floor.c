/* The least that a program of dom0 does to carry frames between two Xen guests, or between one and its tap or a NIC: the floor of
 * docs/xen-cost.md. In place of pvnet:
 *
 *     cc -O2 -static -o out/pvnet scripts/xen-floor/floor.c
 *     pvscope run rounds-pvnet --pvnet out/pvnet        (also guests-pvnet, -device of any traffic, wire-tx-packet, and small- by -packet and -xdp)
 *
 * It trusts the guests, has one thread, knows no third port, counts nothing and never disconnects. Whatever lies in both rings is carried by one
 * copy of the headers and one of the frames. With `attach = "device"` frames go through a tap for each guest, and each copy carries several; with
 * an uplink, through a packet socket with a receive ring, or an AF_XDP socket.
 *
 * In a driver domain the guests are the two domains after it. With -DHOST_TAP frames of the only one go through the tap that has the domain's own
 * address (domain-tx-pvnet).
 *
 * With -DSWITCH it does what no switch can do without: it waits for more than one device, reads the clock once for each wake-up, checks what
 * guests and Xen say, learns and looks up addresses, and counts frames and bytes of each port.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <linux/io_uring.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

typedef uint16_t domid_t;
typedef uint32_t grant_ref_t;
#include <xen/evtchn.h>
#include <xen/gntalloc.h>
#include <xen/gntdev.h>

#define SLOTS 256
#define HEADER 128
#define PAGES 72
#define BATCH 32 /* frames of one copy */
#define SEGMENTS 512
#define LONE 4
#define NIC 2 /* the port after the guests */
#define check(what) do { if ((long)(what) < 0) fail(#what); } while (0)

/* public/io/netif.h */
struct tx_request { uint32_t gref; uint16_t offset, flags, id, size; };
struct tx_response { uint16_t id; int16_t status; };
struct rx_request { uint16_t id, pad; uint32_t gref; };
struct rx_response { uint16_t id, offset, flags; int16_t status; };
struct extra { uint8_t type, flags; uint16_t gso_size; uint8_t gso_type, pad; uint16_t features; };
enum { TX_BLANK = 1, TX_VALIDATED = 2, RX_VALIDATED = 1, RX_BLANK = 2, MORE = 4, EXTRA = 8 };

struct ring { volatile uint32_t req_prod, req_event, rsp_prod, rsp_event; char pad[48]; };
struct tx_ring { struct ring head; union { struct tx_request req; struct tx_response rsp; struct extra extra; } slot[SLOTS]; };
struct rx_ring { struct ring head; union { struct rx_request req; struct rx_response rsp; struct extra extra; } slot[SLOTS]; };

static struct guest {
	struct tx_ring *tx;
	struct rx_ring *rx;
	uint32_t tx_cons, rx_cons, since, port;
	int domain, tap, state, is_blocked, is_owed, must_notify, many;
	unsigned turn; /* when frames last came from the tap */
	uint8_t mac[6];
} guests[2] = { { .tap = -1 }, { .tap = -1 } };

static int gntdev, evtchn, has_taps, own_domain;
static struct gntdev_grant_copy_segment segments[SEGMENTS];
static struct ioctl_gntdev_grant_copy copy = { .segments = segments };
static uint32_t own_grefs[PAGES];
static uint8_t *own;

static void fail(const char *what)
{
	int console = open("/dev/ttyS1", O_WRONLY);
	dprintf(console, "xen-floor: %s: %s\n", what, strerror(errno));
	exit(1);
}

/* The store */

static int xenbus;

static int store(uint32_t type, const char *path, const char *value, char *answer)
{
	struct { uint32_t type, id, tx, len; } head = { type, 0, 0, 0 };
	char text[512];
	int len = snprintf(text, sizeof(text), "%s%c%s", path, 0, value ? value : "");
	head.len = len;
	check(write(xenbus, &head, sizeof(head)));
	check(write(xenbus, text, head.len));
	check(read(xenbus, &head, sizeof(head)));
	for (uint32_t had = 0; had < head.len;) {
		int n = read(xenbus, text + had, head.len - had);
		check(n);
		had += n;
	}
	text[head.len] = 0;
	if (answer)
		strcpy(answer, text);
	return head.type == type ? 0 : -1;
}

static int get(const char *path, const char *key, char *answer)
{
	char whole[256];
	snprintf(whole, sizeof(whole), "%s/%s", path, key);
	return store(2, whole, NULL, answer);
}

static unsigned number(const char *path, const char *key)
{
	char answer[512];
	return get(path, key, answer) ? 0 : atoi(answer);
}

static void set(const char *path, const char *key, const char *value)
{
	char whole[256];
	snprintf(whole, sizeof(whole), "%s/%s", path, key);
	check(store(11, whole, value, NULL));
}

static void *map(int domain, uint32_t gref)
{
	struct ioctl_gntdev_map_grant_ref map = { .count = 1, .refs = { { domain, gref } } };
	check(ioctl(gntdev, IOCTL_GNTDEV_MAP_GRANT_REF, &map));
	void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, gntdev, map.index);
	if (page == MAP_FAILED)
		fail("mmap");
	return page;
}

struct vnet { uint8_t flags, gso_type; uint16_t hdr_len, gso_size, csum_start, csum_offset; };

#include "nic.h"

static int open_tap(int domain)
{
	struct ifreq ifr = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
	int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK);
#ifdef HOST_TAP
	strcpy(ifr.ifr_name, "pvnet0");
#else
	snprintf(ifr.ifr_name, sizeof(ifr.ifr_name), "vif%d.0", domain);
#endif
	check(tap);
	check(ioctl(tap, TUNSETIFF, &ifr));
	check(ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4));
#ifdef HOST_TAP
	check(system("ip addr add 10.0.0.1/24 dev pvnet0 && ip link set pvnet0 up"));
#endif
	return tap;
}

/* One step of the handshake. Returns whether the guest is connected. */
static int connect_guest(struct guest *guest)
{
	char path[64], front[512], mac[512];
	snprintf(path, sizeof(path), "backend/vif/%d/0", guest->domain);
	if (guest->state == 0 && get(path, "frontend", front) == 0 && number(path, "state") == 1) {
		static const char *const on[] = { "feature-sg", "feature-gso-tcpv4", "feature-rx-copy", "multi-queue-max-queues" };
		if (has_taps)
			guest->tap = kind == PACKET ? open_packet() : kind == XDP ? open_xdp() : open_tap(guest->domain);
		check(get(path, "mac", mac));
		sscanf(mac, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &guest->mac[0], &guest->mac[1], &guest->mac[2], &guest->mac[3],
		       &guest->mac[4], &guest->mac[5]);
		for (int i = 0; i < 4; i++)
			set(path, on[i], "1");
		set(path, "state", "2");
		guest->state = 2;
	}
	if (guest->state == 2 && get(path, "frontend", front) == 0 && number(front, "state") == 4) {
		struct ioctl_evtchn_bind_interdomain bind = { guest->domain, number(front, "event-channel") };
		guest->rx = map(guest->domain, number(front, "rx-ring-ref"));
		guest->tx = map(guest->domain, number(front, "tx-ring-ref"));
		check(guest->port = ioctl(evtchn, IOCTL_EVTCHN_BIND_INTERDOMAIN, &bind));
		set(path, "state", "4");
		guest->state = 4;
	}
	return guest->state == 4;
}

/* Rings */

#include "switch.h"

static void grant_end(typeof(segments[0].source) *end, int domain, uint32_t gref, uint16_t offset)
{
	end->foreign.ref = gref;
	end->foreign.offset = offset;
	end->foreign.domid = domain;
}

static struct gntdev_grant_copy_segment *segment(uint16_t len)
{
	struct gntdev_grant_copy_segment *next = &segments[copy.count++];
	next->len = len;
	next->flags = 3; /* both ends are grants */
	return next;
}

static void perform(void)
{
	check(ioctl(gntdev, IOCTL_GNTDEV_GRANT_COPY, &copy));
	demand_copies();
	copy.count = 0;
}

static void notify(struct guest *guest)
{
	struct ioctl_evtchn_notify port = { guest->port };
	if (!guest->must_notify)
		return;
	check(ioctl(evtchn, IOCTL_EVTCHN_NOTIFY, &port));
	guest->must_notify = guest->is_owed = 0;
	guest->since = guest->tx_cons; /* it finds these answers too */
}

/* Publishes responses. Returns whether the guest wants to know of them. */
static int publish(struct ring *ring, uint32_t new)
{
	uint32_t old = ring->rsp_prod;
	__asm__ volatile("" ::: "memory");
	ring->rsp_prod = new;
	__sync_synchronize();
	return new - ring->rsp_event < new - old;
}

static int has_room(struct guest *guest, uint32_t slots)
{
	struct ring *ring = &guest->rx->head;
	if (ring->req_prod - guest->rx_cons >= slots)
		return 1;
	ring->req_event = guest->rx_cons + slots;
	__sync_synchronize();
	return ring->req_prod - guest->rx_cons >= slots;
}

/* Whether there are no more requests, after it asked for an event with the next. */
static int is_drained(struct guest *guest)
{
	struct ring *ring = &guest->tx->head;
	ring->req_event = guest->tx_cons + 1;
	__sync_synchronize();
	return ring->req_prod == guest->tx_cons;
}

struct packet {
	struct tx_request first;
	struct extra extra;
	uint16_t slots, frags, size; /* size: of the first fragment */
};

/* The packet that begins at a request. Its other fragments are read where they are copied. */
static void parse(const struct guest *guest, struct packet *packet)
{
	uint32_t at = guest->tx_cons;
	take_request(guest, at);
	packet->first = *REQUEST(guest, at++);
	packet->size = packet->first.size;
	packet->frags = packet->slots = 1;
	if (packet->first.flags & EXTRA) {
		packet->extra = guest->tx->slot[at++ % SLOTS].extra;
		demand(packet->extra.type == 1 && !(packet->extra.flags & 1) && packet->extra.gso_type == 1 && packet->extra.gso_size);
		packet->slots = 2;
	}
	for (int more = packet->first.flags & MORE; more; packet->frags++, packet->slots++) {
		take_request(guest, at);
		const struct tx_request *request = REQUEST(guest, at++);
		demand(packet->frags < 18 && request->size < packet->size && request->offset + request->size <= 4096);
		packet->size -= request->size;
		more = request->flags & MORE;
	}
	demand(packet->size >= 14 && packet->first.offset + packet->size <= 4096);
}

/* Answers all requests up to `end`. */
static void answer(struct guest *guest, uint32_t first, uint32_t end)
{
	int is_extra = 0;
	for (uint32_t at = first; at != end; at++) {
		int has_extra = !is_extra && REQUEST(guest, at)->flags & EXTRA;
		guest->tx->slot[at % SLOTS].rsp = (struct tx_response){ REQUEST(guest, at)->id, is_extra ? 1 : 0 };
		is_extra = has_extra;
	}
	guest->is_owed |= publish(&guest->tx->head, end);
	/* The memory of a lone frame is freed with the next interrupt. */
	if (guest->is_owed && end - guest->since > LONE)
		guest->must_notify = 1;
	if (!guest->is_owed)
		guest->since = end;
}

/* A fragment into the next buffer of the other guest. */
static struct rx_request *take_buffer(struct guest *to, struct rx_response *response, uint16_t size, uint16_t flags)
{
	struct rx_request *buffer = &to->rx->slot[to->rx_cons++ % SLOTS].req;
	*response = (struct rx_response){ buffer->id, 0, flags, size };
	return buffer;
}

static void forward(struct guest *from, struct guest *to)
{
	static struct packet packets[BATCH];
	static struct rx_response responses[SLOTS];
	int count, first_own = from == &guests[0] ? 0 : 1;
	do {
		uint32_t start = from->tx_cons, rx_start = to->rx_cons, slots = 0, prod = from->tx->head.req_prod;
		uint64_t bytes_sum = 0;
		demand(prod - start <= SLOTS);
		from->is_blocked = 0;
		__asm__ volatile("" ::: "memory");
		for (count = 0; from->tx_cons != prod && count < BATCH && slots < SEGMENTS / 2 - 20; count++) {
			struct packet *packet = &packets[count];
			parse(from, packet);
			if (!has_room(to, slots + packet->slots)) {
				from->is_blocked = 1;
				break;
			}
			slots += packet->slots;
			from->tx_cons += packet->slots;
			struct gntdev_grant_copy_segment *header = segment(packet->size < HEADER ? packet->size : HEADER);
			grant_end(&header->source, from->domain, packet->first.gref, packet->first.offset);
			grant_end(&header->dest, own_domain, own_grefs[first_own], count * HEADER);
		}
		if (!count)
			continue;
		perform();
		uint32_t at = start;
		for (int n = 0; n < count; n++) {
			struct packet *packet = &packets[n];
			const uint8_t *bytes = own + first_own * 4096 + n * HEADER;
			int is_extra = packet->slots > packet->frags;
			uint16_t flags = (packet->first.flags & TX_BLANK ? RX_BLANK | RX_VALIDATED : 0) |
				(packet->first.flags & TX_VALIDATED ? RX_VALIDATED : 0) | (packet->first.flags & (MORE | EXTRA));
			uint32_t next = at + packet->slots;
			bytes_sum += packet->first.size;
			if (!is_for(bytes, from - guests, to - guests)) {
				at = next;
				continue;
			}
			struct rx_response *response = &responses[to->rx_cons % SLOTS];
			struct rx_request *buffer = take_buffer(to, response, packet->size, flags);
			uint16_t header = packet->size < HEADER ? packet->size : HEADER;
			struct gntdev_grant_copy_segment *part = segment(header);
			grant_end(&part->source, own_domain, own_grefs[first_own], n * HEADER);
			grant_end(&part->dest, to->domain, buffer->gref, 0);
			if (packet->size > header) {
				part = segment(packet->size - header);
				grant_end(&part->source, from->domain, packet->first.gref, packet->first.offset + header);
				grant_end(&part->dest, to->domain, buffer->gref, header);
			}
			if (is_extra)
				memcpy(&responses[to->rx_cons++ % SLOTS], &packet->extra, sizeof(struct extra));
			for (at += 1 + is_extra; at != next; at++) {
				struct tx_request request = *REQUEST(from, at);
				response = &responses[to->rx_cons % SLOTS];
				buffer = take_buffer(to, response, request.size, request.flags & MORE);
				part = segment(request.size);
				grant_end(&part->source, from->domain, request.gref, request.offset);
				grant_end(&part->dest, to->domain, buffer->gref, 0);
			}
		}
		perform();
		tally(from - guests, 0, count, bytes_sum);
		tally(to - guests, 1, count, bytes_sum);
		for (uint32_t slot = rx_start; slot != to->rx_cons; slot++)
			to->rx->slot[slot % SLOTS].rsp = responses[slot % SLOTS];
		if (rx_start != to->rx_cons)
			to->must_notify |= publish(&to->rx->head, to->rx_cons);
		answer(from, start, from->tx_cons);
	} while (!from->is_blocked && (count || !is_drained(from)));
}

/* Taps and NICs. A frame's metadata (`struct vnet`) lies before it. */

/* Frames of one copy: short ones, or three of the longest. */
#define TOGETHER 32
#define FIRST_PAGE 8
#define END_PAGE (FIRST_PAGE + 3 * 18)

static struct io_uring_sqe *entries;
static uint32_t *sq_tail, *sq_array, *cq_head, *cq_tail;
static int uring;

static void open_uring(void)
{
	struct io_uring_params params = { 0 };
	check(uring = syscall(SYS_io_uring_setup, TOGETHER, &params));
	char *rings = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, uring, IORING_OFF_SQ_RING);
	entries = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, uring, IORING_OFF_SQES);
	if (rings == MAP_FAILED || entries == MAP_FAILED)
		fail("mmap of io_uring");
	sq_tail = (uint32_t *)(rings + params.sq_off.tail);
	sq_array = (uint32_t *)(rings + params.sq_off.array);
	cq_head = (uint32_t *)(rings + params.cq_off.head);
	cq_tail = (uint32_t *)(rings + params.cq_off.tail);
	for (uint32_t n = 0; n < params.sq_entries; n++)
		sq_array[n] = n;
}

/* Frames that are refused are lost: before the interface is up. */
static void write_together(int tap, uint8_t **frames, const uint32_t *lens, int count)
{
	if (kind == XDP) {
		write_xdp(frames, lens, count);
		return;
	}
	if (count == 1) {
		write(tap, frames[0], lens[0]);
		return;
	}
	for (int n = 0; n < count; n++) {
		struct io_uring_sqe *entry = &entries[*sq_tail % TOGETHER];
		*entry = (struct io_uring_sqe){ .opcode = IORING_OP_WRITE, .fd = tap, .addr = (uintptr_t)frames[n], .len = lens[n] };
		__atomic_store_n(sq_tail, *sq_tail + 1, __ATOMIC_RELEASE);
	}
	check(syscall(SYS_io_uring_enter, uring, count, count, IORING_ENTER_GETEVENTS, NULL, 0));
	__atomic_store_n(cq_head, *cq_tail, __ATOMIC_RELEASE);
}

/* Copies a packet behind byte `at` of the own pages, and returns where it begins: with its body at the place in a page that it has in the guest's. */
static uint32_t copy_packet(const struct guest *guest, const struct packet *packet, uint32_t at, uint32_t *len)
{
	uint32_t next = guest->tx_cons + 1 + packet->slots - packet->frags;
	uint32_t offset = packet->frags > 1 ? REQUEST(guest, next)->offset - packet->size : packet->first.offset;
	uint32_t begin = at + sizeof(struct vnet), to;
	begin += (offset - begin) % 4096;
	to = begin;
	for (int n = 0; n < packet->frags; n++) {
		struct tx_request request = n ? *REQUEST(guest, next++) : packet->first;
		uint32_t size = n ? request.size : packet->size, from = request.offset;
		while (size) {
			uint32_t run = 4096 - to % 4096 < size ? 4096 - to % 4096 : size;
			struct gntdev_grant_copy_segment *part = segment(run);
			grant_end(&part->source, guest->domain, request.gref, from);
			grant_end(&part->dest, own_domain, own_grefs[to / 4096], to % 4096);
			to += run, from += run, size -= run;
		}
	}
	*len = to - begin;
	return begin;
}

static void to_tap(struct guest *guest)
{
	do {
		static struct packet packets[TOGETHER];
		uint8_t *frames[TOGETHER];
		uint32_t start = guest->tx_cons, lens[TOGETHER], end = FIRST_PAGE * 4096;
		uint64_t bytes_sum = 0;
		int count = 0;
		demand(guest->tx->head.req_prod - start <= SLOTS);
		for (; count < TOGETHER && guest->tx->head.req_prod != guest->tx_cons; count++) {
			parse(guest, &packets[count]);
			if (end + packets[count].first.size + 4096 > END_PAGE * 4096)
				break;
			uint32_t begin = copy_packet(guest, &packets[count], end, &lens[count]);
			frames[count] = own + begin;
			end = begin + lens[count];
			guest->tx_cons += packets[count].slots;
		}
		if (!count)
			continue;
		perform();
		for (int n = 0; n < count; n++) {
			const struct packet *packet = &packets[n];
			const uint8_t *frame = frames[n];
			struct vnet *vnet = (struct vnet *)(frame - sizeof(struct vnet));
			*vnet = (struct vnet){ 0 };
			if (packet->first.flags & TX_BLANK) {
				vnet->flags = 1;
				vnet->csum_start = 14 + (frame[14] & 15) * 4;
				vnet->csum_offset = frame[23] == 6 ? 16 : 6;
			}
			if (packet->slots > packet->frags) {
				vnet->gso_type = 1;
				vnet->gso_size = packet->extra.gso_size;
				vnet->hdr_len = vnet->csum_start + (frame[vnet->csum_start + 12] >> 4) * 4;
			}
			bytes_sum += lens[n];
			frames[n] = (uint8_t *)vnet;
			lens[n] += sizeof(*vnet);
			if (kind)
				(void)is_for(frame, guest - guests, NIC);
		}
		tally(guest - guests, 0, count, bytes_sum);
		tally(NIC, 1, count, bytes_sum);
		write_together(guest->tap, frames, lens, count);
		answer(guest, start, guest->tx_cons);
	} while (!is_drained(guest));
}

/* Frames from the tap or NIC. A lone frame has no other behind it: it reads once more if the frame was long, or if several came together lately. */
static void from_tap(struct guest *guest)
{
	static struct rx_response responses[SLOTS];
	int count, len;
	do {
		uint32_t start = guest->rx_cons, slots = 0, end = FIRST_PAGE * 4096;
		uint64_t bytes_sum = 0;
		len = 0;
		for (count = 0; count < TOGETHER && (!count || kind || len > 4096 || guest->many); count++) {
			if (!has_room(guest, 20)) {
				guest->is_blocked = 1;
				break;
			}
			guest->is_blocked = 0;
			uint32_t begin = (end + sizeof(struct vnet) + 4095) & -4096;
			struct vnet *vnet = (struct vnet *)(own + begin) - 1;
			if (begin + 17 * 4096 > END_PAGE * 4096)
				break;
			len = read_frame(guest->tap, vnet);
			if (len < 0)
				break;
			len -= sizeof(*vnet);
			if (kind && !is_for((uint8_t *)(vnet + 1), NIC, guest - guests))
				continue;
			bytes_sum += len;
			end = begin + len;
			for (int done = 0; done < len; done += 4096) {
				int run = len - done < 4096 ? len - done : 4096;
				uint16_t flags = done + run < len ? MORE : 0;
				if (!done)
					flags |= (vnet->flags ? vnet->flags & 1 ? RX_BLANK | RX_VALIDATED : RX_VALIDATED : 0) | (vnet->gso_type ? EXTRA : 0);
				struct rx_request *buffer = take_buffer(guest, &responses[slots++], run, flags);
				struct gntdev_grant_copy_segment *part = segment(run);
				grant_end(&part->source, own_domain, own_grefs[(begin + done) / 4096], 0);
				grant_end(&part->dest, guest->domain, buffer->gref, 0);
				if (flags & EXTRA) {
					struct extra extra = { .type = 1, .gso_size = vnet->gso_size, .gso_type = 1 };
					memcpy(&responses[slots++], &extra, sizeof(extra));
					guest->rx_cons++;
				}
			}
		}
		if (!slots)
			return;
		perform();
		tally(NIC, 0, count, bytes_sum);
		tally(guest - guests, 1, count, bytes_sum);
		for (uint32_t n = 0; n < slots; n++)
			guest->rx->slot[(start + n) % SLOTS].rsp = responses[n];
		guest->must_notify |= publish(&guest->rx->head, guest->rx_cons);
	} while ((len > 4096 || (kind && len > 0)) && !guest->is_blocked);
	guest->many = count > 1;
}

/* Takes what came before its event channel was bound. */
static void begin(struct guest *guest)
{
	guest->must_notify = 1;
	if (has_taps)
		to_tap(guest);
	else
		forward(guest, &guests[guest == &guests[0]]);
	notify(guest);
}

static void carry_by_taps(void)
{
	struct pollfd fds[3] = { { evtchn, POLLIN, 0 }, { guests[0].tap, POLLIN, 0 }, { -1, POLLIN, 0 } };
	begin(&guests[0]);
	for (unsigned turn = 0;; turn++) {
		int found = poll(fds, 3, fds[2].fd < 0 ? 200 : -1);
		check(found);
		read_clock();
		/* When there is nothing to do, it looks for the other guest. */
		if (!found && connect_guest(&guests[1])) {
			fds[2].fd = guests[1].tap;
			begin(&guests[1]);
		}
		int event = fds[0].revents;
		if (event) {
			uint32_t ports[2];
			int got = read(evtchn, ports, sizeof(ports));
			check(got);
			check(write(evtchn, ports, got));
			for (int n = 0; n < got / 4; n++) {
				struct guest *guest = &guests[ports[n] == guests[1].port], *other = &guests[guest == &guests[0]];
				uint32_t had = guest->tx_cons;
				to_tap(guest);
				if (guest->tx_cons != had && other->state == 4)
					from_tap(other);
				if (guest->is_blocked)
					from_tap(guest);
			}
		}
		for (int n = 0; n < 2; n++)
			if (fds[1 + n].revents) {
				guests[n].many |= guests[n].turn + 1 == turn;
				guests[n].turn = turn;
				from_tap(&guests[n]);
			}
		for (int n = 0; n < 2 && guests[n].state; n++) {
			notify(&guests[n]);
			/* What waits for buffers comes with the guest's event. */
			fds[1 + n].events = guests[n].is_blocked ? 0 : POLLIN;
		}
	}
}

static void carry(void)
{
	begin(&guests[0]);
	begin(&guests[1]);
	for (;;) {
		uint32_t ports[2];
		wait_for_events();
		int got = read(evtchn, ports, sizeof(ports));
		check(got);
		check(write(evtchn, ports, got));
		for (int n = 0; n < got / 4; n++) {
			struct guest *guest = &guests[ports[n] == guests[1].port], *other = &guests[guest == &guests[0]];
			forward(guest, other);
			if (other->is_blocked)
				forward(other, guest);
		}
		notify(&guests[0]);
		notify(&guests[1]);
	}
}

int main(int argc, char **argv)
{
	struct sockaddr_un ready = { AF_UNIX, "/run/pvnet/control.sock" };
	static struct { struct ioctl_gntalloc_alloc_gref alloc; uint32_t more[PAGES]; } pages;
	char config[4096] = "", domid[512];
	if (argc < 4 || read(open(argv[3], O_RDONLY), config, sizeof(config) - 1) < 0)
		fail("run --config FILE");
	kind = strstr(config, "af-packet") ? PACKET : strstr(config, "af-xdp") ? XDP : TAPS;
	has_taps = kind || strstr(config, "\"device\"");
#ifdef HOST_TAP
	has_taps = 1;
#endif
	check(system("modprobe -a xen-gntalloc xen-gntdev xen-evtchn"));
	check(setpriority(PRIO_PROCESS, 0, -5));
	check(xenbus = open("/dev/xen/xenbus", O_RDWR));
	check(store(2, "domid", NULL, domid));
	own_domain = atoi(domid);
	guests[0].domain = own_domain + 1;
	guests[1].domain = own_domain + 2;
	check(gntdev = open("/dev/xen/gntdev", O_RDWR));
	check(evtchn = open("/dev/xen/evtchn", O_RDWR));
	int gntalloc = open("/dev/xen/gntalloc", O_RDWR);
	check(gntalloc);
	pages.alloc.domid = own_domain;
	pages.alloc.flags = GNTALLOC_FLAG_WRITABLE;
	pages.alloc.count = PAGES;
	check(ioctl(gntalloc, IOCTL_GNTALLOC_ALLOC_GREF, &pages.alloc));
	memcpy(own_grefs, pages.alloc.gref_ids, sizeof(own_grefs));
	own = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, gntalloc, pages.alloc.index);
	if (own == MAP_FAILED)
		fail("mmap");
	mkdir("/run/pvnet", 0755);
	if (has_taps)
		open_uring();
	check(bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&ready, sizeof(ready)));
	while (!connect_guest(&guests[0]))
		usleep(20000);
	if (has_taps)
		carry_by_taps();
	while (!connect_guest(&guests[1]))
		usleep(20000);
	carry();
}
