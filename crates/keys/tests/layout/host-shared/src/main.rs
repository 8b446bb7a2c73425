//! A host that shares one copy of dormouse with the objects that it opens.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use dormouse_keys::{Batch, Error, Key, Lease, Protocol, all, capability, list, prepare, static_key};
use kit::{INITIAL, INVERTED, Library, held, is_loaded, sites};
use objects_core::{CORE_OFF, CORE_ON, core_sites};

static_key! {
    static HOST_OFF: "host.off" = false;
    static HOST_ON: "host.on" = true;
}

const GUEST: &str = "libobjects_guest.so";
const SECOND: &str = "libobjects_second.so";
const FLAGS: [c_int; 6] = [
    libc::RTLD_NOW,
    libc::RTLD_LAZY,
    libc::RTLD_NOW | libc::RTLD_LOCAL,
    libc::RTLD_LAZY | libc::RTLD_GLOBAL,
    libc::RTLD_NOW | libc::RTLD_DEEPBIND,
    libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND,
];

#[inline(never)]
fn host_own() -> u8 {
    sites!(HOST_OFF, HOST_ON)
}

#[inline(never)]
fn host_core() -> u8 {
    sites!(CORE_OFF, CORE_ON)
}

type Sites = extern "C" fn() -> u8;

struct Guest {
    library: Library,
    own: Sites,
    core: Sites,
}

fn guest(flags: c_int) -> Guest {
    let library = Library::open(GUEST, flags);
    let (own, core) = unsafe { (library.get(c"guest_own"), library.get(c"guest_core")) };
    Guest { library, own, core }
}

fn named(names: &[&str]) -> Vec<&'static Key> {
    let keys: Vec<_> = all().into_iter().map(|k| k.key).filter(|k| names.contains(&k.name())).collect();
    assert_eq!(keys.len(), names.len());
    keys
}

fn listed(prefix: &str) -> Vec<(String, usize, String)> {
    list(|k| (k.key.name().to_owned(), k.sites, k.object.to_owned()))
        .into_iter()
        .filter(|k| k.0.starts_with(prefix))
        .collect()
}

fn invert_core(invert: bool) {
    let batch = Batch::new();
    let batch = if invert {
        batch.enable(&CORE_OFF).disable(&CORE_ON)
    } else {
        batch.disable(&CORE_OFF).enable(&CORE_ON)
    };
    batch.apply().unwrap();
}

/// {initially on, off} x {likely, unlikely} x {own object, other object}, inverted twice.
fn table() {
    let guest = guest(libc::RTLD_NOW);
    let library = Library::open(SECOND, libc::RTLD_NOW);
    let second: Sites = unsafe { library.get(c"second_sites") };
    let state = || {
        [
            ("the program's own", host_own()),
            ("the program's of a library's", host_core()),
            ("the library's own", core_sites()),
            ("the object's own", (guest.own)()),
            ("the object's of a library's", (guest.core)()),
            ("an object's of another object's", second()),
        ]
    };
    let off = named(&["core.off", "guest.off", "host.off"]);
    let on = named(&["core.on", "guest.on", "host.on"]);
    for (whose, sites) in state() {
        assert_eq!(sites, INITIAL, "{whose} sites");
    }
    for round in 0..2 {
        let inverted = Batch::new().enable_all(off.clone()).disable_all(on.clone()).apply().unwrap();
        assert_eq!((inverted.keys, inverted.sites, inverted.skipped), (6, 24, 0));
        for (whose, sites) in state() {
            assert_eq!(sites, INVERTED, "{whose} sites, round {round}");
        }
        let back = Batch::new().disable_all(off.clone()).enable_all(on.clone()).apply().unwrap();
        assert_eq!((back.keys, back.sites, back.skipped), (6, 24, 0));
        for (whose, sites) in state() {
            assert_eq!(sites, INITIAL, "{whose} sites, round {round} back");
        }
    }
    // The other object's key, from the object that uses it.
    let invert: extern "C" fn(bool) -> bool = unsafe { library.get(c"second_invert") };
    assert!(invert(true));
    assert_eq!((second(), (guest.own)()), (INVERTED, INVERTED));
}

