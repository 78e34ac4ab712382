/*
 * The C end of the interoperation tests: one program on libfabric (provider "tcp", FI_EP_MSG)
 * that plays either end of the scenarios that README.md, next to this file, writes down.
 *
 *     peer listen SCENARIO               binds 127.0.0.1, prints "PORT n", waits for the connection
 *     peer connect SCENARIO HOST PORT    connects
 *
 * SCENARIO may end in ".swap": the listener is then the initiator instead of the connector.
 * One line per checked fact goes to stdout; the last line is "OK" (exit 0) or "FAIL reason"
 * (exit 1). A watchdog ends the program after 20 seconds (PEER_WATCHDOG_S changes that).
 *
 * libfabric 1.17's tcp provider makes progress only while somebody reads a queue, so every wait
 * goes through progress(), which reads the two completion queues and the event queue. Buffers and
 * operations live until the process ends: an operation that a failing test leaves behind must
 * never point into freed memory.
 */
/* One translation unit: each part uses the ones above it. */
#include "peer/base.h"
#include "peer/session.h"
#include "peer/connections.h"
#include "peer/messages.h"
#include "peer/memory.h"

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
    {"data", run_data},
    {"data-max", run_data_max},
    {"reject", run_reject},
    {"shutdown", run_shutdown},
    {"exit", run_exit},
    {"killed", run_killed},
    {"vectors", run_vectors},
    {"inject", run_inject},
    {"many", run_many},
    {"write", run_write},
    {"writedata", run_writedata},
    {"read", run_read},
    {"delivery", run_delivery},
    {"badkey", run_badkey},
    {"badkey-read", run_badkey_read},
    {"bounds", run_bounds},
    {"bounds-read", run_bounds_read},
    {"wrap", run_wrap},
    {"wrap-read", run_wrap_read},
    {"rights", run_rights},
    {"rights-read", run_rights_read},
    {"badsegment", run_badsegment},
    {"badsegment-read", run_badsegment_read},
};
#define SCENARIO_COUNT (sizeof scenarios / sizeof scenarios[0])

int main(int argc, char **argv)
{
	const char *seconds = getenv("PEER_WATCHDOG_S");
	void (*run)(void) = NULL;
	char name[64];
	char *suffix;
	bool swap = false;

	setvbuf(stdout, NULL, _IOLBF, 0);
	if (argc == 2 && !strcmp(argv[1], "list")) {
		for (size_t i = 0; i < SCENARIO_COUNT; i++)
			puts(scenarios[i].name);
		return 0;
	}
	g.listener = argc == 3 && !strcmp(argv[1], "listen");
	if (!g.listener && !(argc == 5 && !strcmp(argv[1], "connect")))
		fail("usage: peer listen SCENARIO | peer connect SCENARIO HOST PORT | peer list");
	snprintf(name, sizeof name, "%s", argv[2]);
	suffix = strstr(name, ".swap");
	if (suffix && !suffix[5]) {
		*suffix = 0;
		swap = true;
	}
	for (size_t i = 0; i < SCENARIO_COUNT; i++)
		if (!strcmp(name, scenarios[i].name))
			run = scenarios[i].run;
	CHECK(run, "no scenario named %s", name);
	g.initiator = g.listener == swap;

	signal(SIGALRM, watchdog);
	alarm(seconds && atoi(seconds) > 0 ? (unsigned)atoi(seconds) : 20);
	if (g.listener) {
		open_domain("127.0.0.1", NULL, FI_SOURCE);
		open_listener();
	} else {
		open_domain(argv[3], argv[4], 0);
	}
	run();

	if (g.pep)
		MUST(fi_close(&g.pep->fid));
	MUST(fi_close(&g.tx_cq->fid));
	MUST(fi_close(&g.rx_cq->fid));
	MUST(fi_close(&g.domain->fid));
	MUST(fi_close(&g.eq->fid));
	MUST(fi_close(&g.fabric->fid));
	fi_freeinfo(g.info);
	fact("OK");
	return 0;
}
