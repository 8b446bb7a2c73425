//! HTTP answers for any framework, at once or from a thread of ours.

mod answer;
mod responding;
mod turns;

pub use answer::WebAnswer;
pub use responding::Responding;
pub(crate) use responding::on_a_thread;
pub(crate) use turns::{Turn, Turns};
