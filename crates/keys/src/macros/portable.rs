//! Sites on architectures without patching: a relaxed load and a branch.

/// One site. Not for use by hand: see [`likely!`](crate::likely) and
/// [`unlikely!`](crate::unlikely).
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_site {
    ($key:path, branch = $branch:literal) => {{
        const _: u32 = $crate::macros::flags(&raw const $key, $branch);
        $crate::macros::inventory::submit! { $crate::macros::PortableSite::new($key.key()) }
        $key.is_enabled_relaxed()
    }};
}
