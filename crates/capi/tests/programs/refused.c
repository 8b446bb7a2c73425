/* What the library refuses, and that keys are as they were then: a site that somebody else has patched, a kernel that denies. */
#include <dormouse/keys.h>

#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"

static DORMOUSE_KEY_NAMED(key, "refused.key", false);

__attribute__((noinline)) static bool site(void)
{
	return dormouse_unlikely(key);
}

/* Writes a byte of code as a debugger would. */
static void poke(uint64_t address, unsigned char byte)
{
	void *page = (void *)(address & ~(uint64_t)4095);
	CHECK(mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
	*(volatile unsigned char *)address = byte;
	CHECK(mprotect(page, 8192, PROT_READ | PROT_EXEC) == 0);
}

/* The first `test eax, imm32` of the function is its site; on arm64 the first `nop`. */
static bool is_site(uint64_t at)
{
#ifdef __aarch64__
	return at % 4 == 0 && *(const uint32_t *)(uintptr_t)at == 0xd503201f;
#else
	return *(const unsigned char *)(uintptr_t)at == 0xa9;
#endif
}

static void patched_by_another(void)
{
	struct dormouse_error error = DORMOUSE_ERROR_INIT;
	struct dormouse_lease *lease;
	struct dormouse_key *keys[] = { &key.key };
	uint64_t at = (uint64_t)(uintptr_t)site;
	unsigned char was;
	while (!is_site(at))
		at++;

	was = *(unsigned char *)at;
	poke(at, 0xcc);
	CHECK(dormouse_enable(&key.key, NULL, &error) == DORMOUSE_UNEXPECTED_TEXT);
	CHECK(error.code == DORMOUSE_UNEXPECTED_TEXT && error.address == at && error.os_error == 0);
	CHECK(strstr(error.message, "refused.key"));
	poke(at, was);
	CHECK(!dormouse_is_enabled(&key.key) && !site());

	/* A lease that cannot be given back is still held. */
	CHECK(dormouse_acquire(keys, 1, &lease, NULL, NULL) == DORMOUSE_OK && site());
	was = *(unsigned char *)at;
	poke(at, 0xcc);
	CHECK(dormouse_release(lease, NULL, &error) == DORMOUSE_UNEXPECTED_TEXT);
	poke(at, was);
	CHECK(dormouse_is_enabled(&key.key) && site());
	CHECK(dormouse_release(lease, NULL, NULL) == DORMOUSE_OK && !site());
}

static void denied_by_the_kernel(void)
{
#define DENY(call) \
	BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), \
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (EPERM & SECCOMP_RET_DATA))
	struct sock_filter rules[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		DENY(__NR_membarrier),
		DENY(__NR_mprotect),
		DENY(__NR_pwrite64),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(rules) / sizeof(rules[0]), rules };
	struct dormouse_error error = DORMOUSE_ERROR_INIT;

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
	CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
	CHECK(dormouse_enable(&key.key, NULL, &error) == DORMOUSE_DENIED);
	CHECK(error.code == DORMOUSE_DENIED && error.os_error == EPERM && error.message[0]);
	CHECK(!dormouse_is_enabled(&key.key) && !site());
}

int main(void)
{
	patched_by_another();
	denied_by_the_kernel();
	puts("refused");
	return 0;
}
