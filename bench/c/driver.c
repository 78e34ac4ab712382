/*
 * The ends of libfabric's tcp provider (FI_EP_MSG, and FI_EP_RDM over it), and of its net and shm
 * providers (FI_EP_RDM), for comparison:
 *
 *     driver server|client spin|wait name=value ...
 *
 * The words, what is said on the output and what is measured are those of the Rust ends: src/job.rs
 * and src/end. "wait" sleeps in fi_cq_sread, "spin" reads the queue over and over.
 */
#define _GNU_SOURCE
#include "base.h"
#include "meter.h"
#include "session.h"

#include "rdm.h"

static void nothing(size_t connection)
{
	(void)connection;
}

/* ---- ping-pong ------------------------------------------------------------------------------ */

static void one_receive(size_t connection)
{
	post_receives(connection, 1, job.size);
}

static void ping_pong(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	struct op sent = {.bytes = payload(job.size)};

	if (job.net) {
		ping_pong_rdm();
		return;
	}
	open_side(4);
	connect_all(one_receive, (uint64_t[2]){0, 0});
	if (job.client)
		pings_begin();
	for (bool turn = job.client;;) {
		if (turn) {
			if (job.size <= INJECT_MAX)
				POST(fi_inject(g.eps[0], sent.bytes, job.size, FI_ADDR_UNSPEC));
			else
				POST(fi_send(g.eps[0], sent.bytes, job.size, NULL, FI_ADDR_UNSPEC,
					     &sent));
			turn = false;
		}
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;

			if (!op->is_receive)
				continue;
			post_receive(op, job.size);
			turn = true;
			if (job.client && pings_add())
				return;
		}
	}
}

/* ---- messages one way ----------------------------------------------------------------------- */

static void receives_of_messages(size_t connection)
{
	post_receives(connection, job.window, job.size);
}

static void receives_of_answers(size_t connection)
{
	post_receives(connection, job.answers, ANSWER_SIZE);
}

static void stream_server(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	static const uint8_t answer[ANSWER_SIZE];
	size_t *unanswered = memory(job.connections * sizeof *unanswered);

	connect_all(receives_of_messages, (uint64_t[2]){0, 0});
	for (;;) {
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;

			post_receive(op, job.size);
			if (++unanswered[op->connection] < job.batch)
				continue;
			unanswered[op->connection] = 0;
			POST(fi_inject(g.eps[op->connection], answer, sizeof answer,
				       FI_ADDR_UNSPEC));
		}
	}
}

struct sender {
	size_t credits;
	/* Operations with buffers that no send has; of large messages only. */
	struct op **free;
	size_t free_count;
};

static void send_allowed(struct sender *sender, size_t connection, const uint8_t *message)
{
	struct fid_ep *ep = g.eps[connection];

	if (job.size <= INJECT_MAX) {
		for (; sender->credits; sender->credits--)
			POST(fi_inject(ep, message, job.size, FI_ADDR_UNSPEC));
		return;
	}
	while (sender->credits && sender->free_count) {
		struct op *op = sender->free[--sender->free_count];

		sender->credits--;
		POST(fi_send(ep, op->bytes, job.size, NULL, FI_ADDR_UNSPEC, op));
	}
}

static void stream_client(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	struct sender *senders = memory(job.connections * sizeof *senders);
	uint8_t *message = payload(job.size);

	each_memory_begin();
	connect_all(receives_of_answers, NULL);
	for (size_t c = 0; c < job.connections; c++) {
		senders[c].credits = job.window;
		senders[c].free = memory(job.window * sizeof *senders[c].free);
		for (size_t i = 0; job.size > INJECT_MAX && i < job.window; i++) {
			struct op *op = memory(sizeof *op);

			*op = (struct op){.bytes = payload(job.size), .connection = (uint32_t)c};
			senders[c].free[senders[c].free_count++] = op;
		}
		send_allowed(&senders[c], c, message);
	}
	each_begin();
	for (;;) {
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;
			struct sender *sender = &senders[op->connection];

			if (op->is_receive) {
				post_receive(op, ANSWER_SIZE);
				sender->credits += job.batch;
				each_answered(op->connection);
				if (meter_add(job.batch)) {
					each_tell();
					return;
				}
			} else {
				sender->free[sender->free_count++] = op;
			}
			send_allowed(sender, op->connection, message);
		}
	}
}

