//! A host that opens a plugin with a copy of dormouse of its own: one agent, one reader, one
//! current task.

use std::ffi::{CStr, CString, c_char};

use dormouse::Group;
use dormouse::record::Field;

struct Plugin {
    brew: extern "C" fn(u64),
    init: extern "C" fn() -> *const c_char,
    trace: extern "C" fn() -> *const c_char,
}

impl Plugin {
    fn open(path: &str) -> Self {
        let path = CString::new(path).unwrap();
        unsafe {
            let handle = libc::dlopen(path.as_ptr(), libc::RTLD_NOW);
            assert!(!handle.is_null());
            let get = |name: &CStr| {
                let address = libc::dlsym(handle, name.as_ptr());
                assert!(!address.is_null());
                address
            };
            Self {
                brew: std::mem::transmute(get(c"plugin_brew")),
                init: std::mem::transmute(get(c"plugin_init")),
                trace: std::mem::transmute(get(c"plugin_trace")),
            }
        }
    }
}

fn text(of: extern "C" fn() -> *const c_char) -> String {
    unsafe { CStr::from_ptr(of()) }.to_str().unwrap().to_owned()
}

/// The host's agent is the plugin's, or the other way round.
fn agent(plugin: &Plugin, plugin_first: bool) {
    let hosts = || dormouse::init().unwrap().path().display().to_string();
    let (first, second) =
        if plugin_first { (text(plugin.init), hosts()) } else { (hosts(), text(plugin.init)) };
    assert_eq!(first, second);
    assert!(first.ends_with(&format!("{}.sock", std::process::id())), "{first}");
    let threads = std::fs::read_dir("/proc/self/task").unwrap().count();
    assert_eq!(threads, 5, "this one, the agent, its door and two timers");
}

/// The plugin's probe is the host's to trace, in the host's task, under a number that no probe of
/// the host's has.
fn records(plugin: &Plugin) {
    let mut trace = dormouse::trace("*.brew").unwrap();
    let group = Group::new("host's");
    {
        let _entered = group.enter();
        dormouse::probe!("host.brew", cups = 1u64);
        (plugin.brew)(7);
        dormouse::probe!("host.brew", cups = 2u64);
    }
    let mut seen = Vec::new();
    trace.poll(|key, writer, record| {
        let Field::Unsigned(cups) = record.values[0] else { panic!("{:?}", record.values) };
        assert_eq!((record.group, writer.tid), (group.id(), std::process::id()));
        seen.push((key.name().to_owned(), cups, record.task, record.probe));
    });
    let task = seen[0].2;
    assert!(seen.iter().all(|s| s.2 == task && task != 0));
    let numbers = [seen[0].3, seen[1].3, seen[2].3];
    assert!(numbers[0] != numbers[1] && numbers[1] != numbers[2], "{numbers:?}");
    let names: Vec<_> = seen.iter().map(|s| (s.0.as_str(), s.1)).collect();
    assert_eq!(names, [("host.brew", 1), ("plugin.brew", 7), ("host.brew", 2)]);
    assert_eq!(trace.dropped(), Default::default());
    // And the plugin gets the name of the object that reads.
    assert_eq!(text(plugin.trace), "copies-host");
}

fn main() {
    let path = std::env::args().nth(2).unwrap();
    let plugin = Plugin::open(&path);
    match std::env::args().nth(1).as_deref() {
        Some("agent") => agent(&plugin, false),
        Some("plugins-agent") => agent(&plugin, true),
        Some("records") => records(&plugin),
        other => panic!("what is {other:?}?"),
    }
    println!("done");
}
