/* What the test disassembles. */
#include <dormouse/dormouse.h>

static DORMOUSE_KEY_NAMED(off, "codegen.off", false);
static DORMOUSE_KEY_NAMED(on, "codegen.on", true);

#ifdef __cplusplus
extern "C" {
#endif

long slow(long value);
long unlikely_off(long value);
long likely_on(long value);
long probe_asleep(long value);

long unlikely_off(long value)
{
	if (dormouse_unlikely(off))
		return slow(value);
	return value * 3;
}

long likely_on(long value)
{
	if (dormouse_likely(on))
		return value * 3;
	return slow(value);
}

long probe_asleep(long value)
{
	DORMOUSE_PROBE("codegen.probe", slow(value), value / 7);
	return value * 3;
}

__attribute__((noinline)) long slow(long value)
{
	__asm__ volatile("" : "+r"(value));
	return value;
}

int main(void)
{
	return unlikely_off(1) == 3 && likely_on(1) == 3 && probe_asleep(1) == 3 ? 0 : 1;
}

#ifdef __cplusplus
}
#endif
