/* Connectionless endpoints: opening them, learning where the others are, messages among them. */

static struct {
	struct fid_av *av;
	/* The other end's endpoints. */
	fi_addr_t *peers;
} rdm;

/* An address of an endpoint: one of IPv4, or text that ends with a zero. */
struct name {
	char bytes[128];
};

static int plain_listener(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof address;
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	if (listener < 0 || bind(listener, (void *)&address, len) || listen(listener, 1) ||
	    getsockname(listener, (void *)&address, &len))
		fail("listening: %s", strerror(errno));
	say("PORT", ntohs(address.sin_port));
	return listener;
}

/* A stream to the other end, to tell each other the addresses. */
static int plain_stream(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_port = htons((uint16_t)job.port),
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int stream;

	if (!job.client) {
		stream = accept(plain_listener(), NULL, NULL);
	} else {
		stream = socket(AF_INET, SOCK_STREAM, 0);
		if (connect(stream, (void *)&address, sizeof address))
			fail("connecting: %s", strerror(errno));
	}
	if (stream < 0)
		fail("accepting: %s", strerror(errno));
	return stream;
}

static void open_endpoint(size_t at)
{
	struct fid_ep **ep = &g.eps[at];

	MUST(fi_endpoint(g.domain, g.info, ep, NULL));
	MUST(fi_ep_bind(*ep, &g.cq->fid, FI_TRANSMIT | FI_RECV));
	MUST(fi_ep_bind(*ep, &rdm.av->fid, 0));
	MUST(fi_enable(*ep));
}

/* Opens this end's endpoints, and learns the addresses of the other's. `prepare` posts the receives
 * of an endpoint before. */
static void open_rdm(size_t operations, void (*prepare)(size_t endpoint))
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE, .count = job.connections};
	struct fi_cq_attr cq_attr = {
	    .size = operations * job.connections * 2 + 64,
	    .format = FI_CQ_FORMAT_MSG,
	    .wait_obj = job.spin ? FI_WAIT_NONE : FI_WAIT_FD,
	};
	size_t len = job.connections * sizeof(struct name);
	struct name *ours = memory(len), *theirs = memory(len);
	int stream;

	if (!hints)
		fail("out of memory");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG;
	hints->addr_format = job.shm ? FI_ADDR_STR : FI_SOCKADDR_IN;
	hints->domain_attr->mr_mode = job.shm ? FI_MR_VIRT_ADDR : 0;
	hints->fabric_attr->prov_name = strdup(job.shm ? "shm" : job.net ? "net" : "tcp;ofi_rxm");
	if (job.shm)
		MUST(fi_getinfo(FI_VERSION(1, 17), NULL, NULL, 0, hints, &g.info));
	else
		MUST(fi_getinfo(FI_VERSION(1, 17), "127.0.0.1", NULL, FI_SOURCE, hints, &g.info));
	fi_freeinfo(hints);
	if (g.info->tx_attr->size < operations)
		g.info->tx_attr->size = operations;
	if (g.info->rx_attr->size < operations)
		g.info->rx_attr->size = operations;
	MUST(fi_fabric(g.info->fabric_attr, &g.fabric, NULL));
	MUST(fi_domain(g.fabric, g.info, &g.domain, NULL));
	MUST(fi_cq_open(g.domain, &cq_attr, &g.cq, NULL));
	MUST(fi_av_open(g.domain, &av_attr, &rdm.av, NULL));
	g.eps = memory(job.connections * sizeof *g.eps);
	rdm.peers = memory(job.connections * sizeof *rdm.peers);
	for (size_t i = 0; i < job.connections; i++) {
		size_t one = sizeof ours[i].bytes;

		open_endpoint(i);
		prepare(i);
		MUST(fi_getname(&g.eps[i]->fid, ours[i].bytes, &one));
	}
	stream = plain_stream();
	if (write(stream, ours, len) != (ssize_t)len ||
	    recv(stream, theirs, len, MSG_WAITALL) != (ssize_t)len)
		fail("telling each other the addresses: %s", strerror(errno));
	for (size_t i = 0; i < job.connections; i++)
		if (fi_av_insert(rdm.av, theirs[i].bytes, 1, &rdm.peers[i], 0, NULL) != 1)
			fail("an address cannot be inserted");
}

/* ---- messages of each to each --------------------------------------------------------------- */

/* The number of a pair is in front of each message and answer. */
static uint32_t pair_of(const struct op *op)
{
	uint32_t pair;

	memcpy(&pair, op->bytes, sizeof pair);
	if (pair >= job.connections * job.connections)
		fail("a message of a pair that is not there");
	return pair;
}

static void tell(size_t from, size_t to, uint8_t *message, size_t size, uint32_t pair)
{
	memcpy(message, &pair, sizeof pair);
	POST(fi_inject(g.eps[from], message, size, rdm.peers[to]));
}

static void receives_of_all(size_t endpoint)
{
	size_t each = job.client ? job.answers : job.window;

	post_receives(endpoint, each * job.connections, job.client ? ANSWER_SIZE : job.size);
}

static void all_to_all(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	size_t n = job.connections, most = job.window > job.answers ? job.window : job.answers;
	size_t *unanswered = memory(n * n * sizeof *unanswered);
	uint8_t *message = payload(job.size);

	open_rdm(most * n, receives_of_all);
	for (size_t pair = 0; job.client && pair < n * n; pair++)
		for (size_t i = 0; i < job.window; i++)
			tell(pair / n, pair % n, message, job.size, (uint32_t)pair);
	for (;;) {
		for (size_t i = 0, count = completions(entries); i < count; i++) {
			struct op *op = entries[i].op_context;
			uint32_t pair = pair_of(op);

			post_receive(op, job.client ? ANSWER_SIZE : job.size);
			if (job.client) {
				for (size_t k = 0; k < job.batch; k++)
					tell(pair / n, pair % n, message, job.size, pair);
				if (meter_add(job.batch))
					return;
			} else if (++unanswered[pair] == job.batch) {
				unanswered[pair] = 0;
				tell(pair % n, pair / n, message, ANSWER_SIZE, pair);
			}
		}
	}
}

/* ---- ping-pong ------------------------------------------------------------------------------ */

static void one_receive_of_rdm(size_t endpoint)
{
	post_receives(endpoint, 1, job.size);
}

static void ping_pong_rdm(void)
{
	static struct fi_cq_msg_entry entries[BATCH_MAX];
	struct op sent = {.bytes = payload(job.size)};

	open_rdm(4, one_receive_of_rdm);
	if (job.client)
		pings_begin();
	for (bool turn = job.client;;) {
		if (turn) {
			if (job.size <= INJECT_MAX)
				POST(fi_inject(g.eps[0], sent.bytes, job.size, rdm.peers[0]));
			else
				POST(fi_send(g.eps[0], sent.bytes, job.size, NULL, rdm.peers[0],
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
