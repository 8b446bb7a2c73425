//! Switches the demo's keys on and off as fast as possible, while interrupts are counted.
//!
//! The origin of batched jump labels did the same beside a loop that toggled a key: it watched
//! interrupts between processors, live. They are counted for the whole machine, and only processors
//! that run the service at that moment are interrupted.

use std::time::{Duration, Instant};

use dormouse_protocol::{BatchStat, Changed, OffRequest, OnRequest};
use dormouse_sys::interrupts::Ipis;
use serde::Serialize;

use crate::client::Client;
use crate::exit::Outcome;
use crate::output::Context;
use crate::signals::Signals;

/// How often a line is printed.
const INTERVAL: Duration = Duration::from_secs(1);

/// One line.
#[derive(Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Second {
    #[serde(rename = "type")]
    kind: &'static str,
    updates: u64,
    sites: usize,
    update_us: f64,
    barriers: f64,
    traps: u64,
    /// Absent where they cannot be read.
    cal_per_s: Option<f64>,
    /// Also absent on arm64, where no interrupt flushes translations.
    tlb_per_s: Option<f64>,
}

/// Toggles until `end` or a signal; true when it was a signal.
pub(super) fn play(client: &mut Client, end: Instant, context: &mut Context) -> Outcome<bool> {
    let signals = &Signals::to_end()?;
    if let Err(why) = Ipis::read() {
        crate::output::say(format_args!("warning: interrupts are not shown: {why}"));
    }
    if !context.json {
        context.line("UPDATES/s  SITES  us/UPDATE  SYNCS/UPDATE  TRAPS/s   CAL/s  TLB/s   CAL/UPDATE")?;
    }
    while Instant::now() < end {
        let (start, before) = (Instant::now(), Ipis::read().ok());
        let due = end.min(start + INTERVAL);
        let mut batches: Vec<BatchStat> = Vec::new();
        while Instant::now() < due {
            let on: Changed =
                client.call(OnRequest { glob: "*".into(), for_ms: None, dwell_ms: None, keep: false })?;
            let off: Changed =
                client.call(OffRequest { glob: "*".into(), dwell_ms: None, force: false, release: false })?;
            batches.extend([on.batch, off.batch]);
            if signals.came_before(Instant::now())? {
                return Ok(true);
            }
        }
        let ipis = before.zip(Ipis::read().ok()).map(|(before, after)| after.since(before));
        print(&batches, start.elapsed(), ipis, context)?;
        context.flush()?;
    }
    Ok(false)
}

fn print(batches: &[BatchStat], elapsed: Duration, ipis: Option<Ipis>, context: &mut Context) -> Outcome<()> {
    let seconds = elapsed.as_secs_f64();
    let updates = batches.len() as f64;
    let mean = |of: fn(&BatchStat) -> f64| batches.iter().map(of).sum::<f64>() / updates;
    let line = Second {
        kind: "toggle",
        updates: batches.len() as u64,
        sites: batches.iter().map(|b| b.sites).max().unwrap_or(0),
        update_us: mean(|b| b.elapsed_ns as f64 / 1e3),
        barriers: mean(|b| b.barriers as f64),
        traps: batches.iter().map(|b| b.traps).sum(),
        cal_per_s: ipis.map(|i| i.cal as f64 / seconds),
        tlb_per_s: ipis.and_then(|i| i.tlb).map(|tlb| tlb as f64 / seconds),
    };
    if context.json {
        return context.document(&line);
    }
    let or_dash =
        |value: Option<f64>, digits: usize| value.map_or("-".to_owned(), |v| format!("{v:.digits$}"));
    context.line(format_args!(
        "{:9.0}  {:5}  {:9.1}  {:12.1}  {:7.0}  {:>6}  {:>5}  {:>11}",
        updates / seconds,
        line.sites,
        line.update_us,
        line.barriers,
        line.traps as f64 / seconds,
        or_dash(line.cal_per_s, 0),
        or_dash(line.tlb_per_s, 0),
        or_dash(line.cal_per_s.map(|cal| cal * seconds / updates), 1),
    ))
}
