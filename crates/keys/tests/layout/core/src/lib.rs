//! A shared object that brings the one copy of dormouse, with keys for all.

use dormouse_keys::static_key;
use kit::sites;

static_key! {
    pub static CORE_OFF: "core.off" = false;
    pub static CORE_ON: "core.on" = true;
}

#[inline(never)]
pub fn core_sites() -> u8 {
    sites!(CORE_OFF, CORE_ON)
}
