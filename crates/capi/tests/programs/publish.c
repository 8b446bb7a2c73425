/*
 * A thread that goes from group to group and says at each moment where it is, for a reader in another process. Its word
 * is 1 while it moves, and after that the number of the group: 2 none, 3 and 4 the groups.
 */
#include <dormouse/dormouse.h>

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "check.h"

static volatile uint32_t place = 2;

static void stay(uint32_t where)
{
	place = where;
	for (volatile int n = 0; n < 500; n++)
		;
	place = 1;
}

int main(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_publishing *publishing = NULL;
	struct dormouse_group menu = dormouse_group_new("GET /menu"), tea = dormouse_group_new("tea");

	CHECK(dormouse_publish_begin(NULL, &error) == DORMOUSE_INVALID);
	if (dormouse_publish_begin(&publishing, &error) != DORMOUSE_OK) {
		puts(error.message);
		return 0;
	}
	printf("%lu\n", (unsigned long)(uintptr_t)&place);
	fflush(stdout);
	for (long n = 0; n < 2000000000; n++) {
		struct dormouse_entered outer, inner;

		/* Rarely: a thread that is to stop does so at its next system call, if no interrupt is there before. */
		if (n % 16384 == 0 && getppid() == 1)
			break;

		stay(2);
		outer = dormouse_group_enter(menu);
		stay(3);
		inner = dormouse_group_enter(tea);
		stay(4);
		CHECK(dormouse_group_leave(inner));
		stay(3);
		CHECK(dormouse_group_leave(outer));
	}
	dormouse_publish_end(publishing);
	return 0;
}
