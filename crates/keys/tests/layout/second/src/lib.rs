//! An object whose sites are of keys that live in another one which is opened and closed.

use dormouse_keys::Batch;
use kit::sites;
use objects_guest::{GUEST_OFF, GUEST_ON};

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn second_sites() -> u8 {
    sites!(GUEST_OFF, GUEST_ON)
}

#[unsafe(no_mangle)]
pub extern "C" fn second_invert(invert: bool) -> bool {
    let batch = Batch::new();
    if invert {
        batch.enable(&GUEST_OFF).disable(&GUEST_ON)
    } else {
        batch.disable(&GUEST_OFF).enable(&GUEST_ON)
    }
    .apply()
    .is_ok()
}
