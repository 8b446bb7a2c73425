//! Profiles: C's options, and the result in the format of pprof.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::ptr::NonNull;

use dormouse::profile::{ProfileKind, Symbols, encode};
use dormouse::{ProfileRun, ProfileSpec};

use crate::call::{answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};

/// `struct dormouse_profile_spec`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct Wanted {
    pub(crate) size: u32,
    pub(crate) kind: u32,
    pub(crate) hz: u32,
    pub(crate) flags: u32,
    pub(crate) bytes: u64,
    pub(crate) groups: *const c_char,
}

/// `enum dormouse_profile_kind`.
pub(crate) const KINDS: [(u32, ProfileKind); 4] =
    [(1, ProfileKind::Cpu), (2, ProfileKind::Alloc), (3, ProfileKind::Faults), (4, ProfileKind::Wall)];

/// `enum dormouse_profile_flags`.
pub(crate) const LIVE: u32 = 1;
pub(crate) const UNWIND: u32 = 2;

/// `struct dormouse_profile`: a profile, and its last rendering.
#[derive(Debug)]
pub(crate) struct Running {
    run: ProfileRun,
    rendered: Vec<u8>,
}

/// Room for what a profile and its rendering allocate, in keys of `memory_for`: 16 MiB.
const ROOM: usize = 32 << 10;

const NO_PROFILE: Refusal = Refusal::Invalid("no profile: the pointer is NULL");

impl Wanted {
    /// # Safety
    ///
    /// C's promise 5 for the groups.
    unsafe fn read(&self) -> Result<ProfileSpec, Refusal> {
        let kind = KINDS.iter().find(|(number, _)| *number == self.kind);
        let kind = kind.ok_or(Refusal::Invalid("the kind is none of enum dormouse_profile_kind"))?.1;
        if self.flags & !(LIVE | UNWIND) != 0 {
            return Err(Refusal::Invalid("a flag is none of enum dormouse_profile_flags"));
        }
        let mut spec = ProfileSpec::new(kind);
        if self.hz != 0 {
            spec = spec.hz(self.hz);
        }
        if self.bytes != 0 {
            spec = spec.bytes(self.bytes);
        }
        if self.flags & LIVE != 0 {
            spec = spec.live();
        }
        if self.flags & UNWIND != 0 {
            spec = spec.unwind();
        }
        if !self.groups.is_null() {
            // SAFETY: promise 5.
            let globs = unsafe { CStr::from_ptr(self.groups) };
            spec = spec.groups(&globs.to_string_lossy());
        }
        Ok(spec)
    }
}

impl Running {
    /// The profile so far, as pprof.
    fn render(&self) -> Result<Vec<u8>, Refusal> {
        memory_for(ROOM)?;
        Ok(encode::pprof(&self.run.read(), &Symbols::default()))
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_profile_begin(
    spec: *const Wanted,
    profile: *mut *mut Running,
    error: *mut Error,
) -> Code {
    // SAFETY: promises 1 and 3 for the specification, 5 for its groups, 1 for the place of the
    // profile, 3 for the error.
    unsafe {
        answer(error, || {
            let place = NonNull::new(profile)
                .ok_or(Refusal::Invalid("no place for the profile: the pointer is NULL"))?;
            let is_known = !spec.is_null()
                && spec.is_aligned()
                && spec.cast::<u32>().read() as usize >= size_of::<Wanted>();
            if !is_known {
                return Err(Refusal::Invalid(
                    "no specification: the pointer is NULL, or it was not initialised by DORMOUSE_PROFILE_SPEC_INIT",
                ));
            }
            memory_for(ROOM)?;
            let run = ProfileRun::start(&spec.read().read()?)?;
            place.write(Box::into_raw(Box::new(Running { run, rendered: Vec::new() })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_profile_read(
    profile: *mut Running,
    bytes: *mut *const c_void,
    length: *mut usize,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the profile, 1 for the places, 3 for the error.
    unsafe {
        answer(error, || {
            let running = profile.as_mut().ok_or(NO_PROFILE)?;
            let none = Refusal::Invalid("no place for the bytes or their number: a pointer is NULL");
            let (Some(bytes), Some(length)) = (NonNull::new(bytes), NonNull::new(length)) else {
                return Err(none);
            };
            running.rendered = running.render()?;
            bytes.write(running.rendered.as_ptr().cast());
            length.write(running.rendered.len());
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_profile_write(
    profile: *mut Running,
    path: *const c_char,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 4 for the profile, 5 for the path, 3 for the error.
    unsafe {
        answer(error, || {
            let running = profile.as_ref().ok_or(NO_PROFILE)?;
            if path.is_null() {
                return Err(Refusal::Invalid("no path: the pointer is NULL"));
            }
            let path = OsStr::from_bytes(CStr::from_ptr(path).to_bytes());
            std::fs::write(path, running.render()?).map_err(Refusal::File)
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_profile_end(profile: *mut Running) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(profile) }));
}
