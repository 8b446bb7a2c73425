/*
 * The memory goes while a function works: at each allocation in turn, malloc refuses this one, or this one and all that
 * follow. What was found before is enough, so nothing aborts. (Not while threads begin: see MEMORY.)
 */
#include <dormouse/dormouse.h>

#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "starve.h"

static DORMOUSE_KEY_NAMED(key, "starved.key", false);

__attribute__((noinline)) static bool site(void)
{
	return dormouse_unlikely(key);
}

/* Blocks of that size are what functions look for before they begin: as if somebody had just given them back. */
#define FOUND (64 << 10)

static __thread bool starves;
static bool forever;
static long number, refused_from = -1, refusals;

static bool refuses(size_t size)
{
	if (!starves || size >= FOUND)
		return false;
	number++;
	if (forever ? number <= refused_from : number != refused_from + 1)
		return false;
	refusals++;
	return true;
}

/* Whether there was an allocation to refuse. */
static bool run(void)
{
	struct dormouse_key *const keys[] = { &key.key };
	struct dormouse_lease *lease = NULL, *held = NULL;
	struct dormouse_list *lists[3] = { NULL, NULL, NULL };
	struct dormouse_batch *batch, *made;
	struct dormouse_metrics_spec measured = DORMOUSE_METRICS_SPEC_INIT;
	struct dormouse_metrics *metrics = NULL, *counted = NULL;
	struct dormouse_group group = dormouse_group_new("starved");
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;
	const void *bytes;
	size_t length;
	bool is_held;

	CHECK(group.number && (batch = dormouse_batch_begin()));
	CHECK(dormouse_acquire(keys, 1, &held, NULL, NULL) == DORMOUSE_OK);
	CHECK(dormouse_metrics_begin(&measured, &counted, NULL) == DORMOUSE_OK);
	starves = true;
	made = dormouse_batch_begin();
	dormouse_batch_enable(made, &key.key);
	dormouse_batch_enable(batch, &key.key);
	dormouse_list_begin("*", &lists[0], NULL);
	dormouse_list_begin("st?rved.[a-z]*,!*.b,{c,d}", &lists[1], NULL);
	dormouse_list_begin(NULL, &lists[2], NULL);
	dormouse_enable(&key.key, NULL, NULL);
	dormouse_disable(&key.key, NULL, NULL);
	dormouse_acquire(keys, 1, &lease, NULL, NULL);
	is_held = dormouse_release(held, NULL, NULL) != DORMOUSE_OK;
	dormouse_batch_apply(batch, NULL, NULL);
	dormouse_batch_apply(made, NULL, NULL);
	dormouse_metrics_read(counted, DORMOUSE_METRICS_TEXT, &bytes, &length, NULL);
	dormouse_metrics_begin(&measured, &metrics, NULL);
	dormouse_group_new("another");
	starves = false;

	/* What was made of a reserve is as good as all else. */
	while (dormouse_list_next(lists[0], &info))
		CHECK(info.name && info.file);
	for (int i = 0; i < 3; i++)
		dormouse_list_end(lists[i]);
	dormouse_metrics_end(metrics);
	dormouse_metrics_end(counted);
	dormouse_release(lease, NULL, NULL);
	if (is_held)
		CHECK(dormouse_release(held, NULL, NULL) == DORMOUSE_OK);
	CHECK(dormouse_enable(&key.key, NULL, NULL) == DORMOUSE_OK && site());
	CHECK(dormouse_disable(&key.key, NULL, NULL) == DORMOUSE_OK && !site());
	return refusals > 0;
}

int main(int count, char **words)
{
	/* For a debugger: this one alone. */
	if (count == 3) {
		forever = words[1][0] == 'a';
		refused_from = atol(words[2]);
		run();
		return 0;
	}
	for (int which = 0; which < 2; which++) {
		bool more = true;
		/* Each of the first; farther on some of them. */
			for (long from = 0; more; from += 1 + from / 256 * 8) {
			int status;
			pid_t child = fork();
			CHECK(child >= 0);
			if (!child) {
				forever = which;
				refused_from = from;
				_exit(run() ? 0 : 3);
			}
			CHECK(waitpid(child, &status, 0) == child);
			if (!WIFEXITED(status) || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3)) {
				printf("status %#x with %s allocation %ld refused\n", status,
				       which ? "all from" : "only", from);
				return 1;
			}
			more = WEXITSTATUS(status) == 0;
		}
	}
	puts("refused or done");
	return 0;
}
