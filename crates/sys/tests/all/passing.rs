//! Handlers that ours passes a signal on to run as if the kernel had called them.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::c_void;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;

use dormouse_sys::passing::{Handler, signal_frame_bytes};
use dormouse_sys::trap::{self, Verdict};
use dormouse_testkit::in_child;

fn install_ours() {
    dormouse_sys::loader::pin_self().unwrap();
    trap::install(|_| Verdict::Foreign).unwrap();
}

fn action_with(handler: usize, flags: libc::c_int) -> libc::sigaction {
    // SAFETY: plain numbers; a whole set.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        libc::sigaddset(&raw mut action.sa_mask, libc::SIGUSR1);
        action
    }
}

/// Sets an action for SIGTRAP whose mask has SIGUSR1; gives the one before.
fn set(action: &libc::sigaction) -> libc::sigaction {
    // SAFETY: the handlers below do what a handler may.
    unsafe {
        let mut before = mem::zeroed();
        assert_eq!(libc::sigaction(libc::SIGTRAP, action, &raw mut before), 0);
        before
    }
}

fn blocked() -> u64 {
    let mut mask = 0_u64;
    // SAFETY: reads this thread's mask.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, 0, ptr::null::<u64>(), &raw mut mask, 8) };
    mask
}

/// The thread's alternate stack: place, flags and size.
fn alternate() -> (usize, libc::c_int, usize) {
    // SAFETY: reads into a fresh place.
    unsafe {
        let mut stack: libc::stack_t = mem::zeroed();
        assert_eq!(libc::sigaltstack(ptr::null(), &raw mut stack), 0);
        (stack.ss_sp.addr(), stack.ss_flags, stack.ss_size)
    }
}

/// A handler's state at its first instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Seen {
    calls: usize,
    is_on_alternate: bool,
    blocked: u64,
    vector_control: u32,
    has_arguments: bool,
}

static mut SEEN: Seen =
    Seen { calls: 0, is_on_alternate: false, blocked: 0, vector_control: 0, has_arguments: false };

unsafe extern "C" fn look(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let mut vector_control = 0_u32;
    // SAFETY: stores a register there.
    unsafe { asm!("stmxcsr [{}]", in(reg) &raw mut vector_control, options(nostack)) };
    // SAFETY: the kernel's arguments; nothing else touches `SEEN` meanwhile.
    unsafe {
        let is_inside = |at: usize| {
            let low = ptr::from_ref(&vector_control).addr();
            (low..low + 64 * 1024).contains(&at)
        };
        let registers = &raw const (*context.cast::<libc::ucontext_t>()).uc_mcontext;
        // Behind the general registers; musl has no name for it.
        let vectors = *registers.cast::<usize>().add(23);
        SEEN = Seen {
            calls: SEEN.calls + 1,
            is_on_alternate: alternate().1 & libc::SS_ONSTACK != 0,
            blocked: blocked(),
            vector_control,
            has_arguments: signal == libc::SIGTRAP
                && (*info).si_signo == libc::SIGTRAP
                && is_inside(info.addr())
                && is_inside(vectors),
        };
    }
}

/// Runs into an `int3` with values in registers, flags and the red zone, and looks whether they are
/// there behind it.
fn trap_keeps_all() -> bool {
    // To zero, which is not how a handler begins.
    let (mut control, mut kept) = (0x7f80_u32, 0x1f80_u32);
    let (mut red_zone, mut rest, mut vector): (u64, u64, u64);
    // SAFETY: the handler goes on behind it. Memory below the stack pointer is free inside of asm.
    unsafe {
        asm!(
            "ldmxcsr [{control}]",
            "mov rax, 0x1234567",
            "movq xmm9, rax",
            "mov [rsp - 8], rax",
            "mov [rsp - 128], rax",
            "mov r12, rax",
            "mov rdi, rax",
            "stc",
            "int3",
            "setc r13b",
            "sub r12, rax",
            "sub rdi, rax",
            "or r12, rdi",
            "mov r14, [rsp - 8]",
            "sub r14, [rsp - 128]",
            "movq r15, xmm9",
            "sub r15, rax",
            "sub rax, 0x1234567",
            "or r12, rax",
            "xor r13b, 1",
            "movzx r13, r13b",
            "or r12, r13",
            "stmxcsr [{control}]",
            "ldmxcsr [{kept}]",
            control = in(reg) &raw mut control,
            kept = in(reg) &raw mut kept,
            out("rax") _, out("rdi") _, out("r13") _, out("xmm9") _,
            out("r12") rest, out("r14") red_zone, out("r15") vector,
        );
    }
    (rest, red_zone, vector, control) == (0, 0, 0, 0x7f80)
}

