/* Scenarios about messages. */
static const size_t SEND_1008[4] = {5, 0, 1000, 3}, RECV_1008[4] = {7, 500, 0, 501};

/* ---- messages ------------------------------------------------------------------------------- */

#define MESSAGES 9
static struct op *message_recvs[MESSAGES];
static uint8_t *message_bytes[MESSAGES];
static const size_t MESSAGE_LENS[MESSAGES] = {0, 100, 64, 1008, 4096, 64, 128, 65537, MIB};

static void post_message_recvs(void)
{
	for (int i = 0; i < MESSAGES; i++) {
		size_t len = MESSAGE_LENS[i];
		message_bytes[i] = buffer(len + 16, 0xEE);
		message_recvs[i] = i == 3 ? post_recvv("M3", message_bytes[i], RECV_1008)
					  : post_recv("a message", message_bytes[i], len + 16);
	}
}

static void send_messages(void)
{
	static const size_t lens4[1] = {4096}, lens8[1] = {MIB};
	uint8_t scratch[128];
	struct op *ops[MESSAGES] = {0};

	ops[0] = post_send("M0", buffer(0, 0), 0);
	ops[1] = post_send("M1", pattern(100, 1), 100);
	ops[2] = op_new("M2");
	POST(fi_senddata(r.ep, pattern(64, 2), 64, NULL, 0x0123456789ABCDEFull, r.peer, ops[2]));
	ops[3] = post_sendmsg("M3", pattern(1008, 3), SEND_1008, 4, 0, 0);
	ops[4] = post_sendmsg("M4", pattern(4096, 4), lens4, 1, FI_DELIVERY_COMPLETE, 0);
	/* The buffer is the application's again as soon as the call returns (fi_msg(3)). */
	fill_pattern(scratch, 64, 5);
	POST(fi_inject(r.ep, scratch, 64, r.peer));
	fill_pattern(scratch, 128, 6);
	POST(fi_injectdata(r.ep, scratch, 128, 0xD6, r.peer));
	memset(scratch, 0xFF, sizeof scratch);
	ops[7] = post_send("M7", pattern(65537, 7), 65537);
	ops[8] = post_sendmsg("M8", pattern(MIB, 8), lens8, 1,
			      FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA, 0xD8);
	for (int i = 0; i < MESSAGES; i++)
		if (ops[i])
			op_ok(ops[i]);
	fact("all messages are sent");
}

static void check_messages(void)
{
	for (int i = 0; i < MESSAGES; i++) {
		size_t len = MESSAGE_LENS[i];
		uint64_t data = i == 2 ? 0x0123456789ABCDEFull : i == 6 ? 0xD6 : i == 8 ? 0xD8 : NO_DATA;
		check_from_peer(message_recvs[i], len, data);
		check_pattern("a message", message_bytes[i], len, (unsigned)i);
		check_fill("a message's buffer", message_bytes[i] + len, 16, 0xEE);
	}
}

static void run_messages(void)
{
	post_hello_recv();
	post_message_recvs();
	post_done_recv();
	tell_port();
	say_hello();
	if (r.initiator)
		send_messages();
	check_messages();
	if (!r.initiator)
		send_messages();
	farewell();
}

/* ---- tagged --------------------------------------------------------------------------------- */

#define TAGGED 7
static struct op *tagged_recvs[TAGGED];
static uint8_t *tagged_bytes[TAGGED];

static void post_tagged_recvs(void)
{
	static const struct {
		const char *name;
		uint64_t tag, ignore;
		size_t len;
	} wanted[TAGGED] = {
	    {"T0 of a stranger", 7, 0, 64},
	    {"T1 with a mask", 0x1000, 0xFFF, 64},
	    {"T2 of the peer", 7, 0, 64},
	    {"T3", 7, 0, 64},
	    {"T4", 0x2BCD000000000001, 0, 64},
	    {"T5 whatever the tag", 0, ~0ull, 64},
	    {"T6", 9, 0, MIB},
	};
	fi_addr_t stranger = insert("127.0.0.1", 1);

	for (int i = 0; i < TAGGED; i++)
		tagged_recvs[i] = post_trecv(wanted[i].name, tagged_bytes[i] = buffer(wanted[i].len, 0xEE),
					     wanted[i].len, wanted[i].tag, wanted[i].ignore,
					     i == 0   ? stranger
					     : i == 2 ? r.peer
						      : ANY);
}

