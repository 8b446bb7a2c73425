/* Variables of C, and where they are: a line for each, its text, address and length. */
#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>

struct point { int x, y; };
union number { long whole; double real; };

typedef struct {
    char name[16];
    struct point at[3];
    union number n;
    struct { short inner; union { char low; long wide; }; };
    unsigned few : 3, many : 9;
    int grid[2][5];
    struct point *next;
} room;

room hall = { .name = "hall" };
static room cellar[4];
const volatile int fixed = 7;
static _Atomic long guests;
static struct point *volatile pointer;
static struct point corner = { 1, 2 };
static __thread int mine;
static char big[1 << 20];

#define SHOW_AS(text, place) printf("%s\t%p\t%zu\n", text, (void *)&(place), sizeof(place))
#define SHOW(place) SHOW_AS(#place, place)

static int count(void)
{
    static volatile int calls;

    SHOW(calls);
    return ++calls;
}

int main(void)
{
    pointer = &corner;
    hall.next = &corner;
    cellar[1].grid[0][1] = ++mine + (int)++guests + fixed;
    big[cellar[1].grid[0][1]] = 1;
#ifdef MAP_TWICE
    int file = open("/proc/self/exe", O_RDONLY);
    mmap(NULL, 1 << 14, PROT_READ, MAP_PRIVATE, file, 0);
    mmap(NULL, 1 << 12, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 1 << 12);
#endif
    SHOW(hall);
    SHOW(hall.name);
    SHOW(hall.name[15]);
    SHOW(hall.at[2].y);
    SHOW(hall.n.real);
    SHOW(hall.inner);
    SHOW(hall.wide);
    SHOW(hall.grid[1]);
    SHOW(hall.grid[1][4]);
    SHOW_AS("hall.at[1]+0x4", hall.at[1].y);
    printf("hall.many\t%p\t2\n", (void *)((char *)&hall.grid - 4));
    SHOW(cellar);
    SHOW(cellar[3].at[0]);
    SHOW(fixed);
    SHOW(guests);
    SHOW(pointer);
    SHOW(pointer->y);
    SHOW_AS("*pointer", corner);
    SHOW(hall.next->x);
    SHOW(big);
    SHOW(big[1000000]);
    count();
    putchar('\n');
    fflush(stdout);
    getchar();
    return cellar[1].grid[0][1] < 0;
}
