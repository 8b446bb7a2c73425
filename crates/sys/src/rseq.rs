//! The restartable-sequence area of a thread, used as one flag: was this thread descheduled since
//! it was set?
//!
//! glibc 2.35 and later registers the area and publishes its address. User space stores the address
//! of a descriptor in `rseq_cs`; up to Linux 6.18 the kernel clears the field whenever the thread
//! comes back to user mode after a preemption, a blocking system call or a signal, provided that
//! the thread is outside the described section. Ours describes a section that is never executed.
//! Later kernels do not clear it after a blocking call, so a user must test this first (`Linux:
//! kernel/rseq.c`, `include/linux/rseq_entry.h`).
//!
//! # Safety
//!
//! The kernel reads the descriptor and the signature in front of its abort address at every such
//! return, and kills the process if either is unreadable or wrong. Both lie in one block of memory
//! that is never freed.
#![allow(unsafe_code)]

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::arch;
use crate::sync::OnceBox;

/// `struct rseq` of the kernel, as far as it is used here.
#[derive(Debug)]
#[repr(C, align(32))]
struct Area {
    cpu_id_start: AtomicU32,
    cpu_id: AtomicU32,
    rseq_cs: AtomicU64,
    flags: AtomicU32,
}

const _: () = assert!(std::mem::offset_of!(Area, rseq_cs) == 8);

/// `struct rseq_cs` of the kernel with the signature and the never-executed section behind it.
#[derive(Default)]
#[repr(C, align(32))]
struct Descriptor {
    version: u32,
    flags: u32,
    start_ip: u64,
    post_commit_offset: u64,
    abort_ip: u64,
    section: [u8; 4],
    signature: u32,
    abort: [u8; 4],
}

const _: () = assert!(std::mem::offset_of!(Descriptor, abort_ip) == 24);
const _: () =
    assert!(std::mem::offset_of!(Descriptor, abort) == std::mem::offset_of!(Descriptor, signature) + 4);

/// The flag of one thread. It stays on that thread. It is one word, so that a signal handler never
/// finds it half-written.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    area: NonNull<Area>,
}

impl Flag {
    /// The calling thread's flag, or the reason why there is none.
    pub fn of_this_thread() -> Result<Self, &'static str> {
        let area = area()?;
        // Uninitialised and failed registrations are negative.
        if area.cpu_id.load(Ordering::Relaxed).cast_signed() < 0 {
            return Err("rseq is not registered for this thread");
        }
        descriptor();
        Ok(Self { area: NonNull::from(area) })
    }

    /// Sets the flag.
    #[inline]
    pub fn arm(self) {
        self.area().rseq_cs.store(DESCRIPTOR.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    #[inline]
    fn area(&self) -> &Area {
        // SAFETY: the area is in the thread's own memory, and the pointer makes the flag stay on
        // its thread.
        unsafe { self.area.as_ref() }
    }

    /// Whether the flag is still set. It is not if another library's descriptor is in its place.
    #[inline]
    pub fn is_armed(self) -> bool {
        self.area().rseq_cs.load(Ordering::Relaxed) == DESCRIPTOR.load(Ordering::Relaxed)
    }

    /// Whether another library has stored a descriptor in the thread's field.
    pub fn is_foreign(self) -> bool {
        let there = self.area().rseq_cs.load(Ordering::Relaxed);
        there != 0 && there != DESCRIPTOR.load(Ordering::Relaxed)
    }

    /// Clears the flag, unless the descriptor is another library's.
    #[inline]
    pub fn disarm(self) {
        if self.is_armed() {
            self.area().rseq_cs.store(0, Ordering::Relaxed);
        }
    }
}

fn area() -> Result<&'static Area, &'static str> {
    // Not std's cell, which a fork in the middle leaves locked.
    static OFFSET: OnceBox<Result<isize, &'static str>> = OnceBox::new();
    if !arch::IS_KNOWN {
        return Err("rseq is supported on x86-64 and arm64 Linux only");
    }
    let offset = (*OFFSET.get_or_init(|| Box::new(glibc_offset())))?;
    // SAFETY: glibc keeps the area at this offset from the thread pointer as long as the thread
    // lives, and the flag is used on this thread only.
    Ok(unsafe { &*((thread_pointer() as usize).wrapping_add_signed(offset) as *const Area) })
}

/// The address of the thread's control block, or 0 if it is unknown.
#[inline(always)]
pub fn thread_pointer() -> u64 {
    arch::thread_pointer()
}

fn glibc_offset() -> Result<isize, &'static str> {
    // SAFETY: dlsym with constant names; both symbols are plain data in glibc.
    unsafe {
        let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
        let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
        if offset.is_null() || size.is_null() {
            return Err("the C library does not register rseq (glibc 2.35 or later does)");
        }
        if *size.cast::<u32>() == 0 {
            return Err("rseq is not registered (GLIBC_TUNABLES=glibc.pthread.rseq=0, or no kernel support)");
        }
        Ok(*offset.cast::<isize>())
    }
}

/// The address of the descriptor; 0, which no library has, before the first flag.
static DESCRIPTOR: AtomicU64 = AtomicU64::new(0);

fn descriptor() {
    // Pairs with the exchange below: the descriptor is written.
    if DESCRIPTOR.load(Ordering::Acquire) != 0 {
        return;
    }
    let mut descriptor = Box::new(Descriptor {
        post_commit_offset: 4,
        signature: arch::RSEQ_SIGNATURE,
        ..Descriptor::default()
    });
    descriptor.start_ip = descriptor.section.as_ptr() as u64;
    descriptor.abort_ip = descriptor.abort.as_ptr() as u64;
    let address = std::ptr::from_ref(&*descriptor) as u64;
    // Pairs with the load above. A slower thread drops its own, which no thread has armed.
    if DESCRIPTOR.compare_exchange(0, address, Ordering::Release, Ordering::Relaxed).is_ok() {
        // The kernel may look at it as long as any thread has it armed.
        Box::leak(descriptor);
    }
}
