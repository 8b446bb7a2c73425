/*
 * dormouse/groups.h: charging work to groups. A group is a kind of work: a route, a job, a queue's consumer. A task is
 * one piece of it: a request. While a task is entered on a thread, the thread's CPU time is charged to the task's
 * group: `dormouse top` and `dormouse stat` show it. dormouse/keys.h has the rules for all functions.
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
 * COST, on a machine whose clock_gettime(CLOCK_THREAD_CPUTIME_ID) takes 520 ns. Entering and leaving take 50 to 100 ns
 * together, whether CPU time is counted or not. No allocation, no lock; a system call the first time on a thread, and
 * for counted events whose read is one. While times are taken, some 100 ns more, and a system call for memory now and
 * then, which stays with the process. dormouse_group_new looks a name up in a table, without a lock, and allocates
 * for a new name: keep what it returns.
 *
 * SIGNALS. All but dormouse_group_new are async-signal-safe once the thread has entered a group outside of a handler. A
 * handler must leave every group that it enters. errno is as it was. Times that a handler adds in the midst of one of
 * these functions may be lost.
 *
 * TIMES. While somebody takes times (`dormouse stat --waits`, a trigger, an objective, dormouse/waits.h), a task has
 * its age from begin to end, which is the latency of a request; and the times in which it is entered (`on CPU`, or
 * `stalled` if its thread does not run), begun and not entered yet (`runnable`), and between two entries (`awaiting`).
 * A task that began before has no age, and the times of its entries alone, each as if it were another task. Any other
 * task that is entered once more while it is entered goes on with the first entry's time.
 *
 * A forked child goes on in the group that its thread was in. A thread that ends inside of a group is charged to its
 * end, and its task counts as alive, and grows older, for good: where threads are cancelled, leave by pthread_cleanup_push or
 * DORMOUSE_SCOPE.
 *
 * LONGJMP. longjmp leaves nothing, not even a DORMOUSE_SCOPE: a group that was entered between setjmp and longjmp stays
 * current, and is charged also after a group around it is left. Leave it before the longjmp, or where setjmp returns
 * again, by a struct dormouse_entered that is `volatile` or static: a group that was left already is not left twice.
 */
#ifndef DORMOUSE_GROUPS_H
#define DORMOUSE_GROUPS_H

#include <dormouse/keys.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group, which exists as long as the process. All zeroes mean no group: work in it is not charged. */
struct dormouse_group {
	uint32_t number;
	uint32_t flags; /* only the library uses this and all fields below */
};

/* A piece of work that is begun and ended by hand. All zeroes mean no task. */
struct dormouse_task {
	uint64_t number;
	struct dormouse_group group;
};

/* A task that is entered on a thread, to be left later. All zeroes mean none. */
struct dormouse_entered {
	struct dormouse_task task;
	uint64_t place;
};

/*
 * The group of that name, always the same for one name; all zeroes if the name is NULL or there is no memory. Name
 * groups by kind of work, never by request: there are at most 1024, and further names share the group `other`.
 */
struct dormouse_group dormouse_group_new(const char *name);

/*
 * The innermost group that is entered on this thread, for work that is handed on to another thread. Work entered there
 * with this value is part of the same request, and is not counted as another one. All zeroes outside of groups.
 */
struct dormouse_group dormouse_group_current(void);

/*
 * Begins a task of the group and enters it on this thread. Groups nest: while an inner one is entered, nothing is
 * charged to the outer one. Below 32 levels, time is charged to the group that is current there.
 */
struct dormouse_entered dormouse_group_enter(struct dormouse_group group);

/*
 * Leaves a task that was entered on this thread, and ends it if dormouse_group_enter has begun it. The order does not
 * matter: tasks that were entered inside go on. Returns false and does nothing if the task was left already or was
 * entered on another thread.
 */
bool dormouse_group_leave(struct dormouse_entered entered);

/*
 * Work that is handed on to another thread takes its group along as a value: the first thread stores
 * dormouse_group_current() with the work, the other one enters it. Work that is one task on many threads, such as a
 * request of an event loop, is begun once and entered for each stretch of work, on one thread at a time:
 *
 *     request->task = dormouse_task_begin(orders);       when it comes
 *
 *     entered = dormouse_task_enter(request->task);      on each thread that works on it
 *     ...
 *     dormouse_group_leave(entered);
 *
 *     dormouse_task_end(&request->task);                 when it is answered, outside of it
 *
 * dormouse_task_end sets the task to all zeroes; copies of it must not be used any more. (If one is, its group has one
 * task less than there are, and no other task is affected.)
 */
struct dormouse_task dormouse_task_begin(struct dormouse_group group);
struct dormouse_entered dormouse_task_enter(struct dormouse_task task);
void dormouse_task_end(struct dormouse_task *task);

/*
 * Sets the distributed trace of the task that is entered on this thread. Timelines with the records of
 * `dormouse.trace_context` use it. So do files of slow requests, exemplars of latencies and `dormouse tasks`. Returns
 * true if it is kept for those: for a task that was entered while times were taken (TIMES above), until they are no
 * longer. The ids are those of W3C's Trace Context, 16 and 8 bytes; an unknown span is NULL or all zeroes.
 */
bool dormouse_set_trace_context(const uint8_t trace_id[16], const uint8_t span_id[8]);

static inline void dormouse_leave_(const struct dormouse_entered *entered)
{
	dormouse_group_leave(*entered);
}

#ifdef __cplusplus
}

/*
 * C++: the group, or the task, is entered while the object exists.
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
 * A declaration that makes the rest of the block a task of the group, however the block ends: `return`, `goto`, with
 * -fexceptions also a thread's cancellation and pthread_exit. Not by longjmp (LONGJMP above).
 *
 *     DORMOUSE_SCOPE(orders);
 */
#define DORMOUSE_SCOPE(group) DORMOUSE_SCOPE_(group, __COUNTER__)
#define DORMOUSE_SCOPE_(group, number) DORMOUSE_SCOPE_NAMED_(group, number)
#define DORMOUSE_SCOPE_NAMED_(group, number) \
	__attribute__((cleanup(dormouse_leave_), unused)) const struct dormouse_entered dormouse_scope_##number##_ = \
		dormouse_group_enter(group)

#endif
