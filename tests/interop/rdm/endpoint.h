/* The endpoint, progress, and operations. */
#include <arpa/inet.h>

#include <rdma/fi_tagged.h>

#define ANY FI_ADDR_UNSPEC
#define NO_DATA ((uint64_t)-1)

/* One piece of a buffer for several messages. */
struct piece {
	uint8_t *bytes;
	size_t len;
	bool last; /* the buffer is given back */
};

/* One posted operation. Its address is the context of the libfabric call. */
struct op {
	const char *name;
	bool done;
	int error; /* positive fi_errno, 0 when it succeeded */
	uint64_t flags, data, tag;
	size_t len;
	fi_addr_t source;
	/* A buffer for several messages: what came, in order. */
	bool is_multi;
	struct piece *pieces;
	int piece_count, piece_next;
};

static struct {
	bool initiator;
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fid_ep *ep;
	fi_addr_t peer;
	/* The last completion that no posted operation asked for: a remote write with CQ data. */
	uint64_t remote_flags, remote_data;
	int remote_count;
	int completions; /* of transmit operations */
} r;

/* ---- opening -------------------------------------------------------------------------------- */

static void open_domain(const char *own_port)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_cq_attr cq_attr = {
	    .size = 4096, .format = FI_CQ_FORMAT_TAGGED, .wait_obj = FI_WAIT_NONE};
	struct fi_av_attr av_attr = {.type = FI_AV_MAP};

	CHECK(hints, "out of memory");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG | FI_TAGGED | FI_RMA | FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV;
	hints->addr_format = FI_SOCKADDR_IN;
	/* No mode bit: offset addressing and keys of the application (fi_mr(3)). */
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup("net");
	MUST(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", own_port, FI_SOURCE, hints, &r.info));
	fi_freeinfo(hints);
	CHECK(!strcmp(r.info->fabric_attr->prov_name, "net"), "provider %s",
	      r.info->fabric_attr->prov_name);
	MUST(fi_fabric(r.info->fabric_attr, &r.fabric, NULL));
	MUST(fi_domain(r.fabric, r.info, &r.domain, NULL));
	MUST(fi_cq_open(r.domain, &cq_attr, &r.cq, NULL));
	MUST(fi_av_open(r.domain, &av_attr, &r.av, NULL));
}

static fi_addr_t insert(const char *host, uint16_t port)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
	fi_addr_t inserted;

	CHECK(inet_pton(AF_INET, host, &address.sin_addr) == 1, "%s is no address", host);
	CHECK(fi_av_insert(r.av, &address, 1, &inserted, 0, NULL) == 1, "fi_av_insert");
	return inserted;
}

static void endpoint_open(void)
{
	MUST(fi_endpoint(r.domain, r.info, &r.ep, NULL));
	MUST(fi_ep_bind(r.ep, &r.av->fid, 0));
	MUST(fi_ep_bind(r.ep, &r.cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_enable(r.ep));
}

static void endpoint_close(void)
{
	if (r.ep)
		MUST(fi_close(&r.ep->fid));
	r.ep = NULL;
}

/* The first receives are posted: now others may know where this is. */
static void tell_port(void)
{
	struct sockaddr_in address = {0};
	size_t len = sizeof address;

	MUST(fi_getname(&r.ep->fid, &address, &len));
	fact("PORT %u", ntohs(address.sin_port));
}

#define EP r.ep
#define TO r.peer
#include "../peer/operations.h"

/* ---- progress ------------------------------------------------------------------------------- */

static void take_piece(struct op *op, uint8_t *bytes, size_t len, bool last)
{
	op->pieces = realloc(op->pieces, sizeof *op->pieces * (size_t)(op->piece_count + 1));
	CHECK(op->pieces, "out of memory");
	op->pieces[op->piece_count++] = (struct piece){bytes, len, last};
}

static bool drain(void)
{
	struct fi_cq_tagged_entry entry = {0};
	fi_addr_t source = ANY;
	ssize_t got = fi_cq_readfrom(r.cq, &entry, 1, &source);
	struct op *op;

	if (got == -FI_EAGAIN)
		return false;
	if (got == -FI_EAVAIL) {
		take_error(r.cq);
		return true;
	}
	CHECK(got == 1, "fi_cq_readfrom: %s", fi_strerror((int)-got));
	if (entry.flags & FI_REMOTE_WRITE) {
		r.remote_count++;
		r.remote_flags = entry.flags;
		r.remote_data = entry.data;
		return true;
	}
	op = entry.op_context;
	CHECK(op, "a completion without a context, flags 0x%llx", (unsigned long long)entry.flags);
	CHECK(!op->done, "%s ended twice", op->name);
	if (!(entry.flags & FI_RECV))
		r.completions++;
	if (op->is_multi) {
		bool last = entry.flags & FI_MULTI_RECV;
		op->source = source;
		if (entry.buf || entry.len)
			take_piece(op, entry.buf, entry.len, last);
		else
			take_piece(op, NULL, 0, last);
		op->done = last;
		return true;
	}
	op->done = true;
	op->flags = entry.flags;
	op->len = entry.len;
	op->data = entry.data;
	op->tag = entry.tag;
	op->source = source;
	return true;
}

static void progress(void)
{
	bool found = drain();

	rest_unless(found);
}

/* Makes progress for a while. */
static void progress_for(long ms)
{
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	do {
		progress();
		clock_gettime(CLOCK_MONOTONIC, &now);
	} while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < ms);
}

