#![allow(unsafe_code, reason = "a record, and a thread that is bound to a processor")]

use dormouse_testkit::in_child;
use dormouse_unwind::WalkEnd;

use super::*;
use crate::sampling::walk::Frames;

impl Sampler {
    /// Leaves samples of a thread, each with frames of its own, and reads them.
    pub(in crate::sampling) fn take_in(&mut self, samples: Range<u64>) {
        let id = self.armed.values().next().unwrap().id;
        for sample in samples {
            let of_kind = Tick { value: id.to_value(), cpu_ns: 1 << 50, overruns: 0, is_copied: false };
            let addresses = std::array::from_fn(|frame| (sample << 10) as usize + frame);
            let (depth, end) = (128, WalkEnd::Enough);
            let frames = Frames { depth, end, is_missed: false, addresses };
            let record = Record { of_kind, at_ns: 0, group: 0, frames };
            // SAFETY: the queue's place.
            assert!(unsafe { self.queue.push(|place| place.write(record)) });
            self.drain();
        }
    }
}

#[test]
fn bound_askers_get_room_for_all_processors() {
    in_child(|| {
        let all = records();
        // SAFETY: a valid set of one processor, which the thread may use now.
        unsafe {
            let mut one = std::mem::zeroed();
            libc::CPU_SET(libc::sched_getcpu().cast_unsigned() as usize, &mut one);
            assert_eq!(libc::sched_setaffinity(0, size_of_val(&one), &raw const one), 0);
        }
        assert_eq!(std::thread::available_parallelism().unwrap().get(), 1);
        assert_eq!(records(), all);
    });
}
