//! Sites in a library: dead ones first, inlined ones, generic ones, and twins that differ in their
//! key alone.

use dormouse_keys::{likely, static_key, unlikely};

static_key! {
    static DEAD: "lib.dead" = false;
    static INLINED: "lib.inlined" = false;
    static GENERIC: "lib.generic" = false;
    static TWIN_A: "lib.twin-a" = false;
    static TWIN_B: "lib.twin-b" = false;
    static STARTS_ON: "lib.starts-on" = true;
    /// A key for others.
    pub static PUBLIC: "lib.public" = false;
}

dormouse_api::static_key! {
    static OF_THE_API: "lib.of-the-api" = true;
}

/// The first function of the unit, which nothing calls.
#[inline(never)]
pub fn dead() -> u32 {
    if unlikely!(DEAD) { 1 } else { 2 }
}

#[inline(always)]
pub fn inlined() -> bool {
    unlikely!(INLINED)
}

#[inline(never)]
pub fn generic<T: Into<u64>>(value: T) -> u64 {
    if unlikely!(GENERIC) { value.into() } else { 0 }
}

#[inline(never)]
pub fn twin_a() -> u32 {
    if unlikely!(TWIN_A) { 1 } else { 2 }
}

#[inline(never)]
pub fn twin_b() -> u32 {
    if unlikely!(TWIN_B) { 1 } else { 2 }
}

#[inline(never)]
pub fn starts_on() -> [bool; 2] {
    [likely!(STARTS_ON), unlikely!(STARTS_ON)]
}

/// A site of the API, beside sites of dormouse's.
#[inline(never)]
pub fn of_the_api() -> bool {
    dormouse_api::likely!(OF_THE_API)
}