/* ---- operations ----------------------------------------------------------------------------- */

static struct op *post_trecv(const char *name, uint8_t *bytes, size_t len, uint64_t tag,
			     uint64_t ignore, fi_addr_t source)
{
	struct op *op = op_new(name);
	POST(fi_trecv(r.ep, bytes, len, NULL, source, tag, ignore, op));
	return op;
}

static struct op *post_tsendmsg(const char *name, uint8_t *bytes, size_t len, uint64_t tag,
				uint64_t flags, uint64_t data)
{
	struct op *op = op_new(name);
	struct iovec piece = {bytes, len};
	struct fi_msg_tagged msg = {.msg_iov = &piece,
				    .iov_count = 1,
				    .addr = r.peer,
				    .tag = tag,
				    .context = op,
				    .data = data};

	POST(fi_tsendmsg(r.ep, &msg, flags | FI_COMPLETION));
	return op;
}

/* A received message: its length, its sender, its remote CQ data or the absence of it. */
static void check_from_peer(struct op *op, size_t len, uint64_t data)
{
	check_message(op, len, data != NO_DATA, data);
	CHECK(op->source == r.peer, "%s: its source is 0x%llx, not 0x%llx", op->name,
	      (unsigned long long)op->source, (unsigned long long)r.peer);
}

static void check_tagged(struct op *op, size_t len, uint64_t tag, uint64_t data)
{
	check_from_peer(op, len, data);
	CHECK(op->flags & FI_TAGGED, "%s: flags 0x%llx", op->name, (unsigned long long)op->flags);
	CHECK(op->tag == tag, "%s: tag 0x%llx, not 0x%llx", op->name, (unsigned long long)op->tag,
	      (unsigned long long)tag);
}

/* ---- a word to and fro ---------------------------------------------------------------------- */

static uint8_t hello_bytes[5], done_bytes[4];
static struct op *hello_recv, *done_recv;

static void post_hello_recv(void)
{
	if (!r.initiator)
		hello_recv = post_recv("receive of hello", hello_bytes, 5);
}

static void post_done_recv(void)
{
	done_recv = post_recv("receive of done", done_bytes, 4);
}

/* The initiator's first message makes the connection. */
static void say_hello(void)
{
	if (r.initiator) {
		op_ok(post_send("send of hello", (const uint8_t *)"hello", 5));
		return;
	}
	check_from_peer(hello_recv, 5, NO_DATA);
	CHECK(!memcmp(hello_bytes, "hello", 5), "not the word hello");
}

static void send_done(void)
{
	static const size_t len = 4;

	op_ok(post_sendmsg("send of done", (uint8_t *)"done", &len, 1, FI_DELIVERY_COMPLETE, 0));
}

static void await_done(void)
{
	check_from_peer(done_recv, 4, NO_DATA);
	CHECK(!memcmp(done_bytes, "done", 4), "not the word done");
}

/* The initiator says done first, the target once it has checked everything. */
static void farewell(void)
{
	if (r.initiator)
		send_done();
	await_done();
	if (!r.initiator)
		send_done();
}
