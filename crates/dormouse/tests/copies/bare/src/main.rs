//! A host that knows nothing of dormouse: the first plugin leads, the second traces.

use std::ffi::{CStr, CString, c_void};

struct Plugin(*mut c_void);

impl Plugin {
    fn open(path: &str) -> Self {
        let path = CString::new(path).unwrap();
        let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!handle.is_null());
        Self(handle)
    }

    fn get(&self, name: &CStr) -> *mut c_void {
        let address = unsafe { libc::dlsym(self.0, name.as_ptr()) };
        assert!(!address.is_null());
        address
    }

    fn brew(&self, cups: u64) {
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(u64)>(self.get(c"plugin_brew"))(cups) }
    }

    fn count(&self) -> u64 {
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(self.get(c"plugin_count"))() }
    }
}

fn main() {
    let paths: Vec<String> = std::env::args().skip(1).collect();
    let [first, second] = [Plugin::open(&paths[0]), Plugin::open(&paths[1])];
    assert_eq!(second.count(), 0);
    first.brew(3);
    second.brew(40);
    std::thread::scope(|scope| {
        scope.spawn(|| Plugin::open(&paths[0]).brew(500)).join().unwrap();
    });
    assert_eq!(second.count(), 543);
    println!("done");
}
