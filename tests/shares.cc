// Uses the CPU in functions of the C library that have no frame pointers, in signal handlers, in
// caught exceptions, and on another stack, each called by a function of its own. At its end it writes the CPU time of
// each to the file of its first argument; its second one is the seconds to use in all.
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <sys/socket.h>
#include <ucontext.h>

static volatile unsigned long sink;
static char from[1 << 20], into[1 << 20];
static int numbers[4096], pair[2];
static char other_stack[64 << 10];
static ucontext_t outside, fiber;

static double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

extern "C" int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
extern "C" void handler(int) { for (int n = 0; n < 300000; n++) sink += n; }

#define CALLER extern "C" __attribute__((noinline)) void
CALLER by_qsort() {
    for (int &number : numbers) number = (int)(sink = sink * 1103515245 + 12345);
    qsort(numbers, 4096, sizeof *numbers, compare);
    sink++;
}
CALLER by_memcpy() { for (int n = 0; n < 8; n++) { memcpy(into, from, sizeof from - (sink & 7)); sink++; } }
CALLER by_send() {
    for (int n = 0; n < 200; n++) { send(pair[0], from, 4096, 0); recv(pair[1], into, 4096, 0); }
    sink++;
}
CALLER by_signal() { raise(SIGUSR1); sink++; }
CALLER thrower(int depth) { if (depth == 0) throw depth; thrower(depth - 1); sink++; }
CALLER by_catch() { for (int n = 0; n < 30; n++) try { thrower(20); } catch (int) { sink++; } }
CALLER in_fiber() { for (int n = 0; n < 300000; n++) sink += n; }
static void fiber_begins() { for (;;) { in_fiber(); swapcontext(&fiber, &outside); } }
CALLER by_fiber() { swapcontext(&outside, &fiber); sink++; }

static void (*const callers[])() = {by_qsort, by_memcpy, by_send, by_signal, by_catch, by_fiber};
static const double parts[] = {0.25, 0.10, 0.20, 0.15, 0.15, 0.15};

int main(int, char **words) {
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    signal(SIGUSR1, handler);
    getcontext(&fiber);
    fiber.uc_stack.ss_sp = other_stack;
    fiber.uc_stack.ss_size = sizeof other_stack;
    makecontext(&fiber, fiber_begins, 0);
    double used[6] = {}, all = 0, most = atof(words[2]);
    while (all < most) {
        // In no order, and not as long each time: a regular order would be in step with the samples.
        double random = rand() / (RAND_MAX + 1.0);
        int next = 0;
        while (next < 5 && (random -= parts[next]) > 0) next++;
        double begun = now();
        for (int times = 1 + rand() % 8; times > 0; times--) callers[next]();
        double took = now() - begun;
        used[next] += took;
        all += took;
    }
    FILE *file = fopen(words[1], "w");
    for (double each : used) fprintf(file, "%f\n", each / all);
    return fclose(file);
}
