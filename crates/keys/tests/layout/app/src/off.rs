//! Built with `--cfg dormouse_off`: prints the code of a function with a site, and of one without.

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

/// By another number: equal functions would become one.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn without(x: u64) -> u64 {
    x.wrapping_mul(0x1234_5679)
}

fn main() {
    assert!(matches!(KEY.enable(), Err(Error::Off)) && !unlikely!(KEY));
    assert_eq!((with(1), without(1)), (0x1234_5677, 0x1234_5679));
    for function in [with as *const (), without as *const ()] {
        let code: &[u8; 32] = unsafe { &*function.cast() };
        println!("code {}", code.iter().map(|b| format!("{b:02x}")).collect::<String>());
    }
    println!("constant");
}
