/* On which CPUs a stack processes what programs read: the counts of docs/notebook/polling.md.
 *
 *     cc -O2 -static -o out/incoming-cpu scripts/incoming-cpu.c
 *     out/incoming-cpu receive ADDRESS STREAMS             (in the guest whose queues count; ends with the senders)
 *     out/incoming-cpu send ADDRESS STREAMS SECONDS        (in another one; or `answer` and `ask`: 100 bytes, and back)
 *
 * For each TCP stream: the share of reads, or of writes, at which the last frame of the socket was processed on the CPU of the program
 * (SO_INCOMING_CPU), and at the sender what was sent twice. In a virtual machine with four CPUs and queues, flows have the queue that they send
 * from by default, and go by hash with `[switch] hash_macs = true`.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PORT 5001
#define ANSWER 100
#define check(what) do { if ((what) < 0) { perror(#what); _exit(1); } } while (0)

static char buffer[1 << 17];
static long calls, here;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

/* The scheduler needs a second to place the programs. */
static void count(int socket, double begin)
{
	int cpu = -1;
	socklen_t len = sizeof cpu;
	if (now() < begin + 1)
		return;
	check(getsockopt(socket, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &len));
	calls++;
	here += cpu == sched_getcpu();
}

static void receive(int listener, int stream, int answers)
{
	int socket = accept(listener, 0, 0);
	double begin = now();
	ssize_t got;
	check(socket);
	while ((got = read(socket, buffer, sizeof buffer)) > 0) {
		count(socket, begin);
		if (answers && write(socket, buffer, got) < 0)
			break;
	}
	printf("stream %d: %ld reads, %.2f on the program's CPU\n", stream, calls, (double)here / calls);
}

/* The receivers may be about to start. */
static int connected(struct sockaddr_in *at)
{
	int end;
	for (int tries = 0; tries < 100; tries++, usleep(100000), close(end)) {
		check(end = socket(AF_INET, SOCK_STREAM, 0));
		if (!connect(end, (void *)at, sizeof *at))
			return end;
	}
	perror("connect");
	_exit(1);
}

static void send_for(int socket, int stream, double seconds, int waits)
{
	double begin = now();
	struct tcp_info info;
	socklen_t len = sizeof info;
	while (now() < begin + seconds) {
		if (write(socket, buffer, waits ? ANSWER : sizeof buffer) < 0 || (waits && read(socket, buffer, ANSWER) <= 0))
			break;
		count(socket, begin);
	}
	check(getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &len));
	printf("stream %d: %ld writes, %.2f on the program's CPU, %u sent again\n", stream, calls, (double)here / calls, info.tcpi_total_retrans);
}

int main(int count, char **words)
{
	const char *what = count > 3 ? words[1] : "";
	int sends = !strcmp(what, "send") || !strcmp(what, "ask"), answers = !strcmp(what, "answer"), one = 1;
	if (!sends && !answers && strcmp(what, "receive")) {
		fprintf(stderr, "usage: incoming-cpu receive|answer ADDRESS STREAMS\n       incoming-cpu send|ask ADDRESS STREAMS SECONDS\n");
		return 2;
	}
	signal(SIGPIPE, SIG_IGN);
	for (int stream = 0; stream < atoi(words[3]); stream++) {
		struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(PORT + stream)};
		int end;
		if (fork())
			continue;
		inet_aton(words[2], &at.sin_addr);
		if (sends) {
			end = connected(&at);
			send_for(end, stream, count > 4 ? atof(words[4]) : 5, !strcmp(what, "ask"));
		} else {
			check(end = socket(AF_INET, SOCK_STREAM, 0));
			check(setsockopt(end, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
			check(bind(end, (void *)&at, sizeof at));
			check(listen(end, 1));
			receive(end, stream, answers);
		}
		return 0;
	}
	while (wait(0) > 0)
		;
}
