/*
 * dormouse/profile.h: profiles. Which functions use CPU time, allocate, or fault, by group, in the format
 * that `go tool pprof`, Parca, Grafana and others read. dormouse/keys.h has the rules for all functions.
 *
 *     #include <dormouse/profile.h>
 *
 *     struct dormouse_profile_spec spec = DORMOUSE_PROFILE_SPEC_INIT;
 *     struct dormouse_profile *profile;
 *
 *     spec.groups = "GET *";
 *     if (dormouse_profile_begin(&spec, &profile, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *     sleep(10);
 *     dormouse_profile_write(profile, "cpu.pb.gz", NULL);
 *     dormouse_profile_end(profile);
 *
 * Then `go tool pprof -tagroot=group cpu.pb.gz`. Any number of profiles run at once, each with its own rate and groups.
 * While one runs, the resource that it samples is also counted for all groups, and the samples of a group are scaled to
 * add up to that count.
 *
 * Stacks of CPU time and of page faults are followed by the unwind tables of exceptions (.eh_frame), which compilers
 * write in any build. Those of allocations are followed by frame pointers: build with -fno-omit-frame-pointer.
 *
 * COST. Nothing while there is no profile. Beginning takes a few system calls for each thread of the process, on a
 * thread of the library's, which runs as long as there are profiles. Then each running thread is interrupted `hz` times
 * per second of its CPU time, for some microseconds.
 *
 * SIGNALS. CPU time is sampled by SIGURG, or by a real-time signal that had no handler when the first profile began, if
 * the host uses SIGURG. The library's handler stays. Blocking calls that signal(7) lists as never restarted (poll,
 * nanosleep, ...) may return EINTR, though only to threads that have used CPU time since the last sample.
 *
 * A forked child has none of its parent's profiles. exec ends all.
 */
#ifndef DORMOUSE_PROFILE_H
#define DORMOUSE_PROFILE_H

#include <dormouse/keys.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dormouse_profile_kind {
	DORMOUSE_PROFILE_CPU = 1,   /* CPU time */
	DORMOUSE_PROFILE_ALLOC = 2, /* allocations of the Rust allocator dormouse::Alloc, if the program has it */
	DORMOUSE_PROFILE_FAULTS = 3, /* page faults */
	DORMOUSE_PROFILE_WALL = 4   /* wall time of futures: on a CPU, stalled in a poll, runnable, awaiting at a place */
};

enum dormouse_profile_flags {
	DORMOUSE_PROFILE_LIVE = 1,  /* for DORMOUSE_PROFILE_ALLOC: reports live allocations separately */
	DORMOUSE_PROFILE_UNWIND = 2 /* changes nothing: callers in code without frame pointers are always found */
};

/* What to profile, and how often. Fields after the kind may be zero, which means the default. */
struct dormouse_profile_spec {
	uint32_t size;
	uint32_t kind;      /* enum dormouse_profile_kind */
	uint32_t hz;        /* samples per second of CPU time of each thread, at most 1,000; 0: 99 */
	uint32_t flags;     /* enum dormouse_profile_flags */
	uint64_t bytes;     /* average bytes between two samples of allocations, at least 1,024; 0: 512 KiB */
	const char *groups; /* globs such as "GET *,!GET /health": only these groups; NULL: all, and work in no group */
};

#define DORMOUSE_PROFILE_SPEC_INIT \
	{ sizeof(struct dormouse_profile_spec), DORMOUSE_PROFILE_CPU, 0, 0, 0, DORMOUSE_NULL_ }

/* A profile. One thread at a time may use it. */
struct dormouse_profile;

/*
 * Begins a profile. DORMOUSE_NO_PROFILE: this process or system does not support it; the message has the reason.
 * DORMOUSE_INVALID: a rate is out of its bounds, or no group matches.
 */
enum dormouse_code dormouse_profile_begin(const struct dormouse_profile_spec *spec, struct dormouse_profile **profile,
					  struct dormouse_error *error);

/*
 * Renders the profile so far, in the gzipped format of pprof. The bytes belong to the profile: they are valid until it
 * is read again or ends.
 */
enum dormouse_code dormouse_profile_read(struct dormouse_profile *profile, const void **bytes, size_t *length,
					 struct dormouse_error *error);

/* Writes the profile so far to a file, whose contents it replaces. */
enum dormouse_code dormouse_profile_write(struct dormouse_profile *profile, const char *path,
					  struct dormouse_error *error);

/* Ends a profile. Does nothing if `profile` is NULL. */
void dormouse_profile_end(struct dormouse_profile *profile);

/* The layout is an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_profile_spec) == 32);

#ifdef __cplusplus
}
#endif

#endif
