//! Groups: work that is charged to a name, in tokens that C passes by value.
//!
//! A token contains numbers, not addresses, so an invalid or outdated token does no harm: a group
//! is looked up by its number, a task is left only if it is on the thread's stack, and its times
//! are found by where they are and by the task's number together.
//!
//! # Safety
//!
//! C's promises, by their numbers in `lib.rs`.
#![allow(unsafe_code)]

use std::ffi::{CStr, c_char};

use dormouse::events::{Mark, leave};
use dormouse::{Group, NumberedTask, TraceContext, set_trace_context};

use crate::call::{contained, memory_for, step};

/// `struct dormouse_group`; number 0 is no group.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct GroupId {
    pub(crate) number: u32,
    pub(crate) flags: u32,
}

/// `struct dormouse_task`; number 0 is no task.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct TaskId {
    pub(crate) number: u64,
    pub(crate) group: GroupId,
}

/// `struct dormouse_entered`: nothing, if the task's number is 0.
#[derive(Debug, Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct EnteredId {
    pub(crate) task: TaskId,
    pub(crate) place: u64,
}

/// A flag of a task that is a part of a request, and of a group that goes along with handed-on
/// work.
const PART: u32 = 1;
/// A flag of an entered task: it ends when it is left.
const ENDS: u32 = 2;
/// Above the flags of a task is where its times are, or those of its entry.
const TIMES: u32 = 2;
const _: () = assert!(NumberedTask::TIMES_BITS <= u32::BITS - TIMES);

impl GroupId {
    pub(crate) fn group(self) -> Option<Group> {
        Group::by_id(self.number)
    }

    fn is_part(self) -> bool {
        self.flags & PART != 0
    }

    /// A task of the group, or an entry of one, with these flags beside the group's.
    fn with(self, task: NumberedTask, flags: u32) -> TaskId {
        let flags = self.flags & PART | flags | task.times << TIMES;
        TaskId { number: task.number, group: Self { flags, ..self } }
    }
}

impl TaskId {
    fn numbered(self) -> NumberedTask {
        NumberedTask { number: self.number, times: self.group.flags >> TIMES }
    }

    fn group(self) -> Option<Group> {
        self.group.group().filter(|_| self.number != 0)
    }

    fn end(self) {
        if let Some(group) = self.group() {
            self.numbered().end(group);
        }
    }
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_group_new(name: *const c_char) -> GroupId {
    contained(GroupId::default(), || {
        let _step = step();
        if name.is_null() {
            return GroupId::default();
        }
        // SAFETY: promise 5.
        let name = unsafe { CStr::from_ptr(name) };
        if memory_for(name.count_bytes() / 64).is_err() {
            return GroupId::default();
        }
        GroupId { number: Group::new(&name.to_string_lossy()).id(), flags: 0 }
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_group_current() -> GroupId {
    contained(GroupId::default(), || {
        let carried = |group: Group| GroupId { number: group.id(), flags: PART };
        Group::current().map(carried).unwrap_or_default()
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_group_enter(group: GroupId) -> EnteredId {
    contained(EnteredId::default(), || {
        let begin = |known| NumberedTask::begin_entered(known, group.is_part());
        // Too deep, or in a handler over a switch: the current task is charged, and this one has
        // ended.
        let Some((mark, task)) = group.group().and_then(begin) else { return EnteredId::default() };
        EnteredId { task: group.with(task, ENDS), place: mark.place }
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_group_leave(entered: EnteredId) -> bool {
    contained(false, || {
        let EnteredId { task, place } = entered;
        if task.number == 0 {
            return true;
        }
        let mark = Mark { place, task: task.number };
        let left = task.group().map_or_else(|| leave(mark), |group| task.numbered().leave(group, mark));
        if left && task.group.flags & ENDS != 0 {
            task.end();
        }
        left
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_task_begin(group: GroupId) -> TaskId {
    contained(TaskId::default(), || {
        let begin = |known| group.with(NumberedTask::begin(known, group.is_part()), 0);
        group.group().map(begin).unwrap_or_default()
    })
}

#[unsafe(no_mangle)]
extern "C" fn dormouse_task_enter(task: TaskId) -> EnteredId {
    contained(EnteredId::default(), || {
        let entered = task.group().and_then(|group| task.numbered().enter(group));
        let with =
            |(mark, entered): (Mark, _)| EnteredId { task: task.group.with(entered, 0), place: mark.place };
        entered.map(with).unwrap_or_default()
    })
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_task_end(task: *mut TaskId) {
    contained((), || {
        if task.is_null() {
            return;
        }
        // SAFETY: promise 1.
        unsafe { task.replace(TaskId::default()) }.end();
    });
}

#[unsafe(no_mangle)]
unsafe extern "C" fn dormouse_set_trace_context(trace_id: *const [u8; 16], span_id: *const [u8; 8]) -> bool {
    contained(false, || {
        // SAFETY: promise 1: that many bytes, or NULL.
        let (trace_id, span_id) = unsafe { (trace_id.as_ref(), span_id.as_ref()) };
        let context = trace_id.and_then(|id| TraceContext::new(*id, span_id.copied().unwrap_or_default()));
        context.is_some_and(set_trace_context)
    })
}
