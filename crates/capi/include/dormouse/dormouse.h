/*
 * dormouse/dormouse.h: the agent that answers the `dormouse` command, and probes, named places with fields that
 * sleep behind static keys. Includes dormouse/keys.h, which has the rules for all functions,
 * dormouse/groups.h, dormouse/metrics.h, dormouse/profile.h, dormouse/publish.h, dormouse/waits.h and
 * dormouse/watch.h.
 *
 *     #include <dormouse/dormouse.h>
 *
 *     void brew(int cups, const char *kind)
 *     {
 *             DORMOUSE_PROBE("brew.step", cups, kind);
 *     }
 *
 *     int main(void)
 *     {
 *             struct dormouse_error error = DORMOUSE_ERROR_INIT;
 *             if (dormouse_init(&error) != DORMOUSE_OK)
 *                     fprintf(stderr, "%s\n", error.message);
 *             ...
 *
 * Then, in a shell: dormouse trace my-service 'brew.*'
 */
#ifndef DORMOUSE_DORMOUSE_H
#define DORMOUSE_DORMOUSE_H

#include <dormouse/groups.h>
#include <dormouse/keys.h>
#include <dormouse/metrics.h>
#include <dormouse/profile.h>
#include <dormouse/publish.h>
#include <dormouse/waits.h>
#include <dormouse/watch.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Starts the agent and the library's three other threads, unless they run already. The agent sleeps until somebody
 * connects to its socket, $DORMOUSE_RUNTIME_DIR/dormouse/<pid>.sock, else $XDG_RUNTIME_DIR/dormouse/<pid>.sock, else
 * /tmp/dormouse-<uid>/<pid>.sock. Only root and the process's own user may talk to it. The threads block the signals
 * that are sent to the process. A forked child has no agent until it calls this itself.
 *
 * Without the agent everything else works in-process. After a failure (DORMOUSE_NO_AGENT) the service goes on: what the
 * environment requests is done all the same, and the threads that end timed holds and watch budgets may stay. With
 * DORMOUSE=off in the environment it returns DORMOUSE_NO_AGENT, and nothing is started.
 */
enum dormouse_code dormouse_init(struct dormouse_error *error);

/*
 * Copies the faults of the settings in the environment, for which defaults are used: one warning a line, nothing if
 * there are none, or if dormouse_init has started no agent. Print them when the service starts:
 *
 *     char warnings[4096];
 *     if (dormouse_warnings(warnings, sizeof(warnings)) > 0)
 *             fputs(warnings, stderr);
 *
 * At most `length` bytes are written, of which the last one is a NUL; text that is too long is truncated. Returns the
 * length of all the text without the NUL, as snprintf does. `text` may be NULL with a `length` of 0. `dormouse doctor`
 * reports the same.
 */
size_t dormouse_warnings(char *text, size_t length);

/* ---- Probes ---- */

/*
 * A probe: a name (a string literal) and fields, in C at most ten.
 *
 *     DORMOUSE_PROBE("brew.step");
 *     DORMOUSE_PROBE("brew.step", cups, order->kind);
 *     DORMOUSE_PROBE("brew.step", DORMOUSE_FIELD(kind, order->kind), DORMOUSE_TEXT(body, length));
 *
 * A field is an integer, a floating-point number, a bool, a NUL-terminated string, or another pointer, which is
 * recorded as an address; in C++ also a type with data() and size() such as std::string. A NULL string is recorded
 * as no value. The name of a field is the text of its expression, or the first argument of its macro:
 * DORMOUSE_FIELD(name, value) names a value, DORMOUSE_TEXT(start, length) is text without a NUL at its end. In text
 * that is not UTF-8, invalid bytes are replaced.
 *
 * If a macro of your own passes its arguments on to DORMOUSE_PROBE, the compiler expands them first: a field that is a
 * macro itself, such as errno, is then named by its expansion unless DORMOUSE_FIELD names it.
 *
 * In C++ put a field with a comma between `<` and `>` into parentheses, (convert<int, long>(cups)): without them the
 * names of that field and of those behind it are wrong. Fields are passed by reference, so without optimisation a
 * `static const` member without a definition does not link: write +Limits::most, which is a value.
 *
 * The macro is a statement. In C it cannot stand in an `inline` function without `static`, which may have no statics.
 *
 * COST. Asleep one instruction; the fields are not evaluated. Awake a time stamp and a copy into a ring that belongs to
 * the thread: no lock, no allocation, no system call but for a thread's first record. A full ring loses its oldest
 * records, and counts them.
 *
 * SIGNALS. Async-signal-safe once the thread has left a record outside of a handler; a record in the middle of
 * another one of the same thread is dropped and counted. errno is as it was.
 */
