//! A program in which no site is left.

fn main() {
    for used in dormouse_keys::all() {
        println!("key {} {}", used.key.name(), used.sites);
    }
    assert_eq!(dormouse_keys::Batch::new().apply().unwrap().sites, 0);
    println!("every site follows");
}
