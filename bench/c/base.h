/* Words of the job, failing, clocks and CPU time. */
#include <errno.h>
#include <malloc.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define ANSWER_SIZE 8
#define INJECT_MAX 128

static struct {
	bool client, spin, net, shm, watches_each;
	const char *work, *host;
	size_t size, bulk, window, batch, answers, connections;
	uint64_t warm_ns, run_ns;
	int cpu, port;
	pid_t peer;
} job;

__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	printf("ERROR ");
	vprintf(format, args);
	putchar('\n');
	fflush(stdout);
	_exit(1); /* the provider's destructors may wait for what will never come */
}

/* A call that must succeed at once. */
#define MUST(call)                                                                                 \
	do {                                                                                       \
		ssize_t result_ = (call);                                                          \
		if (result_ < 0)                                                                   \
			fail("%s: %s", #call, fi_strerror((int)-result_));                         \
	} while (0)

static const char *word_of(int argc, char **argv, const char *name)
{
	size_t len = strlen(name);

	for (int i = 3; i < argc; i++)
		if (!strncmp(argv[i], name, len) && argv[i][len] == '=')
			return argv[i] + len + 1;
	return "";
}

static uint64_t number_of(int argc, char **argv, const char *name)
{
	return strtoull(word_of(argc, argv, name), NULL, 10);
}

static void parse(int argc, char **argv)
{
	if (argc < 4)
		fail("usage: driver server|client spin|wait name=value ...");
	job.client = !strcmp(argv[1], "client");
	job.spin = !strcmp(argv[2], "spin");
	job.shm = !strcmp(word_of(argc, argv, "provider"), "shm");
	job.net = job.shm || !strcmp(word_of(argc, argv, "provider"), "net");
	job.watches_each = number_of(argc, argv, "watches_each") != 0;
	job.work = word_of(argc, argv, "work");
	job.host = word_of(argc, argv, "host");
	job.size = number_of(argc, argv, "size");
	job.bulk = number_of(argc, argv, "bulk");
	job.window = number_of(argc, argv, "window");
	job.batch = job.window / 2 ? job.window / 2 : 1;
	job.answers = job.window / job.batch + 1;
	job.connections = number_of(argc, argv, "connections");
	job.warm_ns = number_of(argc, argv, "warm_ms") * 1000000;
	job.run_ns = number_of(argc, argv, "run_ms") * 1000000;
	job.cpu = (int)number_of(argc, argv, "cpu");
	job.port = (int)number_of(argc, argv, "port");
	job.peer = (pid_t)number_of(argc, argv, "peer");
}

static void pin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(job.cpu, &set);
	if (sched_setaffinity(0, sizeof set, &set))
		fail("pinning to processor %d: %s", job.cpu, strerror(errno));
}

static void *memory(size_t len)
{
	void *bytes = calloc(1, len ? len : 1);

	if (!bytes)
		fail("out of memory");
	return bytes;
}

/* Bytes to send. A page that was never written to is one that all share, and stays in the caches. */
static void *payload(size_t len)
{
	return memset(memory(len), 1, len);
}

static uint64_t nanoseconds(clockid_t clock)
{
	struct timespec time = {0};

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * 1000000000 + (uint64_t)time.tv_nsec;
}

static uint64_t now_ns(void)
{
	return nanoseconds(CLOCK_MONOTONIC);
}

/* CPU time of both ends. */
static uint64_t cpu_ns(void)
{
	clockid_t clock;
	uint64_t peer = 0;

	if (job.peer && !clock_getcpuclockid(job.peer, &clock))
		peer = nanoseconds(clock);

	return nanoseconds(CLOCK_PROCESS_CPUTIME_ID) + peer;
}

static void say(const char *name, uint64_t value)
{
	printf("%s %llu\n", name, (unsigned long long)value);
	fflush(stdout);
}
