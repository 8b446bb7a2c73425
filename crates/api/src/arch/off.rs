//! Where dormouse is off: the state at the start of the program.

/// One site. Not for use by hand.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        const FLAGS: u32 = $crate::macros::flags(&raw const $key, $branch);
        FLAGS & 2 != 0
    }};
}