/// Runs in a thread with an alternate stack of this size, or none.
fn with_stack(size: Option<usize>, run: impl FnOnce() + Send) {
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = vec![0_u128; size.unwrap_or(0) / 16];
            let flags = if size.is_some() { 0 } else { libc::SS_DISABLE };
            let stack = libc::stack_t {
                ss_sp: memory.as_mut_ptr().cast(),
                ss_flags: flags,
                ss_size: memory.len() * 16,
            };
            // SAFETY: the memory stays until the former stack is back.
            unsafe {
                let mut before = mem::zeroed();
                assert_eq!(libc::sigaltstack(&raw const stack, &raw mut before), 0);
                run();
                assert_eq!(libc::sigaltstack(&raw const before, ptr::null_mut()), 0);
            }
        });
    });
}

#[test]
fn handlers_run_as_if_the_kernel_called() {
    let look: unsafe extern "C" fn(_, _, _) = look;
    in_child(move || {
        let observe = |flags, size| {
            let mut seen = Seen::default();
            with_stack(size, || {
                let (mask, stack) = (blocked(), alternate());
                assert!(trap_keeps_all(), "{flags:#x} {size:?}");
                assert_eq!((blocked(), alternate()), (mask, stack));
                // SAFETY: no handler runs.
                seen = unsafe { ptr::replace(&raw mut SEEN, Seen::default()) };
            });
            seen
        };
        let none = action_with(libc::SIG_DFL, 0);
        for on_stack in [0, libc::SA_ONSTACK] {
            for rest in [libc::SA_SIGINFO, libc::SA_SIGINFO | libc::SA_NODEFER] {
                let flags = on_stack | rest;
                let action = action_with(look as *const () as usize, flags);
                for size in [None, Some(64 * 1024)] {
                    dormouse_testkit::fork(|| {
                        set(&action);
                        let kernels = observe(flags, size);
                        assert_eq!((kernels.calls, kernels.has_arguments), (1, true));
                        assert_eq!(kernels.is_on_alternate, on_stack != 0 && size.is_some());
                        set(&action);
                        install_ours();
                        assert_eq!(trap::disposition().unwrap(), trap::Disposition::Ours);
                        assert_eq!(observe(flags, size), kernels, "{flags:#x} {size:?}");
                        set(&none);
                    })
                    .success()
                    .then_some(())
                    .expect("the child's assertions");
                }
            }
        }
    });
}

/// How often handlers nest.
const DEEP: u32 = 8;
static DEPTH: AtomicU32 = AtomicU32::new(0);

extern "C" fn nest(_: libc::c_int) {
    if DEPTH.fetch_add(1, Ordering::Relaxed) + 1 < DEEP {
        // SAFETY: this handler goes on behind it.
        unsafe { asm!("int3") };
    }
}

#[test]
fn handlers_nest_beside_a_small_alternate_stack() {
    in_child(|| {
        set(&action_with(nest as *const () as usize, libc::SA_NODEFER));
        install_ours();
        let room = signal_frame_bytes().unwrap_or(4096) + 4096;
        with_stack(Some(room), || nest(0));
        assert_eq!(DEPTH.load(Ordering::Relaxed), DEEP);
    });
}

/// Whether a thread went on behind its end.
static WENT_ON: AtomicBool = AtomicBool::new(false);

