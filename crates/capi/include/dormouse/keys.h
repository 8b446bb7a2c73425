/*
 * dormouse/keys.h: static keys, booleans that code branches on, whose branches are rewritten while the
 * program runs.
 *
 *     #include <dormouse/keys.h>
 *
 *     DORMOUSE_KEY_NAMED(trace_queries, "db.query", false);
 *
 *     void query(const char *sql)
 *     {
 *             if (dormouse_unlikely(trace_queries))
 *                     puts(sql);
 *     }
 *
 *     dormouse_enable(&trace_queries.key, NULL, NULL);
 *
 * C11 or C++17, gcc 9 or clang 9 and later, Linux on x86-64 or arm64. Link with `pkg-config --libs dormouse`.
 *
 * COST. Asleep, a site (dormouse_unlikely, dormouse_likely) is one instruction without a load, a compare
 * or a conditional branch, and the code behind it is out of line. Changing a key is slow: a
 * system call for each run of code pages, an interrupt to every processor that runs the process. Change many
 * keys in one batch, which costs nearly the same as one.
 *
 * ORDERING. A site imposes no memory ordering. Data that the awake branch reads must be published by its own means.
 * While a key changes, one thread may see it on and another see it off; when the function that changes it returns, no
 * thread runs on the old branch.
 *
 * THREADS. Every function may be called from any thread at any time; batches wait for one another. A batch, a
 * list, a lease, a watch, a profile and metrics belong to one thread at a time.
 *
 * SIGNALS. Sites and dormouse_is_enabled are async-signal-safe. No other function here is: a handler that
 * interrupts a batch of its own thread gets DORMOUSE_REENTRANT.
 *
 * ERRORS. Functions that can fail return a dormouse_code. If the caller passes a struct dormouse_error, its message
 * contains what failed, on what, and what to change. After an error, keys are as they were, and so is
 * code, unless the message counts sites that could not be restored. No function
 * throws, and none changes errno. There is no "last error".
 *
 * MEMORY. If there is too little memory, a function returns DORMOUSE_NO_MEMORY (or NULL, if it returns a pointer) and
 * has done nothing. It reserves the memory before it begins, and uses the reserve where malloc fails
 * meanwhile; so do the library's own threads. One allocation is not covered: to start a thread of its
 * own (dormouse_init, profiles, watches) the library needs some hundred bytes from malloc itself. If other threads
 * take the last memory at that moment, the process aborts, with the reason on standard error. Sites,
 * dormouse_is_enabled, and entering and leaving groups need no memory.
 *
 * CANCELLATION. No function is a cancellation point: a thread that is cancelled (pthread_cancel) inside of one ends
 * at its next cancellation point after it. (With PTHREAD_CANCEL_ASYNCHRONOUS a thread may call none of them; the same
 * holds for nearly all functions of C.) If a signal handler leaves an awake probe by siglongjmp, the thread can no
 * longer be cancelled: where sigsetjmp returns again, call pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL).
 *
 * GROWTH. Structures that the caller provides begin with their size, which the *_INIT macros set. Later versions
 * add fields at the end, and fill only the fields within that size; on return, size is the number of bytes filled.
 */
#ifndef DORMOUSE_KEYS_H
#define DORMOUSE_KEYS_H

#if !(defined(__x86_64__) || defined(__aarch64__) && defined(__AARCH64EL__)) || defined(__ILP32__) || \
	!defined(__linux__) || !defined(__GNUC__)
