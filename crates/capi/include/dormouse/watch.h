/*
 * dormouse/watch.h: watchpoints. Who writes this variable: the places in the code, on every thread, with counts, values
 * and stacks, and with no thread stopped. dormouse/keys.h says what holds for all functions.
 *
 *     #include <dormouse/watch.h>
 *
 *     static int balance;
 *
 *     struct dormouse_watch_spec spec = DORMOUSE_WATCH_SPEC(balance);
 *     struct dormouse_watch_report report = DORMOUSE_WATCH_REPORT_INIT;
 *     struct dormouse_watch_site site = DORMOUSE_WATCH_SITE_INIT;
 *     struct dormouse_watch *watch;
 *
 *     spec.flags = DORMOUSE_WATCH_CHANGED;
 *     if (dormouse_watch_begin(&spec, &watch, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *     ...
 *     dormouse_watch_read(watch, &report, NULL);
 *     while (dormouse_watch_next(watch, &site))
 *             printf("%p: %llu times, %llu became %llu\n", site.address, ...);
 *     dormouse_watch_end(watch);
 *
 * A watch takes a debug register of the processor on every thread that is and that will be, or on none: x86 has four,
 * one is left to debuggers. It watches an address, and nothing keeps the variable there: end the watch before it.
 *
 * COST. Nothing for code that does not touch the variable. A hit takes its thread some ten microseconds, so a watch
 * that is hit more often than its rate rests for a while, and says so. To begin, to read and to end take a few system
 * calls for each thread of the process: 36 ms for 1,000 threads. A thread of the library's runs as long as there are
 * watches.
 *
 * BLIND SPOTS. What the kernel writes (a read() into the variable), what is written through another mapping of its
 * page, and by devices.
 *
 * SIGNALS. A hit is a SIGTRAP, whose handler is the library's while there are watches; other SIGTRAPs go to the handler
 * before it. A program that sets another action for SIGTRAP while there are watches may be ended by the next hit: end
 * them first. A process whose system calls pass a filter (seccomp) is refused, because it might be ended for one.
 *
 * A forked child is not watched. exec ends all watches.
 */
#ifndef DORMOUSE_WATCH_H
#define DORMOUSE_WATCH_H

#include <dormouse/groups.h>
#include <dormouse/keys.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The accesses that hit. No register tells of reads alone. */
enum dormouse_access {
	DORMOUSE_WRITE = 1,
	DORMOUSE_READ_WRITE = 2,
	DORMOUSE_EXECUTE = 3 /* of the instruction at the address; the length is of no account */
};

enum dormouse_watch_flags {
	DORMOUSE_WATCH_CHANGED = 1,   /* reports only hits that change the value */
	DORMOUSE_WATCH_EQUALS = 2,    /* reports only hits after which the value is `equals` */
	DORMOUSE_WATCH_SCOPED = 4,    /* takes registers only while tasks of `group` run, which there must be */
	DORMOUSE_WATCH_FLEXIBLE = 8,  /* shares the registers that others leave, in turns */
	DORMOUSE_WATCH_ALL_SLOTS = 16 /* takes also the register that is left to debuggers */
};

/* What to watch. What is zero behind the length says nothing. */
struct dormouse_watch_spec {
	uint32_t size;
	uint32_t access;              /* enum dormouse_access */
	const volatile void *address;
	size_t length;                /* bytes: 1, 2, 4 or 8 of them aligned, or as much as the free registers cover */
	const char *name;             /* NULL: the address; of a longer name 128 bytes are kept */
	struct dormouse_group group;  /* reports only hits while a task of it runs; none: all */
	uint32_t flags;               /* enum dormouse_watch_flags */
	uint32_t rate;                /* hits a second from which on it rests for a while; 0: 10,000 */
	uint64_t most;                /* reported hits after which it is over; 0: no end */
	uint64_t equals;
	uint64_t mask;                /* the bits that CHANGED and EQUALS look at; 0: all */
};

#define DORMOUSE_WATCH_SPEC_INIT \
	{ sizeof(struct dormouse_watch_spec), DORMOUSE_WRITE, DORMOUSE_NULL_, 0, DORMOUSE_NULL_, { 0, 0 }, 0, 0, 0, 0, 0 }

