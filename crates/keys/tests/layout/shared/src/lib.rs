//! A key in a shared object, with a site there.

use dormouse_keys::{static_key, unlikely};

static_key! {
    /// Used here and by the program.
    pub static SHARED: "shared.key" = false;
}

#[inline(never)]
pub fn inside() -> bool {
    unlikely!(SHARED)
}
