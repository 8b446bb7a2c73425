//! Timelines from known records, and other people's viewers that read them.

mod known;
mod model;
mod texts;
mod viewers;
