/* Scenarios about connections: private data, rejection, shutdown, a peer that goes away. */
static void run_data(void)
{
	static const char request[] = "hello from client", reply[] = "welcome";

	begin();
	complete_with((const uint8_t *)request, strlen(request), (const uint8_t *)reply, strlen(reply));
	close_orderly(g.initiator);
}

static void run_data_max(void)
{
	uint8_t *request = pattern(CM_DATA_MAX, 0x01), *reply = pattern(CM_DATA_MAX, 0x02);

	begin();
	complete_with(request, CM_DATA_MAX, reply, CM_DATA_MAX);
	close_orderly(g.initiator);
}

static void run_reject(void)
{
	static const char first[] = "first", again[] = "again", no[] = "no room", yes[] = "come in";

	if (g.listener) {
		WAIT_FOR("a connection request", g.request);
		check_cm_data("request data", g.request_data, g.request_len, (const uint8_t *)first,
			      strlen(first));
		MUST(fi_reject(g.pep, g.request->handle, no, strlen(no)));
		fi_freeinfo(g.request);
		g.request = NULL;
		fact("rejected");
	} else {
		begin();
		MUST(fi_connect(g.ep, g.info->dest_addr, first, strlen(first)));
		WAIT_FOR("the rejection", g.connected || g.cm_error);
		CHECK(!g.connected, "connected, where a rejection was due");
		CHECK(g.cm_error == FI_ECONNREFUSED, "error %d (%s)", g.cm_error, fi_strerror(g.cm_error));
		fact("FI_ECONNREFUSED");
		check_cm_data("err_data", g.cm_error_data, g.cm_error_len, (const uint8_t *)no, strlen(no));
		close_endpoint();
	}
	begin();
	complete_with((const uint8_t *)again, strlen(again), (const uint8_t *)yes, strlen(yes));
	close_orderly(g.initiator);
}

static void run_shutdown(void)
{
	struct op *left[2];

	begin();
	post_done_recv();
	left[0] = post_recv("first receive left over", buffer(64, 0), 64);
	left[1] = post_recv("second receive left over", buffer(64, 0), 64);
	complete();
	if (g.initiator) {
		send_done();
		await_done();
		MUST(fi_shutdown(g.ep, 0));
		fact("fi_shutdown called");
	} else {
		await_done();
		send_done();
	}
	WAIT_FOR("FI_SHUTDOWN", g.shutdowns);
	fact("FI_SHUTDOWN seen");
	for (int i = 0; i < 2; i++) {
		op_error(left[i]);
		CHECK(left[i]->error == FI_ECANCELED, "not FI_ECANCELED");
	}
	close_endpoint();
}

/*
 * The target goes away while operations of the initiator are open: `exit` by itself, `killed` by
 * whoever started it.
 */
static void run_gone(bool by_itself)
{
	static const size_t whole[1] = {1000};
	uint8_t *go = buffer(4, 0);
	struct op *recv, *send;

	begin();
	recv = post_recv(g.initiator ? "receive nobody serves" : "receive of go",
			 g.initiator ? buffer(64, 0) : go, g.initiator ? 64 : 4);
	complete();
	if (!g.initiator) {
		fact("READY");
		check_message(recv, 2, false, 0);
		CHECK(!memcmp(go, "go", 2), "not the word go");
		if (!by_itself) {
			fact("GOT");
			for (;;)
				pause();
		}
		/* Time for the next message to be under way; it finds no receive here. */
		pause_ms(200);
		fact("OK");
		_exit(0);
	}
	op_ok(post_send("send of go", (const uint8_t *)"go", 2));
	send = post_sendmsg("send with delivery complete", pattern(1000, 0xB1), whole, 1,
			    FI_DELIVERY_COMPLETE, 0);
	WAIT_FOR("FI_SHUTDOWN", g.shutdowns);
	fact("FI_SHUTDOWN seen");
	op_error(recv);
	op_end(send);
	fact("the send ended with %d", send->error);
	close_endpoint();
}

static void run_exit(void) { run_gone(true); }
static void run_killed(void) { run_gone(false); }
