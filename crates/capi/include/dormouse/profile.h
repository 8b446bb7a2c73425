/*
 * dormouse/profile.h: profiles. Which function uses the CPU time of which group, allocates, or faults, in the format
 * that `go tool pprof`, Parca, Grafana and others read. dormouse/keys.h says what holds for all functions.
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
 * While one runs, what it samples is counted for all groups, and the samples of a group add up to what it really used.
 *
 * Stacks are followed by frame pointers: build with -fno-omit-frame-pointer. A stack without them ends early, unless
 * DORMOUSE_PROFILE_UNWIND has it copied and followed by the tables of exceptions (.eh_frame), which takes a library
 * built with `make CARGOFLAGS="--locked --features unwind"`; others answer with DORMOUSE_NO_PROFILE. The tables of all
 * code are kept in memory meanwhile.
 *
 * COST. Nothing while there is no profile. To begin takes a few system calls for each thread of the process, on a
 * thread of the library's, which runs as long as there are profiles; then each running thread is interrupted `hz` times
 * a second of its CPU time, for some microseconds.
 *
 * SIGNALS. CPU time is sampled by a real-time signal that no one had an action for when the first profile began. Its
 * handler stays. Blocking calls that signal(7) lists as never restarted (poll, nanosleep, ...) may return EINTR, though
 * only to threads that have used CPU time since the last sample.
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
	DORMOUSE_PROFILE_LIVE = 1,  /* of DORMOUSE_PROFILE_ALLOC: tells apart the allocations that are still there */
	DORMOUSE_PROFILE_UNWIND = 2 /* of DORMOUSE_PROFILE_CPU and _WALL: finds callers in code without frame pointers, too */
};

/* What to profile, and how often. What is zero behind the kind says nothing. */
struct dormouse_profile_spec {
	uint32_t size;
	uint32_t kind;      /* enum dormouse_profile_kind */
	uint32_t hz;        /* samples a second of CPU time of each thread, 1,000 at most; 0: 99 */
	uint32_t flags;     /* enum dormouse_profile_flags */
	uint64_t bytes;     /* bytes between two samples of allocations, 1,024 at least; 0: 512 KiB */
	const char *groups; /* globs, as "GET *,!GET /health": only these groups; NULL: all, and work in no group */
};

#define DORMOUSE_PROFILE_SPEC_INIT \
	{ sizeof(struct dormouse_profile_spec), DORMOUSE_PROFILE_CPU, 0, 0, 0, DORMOUSE_NULL_ }

/* A profile. It belongs to one thread at a time. */
struct dormouse_profile;

/*
 * Begins a profile. DORMOUSE_NO_PROFILE says what this process or this system has not; DORMOUSE_INVALID that a rate is
 * out of its bounds, or that no group matches.
 */
enum dormouse_code dormouse_profile_begin(const struct dormouse_profile_spec *spec, struct dormouse_profile **profile,
					  struct dormouse_error *error);

/*
 * Renders what there is so far, in the gzipped format of pprof. The bytes are the profile's: they are good until it is
 * read again or ends.
 */
enum dormouse_code dormouse_profile_read(struct dormouse_profile *profile, const void **bytes, size_t *length,
					 struct dormouse_error *error);

/* Writes what there is so far to a file, in place of what it had. */
enum dormouse_code dormouse_profile_write(struct dormouse_profile *profile, const char *path,
					  struct dormouse_error *error);

/* Ends a profile. NULL is no profile. */
void dormouse_profile_end(struct dormouse_profile *profile);

/* The layout is an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_profile_spec) == 32);

#ifdef __cplusplus
}
#endif

#endif
