//! The tasks of a service, as its agent lists them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use dormouse_protocol::{
    CancelledRequest, CancelledRows, Hello, PlaceRow, PlacesPart, PlacesRequest, TaskGroup, TaskRow,
    TasksPart, TasksRequest, WaitsBegun, WaitsRequest, WakeTasksRequest, WokenTasks,
};

use crate::client::Client;
use crate::client::room::AnswerRoom;
use crate::exit::{Exit, Failure, Outcome};

/// The most tasks that are read: more than an agent has places for.
const MAX_TASKS: usize = 4 << 20;
/// The most parts in which they, or places, come.
const MAX_TASK_PARTS: usize = 1 << 16;

/// The tasks that an agent has listed.
#[derive(Debug, Default)]
pub(crate) struct TaskList {
    pub(crate) tasks: Vec<TaskRow>,
    /// By number, with the fewer of those that were alive before and after.
    pub(crate) groups: BTreeMap<u32, TaskGroup>,
    /// The requests that were cancelled lately.
    pub(crate) cancelled: CancelledRows,
    /// The memory that they take of their user's, if that is bounded.
    pub(crate) room: Option<AnswerRoom>,
}

/// For how long something has been taken, in nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Taken {
    /// The times of tasks.
    pub(crate) times_ns: u64,
    /// For how long the places of their wakers have been recorded; `None` if they are not.
    pub(crate) places_ns: Option<u64>,
}

/// Has times and places taken from now on, as long as the connection lasts; with `cpu` the CPU time
/// of each task, too. Returns whether the service notes places.
pub(crate) fn begin(client: &mut Client, hello: &Hello, cpu: bool) -> Outcome<bool> {
    client.demand::<TasksRequest>()?;
    let begun: WaitsBegun = client.call(WaitsRequest { places: true, cpu, ..WaitsRequest::default() })?;
    if cpu && !begun.cpu {
        let message = format!(
            "its dormouse ({}) takes no CPU time of single tasks: it is older, or behind a filter of system calls",
            hello.version
        );
        return Err(Failure::new(Exit::Unsupported, message).hint("leave out --cpu"));
    }
    Ok(begun.places)
}

/// For how long times and places have been taken.
pub(crate) fn taken(client: &mut Client) -> Outcome<Taken> {
    let TasksPart { taken_ns, noted_ns, .. } = client.call(TasksRequest { from: u64::MAX })?;
    let none = || Failure::failed(format!("{} takes no times of tasks", client.who));
    Ok(Taken { times_ns: taken_ns.ok_or_else(none)?, places_ns: noted_ns })
}

/// All tasks, and the requests that were cancelled.
pub(crate) fn list(client: &mut Client) -> Outcome<TaskList> {
    let mut list = TaskList::default();
    let mut from = 0;
    for _ in 0..MAX_TASK_PARTS {
        let part: TasksPart = client.call(TasksRequest { from })?;
        AnswerRoom::collect(&mut list.room, client.keep_room());
        for group in part.groups {
            let known = list.groups.entry(group.id).or_insert_with(|| group.clone());
            known.alive = known.alive.min(group.alive);
        }
        let Some(rows) = part.tasks.rows() else {
            return Err(client.nonsense("columns of tasks that are not of equal length"));
        };
        list.tasks.extend(rows);
        match part.next {
            None => {
                list.cancelled = cancelled(client)?;
                AnswerRoom::collect(&mut list.room, client.keep_room());
                return Ok(list);
            }
            Some(next) if next > from && list.tasks.len() <= MAX_TASKS => from = next,
            Some(_) => break,
        }
    }
    Err(client.nonsense("a list of tasks without an end"))
}

/// The requests that were cancelled lately; none from a service that does not know, or if a file
/// has none.
fn cancelled(client: &mut Client) -> Outcome<CancelledRows> {
    if !client.knows::<CancelledRequest>() {
        return Ok(CancelledRows::default());
    }
    let rows = client.call(CancelledRequest {});
    if client.file().is_some() { Ok(rows.unwrap_or_default()) } else { rows }
}

/// Has each task wake that waits since before places were taken, once; how many there were.
pub(crate) fn wake(client: &mut Client) -> Outcome<u64> {
    let (mut woken, mut from) = (0, 0);
    for _ in 0..MAX_TASK_PARTS {
        let part: WokenTasks = client.call(WakeTasksRequest { from })?;
        woken += part.woken;
        match part.next {
            Some(next) if next > from => from = next,
            _ => break,
        }
    }
    Ok(woken)
}

/// The stacks of these places, by number; empty if the agent does not support places.
pub(crate) fn places(client: &mut Client, wanted: &BTreeSet<u32>) -> Outcome<HashMap<u32, PlaceRow>> {
    let (mut stacks, mut rooms) = (HashMap::new(), None);
    let Some(&first) = wanted.first().filter(|_| client.knows::<PlacesRequest>()) else {
        return Ok(stacks);
    };
    let mut from = first;
    for _ in 0..MAX_TASK_PARTS {
        let part: PlacesPart = client.call(PlacesRequest { from })?;
        AnswerRoom::collect(&mut rooms, client.keep_room());
        let is_wanted = |place: &PlaceRow| wanted.contains(&place.number);
        stacks.extend(part.places.into_iter().filter(is_wanted).map(|place| (place.number, place)));
        let next = part.next.and_then(|next| Some((next, *wanted.range(next..).next()?)));
        match next {
            None => {
                client.hold_room(rooms);
                return Ok(stacks);
            }
            Some((next, wanted)) if next > from => from = wanted,
            Some(_) => break,
        }
    }
    Err(client.nonsense("places without an end"))
}