#define DORMOUSE_PROBE(...) \
	do { \
		DORMOUSE_PROBE_HERE_(DORMOUSE_TEXT_(#__VA_ARGS__), DORMOUSE_FIRST_(__VA_ARGS__, )); \
		if (dormouse_unlikely(DORMOUSE_HERE_(key))) { \
			DORMOUSE_RECORD_(&DORMOUSE_HERE_(probe), __VA_ARGS__); \
		} \
	} while (0)

#define DORMOUSE_FIRST_(first, ...) first
/* The names are kept for a macro around the probe, in which these are expanded before their text is taken. */
#define DORMOUSE_FIELD(name, value) dormouse_field_(#name, DORMOUSE_VALUE_(value))
#define DORMOUSE_TEXT(start, length) dormouse_field_(#start, dormouse_value_text_(start, length))

/* Defined by DORMOUSE_PROBE. Only the library uses its fields. */
struct dormouse_probe {
	uint32_t size;
	uint32_t id;
	struct dormouse_text arguments; /* the text between the macro's parentheses */
};

enum dormouse_value_kind {
	DORMOUSE_VALUE_NOTHING = 0,
	DORMOUSE_VALUE_SIGNED = 1,
	DORMOUSE_VALUE_UNSIGNED = 2,
	DORMOUSE_VALUE_FLOAT = 3,
	DORMOUSE_VALUE_BOOLEAN = 4,
	DORMOUSE_VALUE_TEXT = 5
};

/* A field of a record. */
struct dormouse_value {
	uint32_t kind; /* enum dormouse_value_kind */
	uint32_t reserved;
	union {
		int64_t signed_number;
		uint64_t unsigned_number; /* and a boolean: 0 or 1 */
		const volatile void *pointer; /* an unsigned number */
		double float_number;
		struct dormouse_text text;
	} as;
};

/* Called by an awake DORMOUSE_PROBE. If `probe` is NULL, nothing is recorded. */
void dormouse_record(struct dormouse_probe *probe, const struct dormouse_value *values, size_t count);

static inline struct dormouse_value dormouse_value_signed_(long long number)
{
	struct dormouse_value value = { DORMOUSE_VALUE_SIGNED, 0, { 0 } };
	value.as.signed_number = number;
	return value;
}

static inline struct dormouse_value dormouse_value_unsigned_(unsigned long long number)
{
	struct dormouse_value value = { DORMOUSE_VALUE_UNSIGNED, 0, { 0 } };
	value.as.unsigned_number = number;
	return value;
}

static inline struct dormouse_value dormouse_value_float_(double number)
{
	struct dormouse_value value = { DORMOUSE_VALUE_FLOAT, 0, { 0 } };
	value.as.float_number = number;
	return value;
}

static inline struct dormouse_value dormouse_value_boolean_(bool truth)
{
	struct dormouse_value value = { DORMOUSE_VALUE_BOOLEAN, 0, { 0 } };
	value.as.unsigned_number = truth;
	return value;
}

static inline struct dormouse_value dormouse_value_pointer_(const volatile void *pointer)
{
	struct dormouse_value value = { DORMOUSE_VALUE_UNSIGNED, 0, { 0 } };
	value.as.pointer = pointer;
	return value;
}

static inline struct dormouse_value dormouse_value_text_(const char *start, size_t length)
{
	struct dormouse_value value = { DORMOUSE_VALUE_NOTHING, 0, { 0 } };
	if (start) {
		value.kind = DORMOUSE_VALUE_TEXT;
		value.as.text.start = start;
		value.as.text.length = length;
	}
	return value;
}

static inline struct dormouse_value dormouse_value_string_(const char *string)
{
	return dormouse_value_text_(string, string ? __builtin_strlen(string) : 0);
}

static inline struct dormouse_value dormouse_field_(const char *name, struct dormouse_value value)
{
	(void)name;
	return value;
}

static inline struct dormouse_value dormouse_value_itself_(struct dormouse_value value)
{
	return value;
}

#ifdef __cplusplus
}

extern "C++" {
#include <type_traits>

inline dormouse_value dormouse_value_of_(bool truth) { return dormouse_value_boolean_(truth); }
inline dormouse_value dormouse_value_of_(int number) { return dormouse_value_signed_(number); }
inline dormouse_value dormouse_value_of_(long number) { return dormouse_value_signed_(number); }
inline dormouse_value dormouse_value_of_(long long number) { return dormouse_value_signed_(number); }
inline dormouse_value dormouse_value_of_(unsigned number) { return dormouse_value_unsigned_(number); }
inline dormouse_value dormouse_value_of_(unsigned long number) { return dormouse_value_unsigned_(number); }
inline dormouse_value dormouse_value_of_(unsigned long long number) { return dormouse_value_unsigned_(number); }
inline dormouse_value dormouse_value_of_(double number) { return dormouse_value_float_(number); }
inline dormouse_value dormouse_value_of_(long double number) { return dormouse_value_float_(double(number)); }
inline dormouse_value dormouse_value_of_(const char *string) { return dormouse_value_string_(string); }
inline dormouse_value dormouse_value_of_(const volatile void *pointer) { return dormouse_value_pointer_(pointer); }
inline dormouse_value dormouse_value_of_(dormouse_value value) { return value; }
/* A pointer to a function, and one to a member, would be taken for a bool. */
template <class Function, std::enable_if_t<std::is_function_v<Function>, int> = 0>
inline dormouse_value dormouse_value_of_(Function *function)
{
	return dormouse_value_pointer_(reinterpret_cast<const void *>(function));
}
template <class Member, class Class> dormouse_value dormouse_value_of_(Member Class::*) = delete;

template <class Text>
inline auto dormouse_value_of_(const Text &text) -> decltype(dormouse_value_text_(text.data(), text.size()))
{
	return dormouse_value_text_(text.data(), text.size());
}

/*
 * The statics of a probe. They are members of a template, selected by a type that is local to the probe, because a
 * static of an inline function cannot be hidden, and because a template cannot pass the address of its own static on
 * (gcc 12). They are hidden, so that an object with inline functions has its own and can be unloaded.
 */
template <class Here> struct __attribute__((visibility("hidden"))) dormouse_probe_at_ {
	static inline dormouse_probe probe = { sizeof(dormouse_probe), 0, Here::arguments() };
	static inline dormouse_key_off key = { { sizeof(dormouse_key), 0, 0, 0, 0, 0, Here::name(), Here::file(),
						 &probe, 1, Here::line } };
};

/* This is a function so that temporaries among the fields live until they are recorded. */
template <class... Fields>
inline void dormouse_record_fields_(dormouse_probe *probe, const char *, const Fields &...fields)
{
	const dormouse_value values[] = { dormouse_value_of_(fields)..., dormouse_value() };
	dormouse_record(probe, values, sizeof...(fields));
}
}

#define DORMOUSE_PROBE_HERE_(text, literal) \
	struct dormouse_here_ { \
		enum : uint32_t { line = __LINE__ }; \
		static constexpr dormouse_text arguments() { return text; } \
		static constexpr dormouse_text name() { return DORMOUSE_TEXT_(literal); } \
		static constexpr dormouse_text file() { return DORMOUSE_TEXT_(__FILE__); } \
	}
#define DORMOUSE_HERE_(what) dormouse_probe_at_<dormouse_here_>::what
#define DORMOUSE_VALUE_(value) dormouse_value_of_(value)
#define DORMOUSE_RECORD_(probe, ...) dormouse_record_fields_(probe, __VA_ARGS__)
#else
#define DORMOUSE_PROBE_HERE_(text, name) \
	static struct dormouse_probe dormouse_here_probe = { sizeof(struct dormouse_probe), 0, text }; \
	static struct dormouse_key_off dormouse_here_key = DORMOUSE_KEY_VALUE_(name, 0, &dormouse_here_probe, 1)
#define DORMOUSE_HERE_(what) dormouse_here_##what
#define DORMOUSE_VALUE_(value) \
	_Generic((value), \
		_Bool: dormouse_value_boolean_, \
		char: dormouse_value_signed_, \
		signed char: dormouse_value_signed_, \
		short: dormouse_value_signed_, \
		int: dormouse_value_signed_, \
		long: dormouse_value_signed_, \
		long long: dormouse_value_signed_, \
		unsigned char: dormouse_value_unsigned_, \
		unsigned short: dormouse_value_unsigned_, \
		unsigned int: dormouse_value_unsigned_, \
		unsigned long: dormouse_value_unsigned_, \
		unsigned long long: dormouse_value_unsigned_, \
		float: dormouse_value_float_, \
		double: dormouse_value_float_, \
		long double: dormouse_value_float_, \
		char *: dormouse_value_string_, \
		const char *: dormouse_value_string_, \
		struct dormouse_value: dormouse_value_itself_, \
		default: dormouse_value_pointer_)(value)

#define DORMOUSE_RECORD_(probe, ...) \
	DORMOUSE_PICK_(__VA_ARGS__, DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, \
		       DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, DORMOUSE_MANY_, \
		       DORMOUSE_NONE_, )(probe, __VA_ARGS__)
#define DORMOUSE_NONE_(probe, name) dormouse_record(probe, NULL, 0)
#define DORMOUSE_MANY_(probe, name, ...) \
	const struct dormouse_value dormouse_values_[] = { DORMOUSE_PICK_( \
		name, __VA_ARGS__, DORMOUSE_10_, DORMOUSE_9_, DORMOUSE_8_, DORMOUSE_7_, DORMOUSE_6_, DORMOUSE_5_, \
		DORMOUSE_4_, DORMOUSE_3_, DORMOUSE_2_, DORMOUSE_1_, DORMOUSE_NONE_, )(__VA_ARGS__) }; \
	dormouse_record(probe, dormouse_values_, sizeof(dormouse_values_) / sizeof(dormouse_values_[0]))
#define DORMOUSE_PICK_(name, a, b, c, d, e, f, g, h, i, j, picked, ...) picked
#define DORMOUSE_1_(a) DORMOUSE_VALUE_(a)
#define DORMOUSE_2_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_1_(__VA_ARGS__)
#define DORMOUSE_3_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_2_(__VA_ARGS__)
#define DORMOUSE_4_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_3_(__VA_ARGS__)
#define DORMOUSE_5_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_4_(__VA_ARGS__)
#define DORMOUSE_6_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_5_(__VA_ARGS__)
#define DORMOUSE_7_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_6_(__VA_ARGS__)
#define DORMOUSE_8_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_7_(__VA_ARGS__)
#define DORMOUSE_9_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_8_(__VA_ARGS__)
#define DORMOUSE_10_(a, ...) DORMOUSE_VALUE_(a), DORMOUSE_9_(__VA_ARGS__)
#endif

DORMOUSE_ASSERT_(sizeof(struct dormouse_probe) == 24);
DORMOUSE_ASSERT_(sizeof(struct dormouse_value) == 24);

#endif
