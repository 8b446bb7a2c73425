//! `dormouse serve`, asked over HTTP as its clients ask.

mod answers;
mod asking;
mod hostile;
mod lifetimes;
mod odd;
mod pushing;
mod strangers;
mod verbs;
