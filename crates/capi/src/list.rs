//! Lists of keys: a copy of the registry at one moment, with text in C's form.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

use dormouse::Key;
use dormouse::keys::{KeyUse, Selector, count, try_all};

use crate::call::{Out, answer, contained, memory_for, owned};
use crate::error::{Code, Error, Refusal};

/// `struct dormouse_list`.
#[derive(Debug)]
pub(crate) struct List {
    keys: Vec<Listed>,
    at: usize,
}

#[derive(Debug)]
struct Listed {
    usage: KeyUse,
    name: CString,
    file: CString,
    object: CString,
}

/// The memory for as many keys is enough for all names that braces may stand for.
const BRACES: usize = 1 << 13;

/// `struct dormouse_key_info`.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct KeyInfo {
    pub(crate) size: u32,
    pub(crate) line: u32,
    pub(crate) key: *const Key,
    pub(crate) name: *const c_char,
    pub(crate) file: *const c_char,
    pub(crate) object: *const c_char,
    pub(crate) sites: u64,
    pub(crate) leases: u32,
    pub(crate) on: u8,
    pub(crate) baseline: u8,
    pub(crate) reserved: [u8; 2],
}

/// Text as C likes it, up to its first NUL.
fn terminated(text: &str) -> CString {
    CString::new(text.split('\0').next().unwrap_or_default()).unwrap_or_default()
}

impl From<KeyUse> for Listed {
    fn from(usage: KeyUse) -> Self {
        let key = usage.key;
        let (name, file) = (terminated(key.name()), terminated(key.file()));
        Self { name, file, object: terminated(&usage.object), usage }
    }
}

impl From<&Listed> for KeyInfo {
    fn from(listed: &Listed) -> Self {
        let key = listed.usage.key;
        Self {
            size: size_of::<Self>() as u32,
            line: key.line(),
            key,
            name: listed.name.as_ptr(),
            file: listed.file.as_ptr(),
            object: listed.object.as_ptr(),
            sites: listed.usage.sites as u64,
            leases: key.leases(),
            on: key.is_enabled().into(),
            baseline: key.baseline().into(),
            reserved: [0; 2],
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_list_begin(
    globs: *const c_char,
    list: *mut *mut List,
    error: *mut Error,
) -> Code {
    // SAFETY: promise 5 for the string, 1 for the place of the list, 3 for the error.
    unsafe {
        answer(error, || {
            let list =
                NonNull::new(list).ok_or(Refusal::Invalid("no place for the list: the pointer is NULL"))?;
            memory_for(count())?;
            let keys = if globs.is_null() {
                try_all().map_err(Refusal::from)?
            } else {
                let globs = CStr::from_ptr(globs).to_string_lossy();
                memory_for(count() + if globs.contains('{') { BRACES } else { globs.len() / 8 })?;
                Selector::parse(&globs).map_err(Refusal::Glob)?.try_keys().map_err(Refusal::from)?
            };
            memory_for(keys.len())?;
            let keys = keys.into_iter().map(Listed::from).collect();
            list.write(Box::into_raw(Box::new(List { keys, at: 0 })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_list_next(list: *mut List, info: *mut KeyInfo) -> bool {
    // SAFETY: promise 4 for the list, 3 for the structure.
    contained(false, || unsafe {
        let (Some(list), Some(out), false) = (list.as_mut(), Out::new(info), info.is_null()) else {
            return false;
        };
        let Some(listed) = list.keys.get(list.at) else { return false };
        list.at += 1;
        out.fill(listed);
        true
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_list_end(list: *mut List) {
    // SAFETY: promise 4.
    contained((), || drop(unsafe { owned(list) }));
}
