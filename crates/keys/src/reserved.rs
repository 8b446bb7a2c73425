//! For other writers of code: what not to touch.

use crate::Key;

/// The key of a site that overlaps `len` bytes of code at `addr`: whoever sets breakpoints, hooks or detours there
/// would find its bytes changed under it, and have every batch with that key refused.
///
/// `None` where nothing is patched. The object that the key lives in stays loaded from now on.
///
/// # Cost
///
/// Looks at every site.
#[cfg(dormouse_patching)]
pub fn text_reserved(addr: usize, len: usize) -> Option<&'static Key> {
    let end = addr.saturating_add(len);
    let overlaps = |code: usize| len > 0 && code < end && addr < code + crate::arch::LENGTH;
    crate::registry::find(|index| {
        index.keys().find(|key| index.sites_of(key).iter().any(|site| overlaps(site.code)))
    })
}

/// The key of a site that overlaps some code: none, where nothing is patched.
#[cfg(not(dormouse_patching))]
pub fn text_reserved(_: usize, _: usize) -> Option<&'static Key> {
    None
}
