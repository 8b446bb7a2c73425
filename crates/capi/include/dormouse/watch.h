/*
 * dormouse/watch.h: watchpoints. Which code writes a variable: the places in the code, on every thread, with counts,
 * values and stacks, and with no thread stopped. dormouse/keys.h has the rules for all functions.
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
 * A watch takes a debug register of the processor on every present and future thread, or on none: x86 has four, of
 * which one is reserved for debuggers. It watches an address, and does not keep the variable there: end the watch
 * before the variable's lifetime ends.
 *
 * COST. Nothing for code that does not touch the variable. A hit takes some ten microseconds of its thread, so a watch
 * that is hit more often than its rate rests for a while, which its report shows. Beginning, reading and ending take a
 * few system calls for each thread of the process: 36 ms for 1,000 threads. A thread of the library's runs as long as
 * there are watches.
 *
 * BLIND SPOTS. A watch does not see writes by the kernel (a read() into the variable), through another mapping of the
 * page, and by devices.
 *
 * SIGNALS. A hit is a SIGTRAP, which the library handles while there are watches; it passes other SIGTRAPs on to the
 * previous handler. If a program sets another action for SIGTRAP while there are watches, the next hit may end it: end
 * the watches first. In a process with a filter of system calls (seccomp) watches are refused, because the filter might
 * end the process.
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

/* The accesses that count as hits. No register traps on reads only. */
enum dormouse_access {
	DORMOUSE_WRITE = 1,
	DORMOUSE_READ_WRITE = 2,
	DORMOUSE_EXECUTE = 3 /* of the instruction at the address; the length does not matter */
};

enum dormouse_watch_flags {
	DORMOUSE_WATCH_CHANGED = 1,   /* reports only hits that change the value */
	DORMOUSE_WATCH_EQUALS = 2,    /* reports only hits after which the value is `equals` */
	DORMOUSE_WATCH_SCOPED = 4,    /* takes registers only while tasks of `group` run; requires a group */
	DORMOUSE_WATCH_FLEXIBLE = 8,  /* takes turns with other watches in the registers that are left */
	DORMOUSE_WATCH_ALL_SLOTS = 16 /* may also take the register that is reserved for debuggers */
};

/* What to watch. Fields after the length may be zero, which means the default. */
struct dormouse_watch_spec {
	uint32_t size;
	uint32_t access;              /* enum dormouse_access */
	const volatile void *address;
	size_t length;                /* bytes: 1, 2, 4 or 8, aligned; or as many as the free registers can cover */
	const char *name;             /* NULL: the address is the name; at most 128 bytes are kept */
	struct dormouse_group group;  /* reports only hits while a task of it runs; all zeroes: all hits */
	uint32_t flags;               /* enum dormouse_watch_flags */
	uint32_t rate;                /* hits per second above which it rests for a while; 0: 10,000 */
	uint64_t most;                /* ends after this many reported hits; 0: no limit */
	uint64_t equals;              /* for at most 8 bytes: a longer variable is refused, with a mask too */
	uint64_t mask;                /* the bits that CHANGED and EQUALS compare; 0: all */
};

#define DORMOUSE_WATCH_SPEC_INIT \
	{ sizeof(struct dormouse_watch_spec), DORMOUSE_WRITE, DORMOUSE_NULL_, 0, DORMOUSE_NULL_, { 0, 0 }, 0, 0, 0, 0, 0 }

/* Watches writes to a variable; its name is the watch's name. */
#define DORMOUSE_WATCH_SPEC(variable) \
	{ sizeof(struct dormouse_watch_spec), DORMOUSE_WRITE, &(variable), sizeof(variable), #variable, { 0, 0 }, \
	  0, 0, 0, 0, 0 }

enum dormouse_watch_state {
	DORMOUSE_WATCH_ARMED = 1,
	DORMOUSE_WATCH_RESTING = 2, /* for a while: more hits came than its rate allows */
	DORMOUSE_WATCH_OVER = 3     /* for good: it reached its limit, this is a forked child, or it cannot go on */
};

