/* Sites of C: a dead one first, twins that differ in their keys alone, inlined and unrolled ones. */
#include "sites.h"

#include <dormouse/dormouse.h>

static DORMOUSE_KEY_NAMED(dead, "c.dead", false);
static DORMOUSE_KEY_NAMED(own, "c.own", false);
static DORMOUSE_KEY_NAMED(starts_on, "c.starts-on", true);
static DORMOUSE_KEY_NAMED(twin_a, "c.twin-a", false);
static DORMOUSE_KEY_NAMED(twin_b, "c.twin-b", false);
static DORMOUSE_KEY_NAMED(in_loop, "c.in-loop", false);
DORMOUSE_KEY_NAMED(public_key, "c.public", false);
DORMOUSE_KEY(by_identifier, false);

int nobody_calls(void);
int nobody_calls(void)
{
	return dormouse_unlikely(dead) ? seven(1) : 0;
}

static NOINLINE int run_own(void)
{
	return dormouse_unlikely(own);
}

static NOINLINE int run_likely(void)
{
	return dormouse_likely(own);
}

static NOINLINE int run_starts_on(void)
{
	if (dormouse_unlikely(starts_on))
		return seven(1);
	return 0;
}

static NOINLINE int run_starts_on_likely(void)
{
	if (dormouse_likely(starts_on))
		return 1;
	return seven(0);
}

static NOINLINE int run_twin_a(void)
{
	return dormouse_unlikely(twin_a) ? seven(1) : 0;
}

static NOINLINE int run_twin_b(void)
{
	return dormouse_unlikely(twin_b) ? seven(1) : 0;
}

static NOINLINE int run_public(void)
{
	return in_c(1) + in_c(0) && in_c(1);
}

static NOINLINE int run_in_loop(void)
{
	int sum = 0;
	for (int i = 0; i < 8; i++)
		if (dormouse_unlikely(in_loop))
			sum += seven(i);
	return sum == 28;
}

static NOINLINE int run_by_identifier(void)
{
	return dormouse_unlikely(by_identifier) && dormouse_likely(by_identifier);
}

/* Fields are evaluated where the probe is awake. */
static NOINLINE int run_probe(void)
{
	int evaluated = 0;
	DORMOUSE_PROBE("c.probe", evaluated = 1, "text");
	return evaluated;
}

const struct row c_rows[] = {
	{ "c.own", run_own },
	{ "c.own", run_likely },
	{ "c.starts-on", run_starts_on },
	{ "c.starts-on", run_starts_on_likely },
	{ "c.twin-a", run_twin_a },
	{ "c.twin-b", run_twin_b },
	{ "c.public", run_public },
	{ "c.in-loop", run_in_loop },
	{ "by_identifier", run_by_identifier },
	{ "c.probe", run_probe },
	{ 0, 0 },
};
