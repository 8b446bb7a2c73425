//! A plugin with a copy of dormouse of its own.

use std::ffi::{CString, c_char};
use std::sync::Mutex;

use dormouse::record::Field;
use dormouse::{Group, Trace, TraceError};

/// A probe of the plugin, hit inside a group of its own copy.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_brew(cups: u64) {
    let _entered = Group::new("plugin's").enter();
    dormouse::probe!("plugin.brew", cups);
}

/// Where the agent listens, or why there is none; never freed.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_init() -> *const c_char {
    let said = dormouse::init().map_or_else(|e| e.to_string(), |agent| agent.path().display().to_string());
    CString::new(said).unwrap().into_raw()
}

/// Why the plugin cannot trace; empty if it can. Never freed.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_trace() -> *const c_char {
    let said = match dormouse::trace("plugin.*") {
        Ok(_) => String::new(),
        Err(TraceError::Elsewhere { object }) => object,
        Err(other) => panic!("{other}"),
    };
    CString::new(said).unwrap().into_raw()
}

/// Begins to trace at the first call. Later calls return the number of cups that were recorded
/// since the last one.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_count() -> u64 {
    static TRACE: Mutex<Option<Trace>> = Mutex::new(None);
    let mut trace = TRACE.lock().unwrap();
    let trace = trace.get_or_insert_with(|| dormouse::trace("plugin.*").unwrap());
    let mut cups = 0;
    trace.poll(|_, _, record| match record.values[0] {
        Field::Unsigned(n) => cups += n,
        _ => panic!("{:?}", record.values),
    });
    cups
}
