/* Times of C's tasks: latencies and stretches of known length, outdated and copied tokens, over a fork. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <inttypes.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct dormouse_waits *waits;

static uint64_t now_ns(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (uint64_t)now.tv_sec * 1000000000U + (uint64_t)now.tv_nsec;
}

static void nap(long ms)
{
	struct timespec rest = { 0, ms * 1000000 };
	while (nanosleep(&rest, &rest) != 0)
		;
}

/* A duration lies between these two: one was begun later and ended earlier, the other the other way round. */
struct bounds {
	uint64_t least, most;
};

/* The two clocks may run differently: on a busy machine the rate of one is measured less exactly. */
static void check_between(uint64_t ns, struct bounds bounds, int line)
{
	if (ns < bounds.least - bounds.least / 64 || ns > bounds.most + bounds.most / 64) {
		fprintf(stderr, "line %d: %" PRIu64 " is not in %" PRIu64 "..%" PRIu64 "\n", line, ns, bounds.least,
			bounds.most);
		exit(1);
	}
}
#define CHECK_BETWEEN(ns, bounds) check_between(ns, bounds, __LINE__)

static struct dormouse_group_waits times_of(struct dormouse_group group)
{
	struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
	CHECK(dormouse_waits_read(waits, group, &times, NULL) == DORMOUSE_OK);
	return times;
}

/* Nothing of the group goes on: neither a stretch nor a wait. */
static void check_still(struct dormouse_group group)
{
	struct dormouse_group_waits before = times_of(group), after;
	nap(2);
	after = times_of(group);
	CHECK(memcmp(&before, &after, sizeof(before)) == 0);
}

/* A scope in which the thread sleeps. */
static struct bounds sleep_in(struct dormouse_group group, long ms)
{
	uint64_t before = now_ns(), inside, asleep;
	struct dormouse_entered entered = dormouse_group_enter(group);
	inside = now_ns();
	nap(ms);
	asleep = now_ns() - inside;
	CHECK(dormouse_group_leave(entered));
	{
		struct bounds bounds = { asleep, now_ns() - before };
		return bounds;
	}
}

static struct bounds sum(struct bounds one, struct bounds other)
{
	struct bounds both = { one.least + other.least, one.most + other.most };
	return both;
}

static void scopes(void)
{
	struct dormouse_group group = dormouse_group_new("scopes");
	struct bounds short_one = sleep_in(group, 3), long_one = sleep_in(group, 20), middle = sleep_in(group, 6), all;
	struct dormouse_group_waits times = times_of(group);
	struct dormouse_entered entered;
	CHECK(times.requests.count == 3 && times.polls.count == 0 && times.awaits.count == 0);
	CHECK_BETWEEN(times.requests.max_ns, long_one);
	CHECK(times.requests.max_task != 0);
	all = sum(sum(short_one, long_one), middle);
	CHECK_BETWEEN(times.poll_ns, all);
	/* From the end of a stretch to that of its task. */
	CHECK(times.await_ns < all.most - all.least);
	/* A part of a request is none. */
	entered = dormouse_group_enter(group);
	sleep_in(group, 1);
	sleep_in(dormouse_group_current(), 1);
	CHECK(dormouse_group_leave(entered));
	CHECK(times_of(group).requests.count == 4);
	check_still(group);
}

static struct dormouse_task task;
/* When a thread was about to leave it. */
static uint64_t leaving;

static void *go_on(void *bounds)
{
	uint64_t before = now_ns(), inside, asleep;
	struct dormouse_entered entered = dormouse_task_enter(task);
	inside = now_ns();
	nap(10);
	leaving = now_ns();
	asleep = leaving - inside;
	CHECK(dormouse_group_leave(entered));
	((struct bounds *)bounds)->least = asleep;
	((struct bounds *)bounds)->most = now_ns() - before;
	return NULL;
}

