/* Opening the domain, making and closing connections, the common start and end of scenarios. */
/* ---- opening -------------------------------------------------------------------------------- */

static void open_domain(const char *node, const char *service, uint64_t flags)
{
	struct fi_info *hints = fi_allocinfo();
	struct fi_eq_attr eq_attr = {.wait_obj = FI_WAIT_UNSPEC};
	struct fi_cq_attr cq_attr = {
	    .size = 1024, .format = FI_CQ_FORMAT_DATA, .wait_obj = FI_WAIT_NONE};

	CHECK(hints, "out of memory");
	hints->ep_attr->type = FI_EP_MSG;
	hints->caps = FI_MSG | FI_RMA;
	hints->addr_format = FI_SOCKADDR_IN;
	/* No mode bit: offset addressing and keys of the application (fi_mr(3)). */
	hints->domain_attr->mr_mode = 0;
	hints->fabric_attr->prov_name = strdup("tcp");
	MUST(fi_getinfo(FI_VERSION(1, 17), node, service, flags, hints, &g.info));
	fi_freeinfo(hints);
	CHECK(g.info->domain_attr->mr_mode == 0, "mr_mode 0x%x", g.info->domain_attr->mr_mode);
	MUST(fi_fabric(g.info->fabric_attr, &g.fabric, NULL));
	MUST(fi_eq_open(g.fabric, &eq_attr, &g.eq, NULL));
	MUST(fi_domain(g.fabric, g.info, &g.domain, NULL));
	MUST(fi_cq_open(g.domain, &cq_attr, &g.tx_cq, NULL));
	MUST(fi_cq_open(g.domain, &cq_attr, &g.rx_cq, NULL));
}

static void open_listener(void)
{
	struct sockaddr_in address = {0};
	size_t len = sizeof address;

	MUST(fi_passive_ep(g.fabric, g.info, &g.pep, NULL));
	MUST(fi_pep_bind(g.pep, &g.eq->fid, 0));
	MUST(fi_listen(g.pep));
	MUST(fi_getname(&g.pep->fid, &address, &len));
	fact("PORT %u", ntohs(address.sin_port));
}

static struct region region_new(size_t len, uint64_t access, uint64_t key)
{
	struct region region = {.bytes = buffer(len, 0), .len = len, .key = key};

	MUST(fi_mr_reg(g.domain, region.bytes, len, access, 0, key, 0, &region.mr, NULL));
	CHECK(fi_mr_key(region.mr) == key, "the region's key is not the requested one");
	return region;
}

/* ---- connections ---------------------------------------------------------------------------- */

static void endpoint_new(struct fi_info *info)
{
	g.connected = g.shutdowns = g.cm_error = 0;
	g.reply_len = g.cm_error_len = 0;
	MUST(fi_endpoint(g.domain, info, &g.ep, NULL));
	MUST(fi_ep_bind(g.ep, &g.eq->fid, 0));
	MUST(fi_ep_bind(g.ep, &g.tx_cq->fid, FI_TRANSMIT));
	MUST(fi_ep_bind(g.ep, &g.rx_cq->fid, FI_RECV));
	MUST(fi_enable(g.ep));
}

/*
 * First half of a connection: afterwards there is an endpoint to post receives on. The listener
 * has its request by then, the connector has sent nothing yet.
 */
static void begin(void)
{
	if (g.listener) {
		WAIT_FOR("a connection request", g.request);
		endpoint_new(g.request);
	} else {
		endpoint_new(g.info);
	}
}

static void check_cm_data(const char *what, const uint8_t *got, size_t got_len, const uint8_t *want,
			  size_t want_len)
{
	CHECK(got_len == want_len, "%s: %zu bytes, not %zu", what, got_len, want_len);
	check_equal(what, got, want, want_len);
	fact("%s: %zu bytes as expected", what, want_len);
}

/* Second half: request and reply data are sent or checked, whichever end this is. */
static void complete_with(const uint8_t *request, size_t request_len, const uint8_t *reply,
			  size_t reply_len)
{
	if (g.listener) {
		check_cm_data("request data", g.request_data, g.request_len, request, request_len);
		MUST(fi_accept(g.ep, reply, reply_len));
		fi_freeinfo(g.request);
		g.request = NULL;
	} else {
		MUST(fi_connect(g.ep, g.info->dest_addr, request, request_len));
	}
	WAIT_FOR("FI_CONNECTED", g.connected || g.cm_error);
	CHECK(!g.cm_error, "the connection failed: %s", fi_strerror(g.cm_error));
	if (g.listener)
		CHECK(g.reply_len == 0, "the acceptor's FI_CONNECTED carries data");
	else
		check_cm_data("reply data", g.reply_data, g.reply_len, reply, reply_len);
	fact("connected");
}

