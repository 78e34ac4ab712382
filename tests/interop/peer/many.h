/* Many messages both ways at the same time, a window of them posted. How one is posted is for
 * whoever includes this to say. */
#define MANY 1000
#define WINDOW 64
#define MANY_SIZE 2048

static struct op *post_one_of_many(int k, uint8_t *bytes);
static struct op *send_one_of_many(int k, uint8_t *bytes, size_t len);
static void post_done_recv(void);

static struct op *many_recvs[WINDOW];
static uint8_t *many_in[WINDOW];

static void post_first_of_many(void)
{
	for (int k = 0; k < WINDOW; k++)
		many_recvs[k] = post_one_of_many(k, many_in[k] = buffer(MANY_SIZE, 0));
}

static void exchange_many(bool initiator)
{
	struct op *sends[WINDOW] = {0}, **recvs = many_recvs;
	uint8_t *out[WINDOW], **in = many_in;
	unsigned my_seed = initiator ? 0 : 128, their_seed = initiator ? 128 : 0;
	int sent = 0, received = 0, posted = WINDOW, completed = 0;

	for (int i = 0; i < WINDOW; i++)
		out[i] = buffer(MANY_SIZE, 0);
	while (completed < MANY || received < MANY) {
		if (sent < MANY && sent - completed < WINDOW) {
			int slot = sent % WINDOW;
			size_t len = (size_t)(sent * 37) % 1500;
			fill_pattern(out[slot], len, (unsigned)sent + my_seed);
			sends[slot] = send_one_of_many(sent, out[slot], len);
			sent++;
		}
		waiting_for = "the many messages";
		progress();
		while (completed < sent && sends[completed % WINDOW]->done) {
			CHECK(!sends[completed % WINDOW]->error, "send %d failed", completed);
			free(sends[completed % WINDOW]);
			completed++;
		}
		while (received < posted && received < MANY && recvs[received % WINDOW]->done) {
			int slot = received % WINDOW;
			size_t len = (size_t)(received * 37) % 1500;
			CHECK(!recvs[slot]->error, "receive %d failed", received);
			CHECK(recvs[slot]->len == len, "message %d has %zu bytes, not %zu", received,
			      recvs[slot]->len, len);
			check_pattern("one of many", in[slot], len, (unsigned)received + their_seed);
			free(recvs[slot]);
			received++;
			if (posted < MANY)
				recvs[slot] = post_one_of_many(posted, in[slot]);
			else if (posted == MANY)
				post_done_recv();
			posted++;
		}
	}
	fact("%d messages each way", MANY);
}
