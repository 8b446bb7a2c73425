/*
 * dormouse/metrics.h: metrics for a route of the program's own server: CPU time, requests, polls and more of each
 * group, for Prometheus and whatever reads its formats. dormouse/keys.h says what holds for all functions.
 *
 *     #include <dormouse/metrics.h>
 *
 *     struct dormouse_metrics_spec spec = DORMOUSE_METRICS_SPEC_INIT;
 *     struct dormouse_metrics *metrics;
 *     const void *bytes;
 *     size_t length;
 *
 *     if (dormouse_metrics_begin(&spec, &metrics, &error) != DORMOUSE_OK)
 *             fprintf(stderr, "%s\n", error.message);
 *     ...
 *     format = dormouse_metrics_accepted(header_of(request, "Accept"));
 *     if (dormouse_metrics_read(metrics, format, &bytes, &length, &error) == DORMOUSE_OK)
 *             respond(request, dormouse_metrics_content_type(format), bytes, length);
 *
 * The library opens no port. Programs that have no server of their own, or cannot be changed, are scraped through
 * `dormouse serve`, which asks their agents. docs/guide/metrics.md has the names and what they count.
 *
 * COST. From begin to end CPU time is counted, for all groups, as if somebody looked: some tens of nanoseconds each time
 * that a group is entered and left. To read takes a look at each group and each thread, and no lock that a thread of
 * the program's takes while it enters or leaves groups.
 *
 * SIGNALS. None of these functions is async-signal-safe.
 *
 * A forked child has begun nothing: what its parent has begun shows no counts there, and can be ended.
 */
#ifndef DORMOUSE_METRICS_H
#define DORMOUSE_METRICS_H

#include <dormouse/keys.h>

#ifdef __cplusplus
extern "C" {
#endif

enum dormouse_metrics_format {
	DORMOUSE_METRICS_OPENMETRICS = 1, /* OpenMetrics 1.0 text, with exemplars */
	DORMOUSE_METRICS_TEXT = 2,        /* Prometheus's older text, 0.0.4, which everything reads */
	DORMOUSE_METRICS_PROTOBUF = 3     /* Prometheus's protocol buffers, with native histograms */
};

enum dormouse_metrics_flags {
	DORMOUSE_METRICS_WAITS = 1 /* has times of tasks taken, too: histograms of requests, polls, delays and awaits */
};

/* What is counted. */
struct dormouse_metrics_spec {
	uint32_t size;
	uint32_t flags; /* enum dormouse_metrics_flags */
};

#define DORMOUSE_METRICS_SPEC_INIT { sizeof(struct dormouse_metrics_spec), 0 }

/* Metrics of the process. They belong to one thread at a time. */
struct dormouse_metrics;

/* Has groups counted from now on. */
enum dormouse_code dormouse_metrics_begin(const struct dormouse_metrics_spec *spec, struct dormouse_metrics **metrics,
					  struct dormouse_error *error);

/*
 * Renders what there is now, in a format of enum dormouse_metrics_format. The bytes are the metrics': they are good
 * until these are read again or end. No NUL follows them.
 */
enum dormouse_code dormouse_metrics_read(struct dormouse_metrics *metrics, uint32_t format, const void **bytes,
					 size_t *length, struct dormouse_error *error);

/* The format for a client whose request has this `Accept` header: NULL, if it has none. */
uint32_t dormouse_metrics_accepted(const char *accept);

/* The value of the `Content-Type` header of a format, in static memory; NULL for no format. */
const char *dormouse_metrics_content_type(uint32_t format);

/* Ends it: groups are counted as long as anybody has begun and not ended. NULL is none. */
void dormouse_metrics_end(struct dormouse_metrics *metrics);

/* The layout is an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_metrics_spec) == 8);

#ifdef __cplusplus
}
#endif

#endif
