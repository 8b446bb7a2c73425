/*
 * A service of C or C++ that the `dormouse` command looks into. For each line on standard input it brews once, and says
 * which of its keys are on.
 */
#include <dormouse/dormouse.h>

#include <errno.h>
#include <string.h>

#include "check.h"

#ifdef __cplusplus
#include <string>
#include <utility>
#endif

struct order {
	const char *kind;
	unsigned char number;
};

static DORMOUSE_KEY_NAMED(with_milk, "flags.milk", false);
static DORMOUSE_KEY_NAMED(with_sugar, "flags.sugar", true);

/* A macro around the probe, as projects have them. */
#define LOG_STEP(...) DORMOUSE_PROBE(__VA_ARGS__)

static int evaluated;

static int count(int cups)
{
	evaluated++;
	return cups;
}

static void brew(const struct order *order, int cups)
{
	static const char leaves[] = { 'o', 'o', 'l', 'o', 'n', 'g' };
	const char *nothing = NULL;

	DORMOUSE_PROBE("brew.start");
	DORMOUSE_PROBE("brew.step", count(cups), DORMOUSE_FIELD(kind, order->kind), order->number, -0.5,
		       cups > 1, DORMOUSE_TEXT(leaves, sizeof(leaves)), nothing, 1ULL << 63);
	LOG_STEP("brew.odd", DORMOUSE_FIELD(bytes, "tea \xff pot"), DORMOUSE_FIELD(self, order == order),
		 DORMOUSE_TEXT(leaves, 2));
#ifdef __cplusplus
	DORMOUSE_PROBE("brew.text", DORMOUSE_FIELD(text, std::string("a pot")), std::pair{ 1, 2 }.second,
		       1'000'000 * cups, count);
#endif
}

int main(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct order order = { "green", 7 };
	char line[16];

	errno = 77;
	if (dormouse_init(&error) != DORMOUSE_OK) {
		fprintf(stderr, "%s\n", error.message);
		return 1;
	}
	CHECK(dormouse_init(NULL) == DORMOUSE_OK);
	CHECK(errno == 77);
	puts("ready");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		errno = 77;
		brew(&order, 2);
		CHECK(errno == 77);
		printf("milk %d sugar %d evaluated %d\n", dormouse_unlikely(with_milk),
		       dormouse_likely(with_sugar), evaluated);
		fflush(stdout);
	}
	return 0;
}
