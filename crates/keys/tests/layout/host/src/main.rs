//! A host with a copy of dormouse that opens objects which bring copies of their own.

mod delayed;

use std::cell::Cell;
use std::ffi::{CStr, c_char};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use dormouse_keys::{Batch, Key, Protocol, all, list, static_key};
use kit::{INITIAL, INVERTED, Library, held, is_loaded, sites};

static_key! {
    static HOST_OFF: "host.off" = false;
    static HOST_ON: "host.on" = true;
}

#[inline(never)]
fn host_own() -> u8 {
    sites!(HOST_OFF, HOST_ON)
}

struct Plugin {
    library: Library,
    sites: extern "C" fn() -> u8,
    set: unsafe extern "C" fn(*const c_char, bool, bool) -> bool,
    keys: extern "C" fn() -> usize,
}

impl Plugin {
    fn open(path: &str) -> Self {
        let library = Library::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL);
        unsafe {
            let (sites, set, keys) =
                (library.get(c"plugin_sites"), library.get(c"plugin_set"), library.get(c"plugin_keys"));
            Self { library, sites, set, keys }
        }
    }

    fn set(&self, name: &CStr, on: bool, int3: bool) {
        assert!(unsafe { (self.set)(name.as_ptr(), on, int3) }, "{name:?}");
    }
}

fn names() -> Vec<String> {
    list(|k| k.key.name().to_owned())
}

fn named(name: &str) -> &'static Key {
    all().into_iter().find(|k| k.key.name() == name).unwrap().key
}

/// The keys of both are keys of both, from either side, by either protocol.
fn table(path: &str) {
    let plugin = Plugin::open(path);
    assert_eq!(names(), ["host.off", "host.on", "plugin.off", "plugin.on"]);
    assert_eq!((plugin.keys)(), 4);
    let objects = list(|k| (k.key.name().to_owned(), k.object.to_owned()));
    let file = path.rsplit('/').next().unwrap();
    assert!(objects.contains(&("plugin.off".to_owned(), file.to_owned())), "{objects:?}");
    for round in 0..2 {
        for int3 in [false, true] {
            let protocol = if int3 { Protocol::INT3 } else { Protocol::Flip };
            // The host's copy inverts the plugin's keys, the plugin's copy the host's.
            let batch = |on: [&str; 1], off: [&str; 1]| {
                let batch = Batch::new().enable_all(on.map(named)).disable_all(off.map(named));
                batch.protocol(protocol).apply().unwrap()
            };
            assert_eq!(batch(["plugin.off"], ["plugin.on"]).sites, 4);
            plugin.set(c"host.off", true, int3);
            plugin.set(c"host.on", false, int3);
            assert_eq!([host_own(), (plugin.sites)()], [INVERTED; 2], "round {round}");
            assert!(HOST_OFF.is_enabled() && !HOST_ON.is_enabled());
            assert_eq!(batch(["plugin.on"], ["plugin.off"]).sites, 4);
            plugin.set(c"host.on", true, int3);
            plugin.set(c"host.off", false, int3);
            assert_eq!([host_own(), (plugin.sites)()], [INITIAL; 2], "round {round}");
        }
    }
}

