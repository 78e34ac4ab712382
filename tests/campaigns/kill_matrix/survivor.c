/*
 * libfabric's end of the kill matrix: a program that posts what the Rust survivor posts, against the
 * same victim, and tells what is left without an end.
 *
 *     survivor listen STEP               binds 127.0.0.1, prints "PORT n"
 *     survivor connect STEP HOST PORT    connects
 *
 * STEP is a name of step.rs. Prints "REQUEST" when the victim's request has come, "POSTED n" when all
 * is posted, and "LEFT n told" whenever fewer operations are left or the end of the connection was
 * told (told is 0 or 1). SIGUSR1 lets it go on where the step is its own: it accepts, closes, or sends
 * once more.
 */
#include "../interop/peer/base.h"
#include "../interop/peer/session.h"

#define LARGE ((size_t)32 << 20)
#define REGION ((size_t)8 << 20)
#define OPS_MAX 64

static struct op *ops[OPS_MAX];
static int op_count;
static volatile sig_atomic_t may_go_on;
static const char *step;

static bool is(const char *name) { return !strcmp(step, name); }

static void go_on(int signal_number)
{
	(void)signal_number;
	may_go_on = 1;
}

static void add(struct op *op)
{
	CHECK(op_count < OPS_MAX, "too many operations");
	ops[op_count++] = op;
}

/* A post that is refused ends there, with its code. */
#define TRY(name, call)                                                                            \
	do {                                                                                       \
		struct op *op = op_new(name);                                                      \
		ssize_t result_ = (call);                                                          \
		if (!result_)                                                                      \
			add(op);                                                                   \
		else                                                                               \
			free(op);                                                                  \
	} while (0)

static void post_receives(void)
{
	static const size_t lens[2] = {100, 10};
	struct iovec pieces[2];

	cut(pieces, 2, buffer(110, 0), lens);
	TRY("receive", fi_recv(g.ep, buffer(MIB, 0), MIB, NULL, FI_ADDR_UNSPEC, op));
	TRY("receive", fi_recvv(g.ep, pieces, NULL, 2, FI_ADDR_UNSPEC, op));
}

static void post_rma(const char *name, bool write, size_t len, uint64_t flags)
{
	struct iovec piece = {buffer(len, 1), len};
	struct fi_rma_iov segment = {.addr = 0, .len = len, .key = 0x5EED};
	struct fi_msg_rma msg = {.msg_iov = &piece,
				 .iov_count = 1,
				 .addr = FI_ADDR_UNSPEC,
				 .rma_iov = &segment,
				 .rma_iov_count = 1};

	if (write)
		TRY(name, (msg.context = op, fi_writemsg(g.ep, &msg, flags | FI_COMPLETION)));
	else
		TRY(name, (msg.context = op, fi_readmsg(g.ep, &msg, FI_COMPLETION)));
}

static void post_message(const char *name, size_t len, uint64_t flags)
{
	struct iovec piece = {buffer(len, 1), len};
	struct fi_msg msg = {.msg_iov = &piece, .iov_count = 1, .addr = FI_ADDR_UNSPEC};

	TRY(name, (msg.context = op, fi_sendmsg(g.ep, &msg, flags | FI_COMPLETION)));
}

static void post_standard(void)
{
	post_message("send", 5, FI_DELIVERY_COMPLETE);
	post_message("send", 5, FI_DELIVERY_COMPLETE);
	post_rma("read", false, MIB, 0);
	post_rma("read", false, 10, 0);
	post_rma("write", true, 10, FI_DELIVERY_COMPLETE);
	post_rma("write", true, 10, FI_DELIVERY_COMPLETE);
}

static void post_all(void)
{
	bool fills = is("SendUnread") || is("WriteUnread") || is("OurClose") || is("ItsClose");

	if (is("Idle"))
		return;
	if (is("WriteUnread"))
		post_rma("large write", true, LARGE, 0);
	else if (fills)
		post_message("large send", LARGE, 0);
	post_standard();
	for (int i = 0; fills && i < 20; i++)
		post_message("waiting send", 20, 0);
}

static int left(void)
{
	int count = 0;

	for (int i = 0; i < op_count; i++)
		count += !ops[i]->done;
	return count;
}

static bool told(void) { return g.shutdowns || g.cm_error; }

static void tell_what_is_left(void)
{
	int last = -1, last_told = -1;

	for (;;) {
		if (left() != last || told() != last_told) {
			last = left();
			last_told = told();
			fact("LEFT %d %d", last, last_told);
		}
		if (is("OurClose") && may_go_on) {
			may_go_on = 0;
			MUST(fi_shutdown(g.ep, 0));
		}
		if (is("PausedFull") && may_go_on) {
			may_go_on = 0;
			post_message("nudge", 10, 0);
		}
		progress();
	}
}

int main(int argc, char **argv)
{
	bool handshake;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc >= 3, "usage: survivor listen STEP | survivor connect STEP HOST PORT");
	step = argv[2];
	g.listener = !strcmp(argv[1], "listen");
	handshake = is("Silent") || is("HalfControl") || is("HalfData") || is("BeforeVerdict");
	signal(SIGUSR1, go_on);
	if (g.listener) {
		open_domain("127.0.0.1", NULL, FI_SOURCE);
		open_listener();
	} else {
		open_domain(argv[3], argv[4], 0);
	}
	region_new(REGION, FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
		   REGION_KEY);
	if (g.listener && handshake && !is("BeforeVerdict"))
		for (;;)
			progress();
	begin();
	if (g.listener && is("BeforeVerdict")) {
		fact("REQUEST");
		while (!may_go_on)
			progress();
		if (fi_accept(g.ep, NULL, 0))
			g.cm_error = 1;
	} else {
		if (!is("HalfEarlyMessage") && !is("Paused") && !is("PausedFull"))
			post_receives();
		if (g.listener)
			MUST(fi_accept(g.ep, NULL, 0));
		else
			MUST(fi_connect(g.ep, g.info->dest_addr, NULL, 0));
	}
	if (!handshake) {
		while (!g.connected && !told())
			progress();
		post_all();
	}
	fact("POSTED %d", op_count);
	tell_what_is_left();
}