static void stream(void)
{
	if (job.net) {
		all_to_all(); /* of one to one */
		return;
	}
	open_side(job.window > job.answers ? job.window : job.answers);
	if (job.client)
		stream_client();
	else
		stream_server();
}

/* ---- round trips beside large messages: one domain, one queue, two connections --------------- */

enum { BULK, PING };

static void receives_of_neighbours(size_t connection)
{
	if (connection == PING)
		post_receives(PING, 1, job.size);
	else if (job.client)
		post_receives(BULK, job.answers, ANSWER_SIZE);
	else
		post_receives(BULK, job.window, job.bulk);
}

static void neighbours_server(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	static const uint8_t answer[ANSWER_SIZE];
	uint8_t *pong = payload(job.size);
	size_t unanswered = 0;

	for (;;) {
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;

			if (!op->is_receive)
				continue;
			if (op->connection == PING) {
				post_receive(op, job.size);
				POST(fi_inject(g.eps[PING], pong, job.size, FI_ADDR_UNSPEC));
				continue;
			}
			post_receive(op, job.bulk);
			if (++unanswered < job.batch)
				continue;
			unanswered = 0;
			POST(fi_inject(g.eps[BULK], answer, sizeof answer, FI_ADDR_UNSPEC));
		}
	}
}

/* Sends as many large messages as may be under way. */
static void send_bulk(struct sender *sender)
{
	while (sender->credits && sender->free_count) {
		struct op *op = sender->free[--sender->free_count];

		sender->credits--;
		POST(fi_send(g.eps[BULK], op->bytes, job.bulk, NULL, FI_ADDR_UNSPEC, op));
	}
}

/* The large messages that were answered, first without the ping, then beside it. */
static struct {
	uint64_t answered, before, since;
} bulk;

static void bulk_phase_begin(void)
{
	bulk.before = bulk.answered;
	bulk.since = now_ns();
}

static void bulk_phase_end(const char *bytes, const char *ns)
{
	uint64_t now = now_ns();

	say(bytes, (bulk.answered - bulk.before) * job.bulk);
	say(ns, now - bulk.since);
}

static void neighbours_client(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	struct sender sender = {.credits = job.window};
	uint8_t *ping = payload(job.size);
	enum { WARMING, ALONE, BESIDE } phase = WARMING;
	uint64_t until = now_ns() + job.warm_ns;

	sender.free = memory(job.window * sizeof *sender.free);
	for (size_t i = 0; i < job.window; i++) {
		struct op *op = memory(sizeof *op);

		*op = (struct op){.bytes = payload(job.bulk), .connection = BULK};
		sender.free[sender.free_count++] = op;
	}
	for (;;) {
		send_bulk(&sender);
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;

			if (!op->is_receive) {
				sender.free[sender.free_count++] = op;
			} else if (op->connection == BULK) {
				post_receive(op, ANSWER_SIZE);
				sender.credits += job.batch;
				bulk.answered += job.batch;
			} else {
				post_receive(op, job.size);
				if (pings_add()) {
					bulk_phase_end("beside_bytes", "beside_ns");
					return;
				}
				POST(fi_inject(g.eps[PING], ping, job.size, FI_ADDR_UNSPEC));
			}
		}
		if (phase == BESIDE || now_ns() < until)
			continue;
		if (phase++ == WARMING) {
			bulk_phase_begin();
			until = now_ns() + job.run_ns;
			continue;
		}
		bulk_phase_end("alone_bytes", "alone_ns");
		bulk_phase_begin();
		pings_begin();
		POST(fi_inject(g.eps[PING], ping, job.size, FI_ADDR_UNSPEC));
	}
}

