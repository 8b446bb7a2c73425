/* A row is a function that says what its site on the key of that name says. */
#ifndef SITES_H
#define SITES_H

#include <dormouse/keys.h>

#define NOINLINE __attribute__((noinline))

struct row {
	const char *key;
	int (*run)(void);
};

#ifdef __cplusplus
#define EXTERN_C extern "C"
#else
#define EXTERN_C extern
#endif

EXTERN_C const struct row c_rows[], b_rows[], d_rows[];
/* Where a compiler cannot look. */
EXTERN_C int seven(int value);

DORMOUSE_KEY_DECLARE(public_key, false);

static inline int in_c(int value)
{
	return dormouse_unlikely(public_key) ? seven(value) : 0;
}

#endif
