/*
 * dormouse/groups.h: who pays. A group is a kind of work: a route, a job, a queue's consumer. A task is one piece of it:
 * a request. What a thread uses while a task is entered on it is charged to the task's group: `dormouse top` and
 * `dormouse stat` show it. dormouse/keys.h says what holds for all functions.
 *
 *     #include <dormouse/groups.h>
 *
 *     static struct dormouse_group orders;
 *
 *     void serve(struct request *request)
 *     {
 *             struct dormouse_entered entered = dormouse_group_enter(orders);
 *             answer(request);
 *             dormouse_group_leave(entered);
 *     }
 *
 *     int main(void)
 *     {
 *             orders = dormouse_group_new("POST /orders");
 *             ...
 *
 * COST, on a machine whose clock_gettime(CLOCK_THREAD_CPUTIME_ID) takes 520 ns. To enter and leave takes 50 to
 * 100 ns, whether CPU time is counted or not. No allocation, no lock; a system call for a thread's first, and
 * where an event is counted that takes one to read. dormouse_group_new looks a name up in a table, without a lock, and
 * allocates for a new one: keep what it returns.
 *
 * SIGNALS. All but dormouse_group_new are async-signal-safe once the thread has entered a group outside of a handler. A
 * handler leaves what it enters. errno is as it was.
 *
 * TIMES. A task that C begins has no polls, so `dormouse stat --waits` shows it on a CPU, and not what it waits for.
 *
 * A forked child goes on in the group that its thread was in. A thread that ends inside of a group is charged to its end,
 * and its task counts as alive for good: where threads are cancelled, leave by pthread_cleanup_push or DORMOUSE_SCOPE.
 */
#ifndef DORMOUSE_GROUPS_H
#define DORMOUSE_GROUPS_H

#include <dormouse/keys.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group, for as long as the process lives. All zeroes is none: work in it is charged to none. */
struct dormouse_group {
	uint32_t number;
	uint32_t flags; /* the library's, as are all fields below */
};

/* A piece of work that is begun and ended by hand. All zeroes is none. */
struct dormouse_task {
	uint64_t number;
	struct dormouse_group group;
};

/* What is to be left. All zeroes is nothing. */
struct dormouse_entered {
	struct dormouse_task task;
	uint64_t place;
};

/*
 * The group of that name, the same one for the same name; none if the name is NULL or there is no memory. Name groups by
 * kind of work, never by request: there are at most 1024, and the names beyond share the group `other`.
 */
struct dormouse_group dormouse_group_new(const char *name);

/*
 * The innermost group that is entered on this thread, for work that is handed on: entered elsewhere, it is a part of the
 * request, and is not counted as another one. None outside of groups.
 */
struct dormouse_group dormouse_group_current(void);

/*
 * Begins a task of the group and enters it on this thread. Groups nest: while an inner one is entered the outer one
 * stands still. Deeper than 32, time is charged to what is there.
 */
struct dormouse_entered dormouse_group_enter(struct dormouse_group group);

/*
 * Leaves what was entered on this thread, and ends the task that dormouse_group_enter has begun. In any order: what was
 * entered inside goes on. False, and nothing has happened, if it was left already or was entered on another thread.
 */
bool dormouse_group_leave(struct dormouse_entered entered);

/*
 * Work that is handed on takes its group along as a value: the one thread stores dormouse_group_current() with the
 * work, the other one enters it. Work that is one task on many threads, as a request of an event loop, is begun once and
 * entered for each stretch, on one thread at a time:
 *
 *     request->task = dormouse_task_begin(orders);       when it comes
 *
 *     entered = dormouse_task_enter(request->task);      on each thread that works on it
 *     ...
 *     dormouse_group_leave(entered);
 *
 *     dormouse_task_end(&request->task);                 when it is answered, outside of it
 *
 * dormouse_task_end makes the task none; copies of it are not to be used any more.
 */
struct dormouse_task dormouse_task_begin(struct dormouse_group group);
struct dormouse_entered dormouse_task_enter(struct dormouse_task task);
void dormouse_task_end(struct dormouse_task *task);

/*
 * Says to which distributed trace the task belongs that is entered on this thread, for timelines with the records of
 * `dormouse.trace_context`; and, of a task that Rust polls, for files of slow requests, exemplars of latencies and
 * `dormouse tasks`, while somebody has times taken (dormouse/waits.h). True if it is kept for those: of a task of C's,
 * which has no times, never. The ids are those of W3C's Trace Context, 16 and 8 bytes; a span that is not known is NULL or
 * all zeroes.
 */
bool dormouse_set_trace_context(const uint8_t trace_id[16], const uint8_t span_id[8]);

static inline void dormouse_leave_(const struct dormouse_entered *entered)
{
	dormouse_group_leave(*entered);
}

#ifdef __cplusplus
}

/*
 * C++: the group, or the task, is entered as long as the object lives.
 *
 *     dormouse_scope scope(orders);
 */
class dormouse_scope {
public:
	explicit dormouse_scope(dormouse_group group) noexcept : entered_(dormouse_group_enter(group)) {}
	explicit dormouse_scope(dormouse_task task) noexcept : entered_(dormouse_task_enter(task)) {}
	~dormouse_scope() { dormouse_group_leave(entered_); }
	dormouse_scope(const dormouse_scope &) = delete;
	dormouse_scope &operator=(const dormouse_scope &) = delete;

private:
	dormouse_entered entered_;
};
#endif

/*
 * The rest of the block is a task of the group, however it ends: `return`, `goto`, with -fexceptions also a thread's
 * cancellation and pthread_exit. A declaration.
 *
 *     DORMOUSE_SCOPE(orders);
 */
#define DORMOUSE_SCOPE(group) DORMOUSE_SCOPE_(group, __COUNTER__)
#define DORMOUSE_SCOPE_(group, number) DORMOUSE_SCOPE_NAMED_(group, number)
#define DORMOUSE_SCOPE_NAMED_(group, number) \
	__attribute__((cleanup(dormouse_leave_), unused)) const struct dormouse_entered dormouse_scope_##number##_ = \
		dormouse_group_enter(group)

#endif
