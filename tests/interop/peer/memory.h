/* Scenarios about remote memory: writes, reads, delivery, and what a target must refuse. */
static void run_write(void)
{
	struct region region = {0};
	struct descriptor d;
	struct fi_rma_iov segments[4];
	struct iovec pieces[4];
	struct op *ops[5];
	uint8_t *image, *stream;

	if (!g.initiator)
		region = region_new(BIG_REGION, FI_REMOTE_WRITE, REGION_KEY);
	d = open_rma(&region, BIG_REGION);
	if (!g.initiator) {
		await_done();
		image = buffer(BIG_REGION, 0);
		fill_pattern(image, 1000, 0x61);
		fill_pattern(image + 1000, 400, 0x62);
		stream = pattern(100, 0x63);
		scatter(image, stream);
		fill_pattern(image + 3000, 32, 0x64);
		fill_pattern(image + 8192, MIB, 0x65);
		check_equal("the region", region.bytes, image, BIG_REGION);
		fact("the region holds what was written, and nothing else");
		CHECK(g.remote_count == 0, "a plain write wrote a completion at the target");
		target_farewell();
		MUST(fi_close(&region.mr->fid));
		return;
	}
	ops[0] = op_new("W1 write");
	POST(fi_write(g.ep, pattern(1000, 0x61), 1000, NULL, FI_ADDR_UNSPEC, d.addr, d.key, ops[0]));
	ops[1] = op_new("W2 writev of 4 pieces");
	cut(pieces, 4, pattern(400, 0x62), PIECES_400);
	POST(fi_writev(g.ep, pieces, NULL, 4, FI_ADDR_UNSPEC, d.addr + 1000, d.key, ops[1]));
	four_segments(segments, &d);
	ops[2] = post_rmamsg("W3 writemsg to 4 segments", true, pattern(100, 0x63), PIECES_100, 4,
			     segments, 4, 0, 0);
	POST(fi_inject_write(g.ep, pattern(32, 0x64), 32, FI_ADDR_UNSPEC, d.addr + 3000, d.key));
	ops[3] = op_new("W5 write of nothing");
	POST(fi_write(g.ep, buffer(0, 0), 0, NULL, FI_ADDR_UNSPEC, d.addr, d.key, ops[3]));
	ops[4] = op_new("W6 write of 1 MiB");
	POST(fi_write(g.ep, pattern(MIB, 0x65), MIB, NULL, FI_ADDR_UNSPEC, d.addr + 8192, d.key, ops[4]));
	for (int i = 0; i < 5; i++) {
		op_ok(ops[i]);
		CHECK(ops[i]->flags & FI_WRITE, "%s: flags 0x%llx", ops[i]->name,
		      (unsigned long long)ops[i]->flags);
		fact("%s: completed", ops[i]->name);
	}
	initiator_farewell();
}

