//! The causes of stalls: calls, page faults, waits for a CPU.

#![cfg(not(dormouse_fallback))]

mod by_hand;
mod faults;
mod looks;
mod shares;
mod slow_calls;
