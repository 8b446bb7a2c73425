//! Steps of the engine, without a lookout.

use dormouse_protocol::Stat;

use super::*;
use crate::core::asleep::Part;

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

fn cpu(percent: u64, seconds: u64) -> CpuCondition {
    CpuCondition {
        percent,
        length: Duration::from_secs(seconds),
        groups: Groups(None),
        over: HashMap::new(),
        highest: 0,
        refused: None,
    }
}

/// The CPU time of the process in a second, in thousandths of a CPU.
fn used(thousandths: u64) -> Readings {
    let used = Stat { process_cpu_ns: thousandths * 1_000_000, ..Stat::default() };
    Readings {
        cpu: Some(CpuReading { length: SECOND, used, ..CpuReading::default() }),
        ..Readings::default()
    }
}

#[test]
fn cpu_is_compared_without_rounding() {
    let fires = |percent, thousandths| cpu(percent, 1).evaluate(&used(thousandths), SECOND).is_some();
    assert_eq!([10, 11, 19].map(|thousandths| fires(1, thousandths)), [false, true, true]);
    assert_eq!([900, 909].map(|thousandths| fires(90, thousandths)), [false, true]);
}

#[test]
fn a_gap_is_no_part_of_cpu_time() {
    let mut one = cpu(90, 10);
    let mut fires = |readings: &Readings| one.evaluate(readings, SECOND).is_some();
    assert_eq!([(); 9].map(|()| fires(&used(1000))), [false; 9]);
    assert!(!fires(&Readings::default()), "nothing was read for a while");
    assert_eq!([(); 9].map(|()| fires(&used(1000))), [false; 9]);
    assert!(fires(&used(1000)));
}

#[test]
fn a_suspended_part_is_why_nothing_fires() {
    dormouse_testkit::in_child(|| {
        let mut triggers = Triggers::default();
        let mut arm = |rule: &str, condition| {
            let rule = crate::features::triggers::rules::rules(rule).unwrap().remove(0);
            triggers.arm(Some(rule), condition, Leases::default()).unwrap();
        };
        arm("lock>100ms", Box::new(LockCondition::new(Duration::from_millis(100), Groups(None))));
        arm("cpu>90% for 10s", Box::new(cpu(90, 10)));
        let why_not = || triggers.list(None).triggers.into_iter().map(|row| row.why_not);
        assert!(why_not().all(|why| !why.contains("asleep")), "{:?}", why_not().collect::<Vec<_>>());
        asleep::limit(Part::Times, 2.0);
        let why: Vec<String> = why_not().collect();
        assert!(why[0].starts_with("asleep: times of tasks, because dormouse used 2.0 %"), "{why:?}");
        assert!(!why[1].contains("asleep"), "the process's clock goes on: {why:?}");
    });
}
