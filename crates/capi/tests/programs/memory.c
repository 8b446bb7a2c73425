/* No memory: what needs some refuses, what needs none works, and nothing aborts. */
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#include "check.h"
#include "starve.h"

static DORMOUSE_KEY_NAMED(key, "memory.key", false);

__attribute__((noinline)) static bool site(void)
{
	return dormouse_unlikely(key);
}

/* Each leads to the one before it. */
struct block {
	struct block *before;
};

/* This thread gets nothing of what other threads give back meanwhile. */
static __thread bool starves;

static bool refuses(size_t size)
{
	(void)size;
	return starves;
}

/* All that there is, in blocks that get smaller. */
static struct block *take_all(void)
{
	struct rlimit limit;
	struct block *last = NULL;

	CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
	limit.rlim_cur = 1;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	for (size_t size = 1 << 20; size >= sizeof(*last);) {
		struct block *block = (struct block *)malloc(size);
		if (block) {
			block->before = last;
			last = block;
		} else {
			size /= 2;
		}
	}
	limit.rlim_cur = limit.rlim_max;
	return last;
}

static void give_back(struct block *last)
{
	struct rlimit limit;
	CHECK(getrlimit(RLIMIT_AS, &limit) == 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
	while (last) {
		struct block *block = last;
		last = block->before;
		free(block);
	}
}

int main(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_key *const keys[] = { &key.key };
	struct dormouse_lease *lease = NULL, *held = NULL;
	struct dormouse_list *list = NULL;
	struct dormouse_batch *batch = dormouse_batch_begin(), *none;
	struct dormouse_group group = dormouse_group_new("memory"), other, current;
	struct dormouse_entered entered = dormouse_group_enter(group);
	static int watched;
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(watched);
	struct dormouse_watch *watch = NULL;
	struct dormouse_profile_spec profiled = DORMOUSE_PROFILE_SPEC_INIT;
	struct dormouse_profile *profile = NULL, *running = NULL;
	struct dormouse_metrics_spec measured = DORMOUSE_METRICS_SPEC_INIT;
	struct dormouse_metrics *metrics = NULL, *counted = NULL;
	const void *bytes;
	size_t length, unwarned;
	char warnings[100];
	enum dormouse_code refusals[8], refused, unprofiled, unread, uncounted, untold;
	struct block *all;
	bool left;

	CHECK(batch && group.number && dormouse_group_leave(entered));
	CHECK(dormouse_acquire(keys, 1, &held, NULL, NULL) == DORMOUSE_OK);
	CHECK(dormouse_profile_begin(&profiled, &running, NULL) == DORMOUSE_OK);
	CHECK(dormouse_metrics_begin(&measured, &counted, NULL) == DORMOUSE_OK);
	all = take_all();
	starves = true;
	errno = 77;
	none = dormouse_batch_begin();
	dormouse_batch_enable(none, &key.key);
	dormouse_batch_enable(batch, &key.key);
	refusals[0] = dormouse_enable(&key.key, NULL, &error);
	refusals[1] = dormouse_disable(&key.key, NULL, NULL);
	refusals[2] = dormouse_acquire(keys, 1, &lease, NULL, NULL);
	refusals[3] = dormouse_release(held, NULL, NULL);
	refusals[4] = dormouse_list_begin("*", &list, NULL);
	refusals[5] = dormouse_init(NULL);
	unwarned = dormouse_warnings(warnings, sizeof(warnings));
	refusals[6] = dormouse_batch_apply(batch, NULL, NULL);
	refusals[7] = dormouse_batch_apply(none, NULL, NULL);
	refused = dormouse_watch_begin(&spec, &watch, NULL);
	unprofiled = dormouse_profile_begin(&profiled, &profile, NULL);
	unread = dormouse_profile_read(running, &bytes, &length, NULL);
	uncounted = dormouse_metrics_begin(&measured, &metrics, NULL);
	untold = dormouse_metrics_read(counted, DORMOUSE_METRICS_TEXT, &bytes, &length, NULL);
	other = dormouse_group_new("another");
	entered = dormouse_group_enter(group);
	current = dormouse_group_current();
	left = dormouse_group_leave(entered);
	CHECK(site() && dormouse_is_enabled(&key.key) && errno == 77);
	starves = false;
	give_back(all);

	for (int i = 0; i < 7; i++)
		CHECK(refusals[i] == DORMOUSE_NO_MEMORY);
	CHECK(refused == DORMOUSE_NO_MEMORY && !watch);
	CHECK(unwarned == strlen(warnings) && strstr(warnings, "not enough memory"));
	CHECK(unprofiled == DORMOUSE_NO_MEMORY && !profile && unread == DORMOUSE_NO_MEMORY);
	CHECK(uncounted == DORMOUSE_NO_MEMORY && !metrics && untold == DORMOUSE_NO_MEMORY);
	dormouse_profile_end(running);
	CHECK(dormouse_metrics_read(counted, DORMOUSE_METRICS_TEXT, &bytes, &length, NULL) == DORMOUSE_OK);
	dormouse_metrics_end(counted);
	CHECK(current.number == group.number && left && !other.number);
	CHECK(!none && refusals[7] == DORMOUSE_INVALID && !lease && !list);
	CHECK(error.code == DORMOUSE_NO_MEMORY && strstr(error.message, "memory"));
	/* All is well again. */
	CHECK(dormouse_release(held, NULL, NULL) == DORMOUSE_OK && !site());
	CHECK(dormouse_enable(&key.key, NULL, NULL) == DORMOUSE_OK && site());
	puts("refused");
	return 0;
}