#error "dormouse/keys.h: sites are for Linux on x86-64 or arm64, gcc or clang"
#elif defined(__clang__) ? __clang_major__ < 9 : __GNUC__ < 9
#error "dormouse/keys.h: sites need gcc 9 or clang 9"
#elif defined(__cplusplus) ? __cplusplus < 201703L : __STDC_VERSION__ < 201112L
#error "dormouse/keys.h: C11 or C++17 is needed"
#endif

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#define DORMOUSE_NULL_ nullptr
extern "C" {
#else
#define DORMOUSE_NULL_ NULL
#include <stdbool.h>
#endif

/* ---- Errors and reports ---- */

/* The result of a call. Later versions may return others: anything but DORMOUSE_OK is an error. */
enum dormouse_code {
	DORMOUSE_OK = 0,
	DORMOUSE_INVALID = 1,         /* an argument is NULL or misaligned, is not a key, or has an unknown size */
	DORMOUSE_UNEXPECTED_TEXT = 2, /* something else has patched a site: a debugger, a uprobe */
	DORMOUSE_NOT_TEXT = 3,        /* a site is not in code of a loaded object that is its own, or branches too far */
	DORMOUSE_DENIED = 4,          /* the kernel, or a filter, refuses a system call: see os_error, else the message */
	DORMOUSE_TRAPS_BLOCKED = 5,   /* the int3 protocol, while a thread blocks SIGTRAP */
	DORMOUSE_TOO_MANY_LEASES = 6, /* a key holds 2^32 - 1 leases */
	DORMOUSE_REENTRANT = 7,       /* a batch inside a batch of the same thread */
	DORMOUSE_BAD_GLOB = 8,        /* a list of globs does not parse */
	DORMOUSE_NO_AGENT = 9,        /* dormouse_init: no socket, no thread, or DORMOUSE=off */
	DORMOUSE_OTHER = 10,          /* another reason, which is in the message */
	DORMOUSE_BUG = 11,            /* a bug in dormouse, which was kept from harming its host */
	DORMOUSE_NO_MEMORY = 12,      /* there is not enough memory */
	DORMOUSE_NO_REGISTER = 13,    /* dormouse_watch_begin: all debug registers are taken */
	DORMOUSE_NO_PROFILE = 14      /* dormouse_profile_begin: this process or system does not support it */
};

/* Why a call failed. Written only if it did. */
struct dormouse_error {
	uint32_t size;
	int32_t code;       /* enum dormouse_code */
	int32_t os_error;   /* the kernel's error (an errno), or 0 */
	uint32_t reserved;
	uint64_t address;   /* the address of the site or variable concerned, or 0 */
	char message[488];  /* one line of UTF-8 that ends with a NUL, truncated if it does not fit */
};

#define DORMOUSE_ERROR_INIT { sizeof(struct dormouse_error), 0, 0, 0, 0, { 0 } }

/* The effects of a batch. */
struct dormouse_report {
	uint32_t size;
	uint32_t reserved;
	uint64_t keys;       /* keys that changed their state */
	uint64_t sites;      /* sites written */
	uint64_t skipped;    /* sites that lie in no object's code, and so could not be written */
	uint64_t pages;      /* pages that hold the sites written */
	uint64_t barriers;   /* core synchronisations */
	uint64_t traps;      /* traps taken by threads that ran into a site meanwhile; 0 by the flip protocol */
	uint64_t unsealed;   /* pages that could not be made read-only again */
	uint64_t elapsed_ns; /* wall time, including the wait for other batches */
};

#define DORMOUSE_REPORT_INIT { sizeof(struct dormouse_report), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* ---- Keys ---- */

/* Text in static memory, which should be UTF-8. */
struct dormouse_text {
	const char *start;
	size_t length;
};

/* A key. Defined by the macros below, in static memory. Only the library uses its fields. */
struct dormouse_key {
	uint32_t size;
	uint8_t on;
	uint8_t baseline;
	uint8_t initial;
	uint8_t reserved;
	uint64_t leases;
	struct dormouse_text name;
	struct dormouse_text file;
	const void *attached;
	uint32_t kind; /* of what is attached; 0: nothing, 1: a struct dormouse_probe */
	uint32_t line;
};

/* The state at the start of the program is part of a key's type, because its sites are assembled for that state. */
struct dormouse_key_off {
	struct dormouse_key key;
};
struct dormouse_key_on {
	struct dormouse_key key;
};

/*
 * Defines a key: an identifier, a dotted name for display (a string literal, which need not be unique), and the
 * initial state (`false` or `true`). Use it at file scope, at namespace scope, or for a static member:
 *
 *     DORMOUSE_KEY_NAMED(trace_queries, "db.query", false);         for all files
 *     static DORMOUSE_KEY_NAMED(trace_plans, "db.plan", false);     for this one
 *     static inline DORMOUSE_KEY_NAMED(member, "db.member", true);  C++, in a class
 *
 * Functions take its member `key`: &trace_queries.key.
 */
#define DORMOUSE_KEY_NAMED(identifier, name, initial) \
	DORMOUSE_KEY_TYPE_##initial identifier = \
		DORMOUSE_KEY_VALUE_(name, DORMOUSE_KEY_STATE_##initial, DORMOUSE_NULL_, 0)

/* Defines a key whose name is its identifier. */
#define DORMOUSE_KEY(identifier, initial) \
	DORMOUSE_KEY_TYPE_##initial identifier = \
		DORMOUSE_KEY_VALUE_(#identifier, DORMOUSE_KEY_STATE_##initial, DORMOUSE_NULL_, 0)

/*
 * Declares a key that another file, or another object that this one is linked with, defines. The initial state
 * must be that of the definition.
 */
#define DORMOUSE_KEY_DECLARE(identifier, initial) extern DORMOUSE_KEY_TYPE_##initial identifier

/* `false` and `true`, as they are written and as stdbool.h may have expanded them. */
#define DORMOUSE_KEY_TYPE_false struct dormouse_key_off
#define DORMOUSE_KEY_TYPE_true struct dormouse_key_on
#define DORMOUSE_KEY_TYPE_0 struct dormouse_key_off
#define DORMOUSE_KEY_TYPE_1 struct dormouse_key_on
#define DORMOUSE_KEY_STATE_false 0
#define DORMOUSE_KEY_STATE_true 1
#define DORMOUSE_KEY_STATE_0 0
#define DORMOUSE_KEY_STATE_1 1

#define DORMOUSE_TEXT_(literal) { "" literal, sizeof(literal) - 1 }
#define DORMOUSE_KEY_VALUE_(name, state, attached, kind) \
	{ { sizeof(struct dormouse_key), state, state, state, 0, 0, DORMOUSE_TEXT_(name), \
	    DORMOUSE_TEXT_(__FILE__), attached, kind, __LINE__ } }

/* Whether a key is on: a load, for code without a site. False if `key` is NULL. Async-signal-safe. */
bool dormouse_is_enabled(const struct dormouse_key *key);

/*
 * Sets a key's baseline on or off. A key is on while its baseline is on or a lease on it is held. The effects are
 * written to `report`, an error to `error`; each may be NULL.
 */
enum dormouse_code dormouse_enable(struct dormouse_key *key, struct dormouse_report *report,
				   struct dormouse_error *error);
enum dormouse_code dormouse_disable(struct dormouse_key *key, struct dormouse_report *report,
				    struct dormouse_error *error);

/* ---- Leases: keys stay on while a lease is held ---- */

struct dormouse_lease;

/* Takes a lease on `count` keys in one batch. A key that is named twice is counted once. */
enum dormouse_code dormouse_acquire(struct dormouse_key *const *keys, size_t count,
				    struct dormouse_lease **lease, struct dormouse_report *report,
				    struct dormouse_error *error);

/* Gives the keys back and ends the lease. After an error the lease is still held. Does nothing if `lease` is NULL. */
enum dormouse_code dormouse_release(struct dormouse_lease *lease, struct dormouse_report *report,
				    struct dormouse_error *error);

/* ---- Batches: one transaction over any number of keys ---- */

struct dormouse_batch;

/*
 * Makes an empty batch, which dormouse_batch_apply or dormouse_batch_abandon ends. Returns NULL if there is no memory.
 * The other functions of batches accept NULL: they return an error or do nothing.
 */
struct dormouse_batch *dormouse_batch_begin(void);

/*
 * Adds a change; of several changes of one key the last one counts. If `key` is not a key, or there is no memory,
 * dormouse_batch_apply will return an error.
 */
void dormouse_batch_enable(struct dormouse_batch *batch, struct dormouse_key *key);
void dormouse_batch_disable(struct dormouse_batch *batch, struct dormouse_key *key);

/* All sites are checked, then all are written, then the new states become visible. Ends the batch in any case. */
enum dormouse_code dormouse_batch_apply(struct dormouse_batch *batch, struct dormouse_report *report,
					struct dormouse_error *error);

/* Ends a batch without applying it. Does nothing if `batch` is NULL. */
void dormouse_batch_abandon(struct dormouse_batch *batch);

/* ---- Lists ---- */

struct dormouse_list;

/* A key that a site names, in its state when dormouse_list_next() returns it. */
struct dormouse_key_info {
	uint32_t size;
	uint32_t line;
	struct dormouse_key *key; /* the object that defines it stays loaded from now on */
	const char *name;         /* this and the next two are valid until the list ends */
	const char *file;
	const char *object;       /* file name of the object that contains the key; "" if it is unknown */
	uint64_t sites;
	uint32_t leases;
	uint8_t on;
	uint8_t baseline;
	uint8_t reserved[2];
};

#define DORMOUSE_KEY_INFO_INIT \
	{ sizeof(struct dormouse_key_info), 0, DORMOUSE_NULL_, DORMOUSE_NULL_, DORMOUSE_NULL_, DORMOUSE_NULL_, \
	  0, 0, 0, 0, { 0, 0 } }

/*
 * The keys of the process, C's and Rust's, sorted by name: those that a list of globs selects ("db.*,!db.noisy"), or
 * all if `globs` is NULL. If no key is selected, the list is empty; that is no error.
 */
enum dormouse_code dormouse_list_begin(const char *globs, struct dormouse_list **list,
				       struct dormouse_error *error);

/* The next key; false at the end, or if an argument is NULL or of an unknown size. */
bool dormouse_list_next(struct dormouse_list *list, struct dormouse_key_info *info);

/* Ends the list. Does nothing if `list` is NULL. */
void dormouse_list_end(struct dormouse_list *list);

/* ---- Sites ---- */

/*
 * Whether a key is on: use dormouse_unlikely where it usually is not, dormouse_likely where it usually is. `key` is
 * the identifier of a key that was defined or declared by the macros above; other expressions do not
 * compile. Both are expressions of type bool that never fail.
 *
 *     key     dormouse_unlikely                       dormouse_likely
 *     off     test eax, imm32: falls through, false   jmp: out of line, false
 *     on      jmp: out of line, true                  test eax, imm32: falls through, true
 *
 * On arm64 the two instructions are nop and b.
 *
 * In C, a compiler before clang 17 refuses a variable with __attribute__((cleanup)), and one of variable length,
 * between two sites of one function.
 */
#ifdef __cplusplus
#define dormouse_unlikely(key) bool(__builtin_expect(dormouse_site_<&(key), 0>(), 0))
#define dormouse_likely(key) bool(__builtin_expect(dormouse_site_<&(key), 1>(), 1))
#else
#define dormouse_unlikely(key) ((bool)__builtin_expect(DORMOUSE_SITE_(key, 0), 0))
#define dormouse_likely(key) ((bool)__builtin_expect(DORMOUSE_SITE_(key, 1), 1))
#endif

/* Called by the constructor and the destructor that an object with sites contains, with the bounds of its entries. */
struct dormouse_object;
void dormouse_register_v1(const struct dormouse_object *object);
void dormouse_unregister_v1(const struct dormouse_object *object);

#ifdef __cplusplus
}
#endif

/*
 * What a site emits: metadata of sites, version 1, byte for byte the same as the Rust macros.
 *
 * - Each copy that the compiler makes of a site is labelled by `%=`, which is unique in one run of the assembler. (The
 *   `\+` that the Rust macros use exists only in LLVM.)
 * - The entry's section is tied to the site's label ("o"), so a linker drops the entries of functions that it
 *   drops, and is in the group of the function ("?"), so copies of an inline function that the linker has
 *   discarded take their entries along. GNU binutils before 2.36 cannot mix tied and other sections: there "o"
 *   is left out, and entries keep their functions.
 * - The entry points to a slot that contains the key's address. The compiler sees the slot, unlike a name
 *   in the assembler's text, so the slot survives link-time optimisation; it belongs to the object, so it
 *   can be named without a load in position-independent code, and the key may lie in another object.
 * - A relocation that changes nothing names the slot in the code itself. Without it, identical-code folding would
 *   merge two functions that differ only in their keys.
 * - The first site of a run of the assembler also leaves a constructor and a destructor, one each for a linked object
 *   (comdat), that pass the bounds of the object's entries to the library. The bounds are weak: without a site they
 *   are null. By their priority the constructor runs before the object's others, and the destructor after them.
 *
 * The assembler's text has several lines but few bytes; `inline` makes gcc count it as short.
 */
#if defined(__clang__) && __clang_major__ < 11
#define DORMOUSE_ASM_ __asm__
#else
#define DORMOUSE_ASM_ __asm__ __inline__
#endif

/*
 * What differs between processors: the beginning of a constructor and its jump, the relocation that changes nothing,
 * and a site's instruction.
 */
/* clang-format off */
#ifdef __x86_64__
#define DORMOUSE_CALL_ASM_(function) \
	"endbr64\n" \
	"lea{q dormouse_object_v1(%%rip), %%rdi| rdi, dormouse_object_v1[rip]}\n" \
	"jmp " function "@PLT\n"
#define DORMOUSE_NONE_ASM_ "R_X86_64_NONE, %c[slot]\n"
/* test eax, imm32 and jmp rel32: five bytes each, alike but for the first. */
#define DORMOUSE_BRANCH_ASM_ \
	".byte 0xa9 + 0x40 * %c[jumps]\n" \
	".long %l[dormouse_jump_] - (.Ldormouse_site_c_%= + 5)\n"
#define DORMOUSE_SLOT_ "i"
#define DORMOUSE_SLOT_ASM_ "%c[slot]"
#else
#define DORMOUSE_CALL_ASM_(function) \
	"hint #34\n" \
	"adrp x0, dormouse_object_v1\n" \
	"add x0, x0, :lo12:dormouse_object_v1\n" \
	"b " function "\n"
#define DORMOUSE_NONE_ASM_ "R_AARCH64_NONE, %[slot]\n"
#define DORMOUSE_BRANCH_ASM_ \
	".if %c[jumps]\n" \
	"b %l[dormouse_jump_]\n" \
	".else\n" \
	"nop\n" \
	".endif\n"
/* gcc takes an address for "S" alone in position-independent code; clang before 19 wants "i". */
#define DORMOUSE_SLOT_ "Si"
#define DORMOUSE_SLOT_ASM_ "%[slot]"
#endif

#define DORMOUSE_OBJECT_ASM_ \
	".ifndef .Ldormouse_c_v1\n" \
	".set .Ldormouse_c_v1, 1\n" \
	".weak __start_dormouse_sites_v1\n" \
	".hidden __start_dormouse_sites_v1\n" \
	".weak __stop_dormouse_sites_v1\n" \
	".hidden __stop_dormouse_sites_v1\n" \
	".pushsection .data.dormouse_object_v1,\"awG\",@progbits,dormouse_object_v1,comdat\n" \
	".weak dormouse_object_v1\n" \
	".hidden dormouse_object_v1\n" \
	".balign 8\n" \
	"dormouse_object_v1:\n" \
	".quad 40\n" \
	".quad __start_dormouse_sites_v1\n" \
	".quad __stop_dormouse_sites_v1\n" \
	".quad 0\n" \
	".quad 1\n" \
	".popsection\n" \
	".pushsection .text.dormouse_register_v1,\"axG\",@progbits,dormouse_object_v1,comdat\n" \
	".Ldormouse_register_v1:\n" \
	DORMOUSE_CALL_ASM_("dormouse_register_v1") \
	".Ldormouse_unregister_v1:\n" \
	DORMOUSE_CALL_ASM_("dormouse_unregister_v1") \
	".popsection\n" \
	".pushsection .init_array.00100,\"awG\",@init_array,dormouse_object_v1,comdat\n" \
	".balign 8\n" \
	".quad .Ldormouse_register_v1\n" \
	".popsection\n" \
	".pushsection .fini_array.00100,\"awG\",@fini_array,dormouse_object_v1,comdat\n" \
	".balign 8\n" \
	".quad .Ldormouse_unregister_v1\n" \
	".popsection\n" \
	".set .Ldormouse_tied_v1, 1\n" \
	".ifdef .gasversion.\n" \
	".if .gasversion. < 23600\n" \
	".set .Ldormouse_tied_v1, 0\n" \
	".endif\n" \
	".endif\n" \
	".endif\n"

#define DORMOUSE_SITE_ASM_ \
	DORMOUSE_OBJECT_ASM_ \
	".Ldormouse_site_c_%=:\n" \
	DORMOUSE_BRANCH_ASM_ \
	".reloc .Ldormouse_site_c_%=, " DORMOUSE_NONE_ASM_ \
	".if .Ldormouse_tied_v1\n" \
	".pushsection dormouse_sites_v1,\"ao?\",@progbits,.Ldormouse_site_c_%=\n" \
	".else\n" \
	".pushsection dormouse_sites_v1,\"a?\",@progbits\n" \
	".endif\n" \
	".balign 4\n" \
	".long .Ldormouse_site_c_%= - .\n" \
	".long %l[dormouse_jump_] - .\n" \
	".long " DORMOUSE_SLOT_ASM_ " - .\n" \
	".long %c[flags]\n" \
	".popsection"
/* clang-format on */

#define DORMOUSE_SITE_OPERANDS_(slot_, initial, branch) \
	[slot] DORMOUSE_SLOT_(&(slot_)), [jumps] "i"((initial) != (branch)), [flags] "i"((branch) | (initial) << 1)

#ifdef __cplusplus
extern "C++" {
/* Hidden, so that it binds to its own object although it is shared between files. */
template <auto *Key> struct __attribute__((visibility("hidden"))) dormouse_slot_;

template <dormouse_key_off *Key> struct __attribute__((visibility("hidden"))) dormouse_slot_<Key> {
	static constexpr const dormouse_key *slot = &Key->key;
	static constexpr int initial = 0;
};

template <dormouse_key_on *Key> struct __attribute__((visibility("hidden"))) dormouse_slot_<Key> {
	static constexpr const dormouse_key *slot = &Key->key;
	static constexpr int initial = 1;
};

/* A function, so that no variable of the caller's lies between the site and its label. */
template <auto *Key, int Branch> __attribute__((always_inline)) inline bool dormouse_site_() noexcept
{
	DORMOUSE_ASM_ goto(DORMOUSE_SITE_ASM_
			   :
			   : DORMOUSE_SITE_OPERANDS_(dormouse_slot_<Key>::slot, dormouse_slot_<Key>::initial, Branch)
			   :
			   : dormouse_jump_);
	return Branch;
dormouse_jump_:
	return !Branch;
}
}
#else
/* An expression of GNU C, because the operands of a function would be no constants without optimisation. */
#define DORMOUSE_SITE_(identifier, branch) \
	__extension__({ \
		__label__ dormouse_jump_; \
		static const struct dormouse_key *const dormouse_slot_ = &(identifier).key; \
		bool dormouse_on_; \
		DORMOUSE_ASM_ goto(DORMOUSE_SITE_ASM_ \
				   : \
				   : DORMOUSE_SITE_OPERANDS_(dormouse_slot_, DORMOUSE_INITIAL_(identifier), branch) \
				   : \
				   : dormouse_jump_); \
		dormouse_on_ = (branch); \
		if (0) { \
		dormouse_jump_: \
			dormouse_on_ = !(branch); \
		} \
		dormouse_on_; \
	})

#define DORMOUSE_INITIAL_(identifier) \
	_Generic(&(identifier), struct dormouse_key_off *: 0, struct dormouse_key_on *: 1)
#endif

/* The layouts are an ABI. */
#ifdef __cplusplus
#define DORMOUSE_ASSERT_(condition) static_assert(condition, #condition)
#else
#define DORMOUSE_ASSERT_(condition) _Static_assert(condition, #condition)
#endif
DORMOUSE_ASSERT_(sizeof(struct dormouse_key) == 64);
DORMOUSE_ASSERT_(sizeof(struct dormouse_error) == 512);
DORMOUSE_ASSERT_(sizeof(struct dormouse_report) == 72);
DORMOUSE_ASSERT_(sizeof(struct dormouse_key_info) == 56);

#endif
