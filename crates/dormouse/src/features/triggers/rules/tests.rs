//! Rules that are read, written and refused.

use proptest::prelude::*;

use super::*;

fn one(text: &str) -> Rule {
    text.parse().unwrap_or_else(|why| panic!("{why}"))
}

#[test]
fn rules_are_read_and_written() {
    for (text, again) in [
        ("request>500ms", "request>500ms"),
        (" request > 1000ms in POST *,!POST /in the box ", "request>1s in POST *,!POST /in the box"),
        ("long-poll>20ms every 10m", "long-poll>20ms every 10m"),
        ("lock > 100ms in GET * every 2m", "lock>100ms in GET * every 2m"),
        ("cpu>90% for 10s in batch every 60s", "cpu>90% for 10s in batch"),
        ("cpu > 250 % for 60s", "cpu>250% for 1m"),
        ("brew.step.cups>100", "brew.step.cups>100"),
        ("brew.step.cups >= -1.50", "brew.step.cups>=-1.5"),
        ("db.query.sql==\"a in b; every 5m\"", "db.query.sql==\"a in b; every 5m\""),
        ("panic every 1h", "panic every 1h"),
        ("error > 5 % over 10s in GET *", "error>5% over 10s in GET *"),
        ("objective < 99.50 % over 300s in GET *", "objective<99.5% over 5m in GET *"),
        ("cancelled>10/s", "cancelled>10/s"),
        ("cancelled > 0 /s over 60s every 5m", "cancelled>0/s over 1m every 5m"),
    ] {
        let rule = one(text);
        assert_eq!(rule.to_string(), again);
        assert_eq!(one(again), rule);
    }
    let list = rules("request>500ms; panic;;a.b==\"x;y\" ;").unwrap();
    assert_eq!(list.len(), 3);
}

#[test]
fn faults_say_what_to_write() {
    for (text, parts) in [
        ("", &["there is none", "request>500ms"][..]),
        ("requests>5s", &["`requests` is nothing that can be seen", "brew.step.cups>100"]),
        ("request", &["`request` compares nothing"]),
        ("request>500", &["the time `500` has no unit", "us, ms, s, m or h"]),
        ("request>5days", &["an unknown unit, `days`"]),
        ("request>0s", &["is 0"]),
        ("request<5s", &["compared by `>` alone", "`request>500ms`"]),
        ("request>5s in a,,b", &["empty glob"]),
        ("request=5s", &["a single `=`", "`==`"]),
        ("long-poll>10us", &["is not seen", "1ms or more"]),
        ("lock>", &["is no time", "`lock>100ms`"]),
        ("lock<1s", &["compared by `>` alone"]),
        ("cpu>90%", &["does not say for how long", "for 10s"]),
        ("cpu>90 for 10s", &["no percentage"]),
        ("cpu>90% for 10ms", &["once a second"]),
        ("error>5%", &["does not say over how long", "`error>5% over 10s`"]),
        ("error>5 over 10s", &["its level is no percentage", "`error>5% over 10s`"]),
        ("error>100% over 10s", &["no percentage below 100"]),
        ("error>5% over 10ms", &["once a second"]),
        ("error>5% over 2h", &["at most an hour"]),
        ("error<5% over 10s", &["compared by `>` alone"]),
        ("objective>99% over 5m", &["`objective` is compared by `<` alone", "`objective<99% over 5m`"]),
        ("objective<99%", &["does not say over how long", "`objective<99% over 5m`"]),
        ("objective<0% over 5m", &["its level is no percentage", "`objective<99% over 5m`"]),
        ("objective<101% over 5m", &["its level is no percentage"]),
        ("objective<99% over 2h", &["at most an hour"]),
        ("cancelled>10", &["its level is no rate", "`cancelled>10/s`"]),
        ("a.b>tea", &["`tea` is no number", "text in quotes"]),
        ("a.b>\"tea\"", &["text is compared by `==` alone"]),
        ("a.b==\"tea", &["does not end"]),
        ("panic in POST *", &["`panic` looks at no groups", "leave out"]),
        ("panic every tea", &["`tea` is no time"]),
        ("panic\u{1b}", &["control character"]),
    ] {
        let why = rules(text).unwrap_err().to_string();
        assert!(parts.iter().all(|part| why.contains(part)), "{text}: {why}");
    }
    assert!(rules(&"panic;".repeat(65)).unwrap_err().to_string().contains("65 rules"));
    assert!(rules(&format!("a.b==\"{}\"", "x".repeat(2000))).unwrap_err().to_string().len() < 300);
}

#[test]
fn values_are_compared_exactly() {
    let most = u64::MAX;
    let holds = |comparison: Comparison, value: Field<'_>, limit: &str| {
        let limit = limit_of(limit);
        comparison.holds(&value, &limit)
    };
    assert_eq!(holds(Comparison::Greater, Field::Unsigned(most), "18446744073709551614"), Some(true));
    assert_eq!(holds(Comparison::Greater, Field::Unsigned(most), "18446744073709551615"), Some(false));
    assert_eq!(holds(Comparison::Less, Field::Signed(-5), "-4.5"), Some(true));
    assert_eq!(holds(Comparison::GreaterOrEqual, Field::Float(4.0), "4"), Some(true));
    assert_eq!(holds(Comparison::Equal, Field::Text("tea"), "\"tea\""), Some(true));
    assert_eq!(holds(Comparison::Equal, Field::Boolean(true), "\"true\""), Some(true));
    assert_eq!(holds(Comparison::Greater, Field::Text("tea"), "1"), None);
    assert_eq!(holds(Comparison::Greater, Field::Float(f64::NAN), "1"), None);
}

fn limit_of(text: &str) -> Limit {
    limit(text, Comparison::Equal).unwrap()
}

proptest! {
    #[test]
    fn any_text_is_a_rule_or_told(text in "(request|objective|lock|cpu|a\\.b|panic|[a-z.]{0,9})[ >=<]{0,3}[0-9a-z%\". ;]{0,24}") {
        if let Ok(list) = rules(&text) {
            for rule in list {
                prop_assert_eq!(one(&rule.to_string()), rule);
            }
        }
    }

    #[test]
    fn any_characters_do_not_panic(text: String) {
        let _ = rules(&text);
    }
}
