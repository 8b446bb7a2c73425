//! Some sites of a test's own binary, and where its sites lie.
use crate::arch::{PROTOCOLS, placed};
use dormouse_keys::{Batch, BatchReport, Error, Protocol, StaticKey, static_key, unlikely};

static_key! {
    pub(crate) static KEY: "resist.key" = false;
    pub(crate) static OTHER: "resist.other" = false;
}

placed! {
    in_a_line: 8 before 1 << 6;
    over_a_page: 2 before 1 << 12;
    in_a_page: 64 before 1 << 12;
}

#[inline(never)]
pub(crate) extern "C" fn site() -> bool {
    unlikely!(KEY)
}

#[inline(never)]
pub(crate) extern "C" fn other() -> bool {
    unlikely!(OTHER)
}

pub(crate) type Site = (extern "C" fn() -> bool, &'static StaticKey<false>);

/// A site at a place of the compiler's choice, and two more, one of which crosses the end of its
/// page.
pub(crate) const SITES: [Site; 3] =
    [(site, &KEY), (in_a_line::SITE, &in_a_line::KEY), (over_a_page::SITE, &over_a_page::KEY)];

/// The first five bytes of each function with a site at its beginning, and the first 64 of the
/// others'.
pub(crate) fn text() -> Vec<[u8; 64]> {
    // SAFETY: code of this binary, with other functions behind it.
    SITES.map(|(function, _)| unsafe { *(function as *const [u8; 64]) }).to_vec()
}

pub(crate) fn switch(on: bool, protocol: Protocol) -> Result<BatchReport, Error> {
    let batch = Batch::new().protocol(protocol);
    let keys = SITES.map(|(_, key)| key.key());
    if on { batch.enable_all(keys).apply() } else { batch.disable_all(keys).apply() }
}

/// Keys and sites all say the same.
pub(crate) fn assert_all(on: bool) {
    for (function, key) in SITES {
        assert_eq!((function(), key.is_enabled()), (on, on), "{}", key.name());
    }
}

/// Switches all keys on and off by each protocol; some pages, and no more traps than anybody could
/// have taken.
pub(crate) fn assert_switchable() {
    for &protocol in PROTOCOLS {
        let before = text();
        for on in [true, false] {
            let report = switch(on, protocol).unwrap();
            assert_eq!((report.keys, report.traps), (3, 0));
            assert_eq!(report.barriers, if protocol == Protocol::Flip { 1 } else { 3 });
            assert!(report.pages >= 2);
            assert_all(on);
        }
        assert_eq!(text(), before);
    }
}

unsafe extern "C" {
    /// The entries of this binary's sites: offsets to code, target and key, and flags.
    static __start_dormouse_sites_v1: [i32; 4];
    static __stop_dormouse_sites_v1: [i32; 4];
}

/// The address of the first site within 64 bytes of the beginning of a function.
pub(crate) fn site_in(function: extern "C" fn() -> bool) -> usize {
    let (mut entry, stop) = (&raw const __start_dormouse_sites_v1, &raw const __stop_dormouse_sites_v1);
    let code = function as usize;
    while entry < stop {
        // SAFETY: the linker sets the bounds around whole entries.
        let at = (entry as usize).wrapping_add_signed(unsafe { (*entry)[0] } as isize);
        if (code..code + 64).contains(&at) {
            return at;
        }
        entry = entry.wrapping_add(1);
    }
    panic!("no site in {code:#x}");
}