static void run_writedata(void)
{
	static const struct {
		size_t len;
		uint64_t data;
	} expected[4] = {{512, 0x0123456789ABCDEFull}, {100, 0xDEADBEEFull}, {16, 7}, {0, 9}};
	struct region region = {0};
	struct descriptor d;
	struct fi_rma_iov segments[4];
	struct op *ops[3];
	uint8_t *image, *stream;

	if (!g.initiator)
		region = region_new(SMALL_REGION, FI_REMOTE_WRITE, REGION_KEY);
	d = open_rma(&region, SMALL_REGION);
	if (!g.initiator) {
		WAIT_FOR("four remote write events", g.remote_count >= 4);
		for (int i = 0; i < 4; i++) {
			/* 1.17 leaves out the FI_RMA that fi_cq(3) promises beside these. */
			uint64_t need = FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA;
			CHECK((g.remote[i].flags & need) == need, "event %d: flags 0x%llx", i,
			      (unsigned long long)g.remote[i].flags);
			/* 1.17 reports a length of 0 here, against fi_cq(3); later versions may not. */
			CHECK(g.remote[i].len == expected[i].len || g.remote[i].len == 0,
			      "event %d: length %zu", i, g.remote[i].len);
			CHECK(g.remote[i].data == expected[i].data, "event %d: data 0x%llx", i,
			      (unsigned long long)g.remote[i].data);
			fact("remote write event %d: %zu bytes and CQ data", i + 1, g.remote[i].len);
		}
		await_done();
		CHECK(g.remote_count == 4, "more than four remote write events");
		image = buffer(SMALL_REGION, 0);
		fill_pattern(image + 100, 512, 0x71);
		stream = pattern(100, 0x72);
		scatter(image, stream);
		fill_pattern(image + 3000, 16, 0x73);
		check_equal("the region", region.bytes, image, SMALL_REGION);
		fact("the region holds what was written, and nothing else");
		target_farewell();
		MUST(fi_close(&region.mr->fid));
		return;
	}
	ops[0] = op_new("D1 writedata");
	POST(fi_writedata(g.ep, pattern(512, 0x71), 512, NULL, expected[0].data, FI_ADDR_UNSPEC,
			  d.addr + 100, d.key, ops[0]));
	four_segments(segments, &d);
	ops[1] = post_rmamsg("D2 writemsg with CQ data", true, pattern(100, 0x72), PIECES_100, 4, segments,
			     4, FI_REMOTE_CQ_DATA, expected[1].data);
	POST(fi_inject_writedata(g.ep, pattern(16, 0x73), 16, expected[2].data, FI_ADDR_UNSPEC,
				 d.addr + 3000, d.key));
	ops[2] = op_new("D4 writedata of nothing");
	POST(fi_writedata(g.ep, buffer(0, 0), 0, NULL, expected[3].data, FI_ADDR_UNSPEC, d.addr, d.key,
			  ops[2]));
	for (int i = 0; i < 3; i++) {
		op_ok(ops[i]);
		fact("%s: completed", ops[i]->name);
	}
	initiator_farewell();
}

static void run_read(void)
{
	struct region region = {0};
	struct descriptor d;
	struct fi_rma_iov segments[4];
	struct iovec pieces[4];
	struct op *ops[13];
	uint8_t *bytes[13], *image = pattern(BIG_REGION, 0x81), *stream;

	if (!g.initiator) {
		region = region_new(BIG_REGION, FI_REMOTE_READ, REGION_KEY);
		memcpy(region.bytes, image, BIG_REGION);
	}
	d = open_rma(&region, BIG_REGION);
	if (!g.initiator) {
		await_done();
		check_equal("the region", region.bytes, image, BIG_REGION);
		target_farewell();
		MUST(fi_close(&region.mr->fid));
		return;
	}
	bytes[0] = buffer(1000, 0);
	ops[0] = op_new("R1 read");
	POST(fi_read(g.ep, bytes[0], 1000, NULL, FI_ADDR_UNSPEC, d.addr, d.key, ops[0]));
	bytes[1] = buffer(400, 0);
	ops[1] = op_new("R2 readv into 4 pieces");
	cut(pieces, 4, bytes[1], PIECES_400);
	POST(fi_readv(g.ep, pieces, NULL, 4, FI_ADDR_UNSPEC, d.addr + 1000, d.key, ops[1]));
	four_segments(segments, &d);
	ops[2] = post_rmamsg("R3 readmsg of 4 segments", false, bytes[2] = buffer(100, 0), PIECES_100, 4,
			     segments, 4, 0, 0);
	bytes[3] = buffer(16, 0xEE);
	ops[3] = op_new("R4 read of nothing");
	POST(fi_read(g.ep, bytes[3], 0, NULL, FI_ADDR_UNSPEC, d.addr, d.key, ops[3]));
	bytes[4] = buffer(MIB, 0);
	ops[4] = op_new("R5 read of 1 MiB");
	POST(fi_read(g.ep, bytes[4], MIB, NULL, FI_ADDR_UNSPEC, d.addr + 8192, d.key, ops[4]));
	for (int i = 0; i < 8; i++) {
		bytes[5 + i] = buffer(64, 0);
		ops[5 + i] = op_new("R6 one of 8 reads");
		POST(fi_read(g.ep, bytes[5 + i], 64, NULL, FI_ADDR_UNSPEC, d.addr + 4000 + 64 * (uint64_t)i,
			     d.key, ops[5 + i]));
	}
	for (int i = 0; i < 13; i++) {
		op_ok(ops[i]);
		CHECK(ops[i]->flags & FI_READ, "%s: flags 0x%llx", ops[i]->name,
		      (unsigned long long)ops[i]->flags);
		fact("%s: completed", ops[i]->name);
	}
	check_equal("R1", bytes[0], image, 1000);
	check_equal("R2", bytes[1], image + 1000, 400);
	stream = buffer(BIG_REGION, 0);
	scatter(stream, bytes[2]);
	check_equal("R3 segment 1", stream + 2000, image + 2000, 40);
	check_equal("R3 segment 2", stream + 2100, image + 2100, 30);
	check_equal("R3 segment 3", stream + 2050, image + 2050, 20);
	check_equal("R3 segment 4", stream + 2200, image + 2200, 10);
	check_fill("R4", bytes[3], 16, 0xEE);
	check_equal("R5", bytes[4], image + 8192, MIB);
	for (int i = 0; i < 8; i++)
		check_equal("R6", bytes[5 + i], image + 4000 + 64 * i, 64);
	fact("all bytes as the target has them");
	initiator_farewell();
}