/// Both copies flip, one key each, by both protocols, while threads run the sites of both: one
/// lock, one handler.
fn both(path: &str) {
    static STOP: AtomicBool = AtomicBool::new(false);
    /// By protocol and whose: what the last batch of that flipper has brought about, odd while it
    /// is at it.
    static EPOCHS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
    const BATCHES: u64 = 2000;

    let plugin = &Plugin::open(path);
    let off = named("plugin.off");
    let flip = move |which: usize, apply: &dyn Fn(bool, bool)| {
        for n in 0..BATCHES {
            EPOCHS[which].fetch_add(1, Ordering::SeqCst);
            apply(n.is_multiple_of(2), n % 8 >= 4);
            EPOCHS[which].fetch_add(1, Ordering::SeqCst);
        }
    };
    let (checks, runners_checks) = std::thread::scope(|scope| {
        let runners: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut checks = 0u64;
                    while !STOP.load(Ordering::Relaxed) {
                        for (which, sites) in [(0, plugin.sites), (1, host_extern as extern "C" fn() -> u8)] {
                            let epoch = EPOCHS[which].load(Ordering::SeqCst);
                            fence(Ordering::SeqCst);
                            let seen = sites() & 0b11;
                            fence(Ordering::SeqCst);
                            if epoch.is_multiple_of(2) && EPOCHS[which].load(Ordering::SeqCst) == epoch {
                                checks += 1;
                                assert_eq!(seen, if epoch & 2 != 0 { 0b11 } else { 0 }, "{which} at {epoch}");
                            }
                        }
                    }
                    checks
                })
            })
            .collect();
        let protocol = |int3| if int3 { Protocol::INT3 } else { Protocol::Flip };
        // The host's copy changes the plugin's key, the plugin's copy the host's.
        let hosts = scope.spawn(move || {
            flip(0, &|on, int3| {
                let batch = if on { Batch::new().enable(off) } else { Batch::new().disable(off) };
                batch.protocol(protocol(int3)).apply().unwrap();
            });
        });
        let plugins = scope.spawn(move || flip(1, &|on, int3| plugin.set(c"host.off", on, int3)));
        hosts.join().unwrap();
        plugins.join().unwrap();
        STOP.store(true, Ordering::Relaxed);
        (2 * BATCHES, runners.into_iter().map(|t| t.join().unwrap()).sum::<u64>())
    });
    println!("{checks} batches, {runners_checks} checks");
    assert!(runners_checks > 100);
}

extern "C" fn host_extern() -> u8 {
    host_own()
}

/// A copy comes and leaves with its object, a thousand times, while the host's copy flips and
/// lists.
fn churn(path: &str) {
    const ROUNDS: usize = 1000;
    static STOP: AtomicBool = AtomicBool::new(false);
    let mut before = (0, 0);
    let batches = std::thread::scope(|scope| {
        let flipper = scope.spawn(|| {
            let mut batches = 0u64;
            while !STOP.load(Ordering::Relaxed) {
                if batches.is_multiple_of(2) { HOST_OFF.enable() } else { HOST_OFF.disable() }.unwrap();
                assert!(names().len() >= 2);
                batches += 1;
            }
            batches
        });
        for round in 0..ROUNDS {
            if round == ROUNDS / 10 {
                before = held();
            }
            let plugin = Plugin::open(path);
            let invert: extern "C" fn(bool) -> bool = unsafe { plugin.library.get(c"plugin_invert") };
            assert_eq!(((plugin.sites)(), (plugin.keys)()), (INITIAL, 4));
            // By its own copy, which keeps an index of its own.
            assert!(invert(true));
            assert_eq!((plugin.sites)(), INVERTED, "round {round}");
            plugin.library.close();
            assert!(!is_loaded(path), "round {round}");
        }
        STOP.store(true, Ordering::Relaxed);
        flipper.join().unwrap()
    });
    let after = held();
    println!("{ROUNDS} rounds, {batches} batches, {before:?} {after:?}");
    assert_eq!(names(), ["host.off", "host.on"]);
    assert!(after.0 < before.0 + 64 * 1024, "memory is lost");
    assert!(after.1 < before.1 + 16, "mappings are lost");
    // The handlers that the plugin's copy had for forks have gone with it.
    let child = unsafe { libc::fork() };
    if child == 0 {
        unsafe { libc::_exit(i32::from(HOST_OFF.enable().is_err())) };
    }
    let mut status = 0;
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
}

