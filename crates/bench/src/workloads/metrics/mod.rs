//! `bench metrics`: the price of metrics.

mod encode;
mod scrapes;
mod served;

use crate::bench::Bench;

pub(crate) fn run(bench: &mut Bench) {
    bench.say("formats");
    encode::rows(bench);
    bench.measure("formats", bench.plan(30, 3));
    encode::compare(bench);
    bench.say("scrapes through dormouse serve");
    scrapes::rows(bench);
    bench.measure("scrapes", bench.plan(8, 2));
    scrapes::compare(bench);
    bench.explain(include_str!("notes.txt"));
}
