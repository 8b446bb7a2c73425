//! A thread that loses its processor at a bad moment: when it asks the loader what is loaded.

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::sync::Barrier;

static ASKS: Barrier = Barrier::new(2);

thread_local! {
    static DELAYED: Cell<bool> = const { Cell::new(false) };
}

type See = unsafe extern "C" fn(*mut libc::dl_phdr_info, usize, *mut c_void) -> c_int;

/// Stands before the C library's.
#[unsafe(no_mangle)]
unsafe extern "C" fn dl_iterate_phdr(see: Option<See>, data: *mut c_void) -> c_int {
    if DELAYED.replace(false) {
        ASKS.wait();
        ASKS.wait();
    }
    unsafe {
        let next = libc::dlsym(libc::RTLD_NEXT, c"dl_iterate_phdr".as_ptr());
        let next: unsafe extern "C" fn(Option<See>, *mut c_void) -> c_int = std::mem::transmute(next);
        next(see, data)
    }
}

/// Runs `before`, then starts `delayed` in a thread of its own. When that thread first calls the
/// loader, runs `meanwhile` with the result of `before`.
pub fn while_the_loader_is_asked<T: Send, O>(
    delayed: impl FnOnce() -> T + Send,
    before: impl FnOnce() -> O,
    meanwhile: impl FnOnce(O),
) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // The thread has its stack and its arena before the object comes, so that nothing takes
            // the object's place.
            std::hint::black_box(vec![1_u8; 100_000]);
            ASKS.wait();
            ASKS.wait();
            DELAYED.set(true);
            delayed()
        });
        ASKS.wait();
        let object = before();
        ASKS.wait();
        ASKS.wait();
        meanwhile(object);
        ASKS.wait();
        thread.join().unwrap()
    })
}
