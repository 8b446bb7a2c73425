//! Counts bytes and messages of connections on the shelf of the thread that reads or writes them.

use dormouse_keys::unlikely;

use crate::rows::{self, row_of};
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
