//! An object with a copy of dormouse and no site.

#[unsafe(no_mangle)]
pub extern "C" fn empty_keys() -> usize {
    dormouse_keys::list(|_| ()).len()
}
