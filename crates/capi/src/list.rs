//! Lists of keys: a copy of what the registry says at one moment, with text as C likes it.
//!
//! # Safety
//!
//! As the crate's; each function trusts its arguments as its declaration in the header says.
#![allow(unsafe_code)]

use std::ffi::{CStr, CString, c_char};
use std::ptr::NonNull;

use dormouse::Key;
use dormouse::keys::{KeyUse, Selector, all};

use crate::error::{Code, Error, Out, Refusal, answer, contained};
use crate::keys::owned;

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

/// Text as C likes it: what follows a NUL is left away.
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
    // SAFETY: C's promises: a string or NULL, and room for a pointer.
    unsafe {
        answer(error, || {
            let list =
                NonNull::new(list).ok_or(Refusal::Invalid("no place for the list: the pointer is NULL"))?;
            let keys = if globs.is_null() {
                all()
            } else {
                let globs = CStr::from_ptr(globs).to_string_lossy();
                Selector::parse(&globs).map_err(Refusal::Glob)?.keys()
            };
            let keys = keys.into_iter().map(Listed::from).collect();
            list.write(Box::into_raw(Box::new(List { keys, at: 0 })));
            Ok(())
        })
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_list_next(list: *mut List, info: *mut KeyInfo) -> bool {
    // SAFETY: C's promises: a list that has not ended, and a structure with its size.
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
    // SAFETY: C's promise: NULL, or a list that `dormouse_list_begin` made and that has not ended.
    contained((), || drop(unsafe { owned(list) }));
}
