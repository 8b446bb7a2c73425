//! A latency ends with the head of the response. Bodies and streams have times of their own.

use std::task::{Context, Waker};
use std::thread;
use std::time::{Duration, Instant};

use dormouse_testkit::in_child;
use dormouse_waits::{Frames, GroupWaits, Head, TaskEnd, TaskWaits, Waiting, Who, read_group};

use crate::support::{living_task, number};

const PART: Duration = Duration::from_millis(20);

struct Task {
    who: Who,
    waits: TaskWaits,
}

impl Task {
    fn of(group: u32) -> Self {
        let who = Who { task: number(), group };
        Self { who, waits: TaskWaits::begun(who) }
    }

    fn poll(&mut self) {
        self.waits.poll(self.who, &mut Context::from_waker(Waker::noop()), |_| ());
    }

    fn head(&mut self, head: Head) {
        self.poll();
        self.waits.head(head);
    }

    fn frame(&mut self, is_stream: bool) {
        self.poll();
        self.waits.frames(Frames { frames: 1, bytes: 10, is_stream });
    }
}

fn group(number: u32) -> GroupWaits {
    read_group(number).unwrap()
}

#[test]
fn each_response_is_counted_as_what_it_was() {
    use Head::{Answer, Stream, Unsure};
    use TaskEnd::{Answered, NoRequest, Unanswered};
    let _waiting = Waiting::start().unwrap();
    // The head, frames, frames of a stream, the end: latencies, bodies, gaps, unanswered.
    let cases = [
        (None, 0, 0, Answered, [1, 0, 0, 0]),
        (None, 0, 0, Unanswered, [0, 0, 0, 1]),
        (None, 0, 0, NoRequest, [0, 0, 0, 0]),
        (Some(Answer), 0, 0, Answered, [1, 0, 0, 0]),
        (Some(Answer), 3, 0, Answered, [1, 1, 0, 0]),
        (Some(Answer), 3, 0, Unanswered, [1, 0, 0, 0]),
        (Some(Unsure), 1, 0, Answered, [1, 1, 0, 0]),
        (Some(Unsure), 1, 0, Unanswered, [1, 0, 0, 0]),
        (Some(Unsure), 1, 2, NoRequest, [0, 0, 2, 0]),
        (Some(Stream), 0, 3, NoRequest, [0, 0, 3, 0]),
    ];
    for (at, (head, frames, streamed, end, right)) in cases.into_iter().enumerate() {
        let number = 100 + at as u32;
        let mut task = Task::of(number);
        task.poll();
        assert_eq!(living_task(task.who.task).answered_ns, None);
        if let Some(head) = head {
            task.head(head);
            assert!(living_task(task.who.task).answered_ns.is_some(), "{head:?}");
            assert_eq!(group(number).requests.count(), u64::from(head == Answer), "{head:?}");
        }
        (0..frames).for_each(|_| task.frame(false));
        (0..streamed).for_each(|_| task.frame(true));
        task.waits.end(end);
        let of = group(number);
        let seen = [of.requests.count(), of.bodies.count(), of.gaps.count(), of.unanswered.requests];
        assert_eq!(seen, right, "{head:?} {frames} {streamed} {end:?}");
        assert_eq!((of.streams.frames, of.streams.bytes), (streamed, 10 * streamed));
    }
}

#[test]
fn a_latency_ends_with_the_head() {
    let _waiting = Waiting::start().unwrap();
    let begun = Instant::now();
    let mut task = Task::of(201);
    task.head(Head::Answer);
    let longest = begun.elapsed();
    thread::sleep(PART);
    task.frame(false);
    thread::sleep(PART);
    task.poll();
    task.waits.end(TaskEnd::Answered);
    let of = group(201);
    assert!(u128::from(of.requests.max_ns) <= longest.as_nanos() * 1_001 / 1_000, "{}", of.requests.max_ns);
    assert!(u128::from(of.bodies.max_ns) >= PART.as_nanos() * 999 / 1_000, "{}", of.bodies.max_ns);
    assert!(
        u128::from(of.bodies.max_ns) + PART.as_nanos() <= begun.elapsed().as_nanos(),
        "it ends with the last frame: {}",
        of.bodies.max_ns
    );
}

#[test]
fn a_head_before_a_gap_is_forgotten() {
    // In a process of its own: there is no gap while another test asks.
    in_child(|| {
        let mut task = {
            let _waiting = Waiting::start().unwrap();
            let mut task = Task::of(202);
            task.head(Head::Answer);
            task
        };
        let _waiting = Waiting::start().unwrap();
        task.frame(false);
        task.waits.end(TaskEnd::Answered);
        assert_eq!((group(202).requests.count(), group(202).bodies.count()), (1, 0));
        // A stream is known again from its next frame on.
        let mut stream = Task::of(203);
        for _ in 0..2 {
            stream.frame(true);
        }
        assert_eq!((group(203).gaps.count(), group(203).streams.frames), (1, 2));
    });
}
