//! Built with `--cfg dormouse_off`: prints the code of functions with a site and with a probe, and
//! of one without either.

use std::sync::atomic::{AtomicU64, Ordering};

use dormouse_api::probe;
use dormouse_keys::{Error, static_key, unlikely};

static_key! {
    static KEY: "off.key" = false;
}

#[inline(never)]
extern "C" fn slow(x: u64) -> u64 {
    std::hint::black_box(x) / 7
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn with(x: u64) -> u64 {
    if unlikely!(KEY) {
        return slow(x);
    }
    x.wrapping_mul(0x1234_5677)
}

static EVALUATED: AtomicU64 = AtomicU64::new(0);

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn probed(x: u64) -> u64 {
    probe!("off.probe", n = EVALUATED.fetch_add(x, Ordering::Relaxed));
    x.wrapping_mul(0x1234_5673)
}

/// By another number: equal functions would become one.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn without(x: u64) -> u64 {
    x.wrapping_mul(0x1234_5679)
}

fn main() {
    assert!(matches!(KEY.enable(), Err(Error::Off)) && !unlikely!(KEY));
    assert_eq!((with(1), without(1)), (0x1234_5677, 0x1234_5679));
    assert_eq!(
        (probed(1), EVALUATED.load(Ordering::Relaxed)),
        (0x1234_5673, 0),
        "its field is not evaluated"
    );
    for function in [with as *const (), probed as *const (), without as *const ()] {
        let code: &[u8; 32] = unsafe { &*function.cast() };
        println!("code {}", code.iter().map(|b| format!("{b:02x}")).collect::<String>());
    }
    println!("constant");
}
