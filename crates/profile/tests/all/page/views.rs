//! Choices by the mouse, the keyboard and the address: each figure against what the profile's
//! samples add up to.

use dormouse_profile::{Node, ProfileKind, Sample, StackEnd};
use serde_json::{Value, json};

use super::sample::service;
use super::{click, found, functions, is_page, open, page, stacks, total};

const EVEN: [u64; 3] = [100; 3];

#[test]
fn groups_have_their_totals() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    for (index, group) in profile.0.groups.iter().enumerate() {
        let sum: u64 = stacks(&profile).iter().filter(|row| row.0 as usize == index).map(|row| row.2).sum();
        let name = if index == 0 { "in no group" } else { &*group.name };
        let box_ = found(&mut browser, &format!("box.depth === 1 && box.label === '{name}'"));
        assert_eq!(box_["now"], json!(sum), "{name}");
        let option = format!(
            "[...document.querySelectorAll('#groups option')].find((one) => one.text.startsWith('{name} · ')).value"
        );
        let option = browser.text(&option);
        browser.value(&format!(
            "$('groups').value = '{option}', $('groups').dispatchEvent(new Event('change'))"
        ));
        assert_eq!(browser.value("flame.graph.tree.root.now"), json!(sum), "{name} alone");
        assert_eq!(browser.text("flame.zoomed"), name);
        browser.value("set({ show: 'by-group' })");
    }
    browser.value("set({ show: 'all' })");
    assert_eq!(browser.value("flame.graph.tree.root.now"), json!(total(&profile)));
    assert_eq!(
        browser.value("flame.boxes.filter((box) => box.depth === 1).length"),
        1,
        "threads begin alike"
    );
    browser.value("set({ show: 'by-thread' })");
    assert_eq!(browser.value("flame.boxes.filter((box) => box.depth === 1).length"), 3);
}

#[test]
fn search_says_the_share_of_what_it_finds() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    let whole = total(&profile);
    let share = |is: &dyn Fn(&str) -> bool| -> f64 {
        let rows = stacks(&profile);
        let hit = rows.iter().filter(|row| row.1.iter().any(|name| is(name))).map(|row| row.2).sum::<u64>();
        #[expect(clippy::cast_precision_loss, reason = "shares of seconds")]
        let share = hit as f64 / whole as f64;
        share
    };
    let near = |found: &Value, expected: f64| (found.as_f64().unwrap() - expected).abs() < 1e-9;
    browser.press("/");
    assert_eq!(browser.text("document.activeElement.id"), "query");
    for letter in "MALLOC".chars() {
        browser.press(&letter.to_string());
    }
    let malloc = share(&|name| name.contains("malloc"));
    assert!((0.01..0.5).contains(&malloc));
    assert!(near(&browser.value("flame.state.share"), malloc));
    assert_eq!(
        browser.text("$('found').textContent"),
        format!("{:.1}\u{202f}% in 3 functions", 100.0 * malloc)
    );
    // Enter leaves the field and goes to the first that is found.
    browser.press("Enter");
    assert!(browser.text("flame.selected.label").contains("malloc"));
    let first = browser.value("[flame.graph.selected.depth, flame.graph.selected.x]");
    browser.press("n");
    assert_ne!(browser.value("[flame.graph.selected.depth, flame.graph.selected.x]"), first);
    browser.press("N");
    assert_eq!(browser.value("[flame.graph.selected.depth, flame.graph.selected.x]"), first);
    browser.picture("search");

    browser.value("look('^__mem(move|cmp)')");
    assert_eq!(browser.value("flame.state.share"), json!(0), "plain text is no pattern");
    browser.value("$('regex').click()");
    assert!(near(&browser.value("flame.state.share"), share(&|name| name.starts_with("__mem"))));
    browser.value("look('(')");
    assert_eq!(browser.text("$('query').getAttribute('aria-invalid')"), "true");
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}

