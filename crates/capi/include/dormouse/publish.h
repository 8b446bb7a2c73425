/*
 * dormouse/publish.h: the current group of each thread, for any profiler that follows OpenTelemetry's standards (OTEP
 * 4719 and 4947). dormouse/keys.h says what holds for all functions.
 *
 *     #include <dormouse/publish.h>
 *
 *     struct dormouse_publishing *publishing;
 *
 *     if (dormouse_publish_begin(&publishing, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *
 * A reader finds the thread-local otel_thread_ctx_v1 among the dynamic symbols of libdormouse.so. A program that is
 * linked with libdormouse.a shows it by -Wl,--export-dynamic-symbol=otel_thread_ctx_v1. A program without shared
 * libraries cannot, and must not be linked so: glibc ends a -static-pie with it at its start. DORMOUSE_PUBLISH=1
 * publishes from dormouse_init on.
 *
 * Where another library has published a context of the process, or a thread-local of that name, nothing is published.
 *
 * A forked child publishes nothing: what its parent has begun can be ended there, to no effect.
 */
#ifndef DORMOUSE_PUBLISH_H
#define DORMOUSE_PUBLISH_H

#include <dormouse/groups.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Groups are published as long as anybody has begun and not ended. */
struct dormouse_publishing;

/* Publishes the current group of each thread from its next one on. */
enum dormouse_code dormouse_publish_begin(struct dormouse_publishing **publishing, struct dormouse_error *error);

/* Ends it. NULL is none. */
void dormouse_publish_end(struct dormouse_publishing *publishing);

#ifdef __cplusplus
}
#endif

#endif