static void neighbours(void)
{
	job.connections = 2;
	open_side(job.window > job.answers ? job.window : job.answers);
	connect_all(receives_of_neighbours, (uint64_t[2]){0, 0});
	if (job.client)
		neighbours_client();
	else
		neighbours_server();
}

/* ---- remote memory -------------------------------------------------------------------------- */

static void post_rma(struct op *op, bool is_write)
{
	uint64_t there = g.remote[0] + op->slot * job.size;

	if (is_write)
		POST(fi_write(g.eps[0], op->bytes, job.size, NULL, FI_ADDR_UNSPEC, there, g.remote[1],
			      op));
	else
		POST(fi_read(g.eps[0], op->bytes, job.size, NULL, FI_ADDR_UNSPEC, there, g.remote[1],
			     op));
}

static void rma(bool is_write)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];

	open_side(job.window);
	if (!job.client) {
		size_t len = job.size * job.window;
		struct fid_mr *mr;

		MUST(fi_mr_reg(g.domain, payload(len), len, FI_REMOTE_READ | FI_REMOTE_WRITE, 0,
			       0xFAB, 0, &mr, NULL));
		connect_all(one_receive, (uint64_t[2]){0, fi_mr_key(mr)});
		/* Nothing completes here, but the provider moves only while somebody waits. */
		for (;;)
			completions(entries);
	}
	connect_all(nothing, NULL);
	for (size_t i = 0; i < job.window; i++) {
		struct op *op = memory(sizeof *op);

		*op = (struct op){.bytes = is_write ? payload(job.size) : memory(job.size),
				  .slot = (uint32_t)i};
		post_rma(op, is_write);
	}
	for (;;) {
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;

			if (meter_add(1)) {
				if (!op->bytes[job.size - 1])
					fail("the memory of the other end was never written to");
				return;
			}
			post_rma(op, is_write);
		}
	}
}

static void rma_write(void)
{
	rma(true);
}

static void rma_read(void)
{
	rma(false);
}

/* ---- death ---------------------------------------------------------------------------------- */

static void receives_for_death(size_t connection)
{
	post_receives(connection, job.window, job.size);
}

/* True when the queue has told of the end; receives are flushed with an error each, or the event
 * queue says FI_SHUTDOWN: whichever is first. */
static bool has_ended(void)
{
	struct fi_cq_msg_entry entry;
	struct fi_eq_cm_entry cm;
	uint32_t event = 0;

	return fi_cq_read(g.cq, &entry, 1) == -FI_EAVAIL ||
	       (fi_eq_read(g.eq, &event, &cm, sizeof cm, 0) > 0 && event == FI_SHUTDOWN);
}

static void death(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	struct pollfd fds[2] = {{.events = POLLIN}, {.events = POLLIN}};
	struct fid *fids[2];

	open_side(job.window);
	connect_all(job.client ? receives_for_death : one_receive, (uint64_t[2]){0, 0});
	if (!job.client)
		for (;;)
			completions(entries);
	printf("READY\n");
	fflush(stdout);
	fids[0] = &g.cq->fid;
	fids[1] = &g.eq->fid;
	if (!job.spin)
		for (int i = 0; i < 2; i++)
			MUST(fi_control(fids[i], FI_GETWAIT, &fds[i].fd));
	while (!has_ended())
		if (!job.spin && !fi_trywait(g.fabric, fids, 2))
			poll(fds, 2, -1);
	say("ended_ns", now_ns());
}

/* ---- idle ----------------------------------------------------------------------------------- */

static void receives_for_rest(size_t connection)
{
	post_receives(connection, 1, 64);
}

