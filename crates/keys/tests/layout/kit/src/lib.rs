//! The common parts of the hosts and the objects of the tests.

use std::ffi::{CStr, CString, c_int, c_void};

/// The four kinds of sites, a bit each: unlikely and likely of a key that starts off, then of one
/// that starts on.
#[macro_export]
macro_rules! sites {
    ($off:path, $on:path) => {
        u8::from(::dormouse_keys::unlikely!($off))
            | u8::from(::dormouse_keys::likely!($off)) << 1
            | u8::from(::dormouse_keys::unlikely!($on)) << 2
            | u8::from(::dormouse_keys::likely!($on)) << 3
    };
}

/// The result of `sites!` while its keys are as they were assembled, and while they are inverted.
pub const INITIAL: u8 = 0b1100;
pub const INVERTED: u8 = 0b0011;

/// A constructor of the object, run in order of the section's name.
#[macro_export]
macro_rules! constructor {
    ($section:literal, $function:path) => {
        const _: () = {
            #[used]
            #[unsafe(link_section = $section)]
            static CONSTRUCTOR: extern "C" fn() = $function;
        };
    };
}

/// An object that was opened.
pub struct Library(*mut c_void);

// A handle is no thread's.
unsafe impl Sync for Library {}

impl Library {
    pub fn open(path: &str, flags: c_int) -> Self {
        let name = CString::new(path).unwrap();
        let handle = unsafe { libc::dlopen(name.as_ptr(), flags) };
        assert!(!handle.is_null(), "{}", error());
        Self(handle)
    }

    /// A function by name.
    ///
    /// # Safety
    ///
    /// It is of that type, and not called after the object has left.
    pub unsafe fn get<F: Copy>(&self, name: &CStr) -> F {
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null(), "{}", error());
        unsafe { std::mem::transmute_copy(&address) }
    }

    pub fn close(self) {
        assert_eq!(unsafe { libc::dlclose(self.0) }, 0, "{}", error());
    }
}

/// Whether an object is loaded.
pub fn is_loaded(path: &str) -> bool {
    let name = CString::new(path).unwrap();
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
}

fn error() -> String {
    let error = unsafe { libc::dlerror() };
    if error.is_null() {
        String::new()
    } else {
        unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()
    }
}

/// Puts a breakpoint on the first site of a function, as a debugger would, or takes it away.
pub fn break_site(function: extern "C" fn() -> u8, set: bool) {
    let code = function as *const () as *mut u8;
    let bytes = unsafe { std::slice::from_raw_parts(code, 128) };
    // Asleep, or broken already.
    let at = bytes.iter().position(|&b| b == 0xa9 || b == 0xcc).unwrap();
    let site = unsafe { code.add(at) };
    let page = (site as usize & !4095) as *mut c_void;
    unsafe {
        assert_eq!(libc::mprotect(page, 8192, libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC), 0);
        site.write_volatile(if set { 0xcc } else { 0xa9 });
        assert_eq!(libc::mprotect(page, 8192, libc::PROT_READ | libc::PROT_EXEC), 0);
    }
}

/// Bytes that are allocated, and mappings.
pub fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    (unsafe { libc::mallinfo2() }.uordblks, maps)
}
