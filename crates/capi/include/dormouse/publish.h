/*
 * dormouse/publish.h: the current group of each thread, for any profiler that follows OpenTelemetry's standards (OTEP
 * 4719 and 4947). dormouse/keys.h has the rules for all functions.
 *
 *     #include <dormouse/publish.h>
 *
 *     struct dormouse_publishing *publishing;
 *
 *     if (dormouse_publish_begin(&publishing, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *
 * A reader finds the thread-local otel_thread_ctx_v1 among the dynamic symbols of libdormouse.so. A program that is
 * linked with libdormouse.a exports it by -Wl,--export-dynamic-symbol=otel_thread_ctx_v1. A program without shared
 * libraries cannot export it, and must not be linked with this option: glibc ends a -static-pie with it at its start.
 * With the environment variable DORMOUSE_PUBLISH=1, groups are published from dormouse_init on.
 *
 * Where another library has published a context of the process, or a thread-local of that name, nothing is published.
 *
 * A forked child publishes nothing. It can end what its parent has begun, without an effect.
 */
#ifndef DORMOUSE_PUBLISH_H
#define DORMOUSE_PUBLISH_H

#include <dormouse/groups.h>

#ifdef __cplusplus
extern "C" {
#endif

/* While one of these exists, groups are published. */
struct dormouse_publishing;

/* Begins to publish: each thread shows its current group from the next group that it enters on. */
enum dormouse_code dormouse_publish_begin(struct dormouse_publishing **publishing, struct dormouse_error *error);

/* Ends it. Does nothing if `publishing` is NULL. */
void dormouse_publish_end(struct dormouse_publishing *publishing);

#ifdef __cplusplus
}
#endif

#endif
