// Variables of Rust, and where they are: a line for each, its text, address and length.
#![allow(static_mut_refs, dead_code)]

use std::cell::{Cell, UnsafeCell};
use std::hint::black_box;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64};

struct Hall {
    title: &'static str,
    rooms: [(u8, u32); 3],
    guests: AtomicU64,
    state: State,
    inner: Inner,
}

enum State {
    Empty,
    Open(u16, u64),
    Named { since: u32 },
}

union Inner {
    whole: u64,
    halves: [u32; 2],
}

struct Shared(UnsafeCell<u32>);
unsafe impl Sync for Shared {}

static mut HALL: Hall = Hall {
    title: "hall",
    rooms: [(1, 2); 3],
    guests: AtomicU64::new(0),
    state: State::Open(1, 2),
    inner: Inner { whole: 1 },
};
static GUESTS: AtomicU64 = AtomicU64::new(0);
static IS_OPEN: AtomicBool = AtomicBool::new(true);
static SHARED: Shared = Shared(UnsafeCell::new(1));
static LOCKED: Mutex<u64> = Mutex::new(5);
static PAIR: &(u32, u32) = &(1, 2);
static mut KEPT: Option<Box<(u8, u64)>> = None;
static NOTHING: () = ();

thread_local! {
    static MINE: Cell<u64> = const { Cell::new(0) };
}

mod one {
    pub static TWICE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(1);
}
mod two {
    pub static TWICE: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(2);
}

fn show<T>(text: &str, place: *const T) {
    println!("{text}\t{:p}\t{}", black_box(place), size_of::<T>());
}

fn main() {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    unsafe {
        KEPT = black_box(Some(Box::new((1, 2))));
        show("HALL", &raw const HALL);
        show("kitchen::HALL.rooms", &raw const HALL.rooms);
        show("HALL.rooms[2]", &raw const HALL.rooms[2]);
        show("HALL.rooms[2].1", &raw const HALL.rooms[2].1);
        show("HALL.guests", &raw const HALL.guests);
        show("HALL.inner.halves[1]", &raw const HALL.inner.halves[1]);
        if let State::Open(_, last) = &HALL.state {
            show("HALL.state.Open.1", last);
        }
        if let Some(kept) = KEPT.as_ref() {
            show("KEPT.Some.0->1", &raw const kept.1);
        }
    }
    show("GUESTS", &GUESTS);
    show("kitchen::IS_OPEN", &IS_OPEN);
    show("SHARED", &SHARED);
    show("SHARED.0.value", SHARED.0.get());
    show("LOCKED.data.value", &raw const *LOCKED.lock().unwrap());
    show("PAIR", &PAIR);
    show("PAIR->1", &PAIR.1);
    show("*PAIR", PAIR);
    show("main::CALLS", &CALLS);
    show("two::TWICE", &two::TWICE);
    show("kitchen::one::TWICE", &one::TWICE);
    MINE.with(|mine| mine.set(mine.get() + 1));
    black_box(&NOTHING);
    println!();
    let _ = std::io::stdin().read_line(&mut String::new());
}
