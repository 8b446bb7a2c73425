/* Profiles: begun, read, written, refused, over a fork. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

static struct dormouse_profile_spec plain(void)
{
	struct dormouse_profile_spec spec = DORMOUSE_PROFILE_SPEC_INIT;
	return spec;
}

static double cpu_seconds(void)
{
	struct timespec now;
	CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void work(double seconds)
{
	double end = cpu_seconds() + seconds;
	while (cpu_seconds() < end)
		for (volatile int i = 0; i < 10000; i++)
			;
}

static bool is_gzip(const void *bytes, size_t length)
{
	const unsigned char *first = (const unsigned char *)bytes;
	return length > 20 && first[0] == 0x1f && first[1] == 0x8b;
}

static void read_and_written(void)
{
	struct dormouse_group group = dormouse_group_new("boil");
	struct dormouse_profile_spec spec = plain();
	struct dormouse_profile *profile = NULL, *other = NULL;
	struct dormouse_entered entered;
	char path[] = "/tmp/dormouse-profile-XXXXXX";
	const void *bytes = NULL;
	struct stat file;
	size_t length = 0;
	int descriptor = mkstemp(path);
	CHECK(descriptor >= 0);
	CHECK(dormouse_profile_begin(&spec, &profile, NULL) == DORMOUSE_OK);
	spec.kind = DORMOUSE_PROFILE_WALL;
	CHECK(dormouse_profile_begin(&spec, &other, NULL) == DORMOUSE_OK);
	CHECK(dormouse_profile_read(other, &bytes, &length, NULL) == DORMOUSE_OK && is_gzip(bytes, length));
	dormouse_profile_end(other);
	spec.kind = DORMOUSE_PROFILE_CPU;
	spec.groups = "boi?";
	spec.hz = 19;
	CHECK(dormouse_profile_begin(&spec, &other, NULL) == DORMOUSE_OK);
	entered = dormouse_group_enter(group);
	work(0.3);
	CHECK(dormouse_group_leave(entered));
	CHECK(dormouse_profile_read(profile, &bytes, &length, NULL) == DORMOUSE_OK && is_gzip(bytes, length));
	CHECK(dormouse_profile_read(profile, &bytes, &length, NULL) == DORMOUSE_OK && is_gzip(bytes, length));
	CHECK(dormouse_profile_write(other, path, NULL) == DORMOUSE_OK);
	CHECK(fstat(descriptor, &file) == 0 && file.st_size > 20);
	CHECK(close(descriptor) == 0 && unlink(path) == 0);
	dormouse_profile_end(other);
	dormouse_profile_end(profile);
	dormouse_profile_end(NULL);
}

static void refused(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_profile_spec spec = plain();
	struct dormouse_profile *profile = NULL;
	const void *bytes;
	size_t length;
	CHECK(dormouse_profile_begin(NULL, &profile, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_profile_begin(&spec, NULL, &error) == DORMOUSE_INVALID);
	spec.size = 8;
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_INVALID);
	spec = plain();
	spec.kind = 7;
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "kind"));
	spec = plain();
	spec.flags = 8;
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_INVALID);
	spec = plain();
	spec.hz = 1001;
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "`hz` is 1001"));
	spec = plain();
	spec.groups = "nobody";
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_INVALID);
	CHECK(strstr(error.message, "no group matches `nobody`"));
	spec.groups = "a,,b";
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_BAD_GLOB);
	CHECK(!profile);
	CHECK(dormouse_profile_read(NULL, &bytes, &length, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_profile_write(NULL, "/tmp/x", &error) == DORMOUSE_INVALID);

	spec = plain();
	CHECK(dormouse_profile_begin(&spec, &profile, &error) == DORMOUSE_OK);
	CHECK(dormouse_profile_read(profile, NULL, &length, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_profile_write(profile, NULL, &error) == DORMOUSE_INVALID);
	CHECK(dormouse_profile_write(profile, "/no/such/place", &error) == DORMOUSE_OTHER);
	CHECK(error.os_error == ENOENT);
	dormouse_profile_end(profile);
}

static void over_a_fork(void)
{
	struct dormouse_profile_spec spec = plain();
	struct dormouse_profile *profile = NULL;
	int status;
	pid_t child;
	CHECK(dormouse_profile_begin(&spec, &profile, NULL) == DORMOUSE_OK);
	child = fork();
	if (child == 0) {
		dormouse_profile_end(profile);
		CHECK(dormouse_profile_begin(&spec, &profile, NULL) == DORMOUSE_OK);
		dormouse_profile_end(profile);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	dormouse_profile_end(profile);
}

int main(void)
{
	errno = 77;
	read_and_written();
	refused();
	CHECK(errno == 77);
	over_a_fork();
	puts("profiled");
	return 0;
}