static void on_two_threads(void)
{
	struct dormouse_group group = dormouse_group_new("two threads");
	struct bounds stretch, other, whole, between;
	struct dormouse_group_waits times;
	uint64_t number, before = now_ns(), begun, end, since, left;
	pthread_t thread;
	task = dormouse_task_begin(group);
	begun = now_ns();
	number = task.number;
	go_on(&stretch);
	left = leaving;
	since = now_ns();
	nap(5);
	between.least = now_ns() - since;
	CHECK(pthread_create(&thread, NULL, go_on, &other) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	between.most = now_ns() - left;
	whole.least = now_ns() - begun;
	dormouse_task_end(&task);
	end = now_ns();
	whole.most = end - before;
	times = times_of(group);
	CHECK(times.requests.count == 1 && times.requests.max_task == number);
	CHECK_BETWEEN(times.requests.max_ns, whole);
	CHECK_BETWEEN(times.poll_ns, sum(stretch, other));
	CHECK(times.awaits.count == 1 && times.awaits.max_task == number && times.polls.count == 0);
	CHECK_BETWEEN(times.awaits.max_ns, between);
	check_still(group);
}

/* A token that has ended, and a copy of it, touch no other task. */
static void outdated(void)
{
	struct dormouse_group group = dormouse_group_new("outdated"), other = dormouse_group_new("other one");
	struct dormouse_task old = dormouse_task_begin(group), copy = old, next;
	struct dormouse_entered entered;
	struct bounds whole;
	uint64_t before, begun, number;
	dormouse_task_end(&old);
	CHECK(old.number == 0 && copy.number != 0);
	dormouse_task_end(&old);
	/* It has the place of the one before. */
	before = now_ns();
	next = dormouse_task_begin(other);
	begun = now_ns();
	number = next.number;
	entered = dormouse_task_enter(copy);
	nap(2);
	dormouse_task_end(&copy);
	CHECK(dormouse_group_leave(entered) && !dormouse_group_leave(entered));
	copy = next;
	/* In the midst of itself. */
	entered = dormouse_task_enter(next);
	whole.least = now_ns() - begun;
	dormouse_task_end(&next);
	whole.most = now_ns() - before;
	CHECK(dormouse_group_leave(entered));
	dormouse_task_end(&copy);
	CHECK(times_of(group).requests.count == 1);
	CHECK(times_of(other).requests.count == 1 && times_of(other).requests.max_task == number);
	CHECK_BETWEEN(times_of(other).requests.max_ns, whole);
	check_still(group);
	check_still(other);
}

static void in_the_wrong_order(void)
{
	struct dormouse_group outer = dormouse_group_new("left first"), inner = dormouse_group_new("left last");
	uint64_t before = now_ns(), between, after;
	struct dormouse_entered first = dormouse_group_enter(outer), second = dormouse_group_enter(inner);
	struct bounds of_inner;
	CHECK(dormouse_group_leave(first));
	between = now_ns();
	nap(5);
	after = now_ns();
	CHECK(dormouse_group_leave(second));
	of_inner.least = after - between;
	of_inner.most = now_ns() - before;
	CHECK(times_of(outer).requests.count == 1 && times_of(outer).requests.max_ns <= between - before);
	CHECK(times_of(inner).requests.count == 1);
	CHECK_BETWEEN(times_of(inner).requests.max_ns, of_inner);
	CHECK_BETWEEN(times_of(inner).poll_ns, of_inner);
	check_still(outer);
	check_still(inner);
}

/* What cannot be entered has no latency. */
static void too_deep(void)
{
	struct dormouse_group groups[] = { dormouse_group_new("even"), dormouse_group_new("odd") };
	struct dormouse_entered all[40];
	uint64_t entered[] = { 0, 0 };
	for (int i = 0; i < 40; i++) {
		all[i] = dormouse_group_enter(groups[i % 2]);
		entered[i % 2] += all[i].task.number != 0;
	}
	CHECK(entered[0] + entered[1] < 40);
	for (int i = 40; i-- > 0;)
		CHECK(dormouse_group_leave(all[i]));
	for (int i = 0; i < 2; i++) {
		CHECK(times_of(groups[i]).requests.count == entered[i]);
		check_still(groups[i]);
	}
}

/* A task that began before times were taken has its stretches, and no latency. */
static void begun_before(struct dormouse_task before)
{
	struct dormouse_group group = before.group;
	struct bounds stretch;
	task = before;
	go_on(&stretch);
	dormouse_task_end(&task);
	CHECK(times_of(group).requests.count == 0);
	CHECK_BETWEEN(times_of(group).poll_ns, stretch);
	check_still(group);
}

static void over_a_fork(void)
{
	struct dormouse_group group = dormouse_group_new("forked");
	struct dormouse_task copied = dormouse_task_begin(group);
	struct dormouse_entered entered = dormouse_group_enter(group);
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct dormouse_waits *of_parent = waits;
		CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
		CHECK(dormouse_group_leave(entered));
		CHECK(dormouse_group_leave(dormouse_task_enter(copied)));
		dormouse_task_end(&copied);
		CHECK(times_of(group).requests.count == 0);
		CHECK(times_of(group).requests.max_ns == 0);
		sleep_in(group, 2);
		CHECK(times_of(group).requests.count == 1);
		check_still(group);
		dormouse_waits_end(of_parent);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(dormouse_group_leave(entered));
	CHECK(times_of(group).requests.count == 1);
	CHECK(dormouse_group_leave(dormouse_task_enter(copied)));
	dormouse_task_end(&copied);
	CHECK(times_of(group).requests.count == 2);
	check_still(group);
}

int main(void)
{
	struct dormouse_task before = dormouse_task_begin(dormouse_group_new("before"));
	struct dormouse_entered entered = dormouse_group_enter(dormouse_group_new("around"));
	struct dormouse_group around = dormouse_group_current();
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	scopes();
	on_two_threads();
	outdated();
	in_the_wrong_order();
	too_deep();
	begun_before(before);
	over_a_fork();
	CHECK(dormouse_group_leave(entered) && times_of(around).requests.count == 0);
	/* One that is left after the last times were taken is no stretch of the next ones. */
	entered = dormouse_group_enter(around);
	dormouse_waits_end(waits);
	CHECK(dormouse_group_leave(entered));
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	check_still(around);
	CHECK(times_of(around).requests.count == 0);
	dormouse_waits_end(waits);
	puts("timed");
	return 0;
}
