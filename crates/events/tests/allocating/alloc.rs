//! A program whose allocations are counted. One test: which counts awake and asleep concerns the
//! whole process.

use std::hint::black_box;
use std::sync::mpsc::channel;

use dormouse_events::Event;
use dormouse_keys::Batch;
use dormouse_sys::thread;
use dormouse_testkit::fork;

const EVENTS: [Event; 4] = [Event::ALLOC_COUNT, Event::ALLOC_BYTES, Event::FREE_BYTES, Event::ALLOC_PEAK];

fn numbers() -> [u32; 4] {
    EVENTS.map(Event::number)
}

fn read() -> [u64; 4] {
    let mut values = [0; 4];
    EVENTS[0].pmu().read(&numbers(), &mut values);
    values
}

fn grown(work: impl FnOnce()) -> [u64; 4] {
    let before = read();
    work();
    let after = read();
    std::array::from_fn(|event| after[event] - before[event])
}

fn allocate(bytes: usize) {
    drop(black_box(Vec::<u8>::with_capacity(black_box(bytes))));
}

/// Allocates when its thread has long let go of everything else.
struct Late;

impl Drop for Late {
    fn drop(&mut self) {
        allocate(1 << 10);
    }
}

thread_local! {
    static LATE: Late = const { Late };
}

#[test]
fn allocations_are_counted_while_somebody_counts_them() {
    assert_eq!(grown(|| allocate(1 << 20)), [0; 4], "asleep");
    let pmu = EVENTS[0].pmu();
    assert_eq!(Event::by_name("alloc-count"), Ok(Event::ALLOC_COUNT));
    pmu.begin(&numbers()).unwrap();
    pmu.begin(&numbers()).unwrap();

    let counts = grown(|| allocate(1 << 20));
    assert_eq!(counts[..3], [1, 1 << 20, 1 << 20]);
    assert!(counts[3] <= 1 << 20, "{counts:?}");
    // Twice as much as was ever live is a new peak.
    assert!(grown(|| allocate(1 << 21))[3] >= 1 << 20);
    assert_eq!(grown(|| allocate(1 << 20))[3], 0);
    let grow = |mut bytes: Vec<u8>| bytes.reserve_exact(black_box(64));
    assert_eq!(grown(|| grow(Vec::with_capacity(16)))[..3], [2, 16 + 64, 16 + 64]);
    assert_eq!(grown(|| drop(black_box(vec![0_u8; 4096])))[..3], [1, 4096, 4096]);

    // Another thread's, while it lives; also what it allocates at its very end does no harm.
    let (send, receive) = channel();
    let (stop, stopped) = channel::<()>();
    let other = std::thread::spawn(move || {
        LATE.with(|_| ());
        read();
        allocate(1 << 22);
        send.send((thread::current().unwrap(), read())).unwrap();
        stopped.recv().unwrap_err();
    });
    let (block, own) = receive.recv().unwrap();
    let mut seen = [0; 4];
    assert!(pmu.read_of(block, &numbers(), &mut seen));
    assert!(own[1] >= 1 << 22 && seen[1] >= own[1] && seen[0] >= own[0], "{own:?} {seen:?}");
    drop(stop);
    other.join().unwrap();

    pmu.end(&numbers());
    assert_ne!(grown(|| allocate(1)), [0; 4], "one still counts");
    pmu.end(&numbers());
    assert_eq!(grown(|| allocate(1)), [0; 4], "asleep again");

    // Bytes that are freed while somebody counts are no room for those that come later unseen.
    let held = black_box(Vec::<u8>::with_capacity(1 << 22));
    pmu.begin(&numbers()).unwrap();
    drop(held);
    pmu.end(&numbers());
    let _unseen = black_box(Vec::<u8>::with_capacity(1 << 22));
    pmu.begin(&numbers()).unwrap();
    assert!(grown(|| allocate(1 << 22))[3] >= 1 << 21);
    assert_eq!(grown(|| allocate(1 << 21))[3], 0);
    // The same while counting is suspended, together with the keys.
    let held = black_box(Vec::<u8>::with_capacity(1 << 23));
    drop(held);
    dormouse_events::suspend(true).unwrap();
    Batch::new().suspend_all(pmu.keys()).apply().unwrap();
    let _unseen = black_box(Vec::<u8>::with_capacity(1 << 22));
    Batch::new().resume_all(pmu.keys()).apply().unwrap();
    dormouse_events::suspend(false).unwrap();
    assert!(grown(|| allocate(1 << 22))[3] >= 1 << 21);
    assert_eq!(grown(|| allocate(1 << 21))[3], 0);
    // In a fork child counting begins anew, too, although the parent counts.
    allocate(1 << 23);
    let ended = fork(|| {
        pmu.begin(&numbers()).unwrap();
        assert!(grown(|| allocate(1 << 22))[3] >= 1 << 21);
    });
    assert!(ended.success(), "{ended}");
    pmu.end(&numbers());
}