/// However it is opened, an object takes the present state of its keys before its own code runs.
fn present() {
    for (round, flags) in FLAGS.into_iter().enumerate() {
        for inverted in [false, true] {
            invert_core(inverted);
            let expected = if inverted { INVERTED } else { INITIAL };
            let guest = guest(flags);
            let constructors: extern "C" fn() -> [u8; 2] =
                unsafe { guest.library.get(c"guest_constructors") };
            assert_eq!((guest.core)(), expected, "round {round}");
            assert_eq!((guest.own)(), INITIAL);
            // Constructors before ours find the sites as they were assembled.
            assert_eq!(constructors(), [INITIAL, expected], "round {round}");
            // And they follow.
            invert_core(!inverted);
            assert_eq!((guest.core)(), if inverted { INITIAL } else { INVERTED });
            assert_eq!(listed("guest.").len(), 2);
            guest.library.close();
            assert!(!is_loaded(GUEST), "round {round}");
            assert_eq!(listed("guest."), []);
        }
    }
}

/// A key that lives in an object which another one needs stays with that one, and both leave
/// together.
fn needed() {
    let guest = guest(libc::RTLD_NOW | libc::RTLD_GLOBAL);
    let library = Library::open(SECOND, libc::RTLD_NOW);
    let second: Sites = unsafe { library.get(c"second_sites") };
    guest.library.close();
    assert!(is_loaded(GUEST));
    // Two keys; each with two sites here and two there.
    let of = |name: &str| (name.to_owned(), 4, GUEST.to_owned());
    assert_eq!(listed("guest."), [of("guest.off"), of("guest.on")]);
    assert_eq!(second(), INITIAL);
    let invert: extern "C" fn(bool) -> bool = unsafe { library.get(c"second_invert") };
    assert!(invert(true));
    assert_eq!(second(), INVERTED);
    library.close();
    assert!(!is_loaded(GUEST) && !is_loaded(SECOND));
    assert_eq!(listed("guest."), []);
}

/// A key that is handed out keeps its object.
fn pinned() {
    // Not who only looks.
    let guest_1 = guest(libc::RTLD_NOW);
    assert_eq!(listed("guest.").len(), 2);
    capability();
    guest_1.library.close();
    assert!(!is_loaded(GUEST));
    // Nor who changes the key by itself.
    let guest_2 = guest(libc::RTLD_NOW);
    let key: extern "C" fn() -> &'static Key = unsafe { guest_2.library.get(c"guest_key") };
    key().enable().unwrap();
    guest_2.library.close();
    assert!(!is_loaded(GUEST));
    // But who holds a lease.
    let guest_3 = guest(libc::RTLD_NOW);
    let key: extern "C" fn() -> &'static Key = unsafe { guest_3.library.get(c"guest_key") };
    assert!(!key().is_enabled(), "the object is new");
    let lease = Lease::of([key()]).unwrap();
    let own = guest_3.own;
    guest_3.library.close();
    assert!(is_loaded(GUEST));
    assert_eq!(own() & 0b11, 0b11);
    drop(lease);
    assert_eq!(own(), INITIAL);
    assert!(is_loaded(GUEST));
}

/// The files that a copy has opened stay open when an object leaves that used it.
fn prepared() {
    prepare().unwrap();
    let files = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = files();
    guest(libc::RTLD_NOW).library.close();
    assert!(!is_loaded(GUEST) && files() == before);
}

/// Also if the timer has to come back to it.
fn held_for_a_time() {
    let guest = guest(libc::RTLD_NOW);
    let key: extern "C" fn() -> &'static Key = unsafe { guest.library.get(c"guest_key") };
    let (key, own) = (key(), guest.own);
    key.enable_for(std::time::Duration::from_secs(3600)).unwrap();
    guest.library.close();
    assert!(is_loaded(GUEST));
    assert_eq!(own() & 0b11, 0b11);
    Batch::new().end_all([key], None).apply().unwrap();
    assert_eq!(own(), INITIAL);
}

