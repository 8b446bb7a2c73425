//! Run with `RUSTFLAGS="--cfg loom" cargo test -p dormouse-sys --lib interleavings`.

use loom::thread::spawn;

use super::*;

#[test]
fn a_block_that_is_given_back_is_found() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let thread = spawn(|| {
            if let Some((block, _)) = take() {
                end();
                // Without its ring, of which there is none.
                block.free();
            }
        });
        let is_taken = may_take() && take().is_some();
        thread.join().unwrap();
        assert!(is_taken || may_take() && take().is_some());
    });
}
