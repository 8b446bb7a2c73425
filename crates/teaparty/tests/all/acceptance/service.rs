//! The answers of the house: each route, and each mistake of a client.

use std::{
    io::{Read as _, Write as _},
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use flate2::read::GzDecoder;

use super::house::House;

#[test]
fn the_menu_lists_every_tea_by_name() {
    let answer = House::open().get("/menu");
    assert_eq!(answer.status, 200);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    let menu = answer.json();
    let names: Vec<_> = menu.as_array().unwrap().iter().map(|tea| tea["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["Assam", "Darjeeling", "Jasmine", "Keemun", "Lapsang", "Sencha"]);
    // The key menu.fancy sleeps.
    assert_eq!(menu[0].get("notes"), None);
}

#[test]
fn an_order_is_taken_and_read_back() {
    let house = House::open();
    let placed = house.post("/orders", r#"{"tea":"sencha","cups":2}"#);
    assert_eq!(placed.status, 201);
    let order = placed.json();
    assert_eq!((order["tea"].as_str(), order["cups"].as_u64()), (Some("Sencha"), Some(2)));
    let read = house.get(placed.header("location").unwrap());
    assert_eq!(read.status, 200);
    assert_eq!(read.json(), order);
}

#[test]
fn a_blend_uses_all_its_spoons() {
    let answer = House::open().get("/blend?malt=0.9&grass=0.1&smoke=0.8&flower=0&spoons=12");
    assert_eq!(answer.status, 200);
    let blend = answer.json();
    let recipe = blend["recipe"].as_array().unwrap();
    assert_eq!(recipe.iter().map(|part| part["spoons"].as_u64().unwrap()).sum::<u64>(), 12);
    assert!(recipe.iter().any(|part| part["tea"] == "Lapsang"), "{blend}");
}

#[test]
fn a_brochure_is_compressed_if_accepted() {
    let house = House::open();
    let plain = house.get("/brochure?guest=Alice");
    assert_eq!((plain.status, plain.header("content-encoding")), (200, None));
    assert!(plain.body.starts_with(b"For Alice,"));

    let packed = house.ask(
        "GET /brochure?guest=Alice HTTP/1.1\r\nhost: x\r\nconnection: close\r\naccept-encoding: br, gzip\r\n\r\n",
    );
    assert_eq!((packed.status, packed.header("content-encoding")), (200, Some("gzip")));
    let mut unpacked = Vec::new();
    GzDecoder::new(packed.body.as_slice()).read_to_end(&mut unpacked).unwrap();
    assert_eq!(unpacked, plain.body);
}

#[test]
fn tea_steeps_as_long_as_asked() {
    let house = House::open();
    let start = Instant::now();
    let answer = house.get("/steep?ms=30");
    assert!(start.elapsed() >= Duration::from_millis(30));
    assert_eq!(answer.status, 200);
    assert!(answer.json()["steeped_ms"].as_u64().unwrap() >= 30);
}

#[test]
fn a_mistake_is_refused_with_what_was_wrong() {
    let house = House::open();
    for (path, reason) in [
        ("/orders/seven", "seven"),
        ("/orders/-1", "-1"),
        ("/blend?malt=2", "malt is 2, must be from 0 to 1"),
        ("/blend?smoke=NaN", "smoke is NaN"),
        ("/blend?spoons=33", "spoons is 33, must be from 1 to 32"),
        ("/blend?spoons=many", "spoons"),
        ("/blend?sugar=1", "sugar"),
        ("/steep?ms=soon", "ms"),
        ("/steep?ms=10001", "ms is 10001, must be at most 10000"),
        (&format!("/brochure?guest={}", "x".repeat(65)), "guest has 65 bytes, may have 64"),
    ] {
        let answer = house.get(path);
        assert_eq!(answer.status, 400, "{path}");
        assert!(answer.error().contains(reason), "{path}: {}", answer.error());
    }
    for (body, reason) in [
        ("", "JSON"),
        ("{", "JSON"),
        (r#"{"tea":"Assam"}"#, "cups"),
        (r#"{"tea":"Assam","cups":"two"}"#, "cups"),
        (r#"{"tea":"Assam","cups":1,"milk":true}"#, "milk"),
        (r#"{"tea":"Assam","cups":0}"#, "cups is 0, must be from 1 to 12"),
        (r#"{"tea":"Assam","cups":13}"#, "cups is 13, must be from 1 to 12"),
        (r#"{"tea":"coffee","cups":1}"#, r#"no tea is called "coffee"; GET /menu lists them"#),
    ] {
        let answer = house.post("/orders", body);
        assert_eq!(answer.status, 400, "{body}");
        assert!(answer.error().contains(reason), "{body}: {}", answer.error());
    }
}

#[test]
fn unknown_paths_are_said_to_be_unknown() {
    let house = House::open();
    let order = house.get("/orders/999");
    assert_eq!((order.status, order.error().as_str()), (404, "no order 999, or one too old to remember"));
    let route = house.get("/coffee");
    assert_eq!(route.status, 404);
    assert!(route.error().starts_with("no GET /coffee; there are GET /menu,"), "{}", route.error());
    assert_eq!(house.post("/menu", "{}").status, 405);
}

#[test]
fn a_body_beyond_the_bound_is_refused() {
    let body = format!(r#"{{"tea":"{}","cups":1}}"#, "x".repeat(5000));
    assert_eq!(House::open().post("/orders", &body).status, 413);
}

#[test]
fn garbage_is_refused_and_service_goes_on() {
    let house = House::open();
    assert_eq!(house.ask("two cups of Assam, please\r\n\r\n").status, 400);

    let mut half = TcpStream::connect(SocketAddr::from(house.addr)).unwrap();
    half.write_all(b"GET /menu HTTP/1.1\r\nhos").unwrap();
    assert_eq!(house.get("/menu").status, 200);
}
