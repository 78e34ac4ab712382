/* The client's watch, which works as the Rust ends' does: src/end/meter.rs. */

static struct {
	bool begun, measuring;
	uint64_t begin, start, start_cpu, count;
} meter;

/* So many operations have just ended. True when it is enough; then the figures have been told. */
static bool meter_add(uint64_t operations)
{
	uint64_t now = now_ns(), cpu;

	if (!meter.begun) {
		meter.begun = true;
		meter.begin = now;
	}
	if (!meter.measuring) {
		if (now - meter.begin >= job.warm_ns) {
			meter.measuring = true;
			meter.start_cpu = cpu_ns();
			meter.start = now_ns();
		}
		return false;
	}
	meter.count += operations;
	if (now - meter.start < job.run_ns)
		return false;
	cpu = cpu_ns();
	say("count", meter.count);
	say("elapsed_ns", now - meter.start);
	say("cpu_ns", cpu - meter.start_cpu);
	return true;
}

/* ---- round trips ---------------------------------------------------------------------------- */

#define TIMES_MAX (1u << 22)

static struct {
	uint32_t *times;
	size_t count;
	uint64_t since;
} pings;

static int compare(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return (x > y) - (x < y);
}

static void pings_begin(void)
{
	pings.times = memory(TIMES_MAX * sizeof *pings.times);
	pings.since = now_ns();
}

static bool pings_add(void)
{
	uint64_t now = now_ns();

	if (meter.measuring && pings.count < TIMES_MAX)
		pings.times[pings.count++] = (uint32_t)(now - pings.since);
	pings.since = now;
	if (!meter_add(1))
		return false;
	qsort(pings.times, pings.count, sizeof *pings.times, compare);
	say("p50_ns", pings.times[pings.count / 2]);
	say("p99_ns", pings.times[pings.count * 99 / 100]);
	return true;
}

/* ---- memory --------------------------------------------------------------------------------- */

static uint64_t resident(pid_t process)
{
	char path[64];
	unsigned long long pages = 0;
	FILE *file;

	snprintf(path, sizeof path, "/proc/%d/statm", process);
	file = fopen(path, "r");
	if (!file)
		return 0;
	if (fscanf(file, "%*u %llu", &pages) != 1)
		pages = 0;
	fclose(file);
	return pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static uint64_t heap(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

/* ---- connections that are watched each: src/end/crowd.rs ------------------------------------- */

static struct {
	/* Of each connection: when its batches without an answer went out; batches sent and
	 * answered; answers that counted. */
	uint64_t *sent_at;
	size_t *sent, *answered, *counted;
	uint32_t *times;
	size_t times_count;
	uint64_t heap, client, server;
} each;

static void each_memory_begin(void)
{
	if (!job.watches_each)
		return;
	each.sent_at = memory(job.connections * job.answers * sizeof *each.sent_at);
	each.sent = memory(job.connections * sizeof *each.sent);
	each.answered = memory(job.connections * sizeof *each.answered);
	each.counted = memory(job.connections * sizeof *each.counted);
	each.times = memory(TIMES_MAX * sizeof *each.times);
	each.heap = heap();
	each.client = resident(getpid());
	each.server = resident(job.peer);
}

static void each_begin(void)
{
	uint64_t now = now_ns();

	if (!job.watches_each)
		return;
	for (size_t i = 0; i < job.connections * job.answers; i++)
		each.sent_at[i] = now;
	for (size_t i = 0; i < job.connections; i++)
		each.sent[i] = job.window / job.batch;
}

/* A batch has its answer, and the next goes out. */
static void each_answered(size_t connection)
{
	uint64_t *places = &each.sent_at[connection * job.answers], now, since;

	if (!job.watches_each)
		return;
	now = now_ns();
	since = places[each.answered[connection]++ % job.answers];
	places[each.sent[connection]++ % job.answers] = now;
	if (!meter.measuring)
		return;
	each.counted[connection]++;
	if (each.times_count < TIMES_MAX)
		each.times[each.times_count++] =
		    now - since > UINT32_MAX ? UINT32_MAX : (uint32_t)(now - since);
}

static void each_tell(void)
{
	double sum = 0, squares = 0;

	if (!job.watches_each || !each.times_count)
		return;
	say("resident_client", resident(getpid()) - each.client);
	say("resident_server", resident(job.peer) - each.server);
	say("heap_client", heap() - each.heap);
	qsort(each.times, each.times_count, sizeof *each.times, compare);
	say("p50_ns", each.times[each.times_count / 2]);
	say("p99_ns", each.times[each.times_count * 99 / 100]);
	for (size_t i = 0; i < job.connections; i++) {
		sum += (double)each.counted[i];
		squares += (double)each.counted[i] * (double)each.counted[i];
	}
	printf("fairness %f\n", sum * sum / ((double)job.connections * squares));
	fflush(stdout);
}
