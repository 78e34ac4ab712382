/*
 * The C end of the connectionless scenarios: one program on libfabric 1.17's provider "net"
 * (FI_EP_RDM) that plays either end of what rdm/README.md writes down.
 *
 *     rdm_peer SCENARIO initiator|target HOST PORT [OWN_PORT]
 *
 * HOST and PORT are the other end's. Prints "PORT n", its own, once its first receives are posted.
 * The last line is "OK" (exit 0) or "FAIL reason" (exit 1); a watchdog ends it after 20 seconds
 * (PEER_WATCHDOG_S changes that).
 */
#include "peer/report.h"
#include "rdm/endpoint.h"
#include "rdm/messages.h"
#include "rdm/memory.h"
#include "rdm/lives.h"

static const struct {
	const char *name;
	void (*run)(void);
} scenarios[] = {
    {"messages", run_messages}, {"tagged", run_tagged}, {"unexpected", run_unexpected},
    {"many", run_many},         {"multi", run_multi},   {"rma", run_rma},
    {"echo", run_echo},         {"echo-twice", run_echo_twice}, {"hang", run_hang},
    {"tie", run_tie},
};
#define SCENARIO_COUNT (sizeof scenarios / sizeof scenarios[0])

int main(int argc, char **argv)
{
	const char *seconds = getenv("PEER_WATCHDOG_S");
	void (*run)(void) = NULL;

	setvbuf(stdout, NULL, _IOLBF, 0);
	CHECK(argc == 5 || argc == 6,
	      "usage: rdm_peer SCENARIO initiator|target HOST PORT [OWN_PORT]");
	for (size_t i = 0; i < SCENARIO_COUNT; i++)
		if (!strcmp(argv[1], scenarios[i].name))
			run = scenarios[i].run;
	CHECK(run, "no scenario named %s", argv[1]);
	r.initiator = !strcmp(argv[2], "initiator");
	signal(SIGALRM, watchdog);
	alarm(seconds && atoi(seconds) > 0 ? (unsigned)atoi(seconds) : 20);
	open_domain(argc == 6 ? argv[5] : NULL);
	r.peer = insert(argv[3], (uint16_t)atoi(argv[4]));
	endpoint_open();
	run();
	endpoint_close();
	MUST(fi_close(&r.cq->fid));
	MUST(fi_close(&r.av->fid));
	MUST(fi_close(&r.domain->fid));
	MUST(fi_close(&r.fabric->fid));
	fi_freeinfo(r.info);
	fact("OK");
	return 0;
}
