/* Who writes a variable: on every thread, with values, groups and stacks; what is refused, and what a fork has. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static volatile int balance;
static volatile char page[64] __attribute__((aligned(64)));
static struct dormouse_group transfers;

__attribute__((noinline)) static void withdraw(int amount)
{
	balance -= amount;
	__asm__ volatile("");
}

/* With a frame, so that its caller can be told. */
__attribute__((noinline)) static void deposit(int amount)
{
	balance += amount;
	__asm__ volatile("" : : "r"(__builtin_frame_address(0)));
}

/* Whether a place lies in a function, or a little behind its beginning. */
static bool is_in(const void *place, void (*function)(int))
{
	uintptr_t distance = (uintptr_t)place - (uintptr_t)function;
	return distance > 0 && distance < 64;
}

static void *earlier(void *none);

/* Whether a return address leads into the function that deposits. */
static bool is_caller(const void *place)
{
	uintptr_t distance = (uintptr_t)place - (uintptr_t)earlier;
	return distance > 0 && distance < 128;
}

static struct dormouse_watch *begun(const struct dormouse_watch_spec *spec)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_watch *watch = NULL;
	if (dormouse_watch_begin(spec, &watch, &error) != DORMOUSE_OK)
		fprintf(stderr, "%d: %s\n", error.code, error.message);
	CHECK(watch);
	return watch;
}

static struct dormouse_watch_report counted(struct dormouse_watch *watch)
{
	struct dormouse_watch_report report = DORMOUSE_WATCH_REPORT_INIT;
	CHECK(dormouse_watch_read(watch, &report, NULL) == DORMOUSE_OK && report.size == sizeof(report));
	return report;
}

static pthread_barrier_t begin;

static void *earlier(void *none)
{
	pthread_barrier_wait(&begin);
	for (int i = 0; i < 100; i++)
		deposit(2);
	return none;
}

static void *later(void *none)
{
	for (int i = 0; i < 50; i++)
		withdraw(1);
	return none;
}

