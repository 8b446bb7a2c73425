/* Times of tasks: begun, read, refused, over a fork. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static const struct dormouse_group none = { 0, 0 };

static void read_of_a_group(struct dormouse_group group)
{
	struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
	struct dormouse_waits *waits = NULL, *other = NULL;
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK && waits);
	CHECK(dormouse_waits_begin(&other, NULL) == DORMOUSE_OK && other != waits);
	memset(&times.poll_ns, 0xff, sizeof(times) - offsetof(struct dormouse_group_waits, poll_ns));
	CHECK(dormouse_waits_read(waits, group, &times, NULL) == DORMOUSE_OK);
	CHECK(times.size == sizeof(times) && times.poll_ns == 0 && times.await_ns == 0);
	CHECK(times.requests.count == 0 && times.requests.p99_ns == 0 && times.awaits.max_task == 0);
	dormouse_waits_end(waits);
	CHECK(dormouse_waits_read(other, group, &times, NULL) == DORMOUSE_OK);
	dormouse_waits_end(other);
	dormouse_waits_end(NULL);
}

static void refused(struct dormouse_group group)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
	struct dormouse_group made_up = { 77777, 0 };
	struct dormouse_waits *waits = NULL;
	CHECK(dormouse_waits_begin(NULL, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_waits_read(NULL, group, &times, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_waits_begin(&waits, &error) == DORMOUSE_OK);
	CHECK(dormouse_waits_read(waits, group, NULL, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_waits_read(waits, none, &times, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "no group"));
	CHECK(dormouse_waits_read(waits, made_up, &times, &error) == DORMOUSE_INVALID);
	times.size = 8;
	CHECK(dormouse_waits_read(waits, group, &times, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "DORMOUSE_GROUP_WAITS_INIT"));
	dormouse_waits_end(waits);
}

/* The trace of a task is kept from when it is entered while times are taken. */
static void of_a_trace(struct dormouse_group group)
{
	static const uint8_t trace_id[16] = { 0x4b, 0xf9 }, span_id[8] = { 0xf0 }, zeroes[16] = { 0 };
	struct dormouse_entered entered = dormouse_group_enter(group), inner;
	struct dormouse_waits *waits = NULL;
	CHECK(!dormouse_set_trace_context(trace_id, span_id));
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	CHECK(!dormouse_set_trace_context(trace_id, span_id));
	inner = dormouse_group_enter(group);
	CHECK(dormouse_set_trace_context(trace_id, span_id) && dormouse_set_trace_context(trace_id, NULL));
	CHECK(!dormouse_set_trace_context(NULL, span_id) && !dormouse_set_trace_context(zeroes, span_id));
	CHECK(dormouse_group_leave(inner) && !dormouse_set_trace_context(trace_id, span_id));
	dormouse_waits_end(waits);
	CHECK(dormouse_group_leave(entered));
}

static void over_a_fork(struct dormouse_group group)
{
	struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
	struct dormouse_waits *waits = NULL, *own = NULL;
	int status;
	pid_t child;
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	CHECK(dormouse_group_leave(dormouse_group_enter(group)));
	child = fork();
	if (child == 0) {
		/* The child takes times for itself: the parent's handle has none of them. */
		CHECK(dormouse_waits_begin(&own, NULL) == DORMOUSE_OK);
		CHECK(dormouse_group_leave(dormouse_group_enter(group)));
		CHECK(dormouse_waits_read(own, group, &times, NULL) == DORMOUSE_OK);
		CHECK(times.requests.count == 1);
		CHECK(dormouse_waits_read(waits, group, &times, NULL) == DORMOUSE_OK);
		CHECK(times.poll_ns == 0 && times.requests.count == 0);
		dormouse_waits_end(waits);
		dormouse_waits_end(own);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	dormouse_waits_end(waits);
}

int main(void)
{
	struct dormouse_group group;
	errno = 77;
	group = dormouse_group_new("brew");
	read_of_a_group(group);
	refused(group);
	of_a_trace(group);
	CHECK(errno == 77);
	/* One without times from before. */
	over_a_fork(dormouse_group_new("forked"));
	puts("waited");
	return 0;
}
