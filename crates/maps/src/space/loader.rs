//! What the loader has put into this process, and whether it has come or gone since.
//!
//! `dl_iterate_phdr` gives, with each object, how many were ever added and how many removed: a generation that costs no
//! system call. It counts an object out a moment after it has unmapped it.
//!
//! # Locking
//!
//! The loader holds a lock of its own around the callbacks, which other libraries' allocators may be called under; so
//! nothing is allocated in them, and no lock of ours is taken.
//!
//! # Safety
//!
//! The unsafe code is `dl_iterate_phdr`: its descriptions are valid while a callback runs and are not kept, and the
//! callback gets what this file passed along.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

#[cfg(target_pointer_width = "32")]
use libc::Elf32_Phdr as Header;
#[cfg(target_pointer_width = "64")]
use libc::Elf64_Phdr as Header;

use crate::mapping::Extent;

/// How many objects the loader has added and removed, together: either moves it, and nothing takes it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Count(pub(super) u64);

/// The loader's present count.
pub(super) fn count() -> Count {
    let mut count = Count::default();
    each(&mut |info, _| {
        count = info;
        false
    });
    count
}

/// Where the parts of loaded objects lie, and the count at which that was so.
pub(super) fn parts() -> (Count, Vec<Extent>) {
    loop {
        let mut room = 0;
        each(&mut |_, headers| {
            room += headers.len();
            true
        });
        let (mut count, mut parts, mut fits) = (Count::default(), Vec::with_capacity(room), true);
        each(&mut |info, headers| {
            count = info;
            for &part in headers {
                fits &= parts.len() < parts.capacity();
                if fits {
                    parts.push(part);
                }
            }
            fits
        });
        // Else something has come in between.
        if fits {
            return (count, parts);
        }
    }
}

/// Shows `visit` the loader's count and each object's parts, until it has enough.
fn each(mut visit: &mut dyn FnMut(Count, &[Extent]) -> bool) {
    unsafe extern "C" fn step(info: *mut libc::dl_phdr_info, _: libc::size_t, visit: *mut c_void) -> c_int {
        // SAFETY: the loader passes a valid description with `dlpi_phnum` headers, and `visit` is what `each` passes.
        let (info, headers, visit) = unsafe {
            let info = &*info;
            let headers: &[Header] = if info.dlpi_phdr.is_null() {
                &[]
            } else {
                std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into())
            };
            (info, headers, &mut *visit.cast::<&mut dyn FnMut(Count, &[Extent]) -> bool>())
        };
        let count = Count(info.dlpi_adds.wrapping_add(info.dlpi_subs));
        #[allow(clippy::unnecessary_cast, reason = "addresses have 32 bits elsewhere")]
        let place = |header: &Header| {
            let start = (info.dlpi_addr as u64).wrapping_add(header.p_vaddr as u64);
            Extent { start, last: start.saturating_add(header.p_memsz as u64 - 1) }
        };
        // An array, since nothing may be allocated here. Objects have four parts; of one with more, the others are not
        // known as the loader's, and so believed less.
        let mut parts = [Extent::ALL; 16];
        let loaded = headers.iter().filter(|header| header.p_type == libc::PT_LOAD && header.p_memsz > 0);
        let mut known = 0;
        for (part, header) in parts.iter_mut().zip(loaded) {
            *part = place(header);
            known += 1;
        }
        c_int::from(!visit(count, &parts[..known]))
    }
    if cfg!(miri) {
        // No loader to ask.
        return;
    }
    // SAFETY: the callback gets the pointer that is passed here, to something that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(step), (&raw mut visit).cast()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_stands_while_nothing_is_loaded_and_code_lies_in_a_part() {
        let code = count as *const () as u64;
        let (counted, parts) = parts();
        assert!(parts.iter().any(|part| part.start <= code && code <= part.last));
        assert_ne!(counted, Count::default());
    }
}
