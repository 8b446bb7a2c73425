//! A service whose names would run if a page took them for markup, with very many tasks.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use dormouse::{Group, StaticKey, probe, unlikely};
use dormouse_testkit::spin_for;

/// How many tasks it has.
pub(super) const TASKS: usize = 10_000;

/// The name of its program.
pub(super) const PROGRAM: &str = "<img src=x onerror=hit=1>";

/// Names of groups, which are values of its probe, too.
pub(super) const NAMES: [&str; 5] = [
    "<img src=x onerror=window.hit=1>",
    "</script><script>window.hit=1</script>",
    "\" onmouseover=\"window.hit=1\" x='",
    "\u{202e}gpj.tac",
    "`${window.hit=1}`{{script}}<!--",
];

/// The name of its probe.
pub(super) const PROBE: &str = "<svg onload=window.hit=1>";

/// The name of its key.
pub(super) const KEY: &str = "<b>*?[!x]{a,b}\\</b>";

/// The depth of the calls in which its thread works: more than a profile has room for.
const DEPTH: u32 = 600;

static STRANGE: StaticKey<false> = StaticKey::new(KEY, file!(), line!());

/// Works below as many calls.
#[inline(never)]
fn deeper(calls: u32) {
    match calls.checked_sub(1) {
        Some(calls) => deeper(std::hint::black_box(calls)),
        None => spin_for(Duration::from_micros(400)),
    }
    std::hint::black_box(calls);
}

/// The service: it ends with its standard input.
#[test]
#[ignore = "the service of other tests"]
fn strange() {
    dormouse::init().expect("an agent");
    let mut tasks: Vec<Pin<Box<dyn Future<Output = ()>>>> = Vec::new();
    let mut context = Context::from_waker(Waker::noop());
    for at in 0..TASKS {
        let mut task = Box::pin(Group::new(NAMES[at % NAMES.len()]).instrument(std::future::pending()));
        assert!(task.as_mut().poll(&mut context).is_pending());
        tasks.push(task);
    }
    let body = || {
        for name in NAMES.iter().cycle() {
            Group::new(name).scope(|| {
                probe!("<svg onload=window.hit=1>", text = *name);
                if unlikely!(STRANGE) {
                    std::hint::black_box(());
                }
            });
            // It has something to do now and then.
            deeper(DEPTH);
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    std::thread::Builder::new().name("<b onclick=hit>".into()).spawn(body).expect("a thread");
    println!("ready");
    let _ = std::io::stdin().read_line(&mut String::new());
    std::process::exit(0);
}
