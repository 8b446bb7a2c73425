//! Counts bytes and messages of connections on the shelf of the thread that reads or writes them.

use dormouse_clock::{stamp, ticks_to_ns};
use dormouse_keys::unlikely;

use crate::received_gaps;
use crate::rows::{self, row_of};
use crate::run::run_begun;
use crate::traffic::Traffic;
use crate::waiting::WAITS;

/// Counts what a connection of `group` carries now. Without effect while times are not taken.
#[inline]
pub fn count_traffic(group: u32, of: Traffic) {
    if unlikely!(WAITS) {
        count_traffic_now(group, of);
    }
}

#[inline(never)]
fn count_traffic_now(group: u32, of: Traffic) {
    // A row without an account is not read.
    if let Some(shelf) = rows::own()
        && shelf.account(group).is_some()
    {
        shelf.traffic[row_of(group)].count(of);
    }
}

/// Counts messages that a socket of `group` has received now. `last` is the stamp of the socket's
/// messages before, or 0, and is set to now. Without effect while times are not taken.
#[inline]
pub fn count_messages(group: u32, messages: u64, message_bytes: u64, last: &mut u64) {
    if unlikely!(WAITS) {
        let before = std::mem::replace(last, stamp());
        count_traffic_now(group, Traffic { messages, message_bytes, ..Traffic::default() });
        // Else messages may have come in between while times were not taken.
        if before >= run_begun() {
            received_gaps::count(group, ticks_to_ns(last.saturating_sub(before)));
        }
        if messages > 1 {
            received_gaps::count_none(group, messages - 1);
        }
    }
}
