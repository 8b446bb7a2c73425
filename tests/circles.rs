//! A profile from outside of a program whose frame pointer leads in a circle.

use dormouse_testkit::c::have;

use crate::profile::{compiled, group, profile, total_of};
use crate::support::skip;

/// Works while its frame pointer leads in a circle, for some seconds.
const CIRCLES: &str = "
    #ifdef __aarch64__
    #define TURN(ring) __asm__ volatile(\"mov x9, x29\\n mov x29, %0\\n mov x10, #0x1000000\\n\" \\
        \"1: subs x10, x10, #1\\n b.ne 1b\\n mov x29, x9\" :: \"r\"(ring) : \"x9\", \"x10\", \"cc\", \"memory\")
    #else
    #define TURN(ring) __asm__ volatile(\"mov %%rbp, %%rdx\\n mov %0, %%rbp\\n mov $0x1000000, %%ecx\\n\" \\
        \"1: dec %%ecx\\n jnz 1b\\n mov %%rdx, %%rbp\" :: \"r\"(ring) : \"rdx\", \"rcx\", \"cc\", \"memory\")
    #endif
    __attribute__((noinline)) void turns(void) {
        void *ring[2];
        ring[0] = ring;
        ring[1] = (void *)turns;
        TURN(ring);
    }
    __attribute__((noinline)) void caller(void) {
        for (int n = 0; n < 200; n++) turns();
    }
    int main(void) {
        caller();
        return 0;
    }";

#[test]
fn a_circle_of_frame_pointers_hides_no_callers() {
    if !have(&["gcc"]) {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let program = compiled(directory.path(), CIRCLES, &["-fomit-frame-pointer"]);
    let ended = profile(&["--json", "--", program.to_str().unwrap()]);
    if ended.stdout.is_empty() {
        return skip("the kernel does not allow profiles from outside");
    }
    let document = ended.json();
    let functions = group(&document, "thread spins")["functions"].as_array().unwrap();
    let share = |name| total_of(functions, name);
    assert!(share("turns") > 90.0 && share("caller") > 90.0 && share("main") > 90.0, "{functions:#?}");
}