/// Or who is given it by name.
fn handed_out() {
    let guest = guest(libc::RTLD_NOW);
    let own = guest.own;
    let keys = all();
    guest.library.close();
    assert!(is_loaded(GUEST));
    let used = keys.iter().find(|k| k.key.name() == "guest.off").unwrap();
    assert_eq!((used.sites, &*used.object), (2, GUEST));
    used.key.enable().unwrap();
    assert_eq!(own() & 0b11, 0b11);
}

/// An object whose sites cannot be brought into step waits, harms no other, and is registered when
/// it can be.
fn waiting() {
    CORE_OFF.enable().unwrap();
    // Its own early constructor breaks a site.
    let guest = guest(libc::RTLD_NOW);
    let error = || capability().into_iter().find(|c| c.name == "keys.objects").map(|c| c.detail.into_owned());
    let said = error().unwrap();
    assert!(said.contains(GUEST) && said.contains("core.off"), "{said}");
    assert_eq!(listed("guest."), [], "none of its sites is known");
    // Others follow: the program and the library.
    assert_eq!(CORE_ON.disable().unwrap().sites, 4);
    assert_eq!((host_core(), core_sites()), (0b0011, 0b0011));
    let mend: extern "C" fn(bool) = unsafe { guest.library.get(c"guest_break") };
    mend(false);
    assert_eq!(error(), None);
    assert_eq!((guest.core)(), INVERTED);
    invert_core(false);
    assert_eq!((guest.core)(), INITIAL);
    guest.library.close();
    assert!(!is_loaded(GUEST));
    // One that never gets in leaves as well.
    CORE_OFF.enable().unwrap();
    let guest = crate::guest(libc::RTLD_NOW);
    guest.library.close();
    assert!(!is_loaded(GUEST));
    assert_eq!(CORE_OFF.disable().unwrap().sites, 4);
}

/// Objects come and leave while a thread flips as fast as it can and another lists.
fn churn() {
    const ROUNDS: usize = 1000;
    static STOP: AtomicBool = AtomicBool::new(false);
    /// Odd while a batch is under way; the state is that of bit 1.
    static EPOCH: AtomicU64 = AtomicU64::new(0);
    static CHECKS: AtomicU64 = AtomicU64::new(0);
    let mut before = (0, 0);
    let (batches, lists) = std::thread::scope(|scope| {
        let flipper = scope.spawn(|| {
            let mut batches = 0u64;
            while !STOP.load(Ordering::Relaxed) {
                EPOCH.fetch_add(1, Ordering::SeqCst);
                invert_core(batches.is_multiple_of(2));
                EPOCH.fetch_add(1, Ordering::SeqCst);
                batches += 1;
                // Until somebody has looked at it.
                let seen = CHECKS.load(Ordering::Relaxed);
                while CHECKS.load(Ordering::Relaxed) == seen && !STOP.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            batches
        });
        let lister = scope.spawn(|| {
            let mut lists = 0u64;
            while !STOP.load(Ordering::Relaxed) {
                for (name, sites, object) in listed("") {
                    assert!(sites >= 2 && !object.is_empty(), "{name}");
                }
                lists += 1;
                // The lock is not fair: who only lists would keep it to himself.
                let epoch = EPOCH.load(Ordering::Relaxed);
                while EPOCH.load(Ordering::Relaxed) == epoch && !STOP.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            }
            lists
        });
        for round in 0..ROUNDS {
            if round == ROUNDS / 10 {
                before = held();
            }
            let guest = guest(FLAGS[round % FLAGS.len()]);
            assert_eq!((guest.own)(), INITIAL);
            // On a busy machine the others would hardly have a turn.
            let (checks, epoch) = (CHECKS.load(Ordering::Relaxed), EPOCH.load(Ordering::Relaxed));
            let batches = if round % 4 == 0 { 1 } else { 0 };
            while CHECKS.load(Ordering::Relaxed) < checks + 2
                || EPOCH.load(Ordering::Relaxed) < epoch + 2 * batches
            {
                let epoch = EPOCH.load(Ordering::SeqCst);
                fence(Ordering::SeqCst);
                let sites = (guest.core)();
                fence(Ordering::SeqCst);
                if epoch.is_multiple_of(2) && EPOCH.load(Ordering::SeqCst) == epoch {
                    CHECKS.fetch_add(1, Ordering::Relaxed);
                    let expected = if epoch & 2 != 0 { INVERTED } else { INITIAL };
                    assert_eq!(sites, expected, "round {round}, epoch {epoch}");
                }
            }
            guest.library.close();
            assert!(!is_loaded(GUEST), "round {round}");
        }
        STOP.store(true, Ordering::Relaxed);
        (flipper.join().unwrap(), lister.join().unwrap())
    });
    invert_core(false);
    assert_eq!(listed("guest."), []);
    let after = held();
    let checks = CHECKS.load(Ordering::Relaxed);
    println!("{ROUNDS} rounds, {batches} batches, {lists} lists, {checks} checks, {before:?} {after:?}");
    assert!(batches > 100 && lists > 0);
    // Threads' stacks and arenas are the only new mappings.
    assert!(after.0 < before.0 + 64 * 1024, "memory is lost");
    assert!(after.1 < before.1 + 16, "mappings are lost");
}

/// Forks, runs `child` there, which says whether all is well, and waits for it.
fn in_child(round: usize, child: impl FnOnce() -> bool) {
    match unsafe { libc::fork() } {
        // As a program does: the destructors run.
        0 => unsafe { libc::exit(i32::from(!child())) },
        child => {
            let mut status = 0;
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "round {round}");
        }
    }
}

