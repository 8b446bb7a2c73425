//! A context's time while its tasks are running, with the real clock.

use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dormouse_events::{Context, Kind, enter};

fn spin_until(end: Instant) {
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

#[test]
fn a_running_task_is_seen_by_another_thread_before_it_ends_and_never_steps_back() {
    let context: &'static Context = Box::leak(Box::new(Context::new(1)));
    let (entered, is_entered) = channel();
    let (stop, is_stopped) = channel::<()>();
    let worker = std::thread::spawn(move || {
        let guard = enter(context, 1, Kind::Scope);
        entered.send(()).unwrap();
        while is_stopped.try_recv().is_err() {
            spin_until(Instant::now() + Duration::from_millis(1));
        }
        drop(guard);
    });
    is_entered.recv().unwrap();
    let mut last = 0;
    let give_up = Instant::now() + Duration::from_secs(20);
    while last < 10_000_000 {
        let now = context.cpu_ns();
        assert!(now >= last, "{now} after {last}");
        assert!(Instant::now() < give_up, "{last} ns of a running task seen");
        last = now;
    }
    stop.send(()).unwrap();
    worker.join().unwrap();
    assert!(context.cpu_ns() >= last);
}

#[test]
fn a_sleeping_task_is_charged_nothing_for_its_sleep() {
    let context: &'static Context = Box::leak(Box::new(Context::new(2)));
    let guard = enter(context, 1, Kind::Scope);
    std::thread::sleep(Duration::from_millis(100));
    assert!(context.cpu_ns() < 50_000_000);
    drop(guard);
    assert!(context.cpu_ns() < 50_000_000);
}
