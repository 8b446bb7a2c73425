//! Vectors that return an error when there is no memory for them, where `collect` and `push` would
//! end the process.

use std::collections::TryReserveError;
#[cfg(dormouse_patching)]
use std::sync::Arc;

/// A vector of `items`.
pub(crate) fn collect<T>(items: impl IntoIterator<Item = T>) -> Result<Vec<T>, TryReserveError> {
    let mut all = Vec::new();
    extend(&mut all, items)?;
    Ok(all)
}

/// Appends `items`, or as many as there is memory for.
pub(crate) fn extend<T>(all: &mut Vec<T>, items: impl IntoIterator<Item = T>) -> Result<(), TryReserveError> {
    let items = items.into_iter();
    all.try_reserve(items.size_hint().0)?;
    for item in items {
        all.try_reserve(1)?;
        all.push(item);
    }
    Ok(())
}

/// A shared copy of `text`. The allocation of an `Arc` cannot fail with an error, so this first
/// allocates a vector of the same size, which can.
#[cfg(dormouse_patching)]
pub(crate) fn shared(text: &str) -> Result<Arc<str>, TryReserveError> {
    const COUNTS: usize = 2 * size_of::<usize>();
    Vec::<u8>::new().try_reserve_exact(text.len() + 2 * COUNTS)?;
    Ok(Arc::from(text))
}