static void send_tagged(void)
{
	struct op *first = op_new("S1"), *second = op_new("S2"), *third = op_new("S3"), *last;
	uint8_t scratch[64];

	POST(fi_tsend(r.ep, pattern(10, 1), 10, NULL, r.peer, 7, first));
	POST(fi_tsenddata(r.ep, pattern(20, 2), 20, NULL, 0xD2, r.peer, 0x1234, second));
	POST(fi_tsend(r.ep, pattern(30, 3), 30, NULL, r.peer, 7, third));
	fill_pattern(scratch, 40, 4);
	POST(fi_tinject(r.ep, scratch, 40, r.peer, 0x2BCD000000000001));
	fill_pattern(scratch, 50, 5);
	POST(fi_tinjectdata(r.ep, scratch, 50, 0xD5, r.peer, 0x5555));
	memset(scratch, 0xFF, sizeof scratch);
	last = post_tsendmsg("S6", pattern(MIB, 6), MIB, 9, FI_DELIVERY_COMPLETE | FI_REMOTE_CQ_DATA,
			     0xD6);
	op_ok(first);
	op_ok(second);
	op_ok(third);
	op_ok(last);
	fact("all tagged messages are sent");
}

static void check_tagged_recvs(void)
{
	static const struct {
		int which;
		size_t len;
		uint64_t tag, data;
		unsigned seed;
	} due[TAGGED - 1] = {
	    {1, 20, 0x1234, 0xD2, 2}, {2, 10, 7, NO_DATA, 1},
	    {3, 30, 7, NO_DATA, 3},   {4, 40, 0x2BCD000000000001, NO_DATA, 4},
	    {5, 50, 0x5555, 0xD5, 5}, {6, MIB, 9, 0xD6, 6},
	};
	struct op *strangers = tagged_recvs[0];

	for (int i = 0; i < TAGGED - 1; i++) {
		int which = due[i].which;
		check_tagged(tagged_recvs[which], due[i].len, due[i].tag, due[i].data);
		check_pattern(tagged_recvs[which]->name, tagged_bytes[which], due[i].len, due[i].seed);
		if (due[i].len < 64)
			check_fill(tagged_recvs[which]->name, tagged_bytes[which] + due[i].len,
				   64 - due[i].len, 0xEE);
	}
	CHECK(!strangers->done, "a receive of a stranger took a message");
	MUST(fi_cancel(&r.ep->fid, strangers));
	WAIT_FOR("the end of the canceled receive", strangers->done);
	CHECK(strangers->error == FI_ECANCELED, "the canceled receive: %d", strangers->error);
}

static void run_tagged(void)
{
	post_hello_recv();
	post_tagged_recvs();
	post_done_recv();
	tell_port();
	say_hello();
	if (r.initiator)
		send_tagged();
	check_tagged_recvs();
	if (!r.initiator)
		send_tagged();
	farewell();
}

/* ---- unexpected ----------------------------------------------------------------------------- */

#define UNEXPECTED 20
static size_t unexpected_len(int tag)
{
	return tag <= 3 ? 100 : (size_t)tag * 1000;
}