/* Sleeps in the queue: nothing completes. */
static void rest_for(uint64_t ns)
{
	struct fi_cq_msg_entry entry;
	uint64_t end = now_ns() + ns, now;

	while ((now = now_ns()) < end)
		fi_cq_sread(g.cq, &entry, 1, NULL, (int)((end - now) / 1000000) + 1);
}

static void idle(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	uint64_t client, server, used, begin, cpu;

	open_side(1);
	client = resident(getpid());
	server = resident(job.peer);
	used = heap();
	connect_all(receives_for_rest, (uint64_t[2]){0, 0});
	if (!job.client)
		for (;;)
			completions(entries);
	rest_for(job.warm_ns);
	say("resident_client", resident(getpid()) - client);
	say("resident_server", resident(job.peer) - server);
	say("heap_client", heap() - used);
	begin = now_ns();
	cpu = cpu_ns();
	rest_for(job.run_ns);
	say("elapsed_ns", now_ns() - begin);
	say("cpu_ns", cpu_ns() - cpu);
}

/* ---- registration --------------------------------------------------------------------------- */

#define REGISTER_BATCH 64
#define REGISTER_TIMED (1 << 13)

static struct fid_mr *register_once(const struct iovec *iov)
{
	struct fi_mr_attr attr = {
	    .mr_iov = iov,
	    .iov_count = job.window,
	    .access = FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE,
	    .requested_key = 0xFAB,
	};
	struct fid_mr *mr;

	MUST(fi_mr_regattr(g.domain, &attr, 0, &mr));
	return mr;
}

/* The provider has one way to register: no cache for memory of the host, nothing asynchronous. */
static void registration(void)
{
	struct iovec *iov = memory(job.window * sizeof *iov);
	uint32_t *times = memory(REGISTER_TIMED * sizeof *times);
	uint32_t *ends = memory(REGISTER_TIMED * sizeof *ends);
	size_t len = job.size / job.window;

	open_side(1);
	for (size_t i = 0; i < job.window; i++) {
		iov[i].iov_len = len;
		iov[i].iov_base = mmap(NULL, len, PROT_READ | PROT_WRITE,
				       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (iov[i].iov_base == MAP_FAILED)
			fail("mmap: %s", strerror(errno));
	}
	do
		for (size_t i = 0; i < REGISTER_BATCH; i++)
			MUST(fi_close(&register_once(iov)->fid));
	while (!meter_add(REGISTER_BATCH));
	for (size_t i = 0; i < REGISTER_TIMED; i++) {
		uint64_t begin = now_ns(), made;
		struct fid_mr *mr = register_once(iov);

		made = now_ns();
		MUST(fi_close(&mr->fid));
		times[i] = (uint32_t)(made - begin);
		ends[i] = (uint32_t)(now_ns() - made);
	}
	qsort(times, REGISTER_TIMED, sizeof *times, compare);
	qsort(ends, REGISTER_TIMED, sizeof *ends, compare);
	say("p50_ns", times[REGISTER_TIMED / 2]);
	say("p99_ns", times[REGISTER_TIMED * 99 / 100]);
	say("end_p50_ns", ends[REGISTER_TIMED / 2]);
}

static const struct {
	const char *name;
	void (*run)(void);
} works[] = {
    {"ping-pong", ping_pong}, {"stream", stream}, {"write", rma_write},
    {"read", rma_read},       {"death", death},   {"idle", idle},
    {"all-to-all", all_to_all},
    {"neighbours", neighbours},
    {"register", registration},
    {"register-range", registration},
    {"register-awaited", registration},
    {"cache-hit", registration},
    {"cache-miss", registration},
};

int main(int argc, char **argv)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	parse(argc, argv);
	pin();
	for (size_t i = 0; i < sizeof works / sizeof works[0]; i++)
		if (!strcmp(works[i].name, job.work)) {
			works[i].run();
			fflush(stdout);
			_exit(0);
		}
	fail("no work is called %s", job.work);
}
