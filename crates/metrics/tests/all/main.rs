//! The formats of metrics, read by other people's parsers. Each module runs in a process of its
//! own.

mod otlp;
mod protobuf;
mod support;
mod texts;

dormouse_testkit::isolate_modules!();
