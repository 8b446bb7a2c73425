//! The requests that tasks are parts of.

use std::collections::HashMap;

use dormouse_protocol::is_connection;

use crate::timeline::{Edges, TimelineTask};

/// For each task that is a part of another, the outermost: of those whose begins were seen.
/// Connections serve requests, and are none.
pub(crate) fn roots(tasks: &HashMap<u64, TimelineTask>) -> HashMap<u64, u64> {
    let mut roots = HashMap::new();
    let mut way = Vec::new();
    for &task in tasks.keys() {
        let mut top = task;
        // Each task's way is gone once. A damaged file may have parents in a circle.
        while way.len() <= tasks.len() {
            if let Some(&known) = roots.get(&top) {
                top = known;
                break;
            }
            way.push(top);
            let parent = tasks.get(&top).map_or(0, |it| it.parent);
            match tasks.get(&parent) {
                Some(it) if it.edges != Edges::End && !is_connection(parent) => top = parent,
                _ => break,
            }
        }
        roots.extend(way.drain(..).map(|below| (below, top)));
    }
    roots.retain(|task, root| task != root);
    roots
}
