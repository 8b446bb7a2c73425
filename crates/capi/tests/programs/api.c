/* What the functions do and refuse, with good arguments and bad ones. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static DORMOUSE_KEY_NAMED(one, "api.one", false);
static DORMOUSE_KEY_NAMED(two, "api.two", false);
static DORMOUSE_KEY_NAMED(three, "api.three", true);

__attribute__((noinline)) static int state(void)
{
	return dormouse_unlikely(one) | dormouse_unlikely(two) << 1 | dormouse_likely(three) << 2;
}

static void batches(void)
{
	struct dormouse_report report = DORMOUSE_REPORT_INIT;
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_batch *batch = dormouse_batch_begin();

	dormouse_batch_enable(batch, &one.key);
	dormouse_batch_enable(batch, &two.key);
	dormouse_batch_disable(batch, &two.key); /* the last counts */
	dormouse_batch_disable(batch, &three.key);
	CHECK(state() == 4);
	CHECK(dormouse_batch_apply(batch, &report, &error) == DORMOUSE_OK);
	CHECK(state() == 1);
	CHECK(report.size == sizeof(report) && report.keys == 2 && report.sites == 2);
	CHECK(report.pages >= 1 && report.barriers == 1 && report.elapsed_ns > 0);
	CHECK(error.code == DORMOUSE_OK && error.message[0] == 0);

	/* One that has something in it that is no key changes nothing. */
	batch = dormouse_batch_begin();
	dormouse_batch_enable(batch, &two.key);
	dormouse_batch_enable(batch, NULL);
	CHECK(dormouse_batch_apply(batch, NULL, &error) == DORMOUSE_INVALID);
	CHECK(error.code == DORMOUSE_INVALID && strstr(error.message, "no key"));
	CHECK(state() == 1);

	batch = dormouse_batch_begin();
	dormouse_batch_enable(batch, &two.key);
	dormouse_batch_abandon(batch);
	CHECK(state() == 1);
	CHECK(dormouse_disable(&one.key, &report, NULL) == DORMOUSE_OK && report.keys == 1);
	CHECK(dormouse_disable(&one.key, &report, NULL) == DORMOUSE_OK && report.keys == 0);
	CHECK(dormouse_enable(&three.key, NULL, NULL) == DORMOUSE_OK);
	CHECK(state() == 4);
}

static void leases(void)
{
	struct dormouse_key *keys[] = { &one.key, &three.key, &one.key };
	struct dormouse_lease *first, *second;
	struct dormouse_report report = DORMOUSE_REPORT_INIT;

	CHECK(dormouse_acquire(keys, 3, &first, &report, NULL) == DORMOUSE_OK);
	CHECK(report.keys == 1 && state() == 5);
	CHECK(dormouse_acquire(keys, 1, &second, &report, NULL) == DORMOUSE_OK);
	CHECK(report.keys == 0);
	CHECK(dormouse_disable(&three.key, NULL, NULL) == DORMOUSE_OK);
	CHECK(state() == 5); /* held */
	CHECK(dormouse_release(first, &report, NULL) == DORMOUSE_OK);
	CHECK(report.keys == 1 && state() == 1);
	CHECK(dormouse_release(second, NULL, NULL) == DORMOUSE_OK);
	CHECK(state() == 0);
	CHECK(dormouse_enable(&three.key, NULL, NULL) == DORMOUSE_OK);
}

static void lists(void)
{
	struct dormouse_list *list;
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	const char *const expected[] = { "api.one", "api.three", "api.two" };

	CHECK(dormouse_list_begin("api.*", &list, NULL) == DORMOUSE_OK);
	for (int i = 0; i < 3; i++) {
		CHECK(dormouse_list_next(list, &info));
		CHECK(strcmp(info.name, expected[i]) == 0 && strcmp(info.file, __FILE__) == 0);
		CHECK(info.line > 12 && info.line < 16 && info.sites == 1 && info.leases == 0);
		CHECK(strstr(info.object, "api") && info.size == sizeof(info));
		CHECK(info.on == (i == 1) && info.baseline == info.on);
	}
	CHECK(!dormouse_list_next(list, &info));
	dormouse_list_end(list);

	CHECK(dormouse_list_begin("api.*,!api.t*", &list, NULL) == DORMOUSE_OK);
	CHECK(dormouse_list_next(list, &info) && info.key == &one.key && !dormouse_list_next(list, &info));
	dormouse_list_end(list);

	CHECK(dormouse_list_begin("nothing", &list, NULL) == DORMOUSE_OK);
	CHECK(!dormouse_list_next(list, &info));
	info.size = 8;
	CHECK(!dormouse_list_next(list, &info));
	dormouse_list_end(list);

	CHECK(dormouse_list_begin("api.[", &list, &error) == DORMOUSE_BAD_GLOB);
	CHECK(error.code == DORMOUSE_BAD_GLOB && strstr(error.message, "`api.[`"));
	CHECK(dormouse_list_begin("\xff", &list, NULL) == DORMOUSE_OK);
	dormouse_list_end(list);
}

