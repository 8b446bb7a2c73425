/*
 * Threads that are cancelled inside of each function: it returns, leaves the thread as it was, and the thread ends at
 * its own next point of cancellation. Each function runs in a process of its own, where it does all that is done once.
 * With an argument, only the names of the functions are said.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static DORMOUSE_KEY_NAMED(key, "cancel.key", false);
static struct dormouse_key *const keys[] = { &key.key };

__attribute__((noinline)) static bool site(void)
{
	return dormouse_unlikely(key);
}

static void call_init(void)
{
	char warnings[100];
	dormouse_init(NULL);
	dormouse_warnings(warnings, sizeof(warnings));
}

static void call_is_enabled(void)
{
	dormouse_is_enabled(&key.key);
}

static void call_enable(void)
{
	CHECK(dormouse_enable(&key.key, NULL, NULL) == DORMOUSE_OK);
}

static void call_disable(void)
{
	CHECK(dormouse_disable(&key.key, NULL, NULL) == DORMOUSE_OK);
}

static void call_acquire(void)
{
	struct dormouse_lease *lease;
	CHECK(dormouse_acquire(keys, 1, &lease, NULL, NULL) == DORMOUSE_OK);
	CHECK(site());
	CHECK(dormouse_release(lease, NULL, NULL) == DORMOUSE_OK);
}

static void call_batch(void)
{
	struct dormouse_batch *batch = dormouse_batch_begin();
	dormouse_batch_enable(batch, &key.key);
	dormouse_batch_disable(batch, &key.key);
	CHECK(dormouse_batch_apply(batch, NULL, NULL) == DORMOUSE_OK);
	dormouse_batch_abandon(dormouse_batch_begin());
}

static void call_list(void)
{
	struct dormouse_list *list;
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;
	CHECK(dormouse_list_begin(NULL, &list, NULL) == DORMOUSE_OK);
	while (dormouse_list_next(list, &info))
		;
	dormouse_list_end(list);
}

static void call_record(void)
{
	static struct dormouse_probe probe = { sizeof(probe), 0, { "", 0 } };
	dormouse_record(&probe, NULL, 0);
}

/* An object without sites, as one that is opened and closed. */
static const uint64_t object[5] = { sizeof(object), 0, 0, 0, 1 };

static void call_register(void)
{
	dormouse_register_v1((const struct dormouse_object *)(const void *)object);
	dormouse_unregister_v1((const struct dormouse_object *)(const void *)object);
}

static void call_groups(void)
{
	struct dormouse_group group = dormouse_group_new("cancelled");
	struct dormouse_task task = dormouse_task_begin(group);
	struct dormouse_entered entered = dormouse_group_enter(group), inside = dormouse_task_enter(task);
	CHECK(dormouse_group_current().number == group.number);
	CHECK(!dormouse_set_trace_context((const uint8_t *)"0123456789abcde", (const uint8_t *)"0123456"));
	CHECK(dormouse_group_leave(inside) && dormouse_group_leave(entered));
	dormouse_task_end(&task);
}

static void call_watch(void)
{
	static volatile int value;
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(value);
	struct dormouse_watch_report report = DORMOUSE_WATCH_REPORT_INIT;
	struct dormouse_watch_site site = DORMOUSE_WATCH_SITE_INIT;
	struct dormouse_watch *watch = NULL;
	/* Where the machine has no registers to give, it is refused. */
	if (dormouse_watch_begin(&spec, &watch, NULL) == DORMOUSE_OK) {
		value++;
		CHECK(dormouse_watch_read(watch, &report, NULL) == DORMOUSE_OK && report.hits == 1);
		CHECK(dormouse_watch_next(watch, &site) && site.hits == 1);
	}
	dormouse_watch_end(watch);
}

static void call_profile(void)
{
	struct dormouse_profile_spec spec = DORMOUSE_PROFILE_SPEC_INIT;
	struct dormouse_profile *profile = NULL;
	const void *bytes;
	size_t length;
	/* Where a limit leaves no timers, it is refused. */
	if (dormouse_profile_begin(&spec, &profile, NULL) == DORMOUSE_OK) {
		CHECK(dormouse_profile_read(profile, &bytes, &length, NULL) == DORMOUSE_OK && length > 20);
		CHECK(dormouse_profile_write(profile, "/dev/null", NULL) == DORMOUSE_OK);
	}
	dormouse_profile_end(profile);
}

static void call_publish(void)
{
	struct dormouse_publishing *publishing = NULL;

	/* A program that is linked with the archive does not show the thread-local, and is refused. */
	if (dormouse_publish_begin(&publishing, NULL) == DORMOUSE_OK)
		dormouse_publish_end(publishing);
}

static void call_waits(void)
{
	struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
	struct dormouse_waits *waits = NULL;
	struct dormouse_group group = dormouse_group_new("cancelled");
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	CHECK(dormouse_waits_read(waits, group, &times, NULL) == DORMOUSE_OK);
	dormouse_waits_end(waits);
}