#[test]
fn inverted_view_begins_at_the_innermost() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "#show=all") else { return };
    browser.press("i");
    let own = functions(&profile);
    let boxes = browser.value("flame.boxes.filter((box) => box.depth === 1)");
    assert!(boxes.as_array().unwrap().len() > 10);
    for one in boxes.as_array().unwrap() {
        assert_eq!(one["now"], json!(own[one["label"].as_str().unwrap()].0), "{one}");
    }
    // Below a function stand its callers.
    let below = found(&mut browser, "box.depth === 2 && box.label.includes('Pot::heat')");
    let expected: u64 = stacks(&profile)
        .iter()
        .filter(|row| row.1[0].contains("compress256") && row.1[1].contains("Pot::heat"))
        .map(|row| row.2)
        .sum();
    let parent = browser
        .text("flame.graph.rows[2].find(({ box }) => box?.label.includes('Pot::heat')).box.parent.label");
    assert!(parent.contains("compress256"), "{parent}");
    assert_eq!(below["now"], json!(expected));
    browser.picture("inverted");
    browser.press("i");
    assert_eq!(browser.value("flame.state.inverted"), json!(false));
}

#[test]
fn table_has_self_and_total() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "#view=table") else { return };
    let rows = browser.value("flame.table.rows");
    let expected = functions(&profile);
    assert_eq!(rows.as_array().unwrap().len(), expected.len());
    for row in rows.as_array().unwrap() {
        let (own, total) = expected[row["name"].as_str().unwrap()];
        assert_eq!((&row["self"], &row["total"]), (&json!(own), &json!(total)), "{row}");
    }
    let column = |browser: &mut super::Browser| -> Vec<f64> {
        let rows = browser.value("flame.table.sorted().map((row) => row[flame.table.sort])");
        rows.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect()
    };
    let selves = column(&mut browser);
    assert!(selves.is_sorted_by(|a, b| a >= b));
    browser.value("document.querySelector('[data-sort=total]').click()");
    assert_eq!(browser.text("document.querySelector('th[aria-sort]').textContent"), "Total");
    assert!(column(&mut browser).is_sorted_by(|a, b| a >= b));
    browser.value("document.querySelector('[data-sort=total]').click()");
    assert!(column(&mut browser).is_sorted());
    browser.value("document.querySelector('[data-sort=self]').click()");
    browser.picture("table");
    // From a row to the picture.
    browser.press("ArrowDown");
    browser.press("ArrowDown");
    let name = browser.text("document.activeElement.querySelector('.name span').textContent");
    browser.press("Enter");
    assert_eq!(browser.text("flame.state.view"), "flame");
    assert_eq!(browser.text("flame.selected.label"), name);
}

#[test]
fn keys_alone_reach_every_frame() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    let spoken = |browser: &mut super::Browser| browser.text("$('detail').textContent");
    browser.press("ArrowDown");
    assert_eq!(browser.text("flame.selected.label"), "GET /blend", "the widest of the groups");
    assert!(spoken(&mut browser).contains("GET /blend"));
    browser.press("ArrowRight");
    assert_eq!(browser.text("flame.selected.label"), "GET /orders");
    browser.press("Enter");
    assert_eq!(browser.text("flame.zoomed"), "GET /orders");
    for _ in 0..13 {
        browser.press("ArrowDown");
    }
    let closure = "teaparty::routes::orders::{{closure}}";
    assert_eq!(browser.text("flame.selected.label"), closure);
    let said = spoken(&mut browser);
    assert!(said.contains(closure) && said.contains("100\u{202f}% of GET /orders"), "{said}");
    browser.press("Enter");
    browser.press("ArrowUp");
    assert_eq!(browser.value("flame.selected.depth"), 13);
    browser.press("Escape");
    assert_eq!(browser.text("flame.zoomed"), "GET /orders");
    browser.press("Escape");
    assert_eq!(browser.text("flame.zoomed"), "all");
    browser.press("v");
    assert_eq!(browser.text("data.columns[flame.state.column].name"), "samples");
    assert_eq!(browser.value("flame.graph.tree.root.now"), json!(profile.0.samples.len()));
    browser.press("t");
    assert_eq!(browser.value("[$('flame').hidden, $('table').hidden]"), json!([true, false]));
    browser.press("t");
    browser.press("?");
    assert_eq!(browser.value("$('help').open"), json!(true));
    browser.press("i");
    assert_eq!(browser.value("flame.state.inverted"), json!(false), "the dialog has the keys");
    browser.picture("help");
    browser.value("$('help').close()");
    browser.press("g");
    assert_eq!(browser.text("document.activeElement.id"), "groups");
}