static void nonsense(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_report report = DORMOUSE_REPORT_INIT;
	struct dormouse_list *list = NULL;
	struct dormouse_lease *lease = NULL;
	struct dormouse_key *no_keys[] = { &one.key, NULL };
	static uint64_t zeroes[8];
	struct dormouse_key *blank = (struct dormouse_key *)zeroes;

	CHECK(dormouse_enable(NULL, NULL, &error) == DORMOUSE_INVALID && error.message[0]);
	CHECK(dormouse_enable((struct dormouse_key *)((char *)&one + 1), NULL, NULL) == DORMOUSE_INVALID);
	CHECK(dormouse_disable(blank, &report, &error) == DORMOUSE_INVALID);
	CHECK(!dormouse_is_enabled(NULL) && !dormouse_is_enabled(blank));
	CHECK(dormouse_acquire(no_keys, 2, &lease, NULL, &error) == DORMOUSE_INVALID && !lease);
	CHECK(dormouse_acquire(NULL, 1, &lease, NULL, &error) == DORMOUSE_INVALID && !lease);
	CHECK(dormouse_acquire(no_keys, 1, NULL, NULL, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_release(NULL, NULL, &error) == DORMOUSE_OK);
	CHECK(dormouse_batch_apply(NULL, NULL, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_list_begin(NULL, NULL, &error) == DORMOUSE_INVALID);
	CHECK(!dormouse_list_next(list, NULL));
	dormouse_batch_enable(NULL, &one.key);
	dormouse_batch_disable(NULL, NULL);
	dormouse_batch_abandon(NULL);
	dormouse_list_end(NULL);
	dormouse_record(NULL, NULL, 1);

	/* A structure of a size that no version has: nothing is written, nothing is done. */
	report.size = sizeof(report) - 1;
	CHECK(dormouse_enable(&one.key, &report, &error) == DORMOUSE_INVALID && strstr(error.message, "report"));
	CHECK(report.size == sizeof(report) - 1 && report.sites == 0);
	error.size = 0;
	error.message[0] = 0;
	CHECK(dormouse_enable(&one.key, NULL, &error) == DORMOUSE_INVALID && !error.message[0]);
	CHECK(state() == 4);

	/* A longer one, of a later version, is filled as far as this version goes. */
	struct {
		struct dormouse_report report;
		uint64_t later;
	} longer = { DORMOUSE_REPORT_INIT, 42 };
	longer.report.size = sizeof(longer);
	CHECK(dormouse_enable(&one.key, &longer.report, NULL) == DORMOUSE_OK);
	CHECK(longer.report.size == sizeof(report) && longer.report.sites == 1 && longer.later == 42);
	CHECK(dormouse_disable(&one.key, NULL, NULL) == DORMOUSE_OK);
}

static void warnings(void)
{
	char all[4096], some[20];
	size_t length;

	CHECK(dormouse_warnings(all, sizeof(all)) == 0 && all[0] == 0); /* before there is an agent */
	CHECK(dormouse_init(NULL) == DORMOUSE_OK);
	length = dormouse_warnings(all, sizeof(all));
	CHECK(length == strlen(all) && all[length - 1] == '\n');
	CHECK(strstr(all, "DORMOUSE_WAITS has had no times of tasks taken: it is \"of tea\"\n"));
	CHECK(strstr(all, "DORMOUSE_ON has woken no key: nothing matches `of"));
	/* A second call starts nothing, and the warnings stay. */
	CHECK(dormouse_init(NULL) == DORMOUSE_OK);
	CHECK(dormouse_warnings(NULL, 0) == length && dormouse_warnings(NULL, 5) == length);
	memset(some, 'x', sizeof(some));
	CHECK(dormouse_warnings(some, sizeof(some) - 1) == length);
	CHECK(strlen(some) == sizeof(some) - 2 && strncmp(some, all, strlen(some)) == 0 && some[19] == 'x');
	CHECK(dormouse_warnings(some, 1) == length && some[0] == 0 && some[1] == all[1]);
}

int main(int count, char **arguments)
{
	/* The environment is read before main. */
	if (!getenv("DORMOUSE_WAITS")) {
		CHECK(count == 1 && setenv("DORMOUSE_WAITS", "of tea", 1) == 0);
		CHECK(setenv("DORMOUSE_ON", "of\n tea", 1) == 0);
		execv("/proc/self/exe", arguments);
		CHECK(0 && "not executed again");
	}
	errno = 77;
	CHECK(state() == 4);
	batches();
	leases();
	lists();
	nonsense();
	warnings();
	CHECK(errno == 77);
	puts("as promised");
	return 0;
}