static void run_delivery(void)
{
	static const size_t lens_100[1] = {100}, lens_200[1] = {200}, lens_50[1] = {50};
	struct region region = {0};
	struct descriptor d = {0};
	struct fi_rma_iov segment;
	struct op *ops[12];
	uint8_t *bytes[12];

	if (!g.initiator)
		region = region_new(SMALL_REGION, FI_REMOTE_WRITE, REGION_KEY);
	begin();
	if (g.initiator)
		post_descriptor_recv();
	else
		for (int i = 0; i < 12; i++)
			ops[i] = post_recv("a receive", bytes[i] = buffer(128, 0), 128);
	post_done_recv();
	complete();
	if (!g.initiator) {
		send_descriptor(&region);
		check_message(ops[0], 100, false, 0);
		check_pattern("E1", bytes[0], 100, 0x91);
		check_message(ops[1], 50, true, 0xABCD);
		check_pattern("E3", bytes[1], 50, 0x93);
		for (unsigned i = 0; i < 10; i++) {
			check_message(ops[2 + i], 100, false, 0);
			check_pattern("E4", bytes[2 + i], 100, 0xA0 + i);
		}
		await_done();
		check_pattern("E2", region.bytes, 200, 0x92);
		check_fill("the rest of the region", region.bytes + 200, SMALL_REGION - 200, 0);
		target_farewell();
		MUST(fi_close(&region.mr->fid));
		return;
	}
	d = await_descriptor(SMALL_REGION);
	op_ok(post_sendmsg("E1", pattern(100, 0x91), lens_100, 1, FI_DELIVERY_COMPLETE, 0));
	fact("E1 send: delivered");
	segment = (struct fi_rma_iov){.addr = d.addr, .len = 200, .key = d.key};
	op_ok(post_rmamsg("E2", true, pattern(200, 0x92), lens_200, 1, &segment, 1,
			  FI_DELIVERY_COMPLETE, 0));
	fact("E2 write: delivered");
	op_ok(post_sendmsg("E3", pattern(50, 0x93), lens_50, 1, FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA,
			   0xABCD));
	fact("E3 send with CQ data: delivered");
	for (unsigned i = 0; i < 10; i++)
		ops[i] = post_sendmsg("E4", pattern(100, 0xA0 + i), lens_100, 1,
				      i % 2 ? 0 : FI_DELIVERY_COMPLETE, 0);
	for (int i = 0; i < 10; i++)
		op_ok(ops[i]);
	fact("E4 ten sends: completed");
	initiator_farewell();
}

/* ---- scenarios: refused remote memory access ------------------------------------------------ */

/* What the initiator does wrong. */
enum wrong { WRONG_KEY, OUT_OF_BOUNDS, WRAPS_AROUND, NO_RIGHT, WRONG_SEGMENT };

