/* What every C peer stands on: reporting, and the bytes that are sent. progress() is its own. */
#include <netinet/in.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <rdma/fabric.h>
#include <rdma/fi_cm.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <rdma/fi_rma.h>

#define DESCRIPTOR_LEN 24
#define REGION_KEY 0xFEDCBA98C0DE0001ull
#define MIB ((size_t)1 << 20)

static void progress(void);

static const char *volatile waiting_for = "nothing";

/* ---- reporting ------------------------------------------------------------------------------ */

__attribute__((format(printf, 1, 2))) static void fact(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
}

/* Leaves by _exit: the provider's destructors may wait for what will never come. */
__attribute__((format(printf, 1, 2), noreturn)) static void fail(const char *format, ...)
{
	va_list args;
	va_start(args, format);
	printf("FAIL ");
	vprintf(format, args);
	va_end(args);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

#define CHECK(condition, ...)                                                                      \
	do {                                                                                       \
		if (!(condition))                                                                  \
			fail(__VA_ARGS__);                                                         \
	} while (0)

/* A call of the control path, which must succeed at once. */
#define MUST(call)                                                                                 \
	do {                                                                                       \
		ssize_t result_ = (call);                                                          \
		if (result_ < 0)                                                                   \
			fail("%s: %s", #call, fi_strerror((int)-result_));                         \
	} while (0)

/* A call of the data path: "again" is answered by making progress. */
#define POST(call)                                                                                 \
	do {                                                                                       \
		ssize_t result_;                                                                   \
		while ((result_ = (call)) == -FI_EAGAIN)                                           \
			progress();                                                                \
		if (result_ < 0)                                                                   \
			fail("%s: %s", #call, fi_strerror((int)-result_));                         \
	} while (0)

static void watchdog(int signal_number)
{
	static const char head[] = "FAIL watchdog while waiting for ";
	const char *what = waiting_for;
	ssize_t ignored;

	(void)signal_number;
	ignored = write(STDOUT_FILENO, head, sizeof head - 1);
	ignored = write(STDOUT_FILENO, what, strlen(what));
	ignored = write(STDOUT_FILENO, "\n", 1);
	(void)ignored;
	_exit(1);
}

/* ---- bytes ---------------------------------------------------------------------------------- */

static uint8_t *buffer(size_t len, int fill)
{
	uint8_t *bytes = malloc(len ? len : 1);
	CHECK(bytes, "out of memory");
	memset(bytes, fill, len);
	return bytes;
}

/* The pattern of every scenario: byte i of seed s is (i * 7 + s) & 0xff. */
static void fill_pattern(uint8_t *bytes, size_t len, unsigned seed)
{
	for (size_t i = 0; i < len; i++)
		bytes[i] = (uint8_t)(i * 7 + seed);
}

static uint8_t *pattern(size_t len, unsigned seed)
{
	uint8_t *bytes = buffer(len, 0);
	fill_pattern(bytes, len, seed);
	return bytes;
}

static void check_equal(const char *what, const uint8_t *got, const uint8_t *want, size_t len)
{
	for (size_t i = 0; i < len; i++)
		CHECK(got[i] == want[i], "%s: byte %zu of %zu is 0x%02x, not 0x%02x", what, i, len, got[i],
		      want[i]);
}

static void check_pattern(const char *what, const uint8_t *got, size_t len, unsigned seed)
{
	uint8_t *want = pattern(len, seed);
	check_equal(what, got, want, len);
	free(want);
}

static void check_fill(const char *what, const uint8_t *got, size_t len, uint8_t fill)
{
	for (size_t i = 0; i < len; i++)
		CHECK(got[i] == fill, "%s: byte %zu was changed to 0x%02x", what, i, got[i]);
}

static void put_u64(uint8_t *at, uint64_t value)
{
	for (int i = 0; i < 8; i++)
		at[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get_u64(const uint8_t *at)
{
	uint64_t value = 0;
	for (int i = 0; i < 8; i++)
		value |= (uint64_t)at[i] << (8 * i);
	return value;
}

/* Cuts one buffer into the pieces of a vector. */
static void cut(struct iovec *pieces, int count, uint8_t *bytes, const size_t *lens)
{
	for (int i = 0; i < count; i++) {
		pieces[i].iov_base = bytes;
		pieces[i].iov_len = lens[i];
		bytes += lens[i];
	}
}

