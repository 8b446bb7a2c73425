//! Flips every key and looks whether every site follows; prints the keys with their sites, and the
//! code of one function.

use dormouse_keys::{Batch, Key, StaticKey, all, static_key, unlikely};
use layout_lib::{generic, inlined, of_the_api, starts_on, twin_a, twin_b};

static_key! {
    static OWN: "app.own" = false;
    static CODEGEN: "app.codegen" = false;
}

#[inline(never)]
fn own() -> bool {
    unlikely!(OWN)
}

#[inline(never)]
fn public() -> bool {
    unlikely!(layout_lib::PUBLIC)
}

#[inline(never)]
fn often() -> [bool; 5] {
    [inlined(), inlined(), inlined(), inlined(), inlined()]
}

#[inline(never)]
extern "C" fn slow(x: u64) -> u64 {
    std::hint::black_box(x) / 7
}

/// The function that the test disassembles.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn codegen(x: u64) -> u64 {
    if unlikely!(CODEGEN) {
        return slow(x);
    }
    x.wrapping_mul(3)
}

/// This function has a probe of the API, and is disassembled, too.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn codegen_api(x: u64) -> u64 {
    dormouse_api::probe!("app.codegen-api", x, half = x / 2);
    x.wrapping_mul(3)
}

fn key(name: &str) -> &'static Key {
    all().into_iter().find(|k| k.key.name() == name).unwrap_or_else(|| panic!("key {name} is lost")).key
}

fn state() -> Vec<u64> {
    let mut state = vec![
        u64::from(own()),
        u64::from(public()),
        generic(1u8),
        generic(1u64),
        twin_a().into(),
        twin_b().into(),
    ];
    state.extend(often().map(u64::from));
    state.extend(starts_on().map(u64::from));
    state.push(u64::from(codegen(21) == 3));
    state.push(u64::from(of_the_api()));
    state
}

fn main() {
    let asleep = [0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 0, 1, 1, 0, 1];
    assert_eq!(state(), asleep);
    for used in all() {
        println!("key {} {}", used.key.name(), used.sites);
    }
    // Each alone: a site that follows another's key would show.
    let alone: [(&str, &[usize]); 9] = [
        ("app.own", &[0]),
        ("lib.public", &[1]),
        ("lib.generic", &[2, 3]),
        ("lib.twin-a", &[4]),
        ("lib.twin-b", &[5]),
        ("lib.inlined", &[6, 7, 8, 9, 10]),
        ("lib.starts-on", &[11, 12]),
        ("app.codegen", &[13]),
        ("lib.of-the-api", &[14]),
    ];
    for (name, changed) in alone {
        let key = key(name);
        let was = key.is_enabled();
        let batch = if was { Batch::new().disable(key) } else { Batch::new().enable(key) };
        batch.apply().unwrap();
        let now = state();
        for i in 0..asleep.len() {
            assert_eq!(now[i] != asleep[i], changed.contains(&i), "{name} at {i}: {now:?}");
        }
        let batch = if was { Batch::new().enable(key) } else { Batch::new().disable(key) };
        batch.apply().unwrap();
        assert_eq!(state(), asleep);
    }
    // All at once, with those of dead functions where the linker has kept them: each holds what it
    // should.
    let (on, off): (Vec<_>, Vec<_>) = all().into_iter().map(|k| k.key).partition(|k| k.is_enabled());
    for _ in 0..2 {
        let inverted = Batch::new().enable_all(off.clone()).disable_all(on.clone()).apply().unwrap();
        let sites: usize = all().iter().map(|used| used.sites).sum();
        assert_eq!((inverted.sites, inverted.skipped), (sites, 0));
        let now = state();
        assert!((0..asleep.len()).all(|i| now[i] != asleep[i]), "{now:?}");
        Batch::new().enable_all(on.clone()).disable_all(off.clone()).apply().unwrap();
        assert_eq!(state(), asleep);
    }
    // Without a host the optimiser removes what an awake probe of the API does.
    static HOST: dormouse_api::Host = dormouse_api::Host::new("a test", |_, _| ());
    dormouse_api::set_host(&HOST).unwrap();
    assert_eq!(codegen_api(7), 21);
    for code in [codegen as extern "C" fn(u64) -> u64, codegen_api] {
        let code: &[u8; 64] = unsafe { &*(code as *const () as *const [u8; 64]) };
        println!("code {}", code.iter().map(|b| format!("{b:02x}")).collect::<String>());
    }
    let _: &StaticKey<false> = &OWN;
    println!("every site follows");
}
