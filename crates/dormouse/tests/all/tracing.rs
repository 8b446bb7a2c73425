//! The `tracing` macros: asleep they do nothing, awake an existing subscriber sees what it always
//! saw.
#![cfg(feature = "tracing")]

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use dormouse::keys::{Batch, Key, Selector};
use dormouse::tracing::{
    Level, Span, debug, debug_span, error, event, info, info_span, span, trace, trace_span, warn,
};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Page {
    fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.0.lock().unwrap())).unwrap()
    }
}

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Page {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

mod house {
    use super::*;

    pub(super) fn serve(table: u32, asked: &mut u32) {
        let span = info_span!("serve", table);
        let _inside = span.entered();
        info!(table, "tea for {}", {
            *asked += 1;
            "two"
        });
        event!(Level::INFO, kind = "green", "poured");
        event!(target: "elsewhere", Level::INFO, "aimed");
    }

    pub(super) fn every_form() -> Vec<Span> {
        trace!("1");
        debug!(a = 1, "2");
        let table = table();
        warn!(?table, "3");
        error!("4");
        let parent = span!(Level::INFO, "outer", n = 1);
        vec![
            trace_span!("t"),
            debug_span!(parent: &parent, "d", x = 2),
            dormouse::tracing::warn_span!(target: "aside", "w"),
            dormouse::tracing::error_span!(target: "aside", parent: &parent, "e"),
            span!(target: "aside", Level::INFO, "s"),
            parent,
        ]
    }

    fn table() -> u32 {
        7
    }
}

#[test]
fn asleep_callsites_evaluate_nothing_awake_ones_run() {
    let page = Page::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::TRACE)
        .with_ansi(false)
        .without_time()
        .with_span_events(FmtSpan::NEW)
        .with_writer(page.clone())
        .finish();
    ::tracing::subscriber::with_default(subscriber, || {
        let mut asked = 0;
        house::serve(3, &mut asked);
        assert_eq!((page.take().as_str(), asked), ("", 0));
        // Warnings and errors alone are awake.
        let awake: Vec<_> = house::every_form().iter().map(|span| !span.is_disabled()).collect();
        assert_eq!(awake, [false, false, true, true, false, false]);
        let said = page.take();
        let spoken = [
            "WARN all::tracing::house: 3 table=7",
            "ERROR all::tracing::house: 4",
            "w: aside: new",
            "e: aside: new",
        ];
        for part in spoken {
            assert!(said.contains(part), "{part} in {said}");
        }
        assert_eq!(said.lines().count(), spoken.len(), "{said}");

        // An event is a key named after its module and line, a span after module and span.
        let keys = Selector::parse("all::tracing::house:*,all::tracing::house::serve").unwrap().keys();
        let keys = || keys.iter().map(|k| k.key);
        Batch::new().enable_all(keys()).apply().unwrap();
        house::serve(3, &mut asked);
        let said = page.take();
        assert_eq!(asked, 1);
        for part in [
            "serve{table=3}: all::tracing::house: tea for two table=3",
            "poured kind=\"green\"",
            "elsewhere: aimed",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }

        Batch::new().disable_all(keys()).apply().unwrap();
        house::serve(3, &mut asked);
        house::every_form();
        assert_eq!(page.take(), "");

        // One alone is switched by its name.
        let lines: Vec<_> =
            keys().map(Key::name).filter(|name| name.starts_with("all::tracing::house:")).collect();
        let events = lines.iter().filter(|name| !name.starts_with("all::tracing::house::")).count();
        assert_eq!(events, 7, "each has a name of its own: {lines:?}");
        let warn =
            include_str!("tracing.rs").lines().position(|line| line.contains("warn!(?table")).unwrap() + 1;
        let name = format!("all::tracing::house:{warn}");
        Batch::new()
            .enable_all(Selector::parse(&name).unwrap().keys().iter().map(|k| k.key))
            .apply()
            .unwrap();
        house::every_form();
        let said = page.take();
        assert!(said.contains("3 table=7") && !said.contains("ERROR all::tracing::house"), "{said}");

        let spans = Selector::parse("all::tracing::house*").unwrap().keys();
        Batch::new().enable_all(spans.iter().map(|k| k.key)).apply().unwrap();
        assert!(house::every_form().iter().all(|s| !s.is_disabled()));
        let said = page.take();
        for part in ["TRACE", "DEBUG", "2 a=1", "3 table=7", "ERROR", "outer{n=1}", "d{x=2}"] {
            assert!(said.contains(part), "{part} in {said}");
        }
    });
}
