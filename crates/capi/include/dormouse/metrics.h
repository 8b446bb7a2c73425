/*
 * dormouse/metrics.h: metrics for a route of the program's own server: CPU time, requests, polls and more of each
 * group, for Prometheus and other readers of its formats. dormouse/keys.h has the rules for all functions.
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
 * `dormouse serve`, which queries their agents. docs/guide/metrics.md lists the metrics.
 *
 * COST. From begin to end CPU time of all groups is counted, as while the command watches: some tens of nanoseconds
 * each time that a group is entered and left. Reading visits each group and each thread, and takes no lock that a
 * thread of the program takes while it enters or leaves groups.
 *
 * SIGNALS. None of these functions is async-signal-safe.
 *
 * In a forked child, metrics that the parent has begun contain no counts, and can be ended.
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
	DORMOUSE_METRICS_WAITS = 1 /* takes times of tasks, too: histograms of requests, polls, delays and awaits */
};

/* What to count. */
struct dormouse_metrics_spec {
	uint32_t size;
	uint32_t flags; /* enum dormouse_metrics_flags */
};

#define DORMOUSE_METRICS_SPEC_INIT { sizeof(struct dormouse_metrics_spec), 0 }

/* Metrics of the process. One thread at a time may use them. */
struct dormouse_metrics;

/* Begins to count for all groups. */
enum dormouse_code dormouse_metrics_begin(const struct dormouse_metrics_spec *spec, struct dormouse_metrics **metrics,
					  struct dormouse_error *error);

/*
 * Renders the present metrics in a format of enum dormouse_metrics_format. The bytes belong to `metrics`: they are
 * valid until these are read again or end. No NUL follows them.
 */
enum dormouse_code dormouse_metrics_read(struct dormouse_metrics *metrics, uint32_t format, const void **bytes,
					 size_t *length, struct dormouse_error *error);

/* The format for a request with this `Accept` header, which may be NULL. */
uint32_t dormouse_metrics_accepted(const char *accept);

/* The value of the `Content-Type` header for a format, in static memory; NULL if `format` is invalid. */
const char *dormouse_metrics_content_type(uint32_t format);

/* Ends it: groups are counted until every begin has been ended. Does nothing if `metrics` is NULL. */
void dormouse_metrics_end(struct dormouse_metrics *metrics);

/* The layout is an ABI. */
DORMOUSE_ASSERT_(sizeof(struct dormouse_metrics_spec) == 8);

#ifdef __cplusplus
}
#endif

#endif
