/* Scenarios about peers that come, go, come back, or come at the same time. */

/* A line on our input. */
static void await_word(const char *word)
{
	char line[16] = {0};

	waiting_for = word;
	CHECK(fgets(line, sizeof line, stdin), "no word %s", word);
	CHECK(!strncmp(line, word, strlen(word)), "%s instead of %s", line, word);
	waiting_for = "nothing";
}

/* A word to the peer and back, begun by the initiator. */
static void echo(void)
{
	static const size_t len = 4;
	uint8_t bytes[4] = {0};
	struct op *received = post_recv("the word", bytes, 4);

	if (r.initiator) {
		tell_port();
		op_ok(post_sendmsg("send of the word", (uint8_t *)"word", &len, 1, FI_DELIVERY_COMPLETE, 0));
		check_from_peer(received, 4, NO_DATA);
		CHECK(!memcmp(bytes, "word", 4), "not the word");
		return;
	}
	tell_port();
	check_from_peer(received, 4, NO_DATA);
	op_ok(post_sendmsg("the word back", bytes, &len, 1, FI_DELIVERY_COMPLETE, 0));
}

/* Prints GOT after it, and then only makes progress, until it is killed. */
static void run_echo(void)
{
	echo();
	fact("GOT");
	WAIT_FOR("its death", false);
}

/* The peer goes and comes back in between; then there is the word GO. */
static void run_echo_twice(void)
{
	echo();
	fact("GOT");
	await_word("GO");
	progress_for(100); /* The end of the connection has been seen. */
	echo();
}

/* Takes one word, and does nothing from then on: no receive, no progress. */
static void run_hang(void)
{
	post_hello_recv();
	tell_port();
	say_hello();
	fact("GOT");
	for (;;)
		pause();
}

/* A new endpoint for each round; both ends send first, at once. */
#define ROUNDS 20

static void run_tie(void)
{
	static const size_t len = 64;

	for (unsigned round = 0; round < ROUNDS; round++) {
		uint8_t bytes[64] = {0};
		struct op *received;

		if (!r.ep)
			endpoint_open();
		received = post_recv("the peer's first message", bytes, len);
		tell_port();
		await_word("GO");
		op_ok(post_sendmsg("our first message", pattern(len, round), &len, 1, FI_DELIVERY_COMPLETE, 0));
		check_from_peer(received, len, NO_DATA);
		check_pattern("the peer's first message", bytes, len, round + 1);
		fact("ROUND %u", round);
		await_word("NEXT");
		endpoint_close();
	}
}
