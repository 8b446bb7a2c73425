//! Steps of the engine, without a lookout.

use super::*;

#[test]
fn living_requests_are_looked_at_each_100_ms() {
    let mut triggers = Triggers::default();
    let condition = RequestCondition::new(Duration::from_millis(50), Groups(None), Box::default());
    let rule = crate::features::triggers::rules::rules("request>50ms").unwrap().remove(0);
    triggers.arm(Some(rule), Box::new(condition), Leases::default()).unwrap();
    let begun = Instant::now();
    let mut recording = Recording::default();
    let mut scans = 0;
    // As the lookout would wake, were it never late.
    let mut now = begun;
    while now < begun + Duration::from_millis(1001) {
        scans += usize::from(triggers.readings(now).living.is_some());
        let next = triggers.judge(now, &mut recording).expect("a next step");
        assert!(next <= now + INTERVAL, "{:?}", next - now);
        now = next.max(now + Duration::from_millis(1));
    }
    assert_eq!(scans, 11);
}

/// Arms a command.
fn command(triggers: &mut Triggers) -> u64 {
    triggers.arm(None, Box::new(CommandCondition), Leases::default()).unwrap()
}

/// Its file is there.
fn finish(triggers: &mut Triggers, number: u64) {
    let armed = triggers.armed.iter_mut().find(|armed| armed.number == number).unwrap();
    armed.due = None;
    armed.written(Ok("a file".to_owned()));
}

#[test]
fn a_written_file_is_listed_while_others_arm() {
    let mut triggers = Triggers::default();
    let first = command(&mut triggers);
    finish(&mut triggers, first);
    let second = command(&mut triggers);
    assert_eq!([first, second].map(|number| triggers.has(number)), [true, true]);
    assert_eq!(triggers.list(Some(first)).triggers[0].file.as_deref(), Some("a file"));
    triggers.make_room(Instant::now());
    assert!(triggers.has(first));
    // Where there is no room the oldest result goes, and nothing that is still to be done.
    for _ in 2..MOST {
        command(&mut triggers);
    }
    command(&mut triggers);
    assert_eq!([first, second].map(|number| triggers.has(number)), [false, true]);
    let refused = triggers.arm(None, Box::new(CommandCondition), Leases::default());
    assert!(refused.unwrap_err().contains("remove one"));
    finish(&mut triggers, second);
    triggers.make_room(Instant::now() + LISTED);
    assert!(!triggers.has(second));
}

#[test]
fn a_number_is_used_once_in_a_process() {
    let first = command(&mut Triggers::default());
    assert!(command(&mut Triggers::default()) > first, "of another lookout");
}
