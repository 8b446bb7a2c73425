//! The program `dormouse-bench` as people and their CI run it.

mod compare;
mod quick;
mod recording;
mod reports;
mod support;
