/* What every part of the C peer stands on: state, progress, operations. */
#include "report.h"

#define SECOND_KEY 0xFEDCBA98C0DE0010ull
#define BIG_REGION ((size_t)(1u << 20) + 8192)
#define SMALL_REGION ((size_t)4096)
#define CM_DATA_MAX 256

/* One posted operation. Its address is the context of the libfabric call. */
struct op {
	const char *name;
	bool done;
	int error; /* positive fi_errno, 0 when it succeeded */
	uint64_t flags;
	size_t len;
	uint64_t data;
};

/* A completion that no posted operation asked for: a remote write with CQ data. */
struct remote_event {
	uint64_t flags;
	size_t len;
	uint64_t data;
};

struct region {
	uint8_t *bytes;
	size_t len;
	uint64_t key;
	struct fid_mr *mr;
};

/* What a target says of its region: three u64, little-endian, in this order. */
struct descriptor {
	uint64_t addr, len, key;
};

/* Everything that is open. One connection at a time; a second one replaces `ep`. */
static struct {
	bool listener;
	bool initiator;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_pep *pep;
	struct fid_cq *tx_cq;
	struct fid_cq *rx_cq;
	struct fid_ep *ep;

	/* The latest connection request nobody has taken yet (listener only). */
	struct fi_info *request;
	uint8_t request_data[CM_DATA_MAX];
	size_t request_len;

	/* Events of the present endpoint. */
	int connected;
	uint8_t reply_data[CM_DATA_MAX];
	size_t reply_len;
	int shutdowns;
	int cm_error; /* positive fi_errno of an error entry, 0 for none */
	uint8_t cm_error_data[CM_DATA_MAX];
	size_t cm_error_len;

	struct remote_event remote[16];
	int remote_count;
	int tx_completions; /* all entries ever seen on the transmit CQ */
} g;

#define EP g.ep
#define TO FI_ADDR_UNSPEC
#include "operations.h"

/* ---- progress ------------------------------------------------------------------------------- */

static bool drain_cq(struct fid_cq *cq)
{
	struct fi_cq_data_entry entry = {0};
	ssize_t got = fi_cq_read(cq, &entry, 1);
	struct op *op;

	if (got == -FI_EAGAIN)
		return false;
	if (cq == g.tx_cq)
		g.tx_completions++;
	if (got == -FI_EAVAIL) {
		take_error(cq);
		return true;
	}
	CHECK(got == 1, "fi_cq_read: %s", fi_strerror((int)-got));
	if (entry.flags & FI_REMOTE_WRITE) {
		CHECK(g.remote_count < 16, "too many remote write events");
		g.remote[g.remote_count].flags = entry.flags;
		g.remote[g.remote_count].len = entry.len;
		g.remote[g.remote_count].data = entry.data;
		g.remote_count++;
		return true;
	}
	op = entry.op_context;
	CHECK(op, "a completion without a context, flags 0x%llx", (unsigned long long)entry.flags);
	CHECK(!op->done, "%s ended twice", op->name);
	op->done = true;
	op->flags = entry.flags;
	op->len = entry.len;
	op->data = entry.data;
	return true;
}

static void eq_error(void)
{
	struct fi_eq_err_entry error = {0};

	/* With a buffer of ours the provider copies err_data there (fi_eq(3)). */
	error.err_data = g.cm_error_data;
	error.err_data_size = sizeof g.cm_error_data;
	MUST(fi_eq_readerr(g.eq, &error, 0));
	if (!g.ep || error.fid != &g.ep->fid)
		return;
	CHECK(error.err > 0, "an EQ error entry without an error");
	CHECK(error.err_data_size <= CM_DATA_MAX, "err_data of %zu bytes", error.err_data_size);
	if (error.err_data && error.err_data != g.cm_error_data)
		memcpy(g.cm_error_data, error.err_data, error.err_data_size);
	g.cm_error = error.err;
	g.cm_error_len = error.err_data_size;
}

static bool drain_eq(void)
{
	union {
		struct fi_eq_cm_entry cm;
		uint8_t bytes[sizeof(struct fi_eq_cm_entry) + CM_DATA_MAX];
	} entry;
	uint32_t event = 0;
	size_t data_len;
	ssize_t got = fi_eq_read(g.eq, &event, &entry, sizeof entry, 0);

	if (got == -FI_EAGAIN)
		return false;
	if (got == -FI_EAVAIL) {
		eq_error();
		return true;
	}
	CHECK(got >= (ssize_t)sizeof entry.cm, "fi_eq_read: %zd (event %u)", got, event);
	data_len = (size_t)got - sizeof entry.cm;
	if (event == FI_CONNREQ) {
		CHECK(g.pep && entry.cm.fid == &g.pep->fid, "FI_CONNREQ of another object");
		CHECK(!g.request, "a connection request nobody expected");
		CHECK(entry.cm.info && entry.cm.info->handle, "FI_CONNREQ without a handle");
		g.request = entry.cm.info;
		memcpy(g.request_data, entry.cm.data, data_len);
		g.request_len = data_len;
		return true;
	}
	if (!g.ep || entry.cm.fid != &g.ep->fid)
		return true; /* what an endpoint closed by us still had to say */
	if (event == FI_CONNECTED) {
		CHECK(g.connected++ == 0, "a second FI_CONNECTED");
		memcpy(g.reply_data, entry.cm.data, data_len);
		g.reply_len = data_len;
	} else if (event == FI_SHUTDOWN) {
		CHECK(g.shutdowns++ == 0, "a second FI_SHUTDOWN");
	} else {
		fail("event %u", event);
	}
	return true;
}

static void pause_ms(long ms)
{
	struct timespec time = {ms / 1000, (ms % 1000) * 1000000};
	nanosleep(&time, NULL);
}

static void progress(void)
{
	bool found = drain_eq();

	if (g.ep) {
		found |= drain_cq(g.tx_cq);
		found |= drain_cq(g.rx_cq);
	}
	rest_unless(found);
}

/* ---- operations ----------------------------------------------------------------------------- */

static void op_end(struct op *op)
{
	WAIT_FOR(op->name, op->done);
}

/* Waits until the operation has ended with an error. */
static void op_error(struct op *op)
{
	op_end(op);
	CHECK(op->error, "%s ended well, an error was due", op->name);
	fact("%s ended with error %d (%s)", op->name, op->error, fi_strerror(op->error));
}

static struct op *post_sendv(const char *name, uint8_t *bytes, const size_t lens[4])
{
	struct op *op = op_new(name);
	struct iovec pieces[4];

	cut(pieces, 4, bytes, lens);
	POST(fi_sendv(g.ep, pieces, NULL, 4, FI_ADDR_UNSPEC, op));
	return op;
}

/* fi_writemsg or fi_readmsg of `count` local pieces against `segment_count` remote segments. */
static struct op *post_rmamsg(const char *name, bool write, uint8_t *bytes, const size_t *lens,
			      size_t count, const struct fi_rma_iov *segments, size_t segment_count,
			      uint64_t flags, uint64_t data)
{
	struct op *op = op_new(name);
	struct iovec pieces[4];
	struct fi_msg_rma msg = {.msg_iov = pieces,
				 .iov_count = count,
				 .addr = FI_ADDR_UNSPEC,
				 .rma_iov = segments,
				 .rma_iov_count = segment_count,
				 .context = op,
				 .data = data};

	cut(pieces, (int)count, bytes, lens);
	if (write)
		POST(fi_writemsg(g.ep, &msg, flags | FI_COMPLETION));
	else
		POST(fi_readmsg(g.ep, &msg, flags | FI_COMPLETION));
	return op;
}
