//! A look-up, and the loop over many of them that every map and every scheme has.

/// Pages of the traces.
pub(super) const PAGE_BITS: u32 = 12;

/// A thread, and an address that it looks up.
pub(super) type Fault = (u32, u64);

/// Looks addresses up, one after the other, and goes on from the answers before them.
pub(super) type Lookup<'a> = Box<dyn FnMut(&[Fault], u64) -> u64 + 'a>;

/// Looks up the addresses of `faults`, and returns all answers combined in one number, which
/// differs if an answer does. `current` returns a thread's context when the thread changes: in
/// reality a thread has its map and its cache at hand.
#[inline(always)]
pub(super) fn each<C: Copy>(
    faults: &[Fault],
    mut answers: u64,
    current: impl Fn(u32) -> C,
    mut find: impl FnMut(C, u64) -> Option<u64>,
) -> u64 {
    let Some(&(mut running, _)) = faults.first() else { return answers };
    let mut context = current(running);
    for &(thread, addr) in faults {
        if thread != running {
            running = thread;
            context = current(thread);
        }
        answers = answers.rotate_left(5) ^ find(context, addr).unwrap_or(u64::MAX);
    }
    answers
}

/// The look-ups of one thread by `find`. Each caller has its own loop, in which its search is
/// inlined.
pub(super) fn by<'a>(mut find: impl FnMut(u64) -> Option<u64> + 'a) -> Lookup<'a> {
    Box::new(move |faults, answers| each(faults, answers, |_| (), |(), addr| find(addr)))
}