/* Writes to a variable, by its name. */
#define DORMOUSE_WATCH_SPEC(variable) \
	{ sizeof(struct dormouse_watch_spec), DORMOUSE_WRITE, &(variable), sizeof(variable), #variable, { 0, 0 }, \
	  0, 0, 0, 0, 0 }

enum dormouse_watch_state {
	DORMOUSE_WATCH_ARMED = 1,
	DORMOUSE_WATCH_RESTING = 2, /* for a while: more hits came than its rate allows */
	DORMOUSE_WATCH_OVER = 3     /* for good: it has had its most hits, this is a forked child, or it cannot go on */
};

/* The result so far. */
struct dormouse_watch_report {
	uint32_t size;
	uint32_t state;         /* enum dormouse_watch_state */
	uint64_t hits;          /* by the kernel's count, which is exact */
	uint64_t delivered;     /* hits of which the library was told */
	uint64_t passed;        /* of these, those that passed the filters */
	uint64_t lost;          /* of the hits, those that it was not told of */
	uint64_t sites;         /* places in the code, for dormouse_watch_next */
	uint64_t other_sites;   /* hits of places that found no room */
	uint32_t threads_armed; /* of threads_alive */
	uint32_t threads_alive;
	uint64_t armed_ns;      /* time for which it was armed, of wall_ns */
	uint64_t wall_ns;
	uint64_t late;          /* hits whose place is unknown, because their thread blocked SIGTRAP */
	uint64_t unread;        /* hits whose value could not be read */
	uint64_t unarmed;       /* DORMOUSE_WATCH_SCOPED: how often a task ran on a thread that could not be armed */
	uint32_t rests;         /* how often it was disarmed because of its rate */
	uint32_t signal_taken;  /* not 0: the program has taken SIGTRAP's action from the library, so the watch is over */
};

#define DORMOUSE_WATCH_REPORT_INIT \
	{ sizeof(struct dormouse_watch_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A place in the code, as it was when the watch was last read. */
struct dormouse_watch_site {
	uint32_t size;
	uint32_t thread;             /* the thread of the last hit (gettid) */
	const void *address;         /* behind the instruction (of DORMOUSE_EXECUTE: of it); NULL of late hits */
	struct dormouse_group group; /* the group of the task that ran */
	uint64_t hits;               /* how many passed the filters */
	uint64_t before;             /* the value before the last of them: the last one seen; of long variables, 8 bytes */
	uint64_t after;              /* the value after it */
	uint64_t task;               /* the number of the last one's task, or 0 */
	uint64_t time_ns;            /* the time of the last one by CLOCK_MONOTONIC */
	const void *const *stack;    /* of the first of them: return addresses by frame pointers, the caller's first */
	size_t depth;                /* how many; good until the watch is read again or ends */
	uint32_t has_values;         /* 0: `before` and `after` could not be read; so of executions */
	uint32_t reserved;
};

#define DORMOUSE_WATCH_SITE_INIT \
	{ sizeof(struct dormouse_watch_site), 0, DORMOUSE_NULL_, { 0, 0 }, 0, 0, 0, 0, 0, DORMOUSE_NULL_, 0, 0, 0 }

/* A watch. It belongs to one thread at a time. */
struct dormouse_watch;

/*
 * Begins a watch: when this returns, every thread is armed. DORMOUSE_NO_REGISTER says who holds the registers;
 * DORMOUSE_DENIED which setting keeps a process from watching itself; DORMOUSE_INVALID that no register watches so many
 * bytes there.
 */
enum dormouse_code dormouse_watch_begin(const struct dormouse_watch_spec *spec, struct dormouse_watch **watch,
					struct dormouse_error *error);

/* Reads the counts into `report`, which may be NULL, and the places for dormouse_watch_next. */
enum dormouse_code dormouse_watch_read(struct dormouse_watch *watch, struct dormouse_watch_report *report,
				       struct dormouse_error *error);

/* The next place that the last reading has found, that of most hits first; false at the end, and for bad arguments. */
bool dormouse_watch_next(struct dormouse_watch *watch, struct dormouse_watch_site *site);

/* Ends a watch: another one may have its registers, and the threads are disarmed a moment later. NULL is no watch. */
void dormouse_watch_end(struct dormouse_watch *watch);

/* The layouts are an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_spec) == 72);
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_report) == 112);
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_site) == 88);

#ifdef __cplusplus
}
#endif

#endif
