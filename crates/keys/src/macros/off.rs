//! Sites where dormouse is off: constants.

/// One site: the state at the start of the process, which nothing changes. Not for use by hand: see
/// [`likely!`](crate::likely) and [`unlikely!`](crate::unlikely).
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site {
    ($key:path, branch = $branch:literal) => {{
        const FLAGS: u32 = $crate::macros::flags(&raw const $key, $branch);
        FLAGS & 2 != 0
    }};
}
