/* Operations, as both C programs post and await them. Whoever includes this has `struct op` and what
 * it posts at: EP, the endpoint, and TO, the peer (of a connected endpoint: FI_ADDR_UNSPEC). */

static void progress(void);

#define WAIT_FOR(what, condition)                                                                  \
	do {                                                                                       \
		waiting_for = (what);                                                              \
		while (!(condition))                                                               \
			progress();                                                                \
		waiting_for = "nothing";                                                           \
	} while (0)

static struct op *op_new(const char *name)
{
	struct op *op = calloc(1, sizeof *op);
	CHECK(op, "out of memory");
	op->name = name;
	return op;
}

/* Waits until the operation has ended well. */
static void op_ok(struct op *op)
{
	WAIT_FOR(op->name, op->done);
	CHECK(!op->error, "%s ended with %d (%s)", op->name, op->error, fi_strerror(op->error));
}

static struct op *post_recv(const char *name, uint8_t *bytes, size_t len)
{
	struct op *op = op_new(name);
	POST(fi_recv(EP, bytes, len, NULL, FI_ADDR_UNSPEC, op));
	return op;
}

static struct op *post_recvv(const char *name, uint8_t *bytes, const size_t lens[4])
{
	struct op *op = op_new(name);
	struct iovec pieces[4];

	cut(pieces, 4, bytes, lens);
	POST(fi_recvv(EP, pieces, NULL, 4, FI_ADDR_UNSPEC, op));
	return op;
}

static struct op *post_send(const char *name, const uint8_t *bytes, size_t len)
{
	struct op *op = op_new(name);
	POST(fi_send(EP, bytes, len, NULL, TO, op));
	return op;
}

/* fi_sendmsg with flags: FI_DELIVERY_COMPLETE, FI_REMOTE_CQ_DATA. */
static struct op *post_sendmsg(const char *name, uint8_t *bytes, const size_t *lens, size_t count,
			       uint64_t flags, uint64_t data)
{
	struct op *op = op_new(name);
	struct iovec pieces[4];
	struct fi_msg msg = {.msg_iov = pieces,
			     .iov_count = count,
			     .addr = TO,
			     .context = op,
			     .data = data};

	cut(pieces, (int)count, bytes, lens);
	POST(fi_sendmsg(EP, &msg, flags | FI_COMPLETION));
	return op;
}

/* A received message: its length, and its remote CQ data or the absence of it. */
static void check_message(struct op *op, size_t len, bool has_data, uint64_t data)
{
	op_ok(op);
	CHECK(op->len == len, "%s: %zu bytes arrived, not %zu", op->name, op->len, len);
	CHECK(op->flags & FI_RECV, "%s: flags 0x%llx", op->name, (unsigned long long)op->flags);
	CHECK(!!(op->flags & FI_REMOTE_CQ_DATA) == has_data, "%s: flags 0x%llx", op->name,
	      (unsigned long long)op->flags);
	if (has_data)
		CHECK(op->data == data, "%s: CQ data 0x%llx, not 0x%llx", op->name,
		      (unsigned long long)op->data, (unsigned long long)data);
	fact("%s: %zu bytes%s", op->name, len, has_data ? " and CQ data" : "");
}

/* Reads the error entry that a queue has: its operation has ended. */
static void take_error(struct fid_cq *cq)
{
	struct fi_cq_err_entry error = {0};
	struct op *op;

	MUST(fi_cq_readerr(cq, &error, 0));
	op = error.op_context;
	CHECK(op, "a completion error %d without a context", error.err);
	CHECK(!op->done, "%s ended twice (error %d)", op->name, error.err);
	CHECK(error.err > 0, "%s: an error entry without an error", op->name);
	op->done = true;
	op->error = error.err;
	op->flags = error.flags;
}

/* Leaves the processor to the other end when nothing was found for a while. */
static void rest_unless(bool found)
{
	static int idle;

	idle = found ? 0 : idle + 1;
	if (idle > 200) {
		struct timespec moment = {0, 50000};
		nanosleep(&moment, NULL);
	}
}
