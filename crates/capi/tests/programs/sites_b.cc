/* Sites of C++: namespaces, classes, templates, inline functions, lambdas, exceptions. */
#include "sites_inline.hh"

#include <string>

namespace tea {
DORMOUSE_KEY_NAMED(in_namespace, "cc.namespace", false);
}
namespace {
DORMOUSE_KEY_NAMED(anonymous, "cc.anonymous", false);
}
static DORMOUSE_KEY_NAMED(between, "cc.between", true);

static NOINLINE int run_inline()
{
	return tea::in_inline(1);
}

static NOINLINE int run_template()
{
	return tea::in_template<int>(1) && tea::in_template<long>(2) && tea::in_template<double>(0.5) != 0;
}

static NOINLINE int run_lambda()
{
	auto ask = [] { return dormouse_unlikely(anonymous); };
	return ask();
}

static NOINLINE int run_throw()
{
	try {
		std::string alive = "until the end";
		tea::throws();
		return int(alive.size()) - 13;
	} catch (int thrown) {
		return thrown;
	}
}

/* What has a destructor lies between two sites. */
static NOINLINE int run_between()
{
	if (!dormouse_likely(between))
		return seven(0);
	std::string pot = "tea";
	if (dormouse_unlikely(between))
		pot += "pot";
	return pot == "teapot";
}

static NOINLINE int run_c()
{
	return in_c(1);
}

static NOINLINE int run_probe()
{
	return tea::probe_in_inline();
}

static NOINLINE int run_template_probe()
{
	return tea::probe_in_template<long>(1);
}

extern "C" const row b_rows[] = {
	{ "cc.member", run_inline },
	{ "cc.namespace", run_template },
	{ "cc.anonymous", run_lambda },
	{ "cc.namespace", run_throw },
	{ "cc.between", run_between },
	{ "c.public", run_c },
	{ "cc.inline-probe", run_probe },
	{ "cc.template-probe", run_template_probe },
	{ nullptr, nullptr },
};
