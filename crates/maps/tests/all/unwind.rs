//! A stack without frame pointers, found again by the tables of this program.
#![cfg(target_arch = "x86_64")]
#![allow(unsafe_code)]

use std::arch::{asm, global_asm};
use std::sync::Mutex;

use dormouse_maps::AddressSpace;
use dormouse_maps::symbols::{StackUnwinder, UnwindEnd};

// Two functions that use the frame pointer for something else, as compilers may. `inner` calls
// what its argument points to.
global_asm!(
    ".globl dormouse_unwind_outer, dormouse_unwind_in_outer, dormouse_unwind_in_inner",
    "dormouse_unwind_outer:",
    ".cfi_startproc",
    "push rbp",
    ".cfi_adjust_cfa_offset 8",
    ".cfi_rel_offset rbp, 0",
    "xor ebp, ebp",
    "sub rsp, 64",
    ".cfi_adjust_cfa_offset 64",
    "call dormouse_unwind_inner",
    "dormouse_unwind_in_outer: add rsp, 64",
    ".cfi_adjust_cfa_offset -64",
    "pop rbp",
    ".cfi_adjust_cfa_offset -8",
    "ret",
    ".cfi_endproc",
    "dormouse_unwind_inner:",
    ".cfi_startproc",
    "sub rsp, 24",
    ".cfi_adjust_cfa_offset 24",
    "call rdi",
    "dormouse_unwind_in_inner: add rsp, 24",
    ".cfi_adjust_cfa_offset -24",
    "ret",
    ".cfi_endproc",
);

unsafe extern "C" {
    fn dormouse_unwind_outer(call: unsafe extern "C" fn());
    fn dormouse_unwind_in_outer();
    fn dormouse_unwind_in_inner();
}

/// Registers and stack, as `look` found them.
static SEEN: Mutex<Option<([u64; 4], Vec<u8>)>> = Mutex::new(None);

/// Copies its own stack from the inside.
unsafe extern "C" fn look() {
    let [ip, sp, fp, end]: [u64; 4];
    // SAFETY: reads registers, and the thread pointer from where it points to.
    unsafe {
        asm!("lea {}, [rip]", "mov {}, rsp", "mov {}, rbp", out(reg) ip, out(reg) sp, out(reg) fp);
        asm!("mov {}, fs:0", out(reg) end);
    }
    let mut stack = vec![0; (end - sp) as usize];
    // SAFETY: the C library puts the data to which the thread pointer points above the stack.
    unsafe { stack.as_mut_ptr().copy_from_nonoverlapping(sp as *const u8, stack.len()) };
    *SEEN.lock().unwrap() = Some(([ip, sp, fp, 0], stack));
}

#[test]
fn callers_are_found_without_frame_pointers() {
    // SAFETY: `look` is of the right kind, and returns.
    std::thread::spawn(|| unsafe { dormouse_unwind_outer(look) }).join().unwrap();
    let (registers, stack) = SEEN.lock().unwrap().take().unwrap();
    let mut unwinder = StackUnwinder::new(&AddressSpace::own().unwrap());
    let callers = unwinder.callers(registers, &stack);
    let right = [dormouse_unwind_in_inner as *const () as u64, dormouse_unwind_in_outer as *const () as u64];
    assert_eq!(callers.get(..2), Some(&right[..]), "{callers:x?}");
    assert!(callers.len() > 4, "through the test to the start of its thread: {callers:x?}");

    let mut again = Vec::new();
    assert_eq!(unwinder.unwind(registers, &stack, &mut again), UnwindEnd::Outermost);
    assert_eq!(again, callers);
    assert_eq!(unwinder.unwind(registers, &stack[..128], &mut again), UnwindEnd::CopyEnd);
    assert!(unwinder.is_code(right[0]) && !unwinder.is_code(registers[1]));

    // A copy that ends before the first caller, and none.
    assert!(unwinder.callers(registers, &stack[..8]).is_empty());
    assert!(unwinder.callers([0, 0, 0, 0], &[]).is_empty());
}

#[test]
fn code_that_comes_and_goes_is_noticed() {
    let space = AddressSpace::own().unwrap();
    let mut unwinder = StackUnwinder::new(&space);
    let look = |unwinder: &mut StackUnwinder| {
        space.refresh().unwrap();
        unwinder.update(&space);
    };
    let program = std::fs::File::open("/proc/self/exe").unwrap();
    let (rights, fd) = (libc::PROT_READ | libc::PROT_EXEC, std::os::fd::AsRawFd::as_raw_fd(&program));
    // SAFETY: a new mapping of a file that nobody executes there.
    let code = unsafe { libc::mmap(std::ptr::null_mut(), 4096, rights, libc::MAP_PRIVATE, fd, 0) };
    assert_ne!(code, libc::MAP_FAILED);
    assert!(!unwinder.is_code(code as u64));
    look(&mut unwinder);
    assert!(unwinder.is_code(code as u64));
    // SAFETY: the mapping of above.
    assert_eq!(unsafe { libc::munmap(code, 4096) }, 0);
    look(&mut unwinder);
    assert!(!unwinder.is_code(code as u64));
    // Other code is known as before.
    let here = code_that_comes_and_goes_is_noticed as *const () as u64;
    assert!(unwinder.is_code(here));
}
