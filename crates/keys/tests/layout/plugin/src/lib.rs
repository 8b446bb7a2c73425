//! An object with a copy of dormouse of its own, as a plugin that was built elsewhere has.

use std::ffi::{CStr, c_char};

use dormouse_keys::{Batch, Protocol, all, list, static_key};
use kit::sites;

static_key! {
    static PLUGIN_OFF: "plugin.off" = false;
    static PLUGIN_ON: "plugin.on" = true;
}

#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn plugin_sites() -> u8 {
    sites!(PLUGIN_OFF, PLUGIN_ON)
}

/// Sets a key of any object by its name; false if there is none or it is refused.
///
/// # Safety
///
/// `name` is terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn plugin_set(name: *const c_char, on: bool, int3: bool) -> bool {
    let name = unsafe { CStr::from_ptr(name) }.to_str().unwrap();
    let keys = all();
    let chosen = keys.iter().filter(|k| k.key.name() == name).map(|k| k.key);
    let batch = if on { Batch::new().enable_all(chosen) } else { Batch::new().disable_all(chosen) };
    let batch = batch.protocol(if int3 { Protocol::INT3 } else { Protocol::Flip });
    keys.iter().any(|k| k.key.name() == name) && batch.apply().is_ok()
}

/// Sets the plugin's own keys, without a look-up by name.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_invert(invert: bool) -> bool {
    let batch = Batch::new();
    if invert {
        batch.enable(&PLUGIN_OFF).disable(&PLUGIN_ON)
    } else {
        batch.disable(&PLUGIN_OFF).enable(&PLUGIN_ON)
    }
    .apply()
    .is_ok()
}

/// How many keys this copy sees.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_keys() -> usize {
    list(|_| ()).len()
}

/// The refusal of a batch, printed.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_refusal() {
    match Batch::new().enable(&PLUGIN_OFF).apply() {
        Ok(_) => println!("no refusal"),
        Err(error) => println!("refusal {error}"),
    }
}
