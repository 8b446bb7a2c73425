/* Sites that two units of C++ both instantiate. */
#include "sites.h"

#include <dormouse/dormouse.h>

namespace tea {
DORMOUSE_KEY_DECLARE(in_namespace, false);

struct Pot {
	static inline DORMOUSE_KEY_NAMED(member, "cc.member", true);
};

inline int in_inline(int value)
{
	if (dormouse_unlikely(Pot::member))
		return value;
	return 0;
}

template <class T> T in_template(T value)
{
	if (dormouse_likely(in_namespace))
		return value;
	return T(seven(0));
}

/* Fields are evaluated where the probe is awake. */
inline int probe_in_inline()
{
	int evaluated = 0;
	DORMOUSE_PROBE("cc.inline-probe", evaluated = 1);
	return evaluated;
}

template <class T> int probe_in_template(T value)
{
	T evaluated = 0;
	auto in_lambda = [&] { DORMOUSE_PROBE("cc.template-probe", evaluated = value, sizeof(T)); };
	in_lambda();
	return int(evaluated);
}

/* Throws where the key is on. */
inline void throws()
{
	if (dormouse_unlikely(in_namespace))
		throw 1;
}
}