/// A child that is forked in the middle of it all finds the keys in one state and can go on.
fn fork() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let flip = || {
        let mut batches = 0u64;
        while !STOP.load(Ordering::Relaxed) {
            invert_core(batches.is_multiple_of(2));
            batches += 1;
        }
    };
    let is_whole = || matches!([host_core(), core_sites()], [INITIAL, INITIAL] | [INVERTED, INVERTED]);
    let invert = || {
        invert_core(true);
        [host_core(), core_sites()] == [INVERTED; 2]
    };
    std::thread::scope(|scope| {
        let flipper = scope.spawn(flip);
        for round in 0..100 {
            in_child(round, || {
                let ok = is_whole() && invert();
                let guest = guest(libc::RTLD_NOW);
                let followed = (guest.core)() == INVERTED;
                guest.library.close();
                ok && followed
            });
        }
        // While objects come and leave too. The C library's loader is not to be used in such a
        // child.
        let loader = scope.spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                guest(libc::RTLD_NOW).library.close();
            }
        });
        for round in 0..100 {
            in_child(round, || unsafe { libc::_exit(i32::from(!(is_whole() && invert()))) });
        }
        STOP.store(true, Ordering::Relaxed);
        flipper.join().unwrap();
        loader.join().unwrap();
    });
}

/// Cuts a file short in place, as `cp` begins.
fn cut(path: &str, length: u64) {
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(length).unwrap();
}

/// The refusal of a key in an object that was cut short, by each way of changing it.
fn assert_unreadable(key: &'static Key, file: &str) {
    let batch = |protocol| Batch::new().enable(&HOST_OFF).enable(key).protocol(protocol).apply();
    for error in [
        batch(Protocol::Flip).unwrap_err(),
        batch(Protocol::INT3).unwrap_err(),
        key.disable().unwrap_err(),
        key.enable_for(Duration::from_secs(1)).unwrap_err(),
        Lease::of([HOST_OFF.key(), key]).unwrap_err(),
    ] {
        assert!(matches!(error, Error::Unreadable { .. }) && error.to_string().contains(file), "{error}");
    }
    assert!(!HOST_OFF.is_enabled() && host_own() == INITIAL);
}

