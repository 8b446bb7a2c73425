/* An allocator that refuses what its program wants refused. */
#ifndef STARVE_H
#define STARVE_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
#define OF_C extern "C"
#define NOTHROW noexcept
#else
#define OF_C
#define NOTHROW
#endif

OF_C void *__libc_malloc(size_t size);
OF_C void *__libc_calloc(size_t count, size_t size);
OF_C void *__libc_realloc(void *block, size_t size);

/* Whether the program wants this allocation refused. */
static bool refuses(size_t size);

static bool is_refused(size_t size)
{
	if (!refuses(size))
		return false;
	errno = ENOMEM;
	return true;
}

OF_C void *malloc(size_t size) NOTHROW
{
	return is_refused(size) ? NULL : __libc_malloc(size);
}

OF_C void *calloc(size_t count, size_t size) NOTHROW
{
	return is_refused(count * size) ? NULL : __libc_calloc(count, size);
}

OF_C void *realloc(void *block, size_t size) NOTHROW
{
	return is_refused(size) ? NULL : __libc_realloc(block, size);
}

#endif
