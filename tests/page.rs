//! The page of `dormouse serve`, in a real browser, with a real server and real services.

mod keyboard;
mod liar;
mod looks;
mod safety;
mod stand;
mod strange;
mod switching;
mod views;
