/* A second unit with the same inline functions and templates: the linker keeps one of each. */
#include "sites_inline.hh"

static NOINLINE int run_inline()
{
	return tea::in_inline(1);
}

static NOINLINE int run_template()
{
	return tea::in_template<int>(1) && tea::in_template<long>(2) && tea::in_template<float>(3) != 0;
}

static NOINLINE int run_throw()
{
	try {
		tea::throws();
	} catch (...) {
		return 1;
	}
	return 0;
}

static NOINLINE int run_probe()
{
	return tea::probe_in_inline();
}

static NOINLINE int run_template_probe()
{
	return tea::probe_in_template<long>(1);
}

extern "C" const row d_rows[] = {
	{ "cc.member", run_inline },
	{ "cc.namespace", run_template },
	{ "cc.namespace", run_throw },
	{ "cc.inline-probe", run_probe },
	{ "cc.template-probe", run_template_probe },
	{ nullptr, nullptr },
};
