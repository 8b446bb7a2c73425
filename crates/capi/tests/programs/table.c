/*
 * The acceptance table: {initially on, off} x {likely, unlikely} x {own object, other object}, inverted twice. TABLE_OTHER
 * makes it the other object, a shared one; both branch on the keys of both.
 */
#include <dormouse/keys.h>

#include "check.h"

#ifdef __cplusplus
#define EXTERN_C extern "C"
#else
#define EXTERN_C extern
#endif

struct answers {
	bool likely_off, unlikely_off, likely_on, unlikely_on;
};

EXTERN_C struct answers other_of_own(void);
EXTERN_C struct answers other_of_other(void);
DORMOUSE_KEY_DECLARE(own_off, false);
DORMOUSE_KEY_DECLARE(own_on, true);
DORMOUSE_KEY_DECLARE(other_off, false);
DORMOUSE_KEY_DECLARE(other_on, true);

#define ANSWERS(off, on) \
	{ dormouse_likely(off), dormouse_unlikely(off), dormouse_likely(on), dormouse_unlikely(on) }

#ifdef TABLE_OTHER

DORMOUSE_KEY_NAMED(other_off, "other.off", false);
DORMOUSE_KEY_NAMED(other_on, "other.on", true);

struct answers other_of_own(void)
{
	struct answers answers = ANSWERS(own_off, own_on);
	return answers;
}

struct answers other_of_other(void)
{
	struct answers answers = ANSWERS(other_off, other_on);
	return answers;
}

#else

DORMOUSE_KEY_NAMED(own_off, "own.off", false);
DORMOUSE_KEY_NAMED(own_on, "own.on", true);

static struct answers own_of_own(void)
{
	struct answers answers = ANSWERS(own_off, own_on);
	return answers;
}

static struct answers own_of_other(void)
{
	struct answers answers = ANSWERS(other_off, other_on);
	return answers;
}

static void check(bool inverted)
{
	struct answers (*const all[])(void) = { own_of_own, own_of_other, other_of_own, other_of_other };
	for (int i = 0; i < 4; i++) {
		struct answers answers = all[i]();
		CHECK(answers.likely_off == inverted && answers.unlikely_off == inverted);
		CHECK(answers.likely_on != inverted && answers.unlikely_on != inverted);
	}
}

int main(void)
{
	check(false);
	for (int twice = 0; twice < 2; twice++) {
		struct dormouse_report report = DORMOUSE_REPORT_INIT;
		struct dormouse_batch *batch = dormouse_batch_begin();
		(twice ? dormouse_batch_disable : dormouse_batch_enable)(batch, &own_off.key);
		(twice ? dormouse_batch_disable : dormouse_batch_enable)(batch, &other_off.key);
		(twice ? dormouse_batch_enable : dormouse_batch_disable)(batch, &own_on.key);
		(twice ? dormouse_batch_enable : dormouse_batch_disable)(batch, &other_on.key);
		CHECK(dormouse_batch_apply(batch, &report, NULL) == DORMOUSE_OK);
		CHECK(report.keys == 4 && report.sites == 16 && report.barriers == 1);
		check(!twice);
	}
	puts("the table holds");
	return 0;
}

#endif
