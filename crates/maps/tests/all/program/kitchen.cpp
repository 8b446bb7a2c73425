// Variables of C++, and where they are: a line for each, its text, address and length.
#include <cstdio>
#include <string>

namespace house {
struct base { int low; };
struct room : base {
    int high;
    static int made;
    virtual ~room() = default;
};
int room::made = 1;
room hall;
template <typename T> struct pot { static T filled; };
template <typename T> T pot<T>::filled{};
namespace {
long hidden = 3;
}
}
static house::room cellar[2];
static volatile int last = 1;
static house::room &reference = cellar[last];

template <typename T> void show(const char *text, const T &place)
{
    std::printf("%s\t%p\t%zu\n", text, (const void *)&place, sizeof place);
}

static volatile int *visits()
{
    static volatile int calls;
    show("visits()::calls", calls);
    show("calls", calls);
    return &calls;
}

int main()
{
    house::hidden += *visits();
    show("house::hall", house::hall);
    show("hall.low", house::hall.low);
    show("house::hall.high", house::hall.high);
    show("house::room::made", house::room::made);
    show("made", house::room::made);
    show("house::pot<int>::filled", house::pot<int>::filled);
    show("pot<long>::filled", house::pot<long>::filled);
    show("house::(anonymous namespace)::hidden", house::hidden);
    show("hidden", house::hidden);
    show("cellar[1].high", cellar[1].high);
    show("reference->low", reference.low);
    std::putchar('\n');
    std::fflush(stdout);
    std::getchar();
}
