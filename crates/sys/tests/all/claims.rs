//! A thread in the middle of its claim, stopped at each instruction by the processor's trap flag.
//! Other processors have none that a program may use.
#![cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
#![allow(unsafe_code)]

use std::arch::asm;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dormouse_sys::process::identity;
use dormouse_sys::thread;
use dormouse_testkit::in_child;

/// The thread that claims a block.
static TID: AtomicU32 = AtomicU32::new(0);
/// The instructions at which its block was not found, and the claims at the last of them.
static WITHOUT: AtomicU64 = AtomicU64::new(0);
static CLAIMS: AtomicU64 = AtomicU64::new(0);

extern "C" fn trapped(_signal: i32) {
    let claims = thread::claims();
    if thread::find(TID.load(Ordering::Relaxed)).is_none() {
        WITHOUT.fetch_add(1, Ordering::Relaxed);
        CLAIMS.store(claims, Ordering::Relaxed);
    }
}

/// Claims a block by single steps.
fn step_through_a_claim() {
    TID.store(identity::tid(), Ordering::Relaxed);
    // SAFETY: sets the trap flag, for which there is a handler.
    unsafe { asm!("pushfq", "or qword ptr [rsp], 0x100", "popfq") };
    let block = thread::current();
    // SAFETY: clears it.
    unsafe { asm!("pushfq", "and qword ptr [rsp], -0x101", "popfq") };
    assert!(block.is_some());
}

#[test]
fn a_claim_counts_once_its_block_is_found() {
    in_child(|| {
        let handler = trapped as extern "C" fn(i32) as *const () as usize;
        // SAFETY: the handler reads atomics.
        assert_ne!(unsafe { libc::signal(libc::SIGTRAP, handler) }, libc::SIG_ERR);
        // The first claim of a process takes many more steps.
        thread::current().unwrap();
        std::thread::spawn(step_through_a_claim).join().unwrap();
        let without = WITHOUT.load(Ordering::Relaxed);
        println!("{without} instructions without a block");
        assert!(without > 10);
        assert_ne!(CLAIMS.load(Ordering::Relaxed), thread::claims());
    });
}
