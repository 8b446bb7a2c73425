//! A host that knows nothing of dormouse, and opens objects that bring copies of their own.

use std::ffi::{CStr, c_char};

use kit::{INITIAL, INVERTED, Library, held, is_loaded};

struct Plugin {
    library: Library,
    sites: extern "C" fn() -> u8,
    set: unsafe extern "C" fn(*const c_char, bool, bool) -> bool,
    keys: extern "C" fn() -> usize,
    invert: extern "C" fn(bool) -> bool,
}

impl Plugin {
    fn open(path: &str) -> Self {
        let library = Library::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL);
        unsafe {
            let (sites, set) = (library.get(c"plugin_sites"), library.get(c"plugin_set"));
            let (keys, invert) = (library.get(c"plugin_keys"), library.get(c"plugin_invert"));
            Self { library, sites, set, keys, invert }
        }
    }

    fn set(&self, name: &CStr, on: bool) {
        assert!(unsafe { (self.set)(name.as_ptr(), on, false) }, "{name:?}");
    }
}

/// A copy that is alone leaves with its object.
fn alone(path: &str) {
    let mut before = (0, 0);
    for round in 0..1000 {
        if round == 100 {
            before = held();
        }
        let plugin = Plugin::open(path);
        assert_eq!(((plugin.sites)(), (plugin.keys)()), (INITIAL, 2));
        assert!((plugin.invert)(true));
        assert_eq!((plugin.sites)(), INVERTED);
        plugin.library.close();
        assert!(!is_loaded(path), "round {round}");
    }
    let after = held();
    println!("{before:?} {after:?}");
    assert!(after.0 < before.0 + 64 * 1024, "memory is lost");
    assert!(after.1 <= before.1, "mappings are lost");
}

/// The copy that came first leads, and stays as long as another could follow it.
fn two(first: &str, second: &str) {
    let one = Plugin::open(first);
    let two = Plugin::open(second);
    assert_eq!([(one.keys)(), (two.keys)()], [4, 4]);
    assert!((two.invert)(true));
    assert_eq!([(one.sites)(), (two.sites)()], [INITIAL, INVERTED]);
    one.library.close();
    assert!(is_loaded(first), "it is followed");
    // The keys of both bear the same names.
    two.set(c"plugin.off", false);
    two.set(c"plugin.on", true);
    assert_eq!([(one.sites)(), (two.sites)()], [INITIAL; 2]);
    two.set(c"plugin.off", true);
    assert_eq!([(one.sites)(), (two.sites)()], [0b1111; 2]);
}

/// A follower that leaves can come again, as can others.
fn follower(first: &str, second: &str) {
    let one = Plugin::open(first);
    for _ in 0..100 {
        let two = Plugin::open(second);
        assert!((two.invert)(true));
        assert_eq!([(one.keys)(), (two.keys)()], [4, 4]);
        two.library.close();
        assert!(!is_loaded(second));
        assert_eq!((one.keys)(), 2);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["alone", path] => alone(path),
        ["two", first, second] => two(first, second),
        ["follower", first, second] => follower(first, second),
        ref other => panic!("what is {other:?}?"),
    }
    println!("done");
}