static void run_refused(bool write, enum wrong wrong)
{
	static const size_t lens[1] = {64};
	uint64_t access = FI_REMOTE_READ | FI_REMOTE_WRITE;
	struct region region = {0}, second = {0};
	struct descriptor d;
	struct fi_rma_iov segments[4] = {0};
	size_t segment_count = 1;
	struct op *op;
	uint8_t *bytes;

	if (!g.initiator) {
		if (wrong == NO_RIGHT)
			access &= ~(uint64_t)(write ? FI_REMOTE_WRITE : FI_REMOTE_READ);
		region = region_new(SMALL_REGION, access, REGION_KEY);
		memset(region.bytes, 0xEE, SMALL_REGION);
	}
	d = open_rma(&region, SMALL_REGION);
	if (g.initiator) {
		segments[0] = (struct fi_rma_iov){.addr = d.addr, .len = 64, .key = d.key};
		if (wrong == WRONG_KEY)
			segments[0].key = d.key + 1;
		else if (wrong == OUT_OF_BOUNDS)
			segments[0].addr = d.addr + SMALL_REGION - 32;
		else if (wrong == WRAPS_AROUND)
			segments[0].addr = UINT64_MAX - 31;
		else if (wrong == WRONG_SEGMENT)
			for (segment_count = 0; segment_count < 4; segment_count++)
				segments[segment_count] = (struct fi_rma_iov){
				    .addr = d.addr + 100 * segment_count,
				    .len = 16,
				    .key = d.key + (segment_count == 2)};
		bytes = buffer(64, 0xAA);
		/* Delivery complete: a plain write may end well before the target has looked at it. */
		op = post_rmamsg("the refused operation", write, bytes, lens, 1, segments, segment_count,
				 write ? FI_DELIVERY_COMPLETE : 0, 0);
		op_error(op);
		check_fill("the initiator's buffer", bytes, 64, 0xAA);
	}
	WAIT_FOR("FI_SHUTDOWN", g.shutdowns);
	fact("FI_SHUTDOWN seen");
	op_error(done_recv);
	close_endpoint();
	if (!g.initiator) {
		check_fill("the region", region.bytes, SMALL_REGION, 0xEE);
		fact("the region is untouched");
		MUST(fi_close(&region.mr->fid));
	}
	/* Only a target that listens can be asked again. */
	if (g.initiator == g.listener)
		return;
	if (!g.initiator) {
		second = region_new(SMALL_REGION, FI_REMOTE_READ | FI_REMOTE_WRITE, SECOND_KEY);
		memset(second.bytes, 0xEE, SMALL_REGION);
	}
	d = open_rma(&second, SMALL_REGION);
	if (!g.initiator) {
		await_done();
		check_pattern("the second region", second.bytes, 64, 0xA1);
		check_fill("the second region", second.bytes + 64, SMALL_REGION - 64, 0xEE);
		fact("the second connection works");
		target_farewell();
		MUST(fi_close(&second.mr->fid));
		return;
	}
	op = op_new("write of the second connection");
	POST(fi_write(g.ep, pattern(64, 0xA1), 64, NULL, FI_ADDR_UNSPEC, d.addr, d.key, op));
	op_ok(op);
	op = op_new("read of the second connection");
	bytes = buffer(64, 0);
	POST(fi_read(g.ep, bytes, 64, NULL, FI_ADDR_UNSPEC, d.addr, d.key, op));
	op_ok(op);
	check_pattern("read of the second connection", bytes, 64, 0xA1);
	fact("the second connection works");
	initiator_farewell();
}

static void run_badkey(void) { run_refused(true, WRONG_KEY); }
static void run_badkey_read(void) { run_refused(false, WRONG_KEY); }
static void run_bounds(void) { run_refused(true, OUT_OF_BOUNDS); }
static void run_bounds_read(void) { run_refused(false, OUT_OF_BOUNDS); }
static void run_wrap(void) { run_refused(true, WRAPS_AROUND); }
static void run_wrap_read(void) { run_refused(false, WRAPS_AROUND); }
static void run_rights(void) { run_refused(true, NO_RIGHT); }
static void run_rights_read(void) { run_refused(false, NO_RIGHT); }
static void run_badsegment(void) { run_refused(true, WRONG_SEGMENT); }
static void run_badsegment_read(void) { run_refused(false, WRONG_SEGMENT); }