/// A fork that every copy has handlers for: the child finds the keys of both, without leases, and
/// no lock held.
fn fork(path: &str) {
    let plugin = Plugin::open(path);
    let (off, on) = (named("plugin.off"), named("plugin.on"));
    // Each copy has locks of its own to take.
    plugin.set(c"host.off", true, false);
    let lease = off.acquire().unwrap();
    on.enable_for(std::time::Duration::from_secs(3600)).unwrap();
    assert_eq!((plugin.sites)(), INITIAL | 0b11);
    for _ in 0..2 {
        let child = unsafe { libc::fork() };
        if child == 0 {
            assert_eq!([off.leases(), on.leases()], [0; 2]);
            assert_eq!([(plugin.sites)(), host_own() & 0b11], [INITIAL, 0b11]);
            plugin.set(c"plugin.off", true, true);
            assert_eq!((plugin.sites)() & 0b11, 0b11);
            let leases = [off, on].map(|key| key.acquire().unwrap());
            plugin.set(c"plugin.off", false, false);
            assert!(off.is_enabled(), "what the host's copy counts, the plugin's respects");
            drop(leases);
            assert_eq!((plugin.sites)(), INITIAL);
            unsafe { libc::_exit(0) };
        }
        let mut status = 0;
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0);
    }
    assert_eq!([off.leases(), on.leases()], [1; 2]);
    drop(lease);
    assert_eq!((plugin.sites)(), INITIAL);
}

/// A copy that has had a signal handler installed stays.
fn trapped(path: &str) {
    let plugin = Plugin::open(path);
    plugin.set(c"host.off", true, true);
    plugin.library.close();
    assert!(is_loaded(path));
}

/// A copy of another version is refused by name, and harms nobody.
fn refused(path: &str) {
    let plugin = Plugin::open(path);
    let refusal: extern "C" fn() = unsafe { plugin.library.get(c"plugin_refusal") };
    refusal();
    assert_eq!((plugin.keys)(), 0);
    assert_eq!((plugin.sites)(), INITIAL);
    assert_eq!(names(), ["host.off", "host.on"]);
    HOST_OFF.enable().unwrap();
    assert_eq!(host_own(), 0b1111);
    plugin.library.close();
    assert!(!is_loaded(path));
}

/// An object leaves between a reading of its keys and their pinning, and comes again at the same
/// place: a lease on a key of it then keeps it.
fn missed(path: &str) {
    let place = || {
        let keys = list(|k| (k.key.name() == "plugin.off").then_some(std::ptr::from_ref(k.key) as usize));
        keys.into_iter().flatten().next()
    };
    // The host's own keys are known to stay, so the next to ask the loader asks for the plugin's.
    assert_eq!(all().len(), 2);
    let before = Cell::new(None);
    let given = delayed::while_the_loader_is_asked(
        || all().len(),
        || {
            let plugin = Plugin::open(path);
            before.set(place());
            plugin
        },
        |plugin| plugin.library.close(),
    );
    assert_eq!(given, 2, "keys of an object that has left are not handed out");
    let plugin = Plugin::open(path);
    assert_eq!(place(), before.get(), "the test needs the same place");
    // This key alone: another one of the object's would keep it too.
    let key: &'static Key = unsafe { &*(place().unwrap() as *const Key) };
    let lease = key.acquire().unwrap();
    plugin.library.close();
    assert!(is_loaded(path), "a lease keeps the key's object");
    drop(lease);
}

/// An object with a copy and no site comes and leaves.
fn empty(path: &str) {
    for _ in 0..3 {
        let library = Library::open(path, libc::RTLD_NOW);
        let keys: extern "C" fn() -> usize = unsafe { library.get(c"empty_keys") };
        assert_eq!(keys(), 2);
        HOST_OFF.enable().unwrap();
        library.close();
        assert!(!is_loaded(path));
        HOST_OFF.disable().unwrap();
    }
}

fn main() {
    let path = std::env::args().nth(2).unwrap();
    match std::env::args().nth(1).as_deref() {
        Some("table") => table(&path),
        Some("both") => both(&path),
        Some("churn") => churn(&path),
        Some("fork") => fork(&path),
        Some("trapped") => trapped(&path),
        Some("refused") => refused(&path),
        Some("missed") => missed(&path),
        Some("empty") => empty(&path),
        other => panic!("what is {other:?}?"),
    }
    println!("done");
}
