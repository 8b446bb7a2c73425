//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-waits --lib interleavings`.

use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::Waker;

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;

fn explore(run: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(run);
}

/// A slot, and the runtime's wakers that there are, by their data.
struct World {
    share: Share,
    alive: [AtomicBool; 8],
    made: AtomicUsize,
    frees: AtomicUsize,
}

impl World {
    fn new() -> Arc<Self> {
        let world = Self {
            share: Share::default(),
            alive: [const { AtomicBool::new(false) }; 8],
            made: AtomicUsize::new(0),
            frees: AtomicUsize::new(0),
        };
        world.share.hold();
        Arc::new(world)
    }

    /// A waker of the runtime's.
    fn runtimes(&self) -> Raw {
        let number = self.made.fetch_add(1, Ordering::Relaxed) + 1;
        self.alive[number].store(true, Ordering::Relaxed);
        Raw::new(number as *const (), Waker::noop().vtable())
    }

    fn end(&self, raw: Raw) {
        assert!(self.alive[raw.data as usize].swap(false, Ordering::Relaxed), "it has gone twice");
    }

    /// A clone of the lent waker, on the thread that polls.
    fn clone_lent(&self) {
        if self.share.more() == More::Counted {
            return;
        }
        let own = self.runtimes();
        if !self.share.fill(own) {
            self.end(own);
        }
    }

    fn release(&self) {
        if let Some(last) = self.share.release() {
            self.free(last.is_free);
            self.end(last.raw);
        }
    }

    fn wake(&self) {
        if let Some(last) = self.share.release_last() {
            self.free(last.is_free);
            return self.end(last.raw);
        }
        let raw = self.share.raw();
        assert!(self.alive[raw.data as usize].load(Ordering::Relaxed), "the waker counts");
        self.release();
    }

    fn leave(&self) {
        self.free(self.share.leave(TASK));
    }

    fn free(&self, is_free: bool) {
        self.frees.fetch_add(usize::from(is_free), Ordering::Relaxed);
    }

    fn check(&self) {
        assert!(self.alive.iter().all(|alive| !alive.load(Ordering::Relaxed)), "one is left");
        assert_eq!(self.frees.load(Ordering::Relaxed), 1);
    }
}

fn on_thread(world: &Arc<World>, act: impl FnOnce(&World) + 'static) -> loom::thread::JoinHandle<()> {
    let world = Arc::clone(world);
    spawn(move || act(&world))
}

#[test]
fn wakers_go_while_the_task_takes_others() {
    explore(|| {
        let world = World::new();
        world.clone_lent();
        let other = on_thread(&world, World::wake);
        world.clone_lent();
        world.release();
        world.clone_lent();
        world.wake();
        world.leave();
        other.join().unwrap();
        world.check();
    });
}

#[test]
fn leaves_clone_and_wake_over_the_end() {
    explore(|| {
        let world = World::new();
        world.clone_lent();
        world.clone_lent();
        let one = on_thread(&world, |world| {
            assert_eq!(world.share.more(), More::Counted);
            world.wake();
            world.release();
        });
        let other = on_thread(&world, World::wake);
        world.leave();
        one.join().unwrap();
        other.join().unwrap();
        world.check();
    });
}

#[test]
fn nudges_find_a_waker_or_none() {
    explore(|| {
        let world = World::new();
        world.clone_lent();
        let other = on_thread(&world, |world| {
            if world.share.more() == More::Counted {
                world.wake();
            }
        });
        world.wake();
        world.clone_lent();
        world.release();
        world.leave();
        other.join().unwrap();
        world.check();
    });
}
