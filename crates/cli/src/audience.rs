//! The listener to what a thread says, who also ends what it does: the person at the terminal, or
//! somebody elsewhere for whom the thread works.
//!
//! A verb does not know that it is served. Its messages go to whoever asked, and where it waits for
//! Ctrl-C it waits for the end of whoever asked: one end of a socket pair, to which the other side
//! writes a byte.

#![cfg_attr(not(feature = "serve"), allow(dead_code, reason = "everybody is at the terminal then"))]

use std::cell::RefCell;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

thread_local! {
    static AUDIENCE: RefCell<Option<Audience>> = const { RefCell::new(None) };
}

/// Somebody elsewhere.
pub(crate) struct Audience {
    end: UnixStream,
    /// The other side stays open: a closed one could always be read, and never said anything.
    _other: Arc<UnixStream>,
    hear: Box<dyn Fn(&str)>,
}

/// Ends what a thread does for somebody; so does its drop.
#[derive(Debug)]
pub(crate) struct HangUp(Arc<UnixStream>);

/// One end for the thread, and the other for who may hang up.
#[derive(Debug)]
pub(crate) struct Line {
    end: UnixStream,
    other: Arc<UnixStream>,
}

impl Line {
    /// A new one.
    pub(crate) fn new() -> io::Result<(Line, HangUp)> {
        let (end, other) = UnixStream::pair()?;
        end.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        let other = Arc::new(other);
        Ok((Line { end, other: Arc::clone(&other) }, HangUp(other)))
    }

    /// Works on this thread for somebody who hears by `hear`.
    pub(crate) fn serve<T>(self, hear: impl Fn(&str) + 'static, work: impl FnOnce() -> T) -> T {
        let audience = Audience { end: self.end, _other: self.other, hear: Box::new(hear) };
        AUDIENCE.set(Some(audience));
        // A panic ends the thread, and the audience with it.
        let done = work();
        AUDIENCE.set(None);
        done
    }
}

impl HangUp {
    /// Ends it.
    pub(crate) fn hang_up(&self) {
        // A full pair has said so already.
        let _ = (&*self.0).write(&[0]);
    }
}

impl Drop for HangUp {
    fn drop(&mut self) {
        self.hang_up();
    }
}

/// Whether this thread works for somebody elsewhere.
pub(crate) fn is_elsewhere() -> bool {
    AUDIENCE.with_borrow(Option::is_some)
}

/// Sends a message to the client, if the thread works for one.
pub(crate) fn say(text: &str) {
    AUDIENCE.with_borrow(|audience| audience.iter().for_each(|audience| (audience.hear)(text)));
}

/// The end of a socket pair that can be read as soon as they hang up.
pub(crate) fn end() -> Option<io::Result<UnixStream>> {
    AUDIENCE.with_borrow(|audience| audience.as_ref().map(|audience| audience.end.try_clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signals::Signals;
    use std::time::{Duration, Instant};

    #[test]
    fn hanging_up_is_a_signal_to_end() {
        let (line, hang_up) = Line::new().unwrap();
        let came = line.serve(
            |_| (),
            || {
                let signals = Signals::to_end().unwrap();
                assert!(!signals.take());
                drop(hang_up);
                let came = signals.came_before(Instant::now() + Duration::from_secs(60)).unwrap();
                // Once, and not again for ever.
                (came, signals.came_before(Instant::now()).unwrap())
            },
        );
        assert_eq!(came, (true, false));
        assert!(!is_elsewhere() && end().is_none());
    }

    #[test]
    fn messages_reach_who_asked() {
        let (line, _hang_up) = Line::new().unwrap();
        let (heard, hears) = std::sync::mpsc::channel();
        line.serve(
            move |text| heard.send(text.to_owned()).unwrap(),
            || {
                crate::output::say(format_args!("{}loud{:#}", crate::output::BAD, crate::output::BAD));
            },
        );
        assert_eq!(hears.recv().unwrap(), "loud");
    }
}
