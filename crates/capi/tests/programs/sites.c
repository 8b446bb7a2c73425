/* Switches each key alone and looks whether every site follows its own key and no other. */
#include "sites.h"

#include <string.h>

#include "check.h"

static const struct row *const tables[] = {
	c_rows,
#ifdef WITH_CXX
	b_rows,
	d_rows,
#endif
};

int seven(int value)
{
	return value;
}

static int is_on(const char *name)
{
	struct dormouse_list *list;
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;
	CHECK(dormouse_list_begin(name, &list, NULL) == DORMOUSE_OK);
	if (!dormouse_list_next(list, &info)) {
		fprintf(stderr, "key %s is lost\n", name);
		exit(1);
	}
	CHECK(!dormouse_list_next(list, &info));
	CHECK(dormouse_is_enabled(info.key) == info.on);
	dormouse_list_end(list);
	return info.on;
}

static void check_all(void)
{
	for (size_t t = 0; t < sizeof(tables) / sizeof(tables[0]); t++)
		for (const struct row *row = tables[t]; row->key; row++)
			if (row->run() != is_on(row->key)) {
				fprintf(stderr, "a site of %s says %d\n", row->key, row->run());
				exit(1);
			}
}

int main(void)
{
	struct dormouse_list *list;
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;

	check_all();
	CHECK(dormouse_list_begin(NULL, &list, NULL) == DORMOUSE_OK);
	while (dormouse_list_next(list, &info)) {
		struct dormouse_report report = DORMOUSE_REPORT_INIT;
		printf("key %s %llu\n", info.name, (unsigned long long)info.sites);
		for (int twice = 0; twice < 2; twice++) {
			CHECK((dormouse_is_enabled(info.key) ? dormouse_disable : dormouse_enable)(
				      info.key, &report, NULL) == DORMOUSE_OK);
			CHECK(report.keys == 1 && report.sites == info.sites && report.skipped == 0);
			CHECK(dormouse_is_enabled(info.key) != (info.on ^ twice));
			check_all();
		}
	}
	dormouse_list_end(list);
	puts("every site follows");
	return 0;
}