static void complete(void)
{
	complete_with(NULL, 0, NULL, 0);
}

static void close_endpoint(void)
{
	MUST(fi_close(&g.ep->fid));
	g.ep = NULL;
}

/* The closing side has nothing left to receive, and the other has received all it was sent. */
static void close_orderly(bool closer)
{
	if (closer) {
		MUST(fi_shutdown(g.ep, 0));
		close_endpoint();
		fact("closed");
		return;
	}
	WAIT_FOR("FI_SHUTDOWN", g.shutdowns);
	fact("the other end has closed: FI_SHUTDOWN");
	close_endpoint();
}

/*
 * The end of most scenarios. The initiator sends "done", the target (which has checked everything
 * by then) answers "done", the initiator closes.
 */
static uint8_t done_bytes[4];
static struct op *done_recv;

static void post_done_recv(void)
{
	memset(done_bytes, 0, sizeof done_bytes);
	done_recv = post_recv("receive of done", done_bytes, sizeof done_bytes);
}

static void await_done(void)
{
	check_message(done_recv, 4, false, 0);
	CHECK(!memcmp(done_bytes, "done", 4), "not the word done");
}

static void send_done(void)
{
	op_ok(post_send("send of done", (const uint8_t *)"done", 4));
}

/* The initiator's whole farewell; a target calls await_done, checks, and then target_farewell. */
static void initiator_farewell(void)
{
	send_done();
	await_done();
	close_orderly(true);
}

static void target_farewell(void)
{
	send_done();
	close_orderly(false);
}

static void send_descriptor(const struct region *region)
{
	uint8_t *bytes = buffer(DESCRIPTOR_LEN, 0);

	put_u64(bytes, 0); /* offset addressing */
	put_u64(bytes + 8, region->len);
	put_u64(bytes + 16, region->key);
	op_ok(post_send("send of the descriptor", bytes, DESCRIPTOR_LEN));
}

static uint8_t descriptor_bytes[DESCRIPTOR_LEN];
static struct op *descriptor_recv;

static void post_descriptor_recv(void)
{
	descriptor_recv = post_recv("receive of the descriptor", descriptor_bytes, DESCRIPTOR_LEN);
}

static struct descriptor await_descriptor(size_t len)
{
	struct descriptor d;

	check_message(descriptor_recv, DESCRIPTOR_LEN, false, 0);
	d.addr = get_u64(descriptor_bytes);
	d.len = get_u64(descriptor_bytes + 8);
	d.key = get_u64(descriptor_bytes + 16);
	CHECK(d.len == len, "a region of %llu bytes, not %zu", (unsigned long long)d.len, len);
	return d;
}

/* How every scenario with a region starts, on either side. */
static struct descriptor open_rma(const struct region *region, size_t len)
{
	struct descriptor none = {0};

	begin();
	if (g.initiator)
		post_descriptor_recv();
	post_done_recv();
	complete();
	if (g.initiator)
		return await_descriptor(len);
	send_descriptor(region);
	return none;
}

/* The four remote segments of the writemsg and readmsg steps: 100 bytes, not in address order. */
static void four_segments(struct fi_rma_iov segments[4], const struct descriptor *d)
{
	static const uint64_t offsets[4] = {2000, 2100, 2050, 2200};
	static const size_t lens[4] = {40, 30, 20, 10};

	for (int i = 0; i < 4; i++) {
		segments[i].addr = d->addr + offsets[i];
		segments[i].len = lens[i];
		segments[i].key = d->key;
	}
}

/* Where the bytes of a 100-byte stream lie in a region after four_segments. */
static void scatter(uint8_t *image, const uint8_t *stream)
{
	memcpy(image + 2000, stream, 40);
	memcpy(image + 2100, stream + 40, 30);
	memcpy(image + 2050, stream + 70, 20);
	memcpy(image + 2200, stream + 90, 10);
}

static const size_t PIECES_400[4] = {1, 2, 300, 97};
static const size_t PIECES_100[4] = {10, 20, 30, 40};