/* All come before their receives are posted, which is in the other order. */
static void run_unexpected(void)
{
	struct op *ops[UNEXPECTED + 1];
	uint8_t *bytes[UNEXPECTED + 1];

	post_hello_recv();
	post_done_recv();
	tell_port();
	say_hello();
	if (r.initiator) {
		for (int tag = 1; tag <= UNEXPECTED; tag++)
			ops[tag] = post_tsendmsg("an unexpected message", pattern(unexpected_len(tag), (unsigned)tag),
						 unexpected_len(tag), (uint64_t)tag, FI_DELIVERY_COMPLETE, 0);
		for (int tag = 1; tag <= UNEXPECTED; tag++)
			op_ok(ops[tag]);
	} else {
		progress_for(300);
		for (int tag = UNEXPECTED; tag >= 1; tag--)
			ops[tag] = post_trecv("an unexpected message", bytes[tag] = buffer(unexpected_len(tag), 0),
					      unexpected_len(tag), (uint64_t)tag, 0, r.peer);
		for (int tag = 1; tag <= UNEXPECTED; tag++) {
			check_tagged(ops[tag], unexpected_len(tag), (uint64_t)tag, NO_DATA);
			check_pattern("an unexpected message", bytes[tag], unexpected_len(tag), (unsigned)tag);
		}
	}
	farewell();
}

/* ---- many ----------------------------------------------------------------------------------- */

#include "../peer/many.h"

/* Every other one is tagged. */
static struct op *post_one_of_many(int k, uint8_t *bytes)
{
	if (k % 2)
		return post_trecv("one of many, tagged", bytes, MANY_SIZE, (uint64_t)k, 0, ANY);
	return post_recv("one of many", bytes, MANY_SIZE);
}

static struct op *send_one_of_many(int k, uint8_t *bytes, size_t len)
{
	struct op *op;

	if (k % 2 == 0)
		return post_send("a send of many", bytes, len);
	op = op_new("a tagged send of many");
	POST(fi_tsend(r.ep, bytes, len, NULL, r.peer, (uint64_t)k, op));
	return op;
}

static void run_many(void)
{
	post_hello_recv();
	post_first_of_many();
	tell_port();
	say_hello();
	exchange_many(r.initiator);
	farewell();
}

/* ---- multi ---------------------------------------------------------------------------------- */

#define PIECES 300
#define MULTI_SIZE ((size_t)32 << 10)
#define FREE_MIN ((size_t)2048)

static struct op *post_multi(void)
{
	struct op *op = op_new("a buffer for several messages");
	struct iovec piece = {buffer(MULTI_SIZE, 0), MULTI_SIZE};
	struct fi_msg msg = {.msg_iov = &piece, .iov_count = 1, .addr = ANY, .context = op};

	op->is_multi = true;
	POST(fi_recvmsg(r.ep, &msg, FI_MULTI_RECV));
	return op;
}

/* The initiator sends, the target receives them one behind the other. */
static void run_multi(void)
{
	size_t free_min = FREE_MIN;
	struct op *ops[WINDOW] = {0}, *buffers[2];
	int at = 0;

	if (r.initiator) {
		post_done_recv();
		tell_port();
		say_hello();
		for (int k = 0; k < PIECES; k++) {
			size_t len = (size_t)(k * 37) % 1500;
			if (ops[k % WINDOW])
				op_ok(ops[k % WINDOW]);
			ops[k % WINDOW] = post_send("a piece", pattern(len, (unsigned)k), len);
		}
		for (int slot = 0; slot < WINDOW; slot++)
			op_ok(ops[slot]);
		farewell();
		return;
	}
	MUST(fi_setopt(&r.ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &free_min, sizeof free_min));
	post_hello_recv();
	buffers[0] = post_multi();
	buffers[1] = post_multi();
	tell_port();
	say_hello();
	for (int k = 0; k <= PIECES; k++) {
		size_t len = k < PIECES ? (size_t)(k * 37) % 1500 : 4;
		struct op *from = buffers[at];
		struct piece piece;

		WAIT_FOR("a piece", from->piece_next < from->piece_count || from->done);
		CHECK(!from->error, "%s: error %d", from->name, from->error);
		piece = from->pieces[from->piece_next++];
		CHECK(piece.len == len, "piece %d has %zu bytes, not %zu", k, piece.len, len);
		if (k < PIECES)
			check_pattern("a piece", piece.bytes, len, (unsigned)k);
		else
			CHECK(!memcmp(piece.bytes, "done", 4), "not the word done");
		CHECK(from->source == r.peer, "a piece of another source");
		if (piece.last) {
			buffers[at] = post_multi();
			at = !at;
		}
	}
	fact("%d messages in buffers for several", PIECES);
	send_done();
}
