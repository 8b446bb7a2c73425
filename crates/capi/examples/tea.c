/*
 * A service of C: a key that it branches on, a probe, a group that pays for its requests, and the metrics that a server
 * of its own would answer with.
 *
 *     make -C crates/capi install PREFIX=/tmp/dormouse
 *     export PKG_CONFIG_PATH=/tmp/dormouse/lib/pkgconfig
 *     cc crates/capi/examples/tea.c $(pkg-config --cflags --libs dormouse-static) -o tea && ./tea
 */
#include <dormouse/dormouse.h>

#include <stdio.h>
#include <stdlib.h>

static DORMOUSE_KEY_NAMED(with_milk, "tea.milk", false);
static struct dormouse_group orders;

/* One request, charged to its group. */
static const char *order(int cups)
{
	const char *tea;
	struct dormouse_entered entered = dormouse_group_enter(orders);
	DORMOUSE_PROBE("tea.order", cups); /* asleep: one instruction */
	tea = dormouse_unlikely(with_milk) ? "with milk" : "as it is";
	dormouse_group_leave(entered);
	return tea;
}

static void check(enum dormouse_code code, const struct dormouse_error *error)
{
	if (code != DORMOUSE_OK) {
		fprintf(stderr, "%s\n", error->message);
		exit(1);
	}
}

int main(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_report report = DORMOUSE_REPORT_INIT;
	struct dormouse_key_info info = DORMOUSE_KEY_INFO_INIT;
	struct dormouse_key *keys[] = { &with_milk.key };
	struct dormouse_lease *lease;
	struct dormouse_list *list;
	struct dormouse_metrics_spec spec = DORMOUSE_METRICS_SPEC_INIT;
	struct dormouse_metrics *metrics;
	const void *text;
	size_t length;

	/* Groups are counted from here on. */
	check(dormouse_metrics_begin(&spec, &metrics, &error), &error);
	/* A service starts the agent here, so that the `dormouse` command can look in: dormouse_init(&error) */
	orders = dormouse_group_new("POST /orders");
	printf("tea %s\n", order(1));

	/* The key is on as long as somebody holds a lease on it. */
	check(dormouse_acquire(keys, 1, &lease, &report, &error), &error);
	printf("tea %s: %d site written\n", order(2), (int)report.sites);
	check(dormouse_release(lease, NULL, &error), &error);
	printf("tea %s\n", order(3));

	check(dormouse_list_begin("tea.*", &list, &error), &error);
	while (dormouse_list_next(list, &info))
		printf("%s: %s, %d site\n", info.name, info.on ? "on" : "off", (int)info.sites);
	dormouse_list_end(list);

	/* The answer at /metrics; dormouse_metrics_accepted has the format for a request's header. */
	check(dormouse_metrics_read(metrics, DORMOUSE_METRICS_TEXT, &text, &length, &error), &error);
	fwrite(text, 1, length, stdout);
	dormouse_metrics_end(metrics);
	return 0;
}
