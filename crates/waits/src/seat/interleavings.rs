//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-waits --lib interleavings`.

use loom::sync::Arc;
use loom::thread::spawn;

use super::*;

/// A waker that counts finds its place until it is gone.
fn use_up(seat: &Seat, place: u32, turn: usize, is_polling: bool) {
    assert_eq!(seat.place(), place);
    seat.leave(turn, is_polling);
}

#[test]
fn a_seat_is_its_wakers_until_the_last() {
    loom::model(|| {
        let seat = Arc::new(Seat::new());
        assert!(seat.take(7, 1));
        seat.enter(turn(1));
        let others = {
            let seat = seat.clone();
            spawn(move || {
                // A clone elsewhere, which outlives the first.
                seat.enter(turn(1));
                use_up(&seat, 7, turn(1), false);
                use_up(&seat, 7, turn(1), false);
            })
        };
        // The next poll waits elsewhere, if it finds the seat free, else here.
        let place = if seat.is_free() { 8 } else { 7 };
        assert!(seat.take(place, 2));
        seat.enter(turn(2));
        assert!(seat.is_taken() && !seat.is_free());
        others.join().unwrap();
        assert!(seat.is_taken(), "another poll's wakers are not its own");
        use_up(&seat, place, turn(2), true);
        assert!(seat.is_free());
    });
}

#[test]
fn a_waker_that_goes_meanwhile_takes_one_away() {
    loom::model(|| {
        let seat = Arc::new(Seat::new());
        assert!(seat.take(7, 1));
        seat.enter(turn(1));
        let other = {
            let seat = seat.clone();
            spawn(move || use_up(&seat, 7, turn(1), false))
        };
        // The next poll of the same turn waits at the same place.
        assert!(seat.take(7, 3));
        seat.enter(turn(3));
        other.join().unwrap();
        assert!(seat.is_taken());
        use_up(&seat, 7, turn(3), true);
        assert!(seat.is_free());
    });
}

#[test]
fn the_polling_thread_drops_beside_others() {
    loom::model(|| {
        let seat = Arc::new(Seat::new());
        assert!(seat.take(7, 1));
        seat.enter(turn(1));
        seat.enter(turn(1));
        let other = {
            let seat = seat.clone();
            spawn(move || {
                seat.enter(turn(1));
                use_up(&seat, 7, turn(1), false);
                use_up(&seat, 7, turn(1), false);
            })
        };
        use_up(&seat, 7, turn(1), true);
        // The next poll of the same turn takes a waker here.
        assert!(seat.take(7, 3));
        seat.enter(turn(3));
        other.join().unwrap();
        assert!(!seat.is_free());
        use_up(&seat, 7, turn(3), true);
        assert!(seat.is_free());
    });
}
