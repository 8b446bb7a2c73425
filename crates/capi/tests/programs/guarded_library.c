/* A library whose code may be entered by marked instructions alone, where the processor knows these. */
#include "guarded.h"

DORMOUSE_KEY(guarded_key, false);

int in_library(int value)
{
	return dormouse_unlikely(guarded_key) ? value + 1 : value;
}