/* The result so far. */
struct dormouse_watch_report {
	uint32_t size;
	uint32_t state;         /* enum dormouse_watch_state */
	uint64_t hits;          /* by the kernel's exact count; by its last one if the library's thread was killed */
	uint64_t delivered;     /* hits whose signal reached the library */
	uint64_t passed;        /* delivered hits that passed the filters */
	uint64_t lost;          /* hits without a signal of their own */
	uint64_t sites;         /* number of places in the code, for dormouse_watch_next */
	uint64_t other_sites;   /* hits at places for which there was no room */
	uint32_t threads_armed; /* armed threads among threads_alive */
	uint32_t threads_alive;
	uint64_t armed_ns;      /* the part of wall_ns for which it was armed */
	uint64_t wall_ns;
	uint64_t late;          /* hits whose place is unknown, because their thread blocked SIGTRAP */
	uint64_t unread;        /* hits whose value could not be read */
	uint64_t unarmed;       /* DORMOUSE_WATCH_SCOPED: how often a task ran on a thread that could not be armed */
	uint32_t rests;         /* how often it was disarmed because of its rate */
	uint32_t signal_taken;  /* not 0: the program has replaced the library's handler of SIGTRAP; the watch is over */
};

#define DORMOUSE_WATCH_REPORT_INIT \
	{ sizeof(struct dormouse_watch_report), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* A place in the code, as it was when the watch was last read. */
struct dormouse_watch_site {
	uint32_t size;
	uint32_t thread;             /* the thread of the last hit (gettid) */
	const void *address;         /* after the instruction (for DORMOUSE_EXECUTE: its own); NULL for late hits */
	struct dormouse_group group; /* the group of the task that ran */
	uint64_t hits;               /* hits that passed the filters */
	uint64_t before;             /* the value before the last of them, as last seen; of longer variables the 1 to 8 bytes hit */
	uint64_t after;              /* the value after the last of them */
	uint64_t task;               /* the number of the last one's task, or 0 */
	uint64_t time_ns;            /* the time of the last one by CLOCK_MONOTONIC */
	const void *const *stack;    /* the first one's return addresses by frame pointers, the caller's first */
	size_t depth;                /* length of `stack`, which is valid until the watch is read again or ends */
	uint32_t has_values;         /* 0: `before` and `after` could not be read, or accesses are executions */
	uint32_t reserved;
};

#define DORMOUSE_WATCH_SITE_INIT \
	{ sizeof(struct dormouse_watch_site), 0, DORMOUSE_NULL_, { 0, 0 }, 0, 0, 0, 0, 0, DORMOUSE_NULL_, 0, 0, 0 }

/* A watch. One thread at a time may use it. */
struct dormouse_watch;

/*
 * Begins a watch: when this returns, every thread is armed. The message of DORMOUSE_NO_REGISTER names the holders of
 * the registers, that of DORMOUSE_DENIED the setting that keeps a process from watching itself. DORMOUSE_INVALID means
 * that registers cannot watch this range.
 */
enum dormouse_code dormouse_watch_begin(const struct dormouse_watch_spec *spec, struct dormouse_watch **watch,
					struct dormouse_error *error);

/*
 * Reads the counts into `report`, which may be NULL, and the places for dormouse_watch_next. After an error both are as
 * they were: the library's thread may be busy.
 */
enum dormouse_code dormouse_watch_read(struct dormouse_watch *watch, struct dormouse_watch_report *report,
				       struct dormouse_error *error);

/* The next place in the last reading, in order of decreasing hits; false at the end, and for invalid arguments. */
bool dormouse_watch_next(struct dormouse_watch *watch, struct dormouse_watch_site *site);

/*
 * Ends a watch: its registers are free for another one, and the threads are disarmed a moment later. Does nothing if
 * `watch` is NULL.
 */
void dormouse_watch_end(struct dormouse_watch *watch);

/* The layouts are an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_spec) == 72);
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_report) == 112);
DORMOUSE_ASSERT_(sizeof(struct dormouse_watch_site) == 88);

#ifdef __cplusplus
}
#endif

#endif
