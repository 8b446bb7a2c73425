/* A key is switched in guarded code (BTI of arm64), which stays guarded. */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "check.h"
#include "guarded.h"

/* Whether calls of that code by a register have to reach a mark, as the kernel says. */
static bool is_guarded(uintptr_t code)
{
	char line[512];
	bool is_inside = false, is = false;
	FILE *mappings = fopen("/proc/self/smaps", "r");

	CHECK(mappings);
	while (fgets(line, sizeof line, mappings)) {
		uintptr_t start, end;

		if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &start, &end) == 2)
			is_inside = code >= start && code < end;
		else if (is_inside && !strncmp(line, "VmFlags:", 8))
			is = strstr(line, " bt") != NULL;
	}
	fclose(mappings);
	return is;
}

int main(void)
{
	int (*volatile call)(int) = in_library;
	uintptr_t code = (uintptr_t)call;

	CHECK(is_guarded(code));
	for (int round = 0; round < 10; round++) {
		CHECK(call(1) == 1);
		CHECK(!dormouse_enable(&guarded_key.key, NULL, NULL));
		CHECK(call(1) == 2 && is_guarded(code));
		CHECK(!dormouse_disable(&guarded_key.key, NULL, NULL));
	}
	CHECK(call(1) == 1 && is_guarded(code));
	puts("guarded");
	return 0;
}
