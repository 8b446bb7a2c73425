//! A program with two versions of dormouse. The test `copies` writes its manifest.

use dormouse::Group;
use dormouse::record::Field;

#[inline(never)]
fn brew(cups: u64) {
    dormouse::probe!("first.brew", cups);
    dormouse_next::probe!("second.brew", cups = cups + 1);
}

dormouse::static_key! { static GREEN: "first.green" = false; }
dormouse_next::static_key! { static BLACK: "second.black" = true; }

fn main() {
    // Each lists each site once, and switches the other one's.
    let listed = |all: Vec<(String, usize)>| {
        let ours = all.into_iter().filter(|(name, _)| !name.starts_with("dormouse."));
        ours.collect::<Vec<_>>()
    };
    let expected = ["first.brew", "first.green", "second.black", "second.brew"].map(|it| (it.to_owned(), 1));
    let all = dormouse::keys::all().into_iter().map(|it| (it.key.name().to_owned(), it.sites));
    assert_eq!(listed(all.collect()), expected);
    let all = dormouse_next::keys::all().into_iter().map(|it| (it.key.name().to_owned(), it.sites));
    assert_eq!(listed(all.collect()), expected);
    let look = || (dormouse::unlikely!(GREEN), dormouse_next::likely!(BLACK));
    assert_eq!(look(), (false, true));
    let find = |name: &str| dormouse::keys::all().into_iter().find(|it| it.key.name() == name).unwrap().key;
    find("second.black").disable().unwrap();
    let next =
        |name: &str| dormouse_next::keys::all().into_iter().find(|it| it.key.name() == name).unwrap().key;
    next("first.green").enable().unwrap();
    assert_eq!(look(), (true, false));

    // One agent, and one reader of the records of both.
    let first = dormouse::init().unwrap().path().to_owned();
    assert_eq!(first, dormouse_next::init().unwrap().path());
    let mut trace = dormouse::trace("*.brew").unwrap();
    Group::new("first's").scope(|| dormouse_next::Group::new("second's").scope(|| brew(3)));
    let mut seen = Vec::new();
    trace.poll(|key, _, record| {
        let Field::Unsigned(cups) = record.values[0] else { panic!("{:?}", record.values) };
        seen.push((key.name().to_owned(), cups));
    });
    assert_eq!(seen, [("first.brew".to_owned(), 3), ("second.brew".to_owned(), 4)]);
    println!("done");
}