static void call_metrics(void)
{
	struct dormouse_metrics_spec spec = DORMOUSE_METRICS_SPEC_INIT;
	struct dormouse_metrics *metrics = NULL;
	uint32_t format = dormouse_metrics_accepted(NULL);
	const void *bytes;
	size_t length;
	CHECK(dormouse_metrics_begin(&spec, &metrics, NULL) == DORMOUSE_OK);
	CHECK(dormouse_metrics_content_type(format));
	CHECK(dormouse_metrics_read(metrics, format, &bytes, &length, NULL) == DORMOUSE_OK && length > 0);
	dormouse_metrics_end(metrics);
}

static const struct {
	const char *names;
	void (*call)(void);
} all[] = {
	{ "dormouse_init dormouse_warnings", call_init },
	{ "dormouse_is_enabled", call_is_enabled },
	{ "dormouse_enable", call_enable },
	{ "dormouse_disable", call_disable },
	{ "dormouse_acquire dormouse_release", call_acquire },
	{ "dormouse_batch_begin dormouse_batch_enable dormouse_batch_disable dormouse_batch_apply dormouse_batch_abandon",
	  call_batch },
	{ "dormouse_list_begin dormouse_list_next dormouse_list_end", call_list },
	{ "dormouse_group_new dormouse_group_current dormouse_group_enter dormouse_group_leave dormouse_task_begin "
	  "dormouse_task_enter dormouse_task_end dormouse_set_trace_context",
	  call_groups },
	{ "dormouse_watch_begin dormouse_watch_read dormouse_watch_next dormouse_watch_end", call_watch },
	{ "dormouse_profile_begin dormouse_profile_read dormouse_profile_write dormouse_profile_end", call_profile },
	{ "dormouse_waits_begin dormouse_waits_read dormouse_waits_end", call_waits },
	{ "dormouse_metrics_begin dormouse_metrics_read dormouse_metrics_accepted dormouse_metrics_content_type "
	  "dormouse_metrics_end",
	  call_metrics },
	{ "dormouse_publish_begin dormouse_publish_end", call_publish },
	{ "dormouse_record", call_record },
	{ "dormouse_register_v1 dormouse_unregister_v1", call_register },
};
#define ALL (sizeof(all) / sizeof(all[0]))

static void (*function)(void);
static int returned;

static void check_state(int expected)
{
	int state;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == expected);
	CHECK(pthread_setcancelstate(state, NULL) == 0);
}

/* Cancelled before it calls. */
static void *pending(void *none)
{
	errno = 77;
	CHECK(pthread_cancel(pthread_self()) == 0);
	function();
	CHECK(errno == 77);
	check_state(PTHREAD_CANCEL_ENABLE);
	__atomic_fetch_add(&returned, 1, __ATOMIC_SEQ_CST);
	pthread_testcancel();
	CHECK(0 && "not cancelled");
	return none;
}

/* Cancelled, and not to be. */
static void *refused(void *none)
{
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
	CHECK(pthread_cancel(pthread_self()) == 0);
	function();
	check_state(PTHREAD_CANCEL_DISABLE);
	__atomic_fetch_add(&returned, 1, __ATOMIC_SEQ_CST);
	return none;
}

/* Cancelled at any moment. */
static void *cancelled(void *none)
{
	for (;;) {
		function();
		check_state(PTHREAD_CANCEL_ENABLE);
		__atomic_fetch_add(&returned, 1, __ATOMIC_SEQ_CST);
		pthread_testcancel();
	}
	return none;
}

static void attempt(void)
{
	pthread_t thread;
	void *result;

	CHECK(pthread_create(&thread, NULL, pending, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED && returned == 1);
	CHECK(pthread_create(&thread, NULL, refused, NULL) == 0);
	CHECK(pthread_join(thread, &result) == 0 && result == NULL && returned == 2);
	for (int i = 0; i < 20; i++) {
		int before = __atomic_load_n(&returned, __ATOMIC_SEQ_CST);
		CHECK(pthread_create(&thread, NULL, cancelled, NULL) == 0);
		while (__atomic_load_n(&returned, __ATOMIC_SEQ_CST) == before)
			;
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	}
	/* No lock was left behind. */
	call_enable();
	CHECK(site());
	call_disable();
	CHECK(!site());
}

int main(int count, char **arguments)
{
	(void)arguments;
	for (size_t i = 0; i < ALL; i++) {
		int status;
		pid_t child;

		if (count > 1) {
			puts(all[i].names);
			continue;
		}
		function = all[i].call;
		child = fork();
		if (child == 0) {
			attempt();
			_exit(0);
		}
		CHECK(child > 0 && waitpid(child, &status, 0) == child);
		if (status) {
			fprintf(stderr, "%s: status %d\n", all[i].names, status);
			return 1;
		}
	}
	if (count == 1)
		puts("cancelled");
	return 0;
}
