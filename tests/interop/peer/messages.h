/* Scenarios about messages: vectors, inject, many in both directions. */
static void run_vectors(void)
{
	static const size_t send_a[4] = {5, 0, 1000, 3}, recv_a[4] = {7, 500, 0, 501};
	static const size_t send_d[4] = {1, 65536, 524288, MIB - 1 - 65536 - 524288};
	static const size_t recv_d[4] = {300000, 1, 500000, MIB - 800001};
	static const size_t quarters[4] = {4, 4, 4, 4};
	uint8_t *bytes[8];
	struct op *ops[8];

	begin();
	if (g.initiator) {
		post_done_recv();
		complete();
		ops[0] = post_sendv("V1 sendv of 1008 bytes", pattern(1008, 0x11), send_a);
		ops[1] = post_send("V2 send of nothing", buffer(0, 0), 0);
		ops[2] = post_send("V3 send of 1 MiB", pattern(MIB, 0x22), MIB);
		ops[3] = post_sendv("V4 sendv of 1 MiB", pattern(MIB, 0x33), send_d);
		ops[4] = op_new("V5 senddata");
		POST(fi_senddata(g.ep, pattern(64, 0x44), 64, NULL, 0x0123456789ABCDEFull, FI_ADDR_UNSPEC,
				 ops[4]));
		ops[5] = op_new("V6 senddata of nothing");
		POST(fi_senddata(g.ep, buffer(0, 0), 0, NULL, 0, FI_ADDR_UNSPEC, ops[5]));
		ops[6] = post_sendmsg("V7 sendmsg with CQ data", pattern(16, 0x55), quarters, 4,
				      FI_REMOTE_CQ_DATA, 0xFEED);
		ops[7] = post_send("V8 send of 100 bytes", pattern(100, 0x66), 100);
		for (int i = 0; i < 8; i++) {
			op_ok(ops[i]);
			CHECK(ops[i]->flags & FI_SEND, "%s: flags 0x%llx", ops[i]->name,
			      (unsigned long long)ops[i]->flags);
			fact("%s: completed", ops[i]->name);
		}
		initiator_farewell();
		return;
	}
	ops[0] = post_recvv("V1 recvv", bytes[0] = buffer(1008, 0), recv_a);
	ops[1] = post_recv("V2 receive of nothing", bytes[1] = buffer(16, 0xEE), 16);
	ops[2] = post_recv("V3 receive of 1 MiB", bytes[2] = buffer(MIB, 0), MIB);
	ops[3] = post_recvv("V4 recvv of 1 MiB", bytes[3] = buffer(MIB, 0), recv_d);
	ops[4] = post_recv("V5 receive with CQ data", bytes[4] = buffer(64, 0), 64);
	ops[5] = post_recv("V6 receive of CQ data alone", bytes[5] = buffer(16, 0xEE), 16);
	ops[6] = post_recv("V7 receive with CQ data", bytes[6] = buffer(16, 0), 16);
	ops[7] = post_recv("V8 receive into a larger buffer", bytes[7] = buffer(200, 0xEE), 200);
	post_done_recv();
	complete();
	check_message(ops[0], 1008, false, 0);
	check_pattern("V1", bytes[0], 1008, 0x11);
	check_message(ops[1], 0, false, 0);
	check_fill("V2", bytes[1], 16, 0xEE);
	check_message(ops[2], MIB, false, 0);
	check_pattern("V3", bytes[2], MIB, 0x22);
	check_message(ops[3], MIB, false, 0);
	check_pattern("V4", bytes[3], MIB, 0x33);
	check_message(ops[4], 64, true, 0x0123456789ABCDEFull);
	check_pattern("V5", bytes[4], 64, 0x44);
	check_message(ops[5], 0, true, 0);
	check_fill("V6", bytes[5], 16, 0xEE);
	check_message(ops[6], 16, true, 0xFEED);
	check_pattern("V7", bytes[6], 16, 0x55);
	check_message(ops[7], 100, false, 0);
	check_pattern("V8", bytes[7], 100, 0x66);
	check_fill("V8", bytes[7] + 100, 100, 0xEE);
	await_done();
	target_farewell();
}

static void run_inject(void)
{
	static const size_t lens[5] = {64, 64, 0, 128, 32};
	uint8_t *bytes[5], *scratch;
	struct op *ops[5];

	begin();
	if (!g.initiator) {
		static const char *const names[5] = {"I1 inject", "I2 injectdata", "I3 inject of nothing",
						     "I4 inject of 128 bytes", "I5 send"};
		for (int i = 0; i < 5; i++)
			ops[i] = post_recv(names[i], bytes[i] = buffer(128, 0xEE), 128);
		post_done_recv();
		complete();
		for (int i = 0; i < 5; i++) {
			check_message(ops[i], lens[i], i == 1, 0x1122334455667788ull);
			check_pattern(names[i], bytes[i], lens[i], 0x51 + (unsigned)i);
		}
		await_done();
		target_farewell();
		return;
	}
	post_done_recv();
	complete();
	scratch = buffer(128, 0);
	/* The buffer is the application's again as soon as the call returns (fi_msg(3)). */
	for (int i = 0; i < 4; i++) {
		fill_pattern(scratch, lens[i], 0x51 + (unsigned)i);
		if (i == 1)
			POST(fi_injectdata(g.ep, scratch, lens[i], 0x1122334455667788ull, FI_ADDR_UNSPEC));
		else
			POST(fi_inject(g.ep, scratch, lens[i], FI_ADDR_UNSPEC));
		memset(scratch, 0xFF, 128);
	}
	op_ok(post_send("I5 send", pattern(32, 0x55), 32));
	send_done();
	await_done();
	CHECK(g.tx_completions == 2, "%d completions of 2 sends: injects complete nothing",
	      g.tx_completions);
	fact("injects wrote no completion");
	close_orderly(true);
}

#include "many.h"

static struct op *post_one_of_many(int k, uint8_t *bytes)
{
	(void)k;
	return post_recv("a receive of many", bytes, MANY_SIZE);
}

static struct op *send_one_of_many(int k, uint8_t *bytes, size_t len)
{
	(void)k;
	return post_send("a send of many", bytes, len);
}

static void run_many(void)
{
	begin();
	post_first_of_many();
	complete();
	exchange_many(g.initiator);
	if (g.initiator) {
		initiator_farewell();
	} else {
		await_done();
		target_farewell();
	}
}
