/*
 * Groups that are entered and left: nested, in any order, on the wrong thread, too deep, by handlers, over a fork; and
 * all of that while times are taken.
 */
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

static struct dormouse_group outer, inner;

static bool is_current(struct dormouse_group group)
{
	return dormouse_group_current().number == group.number;
}

static const struct dormouse_group none = { 0, 0 };

static void nested(void)
{
	struct dormouse_entered first = dormouse_group_enter(outer), second;
	CHECK(is_current(outer));
	second = dormouse_group_enter(inner);
	CHECK(is_current(inner));
	CHECK(dormouse_group_leave(second) && is_current(outer));
	CHECK(!dormouse_group_leave(second) && is_current(outer));
	CHECK(dormouse_group_leave(first) && is_current(none));
	CHECK(!dormouse_group_leave(first) && is_current(none));
	/* One that was left is not another one in its place. */
	second = dormouse_group_enter(outer);
	CHECK(!dormouse_group_leave(first) && is_current(outer));
	CHECK(dormouse_group_leave(second) && is_current(none));
}

static void in_the_wrong_order(void)
{
	struct dormouse_entered first = dormouse_group_enter(outer), second = dormouse_group_enter(inner);
	CHECK(dormouse_group_leave(first) && is_current(inner));
	CHECK(!dormouse_group_leave(first) && is_current(inner));
	CHECK(dormouse_group_leave(second) && is_current(none));
}

static void in_a_block(void)
{
	{
		DORMOUSE_SCOPE(outer);
		DORMOUSE_SCOPE(inner);
		CHECK(is_current(inner));
	}
	CHECK(is_current(none));
#ifdef __cplusplus
	try {
		dormouse_scope scope(outer);
		CHECK(is_current(outer));
		throw 1;
	} catch (int) {
		CHECK(is_current(none));
	}
#endif
}

static void of_nothing(void)
{
	struct dormouse_entered entered;
	struct dormouse_task task = dormouse_task_begin(none);
	struct dormouse_group unknown = { 77777, 0 };
	CHECK(dormouse_group_new(NULL).number == 0);
	CHECK(dormouse_group_leave(dormouse_group_enter(none)) && is_current(none));
	CHECK(dormouse_group_leave(dormouse_group_enter(unknown)) && is_current(none));
	CHECK(dormouse_group_leave(dormouse_task_enter(task)));
	dormouse_task_end(&task);
	dormouse_task_end(NULL);
	memset(&entered, 0xff, sizeof(entered));
	CHECK(!dormouse_group_leave(entered));
	CHECK(dormouse_group_new("outer").number == outer.number && inner.number != outer.number);
}

static void too_deep(void)
{
	struct dormouse_entered all[40];
	for (int i = 0; i < 40; i++) {
		all[i] = dormouse_group_enter(i % 2 ? inner : outer);
		CHECK(is_current(i % 2 || i >= 32 ? inner : outer));
	}
	for (int i = 40; i-- > 0;)
		CHECK(dormouse_group_leave(all[i]));
	CHECK(is_current(none));
}

static struct dormouse_entered of_main;
static struct dormouse_task task;

static void *on_another_thread(void *carried)
{
	struct dormouse_entered entered;
	CHECK(is_current(none) && !dormouse_group_leave(of_main));
	/* Also where the other thread has something in that place. */
	entered = dormouse_group_enter(inner);
	CHECK(!dormouse_group_leave(of_main) && is_current(inner));
	CHECK(dormouse_group_leave(entered));

	entered = dormouse_group_enter(*(const struct dormouse_group *)carried);
	CHECK(is_current(outer) && dormouse_group_leave(entered));
	entered = dormouse_task_enter(task);
	CHECK(is_current(inner) && dormouse_group_leave(entered));
	/* It ends inside. */
	dormouse_group_enter(outer);
	return NULL;
}

static void handed_on(void)
{
	pthread_t thread;
	struct dormouse_group carried;
	struct dormouse_entered entered;
	of_main = dormouse_group_enter(outer);
	carried = dormouse_group_current();
	task = dormouse_task_begin(inner);
	entered = dormouse_task_enter(task);
	CHECK(is_current(inner) && dormouse_group_leave(entered) && is_current(outer));
	CHECK(pthread_create(&thread, NULL, on_another_thread, &carried) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(is_current(outer) && dormouse_group_leave(of_main));
	dormouse_task_end(&task);
	CHECK(task.number == 0 && task.group.number == 0);
	dormouse_task_end(&task);
}

static volatile sig_atomic_t handled;

static void handler(int number)
{
	struct dormouse_entered entered = dormouse_group_enter(inner);
	(void)number;
	dormouse_group_leave(entered);
	handled++;
}

static void *storm(void *target)
{
	/* Each is sent when the one before it was handled. */
	for (int i = 0; i < 500; i++) {
		pthread_kill(*(pthread_t *)target, SIGUSR1);
		while (handled <= i)
			;
	}
	return NULL;
}

static void by_handlers(void)
{
	struct sigaction action;
	pthread_t own = pthread_self(), thread;
	memset(&action, 0, sizeof(action));
	action.sa_handler = handler;
	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
	handled = 0;
	CHECK(pthread_create(&thread, NULL, storm, &own) == 0);
	while (handled < 500) {
		struct dormouse_entered first = dormouse_group_enter(outer), second = dormouse_group_enter(outer);
		CHECK(is_current(outer));
		CHECK(dormouse_group_leave(second) && dormouse_group_leave(first));
	}
	CHECK(pthread_join(thread, NULL) == 0 && is_current(none));
}

static void over_a_fork(void)
{
	struct dormouse_entered entered = dormouse_group_enter(outer);
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct dormouse_entered more;
		CHECK(is_current(outer));
		more = dormouse_group_enter(inner);
		CHECK(is_current(inner) && dormouse_group_leave(more));
		CHECK(dormouse_group_leave(entered) && is_current(none));
		CHECK(dormouse_group_new("of the child").number != 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(is_current(outer) && dormouse_group_leave(entered));
}

static void all(void)
{
	errno = 77;
	nested();
	in_the_wrong_order();
	in_a_block();
	of_nothing();
	too_deep();
	CHECK(errno == 77);
	handed_on();
	by_handlers();
	over_a_fork();
}

int main(void)
{
	struct dormouse_waits *waits;
	errno = 77;
	CHECK(is_current(none));
	outer = dormouse_group_new("outer");
	inner = dormouse_group_new("inner");
	CHECK(errno == 77);
	all();
	CHECK(dormouse_waits_begin(&waits, NULL) == DORMOUSE_OK);
	all();
	dormouse_waits_end(waits);
	all();
	puts("left");
	return 0;
}