extern "C-unwind" fn end_thread(_: libc::c_int) {
    unsafe extern "C-unwind" {
        fn pthread_exit(value: *mut c_void) -> !;
    }
    // SAFETY: nothing of the thread is waited for but its end.
    unsafe { pthread_exit(ptr::null_mut()) }
}

/// A thread's beginning, as it is and as `pthread_create` has it.
type Unwinding = extern "C-unwind" fn(*mut c_void) -> *mut c_void;
type Begin = extern "C" fn(*mut c_void) -> *mut c_void;

static ALTERNATE: AtomicUsize = AtomicUsize::new(0);

extern "C-unwind" fn trap_once(_: *mut c_void) -> *mut c_void {
    // SAFETY: memory that stays; the handler ends the thread.
    unsafe {
        let stack = libc::stack_t {
            ss_sp: ptr::with_exposed_provenance_mut(ALTERNATE.load(Ordering::Relaxed)),
            ss_flags: 0,
            ss_size: 64 * 1024,
        };
        assert_eq!(libc::sigaltstack(&raw const stack, ptr::null_mut()), 0);
        asm!("int3");
    }
    WENT_ON.store(true, Ordering::Relaxed);
    ptr::null_mut()
}

#[test]
fn handlers_may_unwind_from_both_stacks() {
    in_child(|| {
        ALTERNATE.store(
            Box::leak(vec![0_u128; 4096].into_boxed_slice()).as_ptr().expose_provenance(),
            Ordering::Relaxed,
        );
        for flags in [0, libc::SA_ONSTACK] {
            let status = dormouse_testkit::fork(|| {
                set(&action_with(end_thread as *const () as usize, flags));
                install_ours();
                // SAFETY: a thread that is waited for; it begins as the C library calls it.
                unsafe {
                    let begin = mem::transmute::<Unwinding, Begin>(trap_once);
                    let mut thread = mem::zeroed();
                    let none = ptr::null_mut();
                    assert_eq!(libc::pthread_create(&raw mut thread, ptr::null(), begin, none), 0);
                    assert_eq!(libc::pthread_join(thread, ptr::null_mut()), 0);
                }
                assert!(!WENT_ON.load(Ordering::Relaxed));
            });
            assert!(status.success(), "{flags:#x}: {status}");
        }
    });
}

/// Our handler, for one that was installed later and calls it.
static OURS: AtomicUsize = AtomicUsize::new(0);
/// The mask of the later handler before and behind that call.
static MASKS: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

unsafe extern "C" fn call_ours(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    MASKS[0].store(blocked() as usize, Ordering::Relaxed);
    // SAFETY: an action's handler, and the kernel's arguments.
    unsafe { mem::transmute::<usize, Handler>(OURS.load(Ordering::Relaxed))(signal, info, context) };
    MASKS[1].store(blocked() as usize, Ordering::Relaxed);
}

#[test]
fn a_later_handler_may_call_ours() {
    in_child(|| {
        let look: unsafe extern "C" fn(_, _, _) = look;
        set(&action_with(look as *const () as usize, libc::SA_SIGINFO | libc::SA_NODEFER));
        install_ours();
        let later: unsafe extern "C" fn(_, _, _) = call_ours;
        let mut later = action_with(later as *const () as usize, libc::SA_SIGINFO | libc::SA_ONSTACK);
        // SAFETY: a whole set.
        unsafe { libc::sigaddset(&raw mut later.sa_mask, libc::SIGUSR2) };
        OURS.store(set(&later).sa_sigaction, Ordering::Relaxed);
        with_stack(Some(64 * 1024), || assert!(trap_keeps_all()));
        // SAFETY: no handler runs.
        let seen = unsafe { ptr::read(&raw const SEEN) };
        assert_eq!((seen.calls, seen.blocked), (1, 1 << (libc::SIGUSR1 - 1)));
        let [before, behind] = MASKS.each_ref().map(|mask| mask.load(Ordering::Relaxed));
        assert_eq!(before, behind);
        assert_ne!(before & 1 << (libc::SIGUSR2 - 1), 0);
    });
}
