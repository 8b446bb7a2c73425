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
            self.take_in_of(id, sample);
        }
    }

    fn take_in_of(&mut self, id: SlotId, sample: u64) {
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

#[test]
fn threads_that_arm_themselves_lose_no_sample() {
    in_child(|| {
        let mut sampler = Sampler::new().unwrap();
        sampler.start(1, &Options { hz: 1, ..Options::default() }, None).unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            dormouse_sys::thread::current().unwrap();
            tell.send(identity::tid()).unwrap();
            let _ = ended.recv();
        });
        let tid = told.recv().unwrap();
        let slots = (0..slots::SLOTS as u32).map(|index| (index, slots::at(index)));
        let mut of_thread = slots.filter(|(_, slot)| slot.tid() == tid);
        let id = of_thread.find_map(|(index, slot)| slot.present(index)).expect("it has armed itself");
        sampler.take_in_of(id, 1);
        assert_eq!(sampler.read(1).unwrap().coverage.samples, 1);
        drop(end);
        thread.join().unwrap();
    });
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
