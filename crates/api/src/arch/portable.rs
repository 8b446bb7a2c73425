//! All other processors and systems: nothing switches a site.

/// One site. Not for use by hand.
#[doc(hidden)]
#[macro_export]
macro_rules! __dormouse_api_site {
    ($key:path, branch = $branch:literal) => {{
        const _: u32 = $crate::macros::flags(&raw const $key, $branch);
        $key.key().is_enabled()
    }};
}
