//! `dormouse serve`, asked over HTTP as its clients ask.

mod answers;
mod asking;
mod hostile;
mod lifetimes;
mod verbs;