/// An object whose file is cut short while nobody runs it takes its own keys along, and nothing
/// else.
fn truncated(path: &str, when: &str) {
    // Ends what would wait for ever.
    unsafe { libc::alarm(60) };
    let whole = std::fs::read(path).unwrap();
    let file = path.rsplit('/').next().unwrap();
    let library = Library::open(path, libc::RTLD_NOW | libc::RTLD_LOCAL);
    // Behind it in the loader's list.
    let other = format!("{path}.other");
    std::fs::write(&other, &whole).unwrap();
    let other = Library::open(&other, libc::RTLD_NOW | libc::RTLD_LOCAL);
    let other_key = unsafe { other.get::<extern "C" fn() -> &'static Key>(c"guest_key") }();
    let other_own = unsafe { other.get::<Sites>(c"guest_own") };
    if when != "unseen" {
        HOST_OFF.enable().unwrap();
        HOST_OFF.disable().unwrap();
        assert_eq!(listed("").len(), 8);
    }
    let theirs = (when == "given").then(|| {
        let keys: Vec<_> =
            all().into_iter().filter(|used| *used.object == *file).map(|used| used.key).collect();
        let lease = Lease::of([keys[1], HOST_OFF.key()]).unwrap();
        // Its end comes when the file is gone, together with that of a key that is there.
        let soon = Duration::from_millis(20);
        let batch = Batch::new().enable_for(keys[0], soon).enable_for(&HOST_ON, soon);
        batch.disable(&HOST_ON).apply().unwrap();
        (keys[0], lease)
    });
    match when {
        "tail" => cut(path, whole.len() as u64 / 8),
        _ => cut(path, 0),
    }
    assert!(listed("guest.").iter().all(|key| key.2 != file));
    assert_eq!(listed("").len(), 6);
    if let Some((off, lease)) = theirs {
        assert_eq!(host_own() & 0b11, 0b11);
        drop(lease);
        // The timer ends what it can, and what the lease has left to it.
        while HOST_ON.is_enabled() || HOST_OFF.is_enabled() {
            std::thread::yield_now();
        }
        HOST_ON.enable().unwrap();
        assert_unreadable(off, file);
    }
    for protocol in [Protocol::Flip, Protocol::INT3] {
        let batch = || Batch::new().protocol(protocol);
        let on = batch().enable(&HOST_OFF).disable(&HOST_ON).enable(&CORE_OFF).apply().unwrap();
        assert_eq!((on.sites, host_own(), core_sites()), (10, INVERTED, 0b1111));
        let off = batch().disable(&HOST_OFF).enable(&HOST_ON).disable(&CORE_OFF).apply().unwrap();
        assert_eq!((off.sites, host_own(), core_sites()), (10, INITIAL, INITIAL));
    }
    // Another object's keys follow, too. It can only not be kept any more, unless it was: the
    // loader would look at all objects.
    assert_eq!((other_key.enable().unwrap().sites, other_own() & 0b11), (2, 0b11));
    if when != "given" {
        let error = Lease::of([other_key]).unwrap_err();
        assert!(matches!(error, Error::Leaving(_)) && error.to_string().contains("cut short"), "{error}");
    }
    other_key.disable().unwrap();
    // Listings and forks go on.
    assert_eq!(all().len(), if when == "given" { 6 } else { 4 });
    let said = capability().into_iter().find(|line| line.name == "keys.objects").unwrap().detail;
    assert!(said.contains(file) && said.contains("cut short"), "{said}");
    let lease = HOST_OFF.acquire().unwrap();
    in_child(0, || {
        let is_well = host_own() == INITIAL && HOST_OFF.enable().is_ok();
        unsafe { libc::_exit(i32::from(!is_well)) }
    });
    drop(lease);
    // Filled again, its pages are the file's, not those that the loader had made of them.
    std::fs::write(path, &whole).unwrap();
    assert_eq!(listed("").len(), 6);
    assert_eq!((HOST_OFF.enable().unwrap().sites, host_own()), (2, 0b1111));
    println!("done");
    // Without the destructors, which are gone.
    unsafe { libc::_exit(0) };
}

fn main() {
    match std::env::args().nth(1).as_deref() {
        Some("table") => table(),
        Some("present") => present(),
        Some("needed") => needed(),
        Some("pinned") => pinned(),
        Some("prepared") => prepared(),
        Some("held") => held_for_a_time(),
        Some("handed-out") => handed_out(),
        Some("waiting") => waiting(),
        Some("churn") => churn(),
        Some("fork") => fork(),
        Some("truncated") => {
            let arguments: Vec<String> = std::env::args().skip(2).collect();
            truncated(&arguments[0], &arguments[1]);
        }
        other => panic!("what is {other:?}?"),
    }
    println!("done");
}
