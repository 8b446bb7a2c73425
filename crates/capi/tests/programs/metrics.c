/* Metrics of the process: begun, read in each format, refused, over a fork. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct dormouse_metrics_spec plain(void)
{
	struct dormouse_metrics_spec spec = DORMOUSE_METRICS_SPEC_INIT;
	return spec;
}

static double cpu_seconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Charges so much CPU time to a group. */
static void boil(struct dormouse_group group, double seconds)
{
	struct dormouse_entered entered = dormouse_group_enter(group);
	double end = cpu_seconds() + seconds;
	while (cpu_seconds() < end)
		for (volatile int i = 0; i < 10000; i++)
			;
	CHECK(dormouse_group_leave(entered));
}

/* The value in the line of the text that begins so; -1 without one. */
static double value_of(struct dormouse_metrics *metrics, uint32_t format, const char *line)
{
	const void *bytes = NULL;
	size_t length = 0;
	const char *found;
	CHECK(dormouse_metrics_read(metrics, format, &bytes, &length, NULL) == DORMOUSE_OK && length > 100);
	found = (const char *)memmem(bytes, length, line, strlen(line));
	return found ? strtod(found + strlen(line), NULL) : -1;
}

static void read_in_each_format(struct dormouse_group group)
{
	static const char line[] = "\ndormouse_cpu_time_seconds_total{group=\"brew \\\"strong\\\"\"} ";
	struct dormouse_metrics_spec spec = plain();
	struct dormouse_metrics *metrics = NULL, *other = NULL;
	const void *bytes = NULL;
	size_t length = 0;
	double before, after;
	CHECK(dormouse_metrics_begin(&spec, &metrics, NULL) == DORMOUSE_OK && metrics);
	spec.flags = DORMOUSE_METRICS_WAITS;
	CHECK(dormouse_metrics_begin(&spec, &other, NULL) == DORMOUSE_OK && other != metrics);
	boil(group, 0.02);
	before = value_of(metrics, DORMOUSE_METRICS_OPENMETRICS, line);
	CHECK(before >= 0.02);
	boil(group, 0.03);
	after = value_of(metrics, DORMOUSE_METRICS_TEXT, line);
	CHECK(after >= before + 0.03 && after < before + 10);
	CHECK(value_of(other, DORMOUSE_METRICS_TEXT, line) >= after);
	CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_OPENMETRICS, &bytes, &length, NULL) == DORMOUSE_OK);
	CHECK(memcmp((const char *)bytes + length - 6, "# EOF\n", 6) == 0);
	CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_PROTOBUF, &bytes, &length, NULL) == DORMOUSE_OK);
	CHECK(memmem(bytes, length, "brew \"strong\"", 13));
	dormouse_metrics_end(other);
	/* The other's end ends nothing of this one's. */
	boil(group, 0.01);
	CHECK(value_of(metrics, DORMOUSE_METRICS_TEXT, line) >= after + 0.01);
	dormouse_metrics_end(metrics);
	dormouse_metrics_end(NULL);
}

static void negotiated(void)
{
	static const char wants[] = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
	CHECK(dormouse_metrics_accepted(NULL) == DORMOUSE_METRICS_TEXT);
	CHECK(dormouse_metrics_accepted("text/html, */*") == DORMOUSE_METRICS_TEXT);
	CHECK(dormouse_metrics_accepted(wants) == DORMOUSE_METRICS_OPENMETRICS);
	CHECK(strstr(dormouse_metrics_content_type(DORMOUSE_METRICS_OPENMETRICS), "application/openmetrics-text"));
	CHECK(strstr(dormouse_metrics_content_type(DORMOUSE_METRICS_TEXT), "version=0.0.4"));
	CHECK(strstr(dormouse_metrics_content_type(DORMOUSE_METRICS_PROTOBUF), "io.prometheus.client.MetricFamily"));
	CHECK(!dormouse_metrics_content_type(0) && !dormouse_metrics_content_type(4));
}

static void refused(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_metrics_spec spec = plain();
	struct dormouse_metrics *metrics = NULL;
	const void *bytes;
	size_t length;
	CHECK(dormouse_metrics_begin(NULL, &metrics, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "DORMOUSE_METRICS_SPEC_INIT"));
	CHECK(dormouse_metrics_begin(&spec, NULL, &error) == DORMOUSE_INVALID);
	spec.size = 4;
	CHECK(dormouse_metrics_begin(&spec, &metrics, &error) == DORMOUSE_INVALID);
	spec = plain();
	spec.flags = 2;
	CHECK(dormouse_metrics_begin(&spec, &metrics, &error) == DORMOUSE_INVALID && !metrics);
	CHECK(strstr(error.message, "flag"));
	CHECK(dormouse_metrics_read(NULL, DORMOUSE_METRICS_TEXT, &bytes, &length, &error) == DORMOUSE_INVALID);
	spec = plain();
	CHECK(dormouse_metrics_begin(&spec, &metrics, &error) == DORMOUSE_OK);
	CHECK(dormouse_metrics_read(metrics, 0, &bytes, &length, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "format"));
	CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_TEXT, NULL, &length, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_TEXT, &bytes, NULL, &error) == DORMOUSE_INVALID);
	dormouse_metrics_end(metrics);
}

static void over_a_fork(void)
{
	struct dormouse_metrics_spec spec = plain();
	struct dormouse_metrics *metrics = NULL;
	const void *bytes;
	size_t length;
	int status;
	pid_t child;
	CHECK(dormouse_metrics_begin(&spec, &metrics, NULL) == DORMOUSE_OK);
	child = fork();
	if (child == 0) {
		CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_TEXT, &bytes, &length, NULL) == DORMOUSE_OK);
		dormouse_metrics_end(metrics);
		CHECK(dormouse_metrics_begin(&spec, &metrics, NULL) == DORMOUSE_OK);
		CHECK(dormouse_metrics_read(metrics, DORMOUSE_METRICS_TEXT, &bytes, &length, NULL) == DORMOUSE_OK);
		dormouse_metrics_end(metrics);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	dormouse_metrics_end(metrics);
}

int main(void)
{
	errno = 77;
	read_in_each_format(dormouse_group_new("brew \"strong\""));
	negotiated();
	refused();
	CHECK(errno == 77);
	over_a_fork();
	puts("told");
	return 0;
}
