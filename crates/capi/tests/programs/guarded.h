#ifndef GUARDED_H
#define GUARDED_H

#include <dormouse/keys.h>

DORMOUSE_KEY_DECLARE(guarded_key, false);

int in_library(int value);

#endif
