/* With -DSWITCH: what no switch can do without. Otherwise these are empty, or trust the guest. */

#ifdef SWITCH
#include <sys/epoll.h>
#include <time.h>

#define ENTRIES 4096
#define TRIES 4
#define AGE 300

/* Each request is read once. */
static struct tx_request requests[2][SLOTS];
#define REQUEST(guest, at) (&requests[(guest) - guests][(at) % SLOTS])

static struct { uint64_t mac; uint32_t port, seen; } entries_of[ENTRIES];
static struct { uint64_t frames, bytes; } counters[4][2];
static uint32_t seconds;

static void demand(int is_right)
{
	if (!is_right)
		fail("a guest or Xen broke a rule");
}

static void take_request(const struct guest *guest, uint32_t at)
{
	struct tx_request *own = &requests[guest - guests][at % SLOTS];
	*own = guest->tx->slot[at % SLOTS].req;
	__asm__ volatile("" ::: "memory");
}

static uint64_t mac_of(const uint8_t *bytes)
{
	uint64_t mac = 0;
	memcpy(&mac, bytes, 6);
	return mac;
}

/* The entry of an address, or the one that it may have. */
static unsigned entry(uint64_t mac)
{
	unsigned first = mac * 0x9e3779b97f4a7c15 >> 52, oldest = first;
	for (unsigned n = 0; n < TRIES; n++) {
		unsigned at = (first + n) % ENTRIES;
		if (entries_of[at].mac == mac)
			return at;
		if (entries_of[at].seen < entries_of[oldest].seen)
			oldest = at;
	}
	return oldest;
}

/* Learns a frame's sender and finds its receiver. Returns whether port `to` gets it. */
static int is_for(const uint8_t *bytes, uint32_t from, uint32_t to)
{
	uint64_t source = mac_of(bytes + 6), dest = mac_of(bytes);
	unsigned at = entry(source);
	if (!(bytes[6] & 1))
		entries_of[at].mac = source, entries_of[at].port = from, entries_of[at].seen = seconds;
	if (bytes[0] & 1)
		return 1;
	at = entry(dest);
	return entries_of[at].mac != dest || entries_of[at].seen + AGE < seconds || entries_of[at].port == to;
}

static void tally(uint32_t port, int direction, uint64_t frames, uint64_t bytes)
{
	counters[port][direction].frames += frames;
	counters[port][direction].bytes += bytes;
}

static void read_clock(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	seconds = time.tv_sec;
}

/* Waits for an event channel, or for the store. */
static void wait_for_events(void)
{
	static int set;
	struct epoll_event event = { EPOLLIN, { .u32 = 0 } };
	if (!set) {
		check(set = epoll_create1(0));
		check(epoll_ctl(set, EPOLL_CTL_ADD, evtchn, &event));
		check(epoll_ctl(set, EPOLL_CTL_ADD, xenbus, &event));
	}
	check(epoll_wait(set, &event, 1, -1));
	read_clock();
}

/* Whether Xen has copied every segment. */
static void demand_copies(void)
{
	for (uint32_t n = 0; n < copy.count; n++)
		demand(segments[n].status == 0);
}
#else
#define REQUEST(guest, at) (&(guest)->tx->slot[(at) % SLOTS].req)
#define demand(is_right)
#define take_request(guest, at)
#define is_for(bytes, from, to) ((to) == NIC || (bytes)[0] & 1 || !memcmp(bytes, guests[to].mac, 6))
#define tally(port, direction, frames, bytes)
#define read_clock()
#define wait_for_events()
#define demand_copies()
#endif
