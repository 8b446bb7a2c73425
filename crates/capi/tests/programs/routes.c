/*
 * A service with two routes: for each line on standard input a request of each, whose known CPU time it says. The second
 * one is handed on to a worker.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <pthread.h>
#include <time.h>

#include "check.h"

static struct dormouse_group tea, cake;

static long long cpu_ns(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
	return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Uses so much CPU time, and says how much it was. */
static long long burn(long long ns)
{
	long long begin = cpu_ns(), used;
	while ((used = cpu_ns() - begin) < ns)
		;
	return used;
}

struct order {
	struct dormouse_task task;
	struct dormouse_group pays;
	long long used, handed_on;
};

static void *work(void *argument)
{
	struct order *order = (struct order *)argument;
	struct dormouse_entered entered = dormouse_task_enter(order->task);
	order->used += burn(40000000);
	dormouse_group_leave(entered);
	burn(20000000); /* of no group */
	{
#ifdef __cplusplus
		dormouse_scope scope(order->pays);
#else
		DORMOUSE_SCOPE(order->pays);
#endif
		order->handed_on = burn(20000000);
	}
	return NULL;
}

int main(void)
{
	char line[16];
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	if (dormouse_init(&error) != DORMOUSE_OK) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	tea = dormouse_group_new("GET /tea");
	cake = dormouse_group_new("GET /cake");
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		pthread_t worker;
		struct dormouse_entered entered = dormouse_group_enter(tea);
		struct order order = { dormouse_task_begin(cake), dormouse_group_current(), 0, 0 };
		long long used = burn(60000000);
		dormouse_group_leave(entered);
		entered = dormouse_task_enter(order.task);
		order.used = burn(10000000);
		dormouse_group_leave(entered);
		CHECK(pthread_create(&worker, NULL, work, &order) == 0);
		CHECK(pthread_join(worker, NULL) == 0);
		dormouse_task_end(&order.task);
		printf("%lld %lld\n", used + order.handed_on, order.used);
		fflush(stdout);
	}
	return 0;
}
