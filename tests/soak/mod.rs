//! A tea house under load, and visitors that do everything to it that dormouse can, in an order of
//! chance: most of them are killed or stopped in the middle. The house answers each request, and is
//! in the end as it was before them.
//!
//! It takes 3 s, and a minute in `cargo xtask long`.
//! The list of what visitors do, that of what happens in the house, and that of scrapes follow from
//! a seed, which is printed and can be given (`DORMOUSE_SOAK_SEED`); how far each comes, and when,
//! is the machine's affair.

mod chance;
mod house;
mod residue;
mod visitors;

use std::time::{Duration, Instant};

use crate::support::{self, run};
use chance::Chance;
use dormouse_testkit::short_or_long;
use house::House;
use residue::Residue;
use visitors::{Scraper, Visitors};

/// A step's length: something new begins once in each step.
const STEP: Duration = Duration::from_millis(25);

#[test]
fn a_house_is_after_visitors_as_before() {
    let length = Duration::from_secs(short_or_long(3, 60));
    let seed = std::env::var("DORMOUSE_SOAK_SEED").map(|text| text.parse().expect("a number"));
    let seed = seed.unwrap_or_else(|_| u64::from(std::process::id()));
    println!("DORMOUSE_SOAK_SEED={seed}");
    let [mut of_visitors, mut of_house, mut of_scrapes] = [0, 1, 2].map(|n| Chance::new(seed + n));
    visitors::assert_complete(&run(["--help"]).stdout);
    let mut house = House::open();
    let mut visitors = Visitors::new(&house);
    let mut scraper = Scraper::open(&house);
    // Each kind of visit once, to its end: what is made once for good is there then.
    visitors.each_once();
    house.each_once();
    scraper.scrape();
    scraper.leave();
    tidy(&house);
    house.settle();
    let before = Residue::at_rest(house.pid());
    scraper.start();
    let start = Instant::now();
    while start.elapsed() < length {
        visitors.step(&mut of_visitors);
        if of_house.one_in(3) {
            house.happen(&mut of_house);
        }
        scraper.step(&mut of_scrapes);
        std::thread::sleep(STEP);
    }
    println!("{} visits, {} scrapes", visitors.count(), scraper.count());
    visitors.leave();
    scraper.leave();
    let requests = start.elapsed().as_secs() * house::RATE.parse::<u64>().expect("a number");
    tidy(&house);
    house.settle();
    let start = Instant::now();
    let after = loop {
        let after = Residue::of(house.pid());
        let beyond = after.beyond(&before, requests);
        if beyond.is_empty() {
            break after;
        }
        assert!(start.elapsed() < support::HANG, "{}", beyond.join("\n"));
        std::thread::sleep(STEP);
    };
    println!("{} KiB before, {} KiB after", before.anonymous_kib(), after.anonymous_kib());
    residue::assert_balance(&house.target());
    house.close();
}

/// Takes back what visitors may leave for good by their own request.
fn tidy(house: &House) {
    let target = house.target();
    let _ = run(["record", &target, "--off"]);
    let armed = run(["--json", "triggers", &target]).json();
    for trigger in armed["triggers"].as_array().expect("a list of triggers") {
        let _ = run(["triggers", &target, "--remove", &trigger["number"].to_string()]);
    }
    // Batches open the files again that they keep, and that an object's leave has closed.
    assert_eq!(run(["on", &target, "*", "--keep"]).code, Some(0));
    assert_eq!(run(["reset", &target, "*"]).code, Some(0));
}
