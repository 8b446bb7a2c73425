//! An object that is opened and closed: keys of its own, sites of its own keys and of another
//! object's.

use std::sync::atomic::{AtomicU8, Ordering};

use dormouse_keys::{Batch, Key, list, static_key};
use kit::{break_site, constructor, sites};
use objects_core::{CORE_OFF, CORE_ON};

static_key! {
    pub static GUEST_OFF: "guest.off" = false;
    pub static GUEST_ON: "guest.on" = true;
}

/// The states that constructors saw which ran before and after ours.
static EARLY: AtomicU8 = AtomicU8::new(0);
static LATE: AtomicU8 = AtomicU8::new(0);

extern "C" fn early() {
    if std::env::var_os("GUEST_BREAKS").is_some() {
        return guest_break(true);
    }
    EARLY.store(guest_core(), Ordering::Relaxed);
}

extern "C" fn late() {
    if std::env::var_os("GUEST_BREAKS").is_some() {
        return;
    }
    LATE.store(guest_core(), Ordering::Relaxed);
    // A constructor may do what others do, while others do it.
    assert!(list(|used| used.key.name() == "guest.off").contains(&true));
    Batch::new().apply().unwrap();
}

constructor!(".init_array.00050", early);
constructor!(".init_array", late);

/// Sites of the object's own keys.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn guest_own() -> u8 {
    sites!(GUEST_OFF, GUEST_ON)
}

/// Sites of another object's keys.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn guest_core() -> u8 {
    sites!(CORE_OFF, CORE_ON)
}

/// The states of the key that an early and a late constructor of the object found.
#[unsafe(no_mangle)]
pub extern "C" fn guest_constructors() -> [u8; 2] {
    [EARLY.load(Ordering::Relaxed), LATE.load(Ordering::Relaxed)]
}

/// Breaks a site of another object's key, or mends it.
#[unsafe(no_mangle)]
pub extern "C" fn guest_break(set: bool) {
    break_site(guest_core, set);
}

#[unsafe(no_mangle)]
pub extern "C" fn guest_key() -> &'static Key {
    GUEST_OFF.key()
}
