/* Opening a side, making connections, and reading the one queue of a side. */

#define BATCH_MAX 256

static struct {
	struct fi_info *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_eq *eq;
	struct fid_cq *cq;
	struct fid_pep *pep;
	struct fid_ep **eps;
	/* What the acceptor said of its region: address and key, as its own words. */
	uint64_t remote[2];
} g;

/* An operation's context: which connection, which buffer, which direction. */
struct op {
	uint8_t *bytes;
	uint32_t connection, slot;
	bool is_receive;
};

static void open_side(size_t operations)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_FD};
	struct fi_cq_attr cq_attr = {
	    .size = operations * job.connections * 2 + 64,
	    .format = FI_CQ_FORMAT_MSG,
	    .wait_obj = job.spin ? FI_WAIT_NONE : FI_WAIT_FD,
	};
	char port[16];

	if (!hints)
		fail("out of memory");
	snprintf(port, sizeof port, "%d", job.port);
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	hints->addr_format = FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = 0; /* offset addressing, keys of the application */
	hints->fabric_attr->prov_name = strdup("tcp");
	MUST(fi_getinfo(FI_VERSION(1, 17), job.host, job.client ? port : NULL,
			job.client ? 0 : FI_SOURCE, hints, &g.info));
	fi_freeinfo(hints);
	if (g.info->tx_attr->size < operations)
		g.info->tx_attr->size = operations;
	if (g.info->rx_attr->size < operations)
		g.info->rx_attr->size = operations;
	MUST(fi_fabric(g.info->fabric_attr, &g.fabric, NULL));
	MUST(fi_eq_open(g.fabric, &eq_attr, &g.eq, NULL));
	MUST(fi_domain(g.fabric, g.info, &g.domain, NULL));
	MUST(fi_cq_open(g.domain, &cq_attr, &g.cq, NULL));
	g.eps = memory(job.connections * sizeof *g.eps);
}

static struct fid_ep *endpoint_new(struct fi_info *info)
{
	struct fid_ep *ep;

	MUST(fi_endpoint(g.domain, info, &ep, NULL));
	MUST(fi_ep_bind(ep, &g.eq->fid, 0));
	/* Only what asks for it completes: receives, and sends posted with FI_COMPLETION. */
	MUST(fi_ep_bind(ep, &g.cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_enable(ep));
	return ep;
}

/* Waits for an event of this kind. Looks at the data queue too, which moves connections on. */
static void await_event(uint32_t wanted, struct fi_eq_cm_entry *entry, size_t len)
{
	for (;;) {
		uint32_t event = 0;
		ssize_t got = job.spin ? fi_eq_read(g.eq, &event, entry, len, 0)
				       : fi_eq_sread(g.eq, &event, entry, len, 1, 0);

		if (got >= 0 && event == wanted)
			return;
		if (got == -FI_EAVAIL) {
			struct fi_eq_err_entry error = {0};

			MUST(fi_eq_readerr(g.eq, &error, 0));
			fail("connecting: %s", fi_strerror(error.err));
		}
		if (got < 0 && got != -FI_EAGAIN && got != -FI_EINTR)
			fail("fi_eq_read: %s", fi_strerror((int)-got));
		fi_cq_read(g.cq, NULL, 0);
	}
}

static void listen_here(void)
{
	struct sockaddr_in address = {0};
	size_t len = sizeof address;

	MUST(fi_passive_ep(g.fabric, g.info, &g.pep, NULL));
	MUST(fi_pep_bind(g.pep, &g.eq->fid, 0));
	MUST(fi_listen(g.pep));
	MUST(fi_getname(&g.pep->fid, &address, &len));
	say("PORT", ntohs(address.sin_port));
}

/* Makes all connections, either end; `prepare` posts an endpoint's receives before. */
static void connect_all(void (*prepare)(size_t connection), const uint64_t told[2])
{
	union {
		struct fi_eq_cm_entry cm;
		uint8_t bytes[sizeof(struct fi_eq_cm_entry) + 256];
	} entry;

	if (!job.client)
		listen_here();
	for (size_t i = 0; i < job.connections; i++) {
		if (job.client) {
			g.eps[i] = endpoint_new(g.info);
			prepare(i);
			MUST(fi_connect(g.eps[i], g.info->dest_addr, NULL, 0));
		} else {
			await_event(FI_CONNREQ, &entry.cm, sizeof entry);
			g.eps[i] = endpoint_new(entry.cm.info);
			fi_freeinfo(entry.cm.info);
			prepare(i);
			MUST(fi_accept(g.eps[i], told, 2 * sizeof *told));
		}
		await_event(FI_CONNECTED, &entry.cm, sizeof entry);
		if (job.client)
			memcpy(g.remote, entry.cm.data, sizeof g.remote);
	}
}

/* A call of the data path: "again" is answered by making progress. */
#define POST(call)                                                                                 \
	do {                                                                                       \
		ssize_t result_;                                                                   \
		while ((result_ = (call)) == -FI_EAGAIN)                                           \
			fi_cq_read(g.cq, NULL, 0);                                                 \
		if (result_ < 0)                                                                   \
			fail("%s: %s", #call, fi_strerror((int)-result_));                         \
	} while (0)

/* Completions: those that are there, or the next one. Fails when the other end has gone. */
static size_t completions(struct fi_cq_msg_entry *entries)
{
	ssize_t got;

	do {
		got = fi_cq_read(g.cq, entries, BATCH_MAX);
		if (got == -FI_EAGAIN && !job.spin)
			got = fi_cq_sread(g.cq, entries, BATCH_MAX, NULL, -1);
	} while (got == -FI_EAGAIN || got == -FI_EINTR);
	if (got < 0)
		fail("fi_cq_read: %s", fi_strerror((int)-got));
	return (size_t)got;
}

static void post_receive(struct op *op, size_t size)
{
	POST(fi_recv(g.eps[op->connection], op->bytes, size, NULL, FI_ADDR_UNSPEC, op));
}

/* `count` receives, each with a buffer of its own. */
static void post_receives(size_t connection, size_t count, size_t size)
{
	for (size_t i = 0; i < count; i++) {
		struct op *op = memory(sizeof *op);

		*op = (struct op){.bytes = memory(size),
				  .connection = (uint32_t)connection,
				  .slot = (uint32_t)i,
				  .is_receive = true};
		post_receive(op, size);
	}
}
