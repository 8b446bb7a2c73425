/*
 * Threads run sites while batches change the keys: a branch that lies wholly between two changes is the right one.
 */
#include <dormouse/keys.h>

#include <pthread.h>
#include <sched.h>

#include "check.h"

#define THREADS 4
#define CHANGES 200

static DORMOUSE_KEY_NAMED(left, "threads.left", false);
static DORMOUSE_KEY_NAMED(right, "threads.right", true);
/* Odd while a change is under way; each change adds 2. */
static unsigned generation;
static bool stop;
static unsigned long checked;

static void *run(void *none)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		unsigned before = __atomic_load_n(&generation, __ATOMIC_SEQ_CST);
		bool left_on = dormouse_unlikely(left), right_on = dormouse_likely(right);
		__atomic_thread_fence(__ATOMIC_SEQ_CST);
		if (before % 2 == 0 && before == __atomic_load_n(&generation, __ATOMIC_SEQ_CST)) {
			CHECK(left_on == (before / 2 % 2 == 1));
			CHECK(right_on == !left_on);
			__atomic_fetch_add(&checked, 1, __ATOMIC_RELAXED);
		}
	}
	return none;
}

int main(void)
{
	pthread_t threads[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&threads[i], NULL, run, NULL) == 0);
	for (int i = 0; i < CHANGES; i++) {
		struct dormouse_batch *batch = dormouse_batch_begin();
		(i % 2 ? dormouse_batch_disable : dormouse_batch_enable)(batch, &left.key);
		(i % 2 ? dormouse_batch_enable : dormouse_batch_disable)(batch, &right.key);
		__atomic_fetch_add(&generation, 1, __ATOMIC_SEQ_CST);
		CHECK(dormouse_batch_apply(batch, NULL, NULL) == DORMOUSE_OK);
		__atomic_fetch_add(&generation, 1, __ATOMIC_SEQ_CST);
		/* Somebody has looked since. */
		unsigned long before = __atomic_load_n(&checked, __ATOMIC_RELAXED);
		while (__atomic_load_n(&checked, __ATOMIC_RELAXED) < before + THREADS)
			sched_yield();
	}
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
	puts("no wrong branch");
	return 0;
}