#[test]
fn mouse_zooms_tells_and_drags() {
    let profile = service(ProfileKind::Cpu, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "#show=all") else { return };
    let taste = found(&mut browser, "box.label.includes('Recipe::taste')");
    let (x, y) = (taste["x"].as_f64().unwrap(), taste["y"].as_f64().unwrap());
    browser.mouse(x, y, false);
    let told = browser.text("$('tip').textContent");
    for part in ["teaparty::blend::Recipe::taste", "total ", "self ", "\u{202f}%", "src/blend.rs:"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    browser.picture("tip");
    browser.mouse(x, y, true);
    assert_eq!(browser.text("flame.zoomed"), "teaparty::blend::Recipe::taste");
    assert_eq!(browser.value("$('tip').hidden"), json!(true), "what lies there is another box now");
    assert_eq!(browser.value("Math.round(flame.graph.edges(flame.graph.zoomed.x, flame.graph.zoomed.width)[1]) === flame.graph.width"), json!(true));
    let from = browser.value("flame.graph.from").as_f64().unwrap();
    browser.drag(x, y, -200.0);
    assert!(browser.value("flame.graph.from").as_f64().unwrap() > from, "the right of it comes into sight");
    assert_eq!(browser.text("flame.zoomed"), "teaparty::blend::Recipe::taste", "a drag is no click");
    let wide = browser.value("flame.graph.to - flame.graph.from").as_f64().unwrap();
    browser.press("+");
    assert!(browser.value("flame.graph.to - flame.graph.from").as_f64().unwrap() < wide);
    browser.value("$('reset').click()");
    assert_eq!(browser.text("flame.zoomed"), "all");
    // A row that the picture has drawn for an ancestor takes back to it.
    click(&mut browser, "box.label.includes('Recipe::taste')");
    click(&mut browser, "box.label.endsWith('worker::run')");
    assert!(browser.text("flame.zoomed").ends_with("worker::run"));
}

#[test]
fn address_shows_the_same_again() {
    let profile = service(ProfileKind::Alloc, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    browser.value("set({ show: 'group:1', column: 3 })");
    click(&mut browser, "box.depth === 5");
    browser.value("$('query').value = 'serde', look('serde')");
    let shown =
        "JSON.stringify([flame.state, flame.zoomed, flame.boxes.map((box) => [box.label, box.now, box.x])])";
    let before = browser.text(shown);
    let hash = browser.text("location.hash");
    for part in ["show=group%3A1", "value=inuse_space", "find=serde", "zoom="] {
        assert!(hash.contains(part), "{part} in {hash}");
    }
    let file = browser.save(&page(&profile, None));
    browser.open(&format!("{file}{hash}"));
    assert_eq!(browser.text(shown), before);
    // An address that was written by hand, or for another profile, shows what it can.
    browser.open(&format!("{file}#show=group:99&value=tea&zoom=1.2.x&sort=constructor&view=%00"));
    assert_eq!(browser.text("flame.state.show"), "by-group");
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}

#[test]
fn allocations_have_four_values() {
    let profile = service(ProfileKind::Alloc, 3, EVEN);
    let Some(mut browser) = open(&page(&profile, None), "") else { return };
    assert_eq!(browser.value("$('column').options.length"), 4);
    for column in 0..4 {
        browser
            .value(&format!("$('column').value = {column}, $('column').dispatchEvent(new Event('change'))"));
        let sum: u64 = profile.0.samples.iter().map(|sample| sample.values[column]).sum();
        assert_eq!(browser.value("flame.graph.tree.root.now"), json!(sum), "{column}");
    }
    assert!(browser.text("$('figures').textContent").contains("MiB"));
    browser.picture("alloc");
}

#[test]
fn stacks_that_are_not_whole_say_why() {
    let mut named = service(ProfileKind::Cpu, 3, EVEN);
    let profile = &mut named.0;
    // Of a function of the program: two stacks, of which one lacks the middle, and one its callers.
    let is_own = |node: &&Node| profile.mapping(node.address).is_some_and(|it| it.path == profile.program);
    let function = profile.stacks.iter().find(is_own).unwrap().address;
    for (why, is_amid, samples) in
        [(StackEnd::Cut, true, 70), (StackEnd::Cut, false, 80), (StackEnd::NoRule, false, 90)]
    {
        let mark = why.address(512);
        let path = if is_amid { &[function, mark, function][..] } else { &[mark, function] };
        let mut at = 0;
        for &address in path {
            profile.stacks.push(Node { parent: at, address });
            at = u32::try_from(profile.stacks.len()).unwrap();
        }
        let values = [samples, samples * 10_000_000, 0, 0];
        profile.samples.push(Sample { group: 0, thread: 0, stack: at, values });
        profile.coverage.samples += samples;
    }
    let Some(mut browser) = open(&page(&named, None), "") else { return };
    browser.value("set({ show: 'all' })");
    for (name, depth, samples) in [
        ("(deeper than 512 frames)", 2, 70),
        ("(deeper than 512 frames)", 1, 80),
        ("(caller unknown: no unwind rule)", 1, 90),
    ] {
        let is_it = format!("box.depth === {depth} && box.label === '{name}'");
        let shown = found(&mut browser, &is_it);
        assert_eq!(shown["now"], json!(samples * 10_000_000_u64), "{name}: {shown}");
    }
    let notes = browser.text("$('notes').textContent");
    for part in [
        "90 stacks end in teaparty (code whose caller",
        StackEnd::NoRule.fix(),
        "80 stacks end in teaparty (the",
    ] {
        assert!(notes.contains(part), "no {part:?} in {notes}");
    }
    browser.picture("not-whole");
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}

#[test]
fn two_profiles_compare_by_the_second() {
    let new = service(ProfileKind::Cpu, 3, EVEN);
    let mut old = service(ProfileKind::Cpu, 5, [60, 130, 100]);
    old.0.duration_ns *= 2;
    let Some(mut browser) = open(&page(&new, Some(&old)), "") else { return };
    for name in ["GET /blend", "GET /orders"] {
        let per_second = |profile: &super::Named| -> f64 {
            let group = profile.0.groups.iter().position(|group| group.name == name).unwrap();
            let rows = stacks(profile);
            let sum: u64 = rows.iter().filter(|row| row.0 as usize == group).map(|row| row.2).sum();
            #[expect(clippy::cast_precision_loss, reason = "a picture's numbers")]
            let rate = sum as f64 / (profile.0.duration_ns as f64 / 1e9);
            rate
        };
        let one = found(&mut browser, &format!("box.label === '{name}'"));
        for (side, profile) in [("now", &new), ("before", &old)] {
            let (is, expected) = (one[side].as_f64().unwrap(), per_second(profile));
            assert!((is / expected - 1.0).abs() < 1e-9, "{name} {side}: {is}, {expected}");
        }
    }
    // Twice the time with the same samples: all grew, and all would be red by less.
    old.0.duration_ns /= 2;
    let file = browser.save(&page(&new, Some(&old)));
    browser.open(&file);
    let hue = |browser: &mut super::Browser, name: &str| {
        let colour =
            found(browser, &format!("box.label === '{name}'"))["colour"].as_str().unwrap().to_owned();
        colour.trim_end_matches(')').rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(hue(&mut browser, "GET /blend"), "27", "red: it grew");
    assert_eq!(hue(&mut browser, "GET /orders"), "255", "blue: it shrank");
    browser.press("ArrowDown");
    let said = browser.text("$('figures').textContent");
    assert!(said.contains("before") && said.contains('+') && said.contains("/s"), "{said}");
    browser.picture("diff");
    let wide = "flame.boxes.find((box) => box.label === 'GET /orders').width";
    let now = browser.value(wide).as_f64().unwrap();
    browser.press("o");
    assert!(browser.value(wide).as_f64().unwrap() > now * 1.2, "widths of before");
    browser.open(&format!("{file}#view=table&sort=totalChange"));
    let shown = browser.text("document.querySelector('tbody tr').textContent");
    assert!(shown.contains("teaparty::routes::blend::{{closure}}"), "{shown}");
    browser.picture("diff-table");
    assert_eq!(browser.errors(is_page), Vec::<String>::new());
}
