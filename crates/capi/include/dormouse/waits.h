/*
 * dormouse/waits.h: where the tasks of a group spend their time. dormouse/keys.h has the rules for all functions.
 *
 *     #include <dormouse/waits.h>
 *
 *     struct dormouse_group_waits times = DORMOUSE_GROUP_WAITS_INIT;
 *     struct dormouse_waits *waits;
 *
 *     if (dormouse_waits_begin(&waits, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *     sleep(10);
 *     dormouse_waits_read(waits, orders, &times, NULL);
 *     printf("99 of 100 requests within %" PRIu64 " ns\n", times.requests.p99_ns);
 *     dormouse_waits_end(waits);
 *
 * A task that is entered (TIMES in dormouse/groups.h), or a future of Rust's that is polled, is in a poll; from its
 * begin to the first entry it is runnable, as a future is that was woken and not polled yet; else it is awaiting. An
 * entry is in no histogram of polls: those are of futures.
 *
 * COST. Nothing while times are not taken; then some 100 ns for each task and entry. Reading visits each thread and
 * each living task.
 *
 * SIGNALS. None of these functions is async-signal-safe.
 *
 * In a forked child, waits that the parent has begun return no times, and can be ended.
 */
#ifndef DORMOUSE_WAITS_H
#define DORMOUSE_WAITS_H

#include <dormouse/groups.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Durations of one kind. The error of the quantiles is at most 4.4 %. All zeroes if there were none. */
struct dormouse_durations {
	uint64_t count;
	uint64_t p50_ns;
	uint64_t p90_ns;
	uint64_t p99_ns;
	uint64_t max_ns;
	uint64_t max_task; /* the number of the task with the longest; 0 if it is unknown */
};

/* The times of a group's tasks: sums, and the distributions of single durations. */
struct dormouse_group_waits {
	uint32_t size;
	uint32_t reserved;
	uint64_t poll_ns;                   /* in polls and entered, on a CPU or not */
	uint64_t runnable_ns;               /* from a begin or a wake to what follows: an entry or a poll */
	uint64_t await_ns;                  /* from the end of an entry to the next, of a poll to the next wake */
	struct dormouse_durations requests; /* from the begin of a request to its end */
	struct dormouse_durations polls;    /* of futures */
	struct dormouse_durations delays;   /* each time that a task was runnable */
	struct dormouse_durations awaits;
};

#define DORMOUSE_DURATIONS_INIT_ { 0, 0, 0, 0, 0, 0 }
#define DORMOUSE_GROUP_WAITS_INIT \
	{ sizeof(struct dormouse_group_waits), 0, 0, 0, 0, DORMOUSE_DURATIONS_INIT_, DORMOUSE_DURATIONS_INIT_, \
	  DORMOUSE_DURATIONS_INIT_, DORMOUSE_DURATIONS_INIT_ }

/* While this exists, times of all groups are taken. Any thread may read them. */
struct dormouse_waits;

/* Begins to take times. */
enum dormouse_code dormouse_waits_begin(struct dormouse_waits **waits, struct dormouse_error *error);

/* The times of a group since dormouse_waits_begin. For the times of another interval, begin once more. */
enum dormouse_code dormouse_waits_read(const struct dormouse_waits *waits, struct dormouse_group group,
				       struct dormouse_group_waits *times, struct dormouse_error *error);

/* Ends it: times are taken until every begin has been ended. Does nothing if `waits` is NULL. */
void dormouse_waits_end(struct dormouse_waits *waits);

/* The layout is an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_group_waits) == 224);

#ifdef __cplusplus
}
#endif

#endif
