/* A scenario about remote memory. */
#define REGION_LEN (MIB + 16384)

static void rma_target(void)
{
	uint8_t *bytes = buffer(REGION_LEN, 0), *image = buffer(REGION_LEN, 0);
	uint8_t *descriptor = buffer(DESCRIPTOR_LEN, 0);
	struct fid_mr *mr;

	MUST(fi_mr_reg(r.domain, bytes, REGION_LEN, FI_REMOTE_READ | FI_REMOTE_WRITE, 0, REGION_KEY, 0,
		       &mr, NULL));
	CHECK(fi_mr_key(mr) == REGION_KEY, "the region's key is not the requested one");
	post_hello_recv();
	post_done_recv();
	tell_port();
	say_hello();
	put_u64(descriptor, 0); /* offset addressing */
	put_u64(descriptor + 8, REGION_LEN);
	put_u64(descriptor + 16, REGION_KEY);
	op_ok(post_send("send of the descriptor", descriptor, DESCRIPTOR_LEN));
	await_done();
	fill_pattern(image, 1000, 1);
	fill_pattern(image + 1000, 1008, 2);
	fill_pattern(image + 4096, 64, 3);
	fill_pattern(image + 8000, 64, 4);
	fill_pattern(image + 16384, MIB, 5);
	check_equal("the region", bytes, image, REGION_LEN);
	CHECK(r.remote_count == 1, "%d writes with CQ data were told, not 1", r.remote_count);
	CHECK(r.remote_flags & FI_REMOTE_CQ_DATA, "flags 0x%llx", (unsigned long long)r.remote_flags);
	CHECK(r.remote_data == 0xFEEDFACE, "CQ data 0x%llx", (unsigned long long)r.remote_data);
	fact("the region is as written");
	send_done();
	MUST(fi_close(&mr->fid));
}

static void rma_initiator(void)
{
	static const size_t read_lens[4] = {500, 8, 0, 500};
	uint8_t *descriptor = buffer(DESCRIPTOR_LEN, 0), *back = buffer(MIB, 0), scratch[64];
	struct op *ops[4], *read_op;
	struct iovec pieces[4];
	uint64_t addr, key;
	struct op *descriptor_recv = post_recv("receive of the descriptor", descriptor, DESCRIPTOR_LEN);

	post_done_recv();
	tell_port();
	say_hello();
	check_from_peer(descriptor_recv, DESCRIPTOR_LEN, NO_DATA);
	addr = get_u64(descriptor);
	CHECK(get_u64(descriptor + 8) == REGION_LEN, "the region has another length");
	key = get_u64(descriptor + 16);
	ops[0] = op_new("write");
	POST(fi_write(r.ep, pattern(1000, 1), 1000, NULL, r.peer, addr, key, ops[0]));
	ops[1] = op_new("writev");
	cut(pieces, 4, pattern(1008, 2), SEND_1008);
	POST(fi_writev(r.ep, pieces, NULL, 4, r.peer, addr + 1000, key, ops[1]));
	ops[2] = op_new("writedata");
	POST(fi_writedata(r.ep, pattern(64, 3), 64, NULL, 0xFEEDFACE, r.peer, addr + 4096, key, ops[2]));
	fill_pattern(scratch, 64, 4);
	POST(fi_inject_write(r.ep, scratch, 64, r.peer, addr + 8000, key));
	memset(scratch, 0xFF, sizeof scratch);
	ops[3] = op_new("writemsg of 1 MiB");
	{
		struct iovec piece = {pattern(MIB, 5), MIB};
		struct fi_rma_iov segments[2] = {{addr + 16384, MIB / 2, key},
						 {addr + 16384 + MIB / 2, MIB / 2, key}};
		struct fi_msg_rma msg = {.msg_iov = &piece,
					 .iov_count = 1,
					 .addr = r.peer,
					 .rma_iov = segments,
					 .rma_iov_count = 2,
					 .context = ops[3]};
		POST(fi_writemsg(r.ep, &msg, FI_DELIVERY_COMPLETE | FI_COMPLETION));
	}
	for (int i = 0; i < 4; i++)
		op_ok(ops[i]);
	fact("all writes have ended");
	read_op = op_new("read");
	POST(fi_read(r.ep, back, MIB, NULL, r.peer, addr + 16384, key, read_op));
	op_ok(read_op);
	check_pattern("read", back, MIB, 5);
	read_op = op_new("readv");
	cut(pieces, 4, back, read_lens);
	POST(fi_readv(r.ep, pieces, NULL, 4, r.peer, addr + 1000, key, read_op));
	op_ok(read_op);
	check_pattern("readv", back, 1008, 2);
	fact("all reads have ended");
	farewell();
}

static void run_rma(void)
{
	if (r.initiator)
		rma_initiator();
	else
		rma_target();
}
