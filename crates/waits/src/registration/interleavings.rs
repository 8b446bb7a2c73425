//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-waits --lib interleavings`.

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;

/// A waker that counts finds its place until it is gone.
fn use_up(registration: &Registration, place: u32, turn: usize, is_polling: bool) {
    assert_eq!(registration.place(), place);
    registration.remove(turn, is_polling);
}

#[test]
fn a_seat_is_its_wakers_until_the_last() {
    loom::model(|| {
        let registration = Arc::new(Registration::default());
        assert!(registration.take(7, 1));
        registration.add(turn(1));
        let others = {
            let registration = registration.clone();
            spawn(move || {
                // A clone elsewhere, which outlives the first.
                registration.add(turn(1));
                use_up(&registration, 7, turn(1), false);
                use_up(&registration, 7, turn(1), false);
            })
        };
        // The next poll waits elsewhere, if it finds the registration free, else here.
        let place = if registration.is_free() { 8 } else { 7 };
        assert!(registration.take(place, 2));
        registration.add(turn(2));
        assert!(registration.is_taken() && !registration.is_free());
        others.join().unwrap();
        assert!(registration.is_taken(), "another poll's wakers are not its own");
        use_up(&registration, place, turn(2), true);
        assert!(registration.is_free());
    });
}

#[test]
fn a_waker_that_goes_meanwhile_takes_one_away() {
    loom::model(|| {
        let registration = Arc::new(Registration::default());
        assert!(registration.take(7, 1));
        registration.add(turn(1));
        let other = {
            let registration = registration.clone();
            spawn(move || use_up(&registration, 7, turn(1), false))
        };
        // The next poll of the same turn waits at the same place.
        assert!(registration.take(7, 3));
        registration.add(turn(3));
        other.join().unwrap();
        assert!(registration.is_taken());
        use_up(&registration, 7, turn(3), true);
        assert!(registration.is_free());
    });
}

#[test]
fn the_polling_thread_drops_beside_others() {
    loom::model(|| {
        let registration = Arc::new(Registration::default());
        assert!(registration.take(7, 1));
        registration.add(turn(1));
        registration.add(turn(1));
        let other = {
            let registration = registration.clone();
            spawn(move || {
                registration.add(turn(1));
                use_up(&registration, 7, turn(1), false);
                use_up(&registration, 7, turn(1), false);
            })
        };
        use_up(&registration, 7, turn(1), true);
        // The next poll of the same turn takes a waker here.
        assert!(registration.take(7, 3));
        registration.add(turn(3));
        other.join().unwrap();
        assert!(!registration.is_free());
        use_up(&registration, 7, turn(3), true);
        assert!(registration.is_free());
    });
}
