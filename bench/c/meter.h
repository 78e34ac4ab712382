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
