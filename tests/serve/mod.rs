//! `dormouse serve`, asked over HTTP as its clients ask.

mod asking;
mod hostile;
mod lifetimes;
mod verbs;