static void every_thread_is_seen(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
	struct dormouse_watch_report report;
	struct dormouse_watch_site first = DORMOUSE_WATCH_SITE_INIT, second = first, third = first;
	struct dormouse_watch *watch;
	pthread_t threads[2];

	/* So that it never rests. */
	spec.rate = UINT32_MAX;
	CHECK(pthread_barrier_init(&begin, NULL, 2) == 0);
	CHECK(pthread_create(&threads[0], NULL, earlier, NULL) == 0);
	watch = begun(&spec);
	CHECK(!dormouse_watch_next(watch, &first));
	pthread_barrier_wait(&begin);
	CHECK(pthread_create(&threads[1], NULL, later, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);

	report = counted(watch);
	CHECK(report.hits == 150 && report.delivered == 150 && report.passed == 150 && report.lost == 0);
	CHECK(report.state == DORMOUSE_WATCH_ARMED && report.threads_armed == report.threads_alive);
	CHECK(report.sites == 2 && report.armed_ns && report.armed_ns <= report.wall_ns);
	/* The place with most hits comes first. */
	CHECK(dormouse_watch_next(watch, &first) && dormouse_watch_next(watch, &second));
	CHECK(!dormouse_watch_next(watch, &third) && third.hits == 0);
	CHECK(first.size == sizeof(first) && first.hits == 100 && second.hits == 50);
	CHECK(is_in(first.address, deposit) && is_in(second.address, withdraw));
	CHECK(first.thread != second.thread && first.group.number == 0 && first.time_ns);
	CHECK(first.depth > 0 && is_caller(first.stack[0]));
	dormouse_watch_end(watch);
}

static void filters_hold(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
	struct dormouse_watch_report report;
	struct dormouse_watch_site site = DORMOUSE_WATCH_SITE_INIT;
	struct dormouse_watch *watch;
	struct dormouse_entered entered;

	balance = 10;
	spec.flags = DORMOUSE_WATCH_CHANGED;
	watch = begun(&spec);
	deposit(0);
	deposit(5);
	report = counted(watch);
	CHECK(report.hits == 2 && report.passed == 1);
	CHECK(dormouse_watch_next(watch, &site) && site.before == 10 && site.after == 15);
	dormouse_watch_end(watch);

	spec.flags = DORMOUSE_WATCH_EQUALS;
	spec.equals = 0x14;
	spec.mask = 0xff;
	watch = begun(&spec);
	deposit(0x100);
	deposit(5);
	report = counted(watch);
	CHECK(report.hits == 2 && report.passed == 1);
	dormouse_watch_end(watch);

	spec.flags = 0;
	spec.mask = 0;
	spec.group = transfers;
	for (uint32_t scoped = 0; scoped <= DORMOUSE_WATCH_SCOPED; scoped += DORMOUSE_WATCH_SCOPED) {
		spec.flags = scoped;
		watch = begun(&spec);
		deposit(1);
		entered = dormouse_group_enter(transfers);
		withdraw(1);
		dormouse_group_leave(entered);
		deposit(1);
		report = counted(watch);
		CHECK(report.passed == 1 && report.sites == 1);
		CHECK(dormouse_watch_next(watch, &site) && site.group.number == transfers.number && site.task);
		CHECK(is_in(site.address, withdraw));
		dormouse_watch_end(watch);
	}
}

static void a_maximum_ends_it(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
	struct dormouse_watch *watch;

	spec.most = 3;
	watch = begun(&spec);
	/* Another thread disarms it, a moment after the last one. */
	for (int i = 0; i < 100000 && counted(watch).state != DORMOUSE_WATCH_OVER; i++)
		deposit(1);
	CHECK(counted(watch).state == DORMOUSE_WATCH_OVER && counted(watch).passed >= 3);
	dormouse_watch_end(watch);
}

static void what_cannot_be_is_refused(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(page), empty = DORMOUSE_WATCH_SPEC_INIT;
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_watch *watch = NULL, *held[4];
	struct dormouse_watch_site site = DORMOUSE_WATCH_SITE_INIT;
	struct dormouse_group unknown = { 77777, 0 };
	int count = 0;

	CHECK(dormouse_watch_begin(NULL, &watch, &error) == DORMOUSE_INVALID && error.code == DORMOUSE_INVALID);
	CHECK(dormouse_watch_begin(&spec, NULL, NULL) == DORMOUSE_INVALID);
	CHECK(dormouse_watch_begin(&empty, &watch, &error) == DORMOUSE_INVALID);
	empty.size--;
	CHECK(dormouse_watch_begin(&empty, &watch, NULL) == DORMOUSE_INVALID);
	spec.length = 4;
	spec.access = 77;
	CHECK(dormouse_watch_begin(&spec, &watch, NULL) == DORMOUSE_INVALID);
	spec.access = DORMOUSE_WRITE;
	spec.flags = 1u << 31;
	CHECK(dormouse_watch_begin(&spec, &watch, NULL) == DORMOUSE_INVALID);
	spec.flags = DORMOUSE_WATCH_SCOPED;
	CHECK(dormouse_watch_begin(&spec, &watch, NULL) == DORMOUSE_INVALID);
	spec.flags = 0;
	spec.group = unknown;
	CHECK(dormouse_watch_begin(&spec, &watch, NULL) == DORMOUSE_INVALID);
	spec.group.number = 0;
	CHECK(!watch);

	/* Fill, be refused, release, succeed. */
	for (; count < 4; count++) {
		spec.address = &page[count * 8];
		spec.name = "page";
		if (dormouse_watch_begin(&spec, &held[count], &error) != DORMOUSE_OK)
			break;
	}
	CHECK(count == 3 && error.code == DORMOUSE_NO_REGISTER && strstr(error.message, "page"));
	dormouse_watch_end(held[--count]);
	watch = begun(&spec);
	dormouse_watch_end(watch);
	while (count)
		dormouse_watch_end(held[--count]);

	CHECK(dormouse_watch_read(NULL, NULL, NULL) == DORMOUSE_INVALID && !dormouse_watch_next(NULL, &site));
	watch = begun(&spec);
	CHECK(dormouse_watch_read(watch, NULL, NULL) == DORMOUSE_OK && !dormouse_watch_next(watch, NULL));
	dormouse_watch_end(watch);
	dormouse_watch_end(NULL);
}

static void a_fork_is_not_watched(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
	struct dormouse_watch *watch = begun(&spec);
	int status;
	pid_t child = fork();

	if (child == 0) {
		signal(SIGTRAP, SIG_DFL);
		deposit(1);
		CHECK(counted(watch).state == DORMOUSE_WATCH_OVER);
		dormouse_watch_end(watch);
		deposit(1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	deposit(1);
	CHECK(counted(watch).hits == 1);
	dormouse_watch_end(watch);
}

int main(void)
{
	struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
	struct dormouse_watch *watch = NULL;
	enum dormouse_code code = dormouse_watch_begin(&spec, &watch, NULL);

	if (code == DORMOUSE_DENIED || code == DORMOUSE_NO_REGISTER || code == DORMOUSE_OTHER) {
		/* No registers here, or not for this user. */
		puts("found");
		return 0;
	}
	CHECK(code == DORMOUSE_OK);
	dormouse_watch_end(watch);
	transfers = dormouse_group_new("transfers");
	errno = 77;
	every_thread_is_seen();
	filters_hold();
	a_maximum_ends_it();
	what_cannot_be_is_refused();
	CHECK(errno == 77);
	a_fork_is_not_watched();
	puts("found");
	return 0;
}
