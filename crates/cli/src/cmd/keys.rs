//! `dormouse keys`: which keys there are, and which are on.

use dormouse_protocol::{KeyHolder, KeyInfo, Keys, KeysRequest};
use serde::Deserialize;

use crate::args::help;
use crate::client::session::Subject;
use crate::exit::{Exit, Outcome};
use crate::output::{Context, GOOD, HEAD};
use crate::render::leases::{holder_text, short_ms};
use crate::render::table::Table;
use crate::text::clean;
use crate::verb::Asked;
#[cfg(feature = "serve")]
use crate::verb::Offer;

/// List the keys of a process, and which are on
#[derive(Debug, Default, clap::Args, Deserialize)]
#[serde(default)]
pub(crate) struct Request {
    #[arg(help = help::GLOB)]
    glob: Option<String>,
}

impl Asked for Request {
    const NAME: &'static str = "keys";
    #[cfg(feature = "serve")]
    const OFFER: Option<Offer> = Some(Offer::reading::<Self>());

    fn run(&self, subject: &Subject, context: &mut Context) -> Outcome {
        let mut session = subject.session(context.patience)?;
        let keys: Keys = session.call(KeysRequest { glob: self.glob.clone() })?;
        if context.json {
            context.document(&keys)?;
        } else if !keys.keys.is_empty() {
            context.text(table(&keys.keys).render(HEAD))?;
        }
        if keys.keys.is_empty() {
            context.note(format_args!("{} has no keys", session.who()));
            return Ok(Exit::Failed);
        }
        Ok(Exit::Ok)
    }
}

fn table(keys: &[KeyInfo]) -> Table {
    // A column only if it contains something, because it is wide.
    let held = keys.iter().any(|key| !key.held.is_empty());
    let (before, after) = (["NAME", "STATE"], ["KIND", ">SITES", "FIELDS", "WHERE"]);
    let heads = before.into_iter().chain(held.then_some("HELD BY")).chain(after);
    let mut table = Table::new(heads);
    for key in keys {
        let fields = key.fields.iter().map(|name| clean(name)).collect::<Vec<_>>().join(" ");
        let mut row = vec![clean(&key.name), state(key)];
        row.extend(held.then(|| holders(&key.held)));
        row.extend([
            clean(&key.kind),
            key.sites.to_string(),
            fields,
            format!("{}:{}", clean(&key.file), key.line),
        ]);
        table.row(row);
    }
    table
}

/// `on` or `off`, the change to come, whether the key started so, and how many sites do not follow
/// it.
fn state(key: &KeyInfo) -> String {
    let now = now(key);
    let now = if key.initial { format!("{now} (starts on)") } else { now };
    [now].into_iter().chain(astray(key)).collect::<Vec<_>>().join(", ")
}

fn astray(key: &KeyInfo) -> Vec<String> {
    let (sites, stale, foreign) = (key.sites, key.sites_stale, key.sites_foreign);
    let other = match (stale, key.on) {
        (0, _) => None,
        (_, true) => {
            Some(format!("{} of {sites} sites act: off and on again", sites.saturating_sub(stale + foreign)))
        }
        (_, false) => Some(format!("{stale} of {sites} sites act: on and off again")),
    };
    let foreign =
        (foreign > 0).then(|| format!("{foreign} of {sites} sites unknown: foreign code (a breakpoint?)"));
    other.into_iter().chain(foreign).collect()
}

fn now(key: &KeyInfo) -> String {
    match (key.on, key.off_in_ms) {
        (false, _) => "off".into(),
        (true, Some(0)) => format!("{GOOD}on{GOOD:#}, off is due"),
        (true, Some(ms)) => format!("{GOOD}on{GOOD:#}, off in {}", short_ms(ms)),
        (true, None) if key.baseline && !key.initial => format!("{GOOD}on{GOOD:#}, kept"),
        (true, None) => format!("{GOOD}on{GOOD:#}"),
    }
}

fn holders(held: &[KeyHolder]) -> String {
    let each = held.iter().map(|held| match held.leases {
        1 => holder_text(&held.holder),
        n => format!("{} ({n} times)", holder_text(&held.holder)),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_protocol::{HeldBy, LeaseHolder};

    fn key(on: bool, baseline: bool, off_in_ms: Option<u64>, held: Vec<KeyHolder>) -> KeyInfo {
        KeyInfo {
            name: "a.key".into(),
            kind: "key".into(),
            on,
            baseline,
            initial: false,
            leases: held.iter().fold(0, |sum: u32, h| sum.saturating_add(h.leases)),
            held,
            off_in_ms,
            sites: 3,
            sites_stale: 0,
            sites_foreign: 0,
            file: "a.rs".into(),
            line: 1,
            object: String::new(),
            fields: Vec::new(),
        }
    }

    fn held(by: HeldBy, leases: u32, left_ms: Option<u64>) -> KeyHolder {
        KeyHolder { leases, holder: LeaseHolder { by, uid: 0, pid: 7, left_ms, client: String::new() } }
    }

    #[test]
    fn a_key_names_its_holder_and_end() {
        let plain = |key: &KeyInfo| anstream::adapter::strip_str(&state(key)).to_string();
        assert_eq!(plain(&key(false, false, None, vec![])), "off");
        assert_eq!(plain(&key(true, true, None, vec![])), "on, kept");
        assert_eq!(plain(&key(true, false, None, vec![held(HeldBy::Client, 1, None)])), "on");
        let starts_on = |on| KeyInfo { initial: true, ..key(on, on, None, vec![]) };
        assert_eq!(plain(&starts_on(true)), "on (starts on)");
        assert_eq!(plain(&starts_on(false)), "off (starts on)");
        let lingers = key(true, false, Some(3_200), vec![held(HeldBy::Nobody, 1, Some(3_200))]);
        assert_eq!(plain(&lingers), "on, off in 3.20 s");
        assert_eq!(holders(&lingers.held), "the dwell time for 3.20 s more");
        let both = [held(HeldBy::Client, 2, None), held(HeldBy::Service, 1, None)];
        assert_eq!(
            holders(&both),
            "process 7 of user 0 (2 times), the service itself (its code or a trigger)"
        );
    }

    #[test]
    fn sites_that_do_not_follow_are_told() {
        let state = |on, sites_stale, sites_foreign| {
            let key = KeyInfo { sites_stale, sites_foreign, ..key(on, on, None, vec![]) };
            anstream::adapter::strip_str(&state(&key)).to_string()
        };
        assert_eq!(state(true, 3, 0), "on, kept, 0 of 3 sites act: off and on again");
        assert_eq!(state(false, 1, 0), "off, 1 of 3 sites act: on and off again");
        assert_eq!(state(true, 0, 1), "on, kept, 1 of 3 sites unknown: foreign code (a breakpoint?)");
        assert_eq!(
            state(true, 1, 1),
            "on, kept, 1 of 3 sites act: off and on again, 1 of 3 sites unknown: foreign code (a breakpoint?)"
        );
    }

    #[test]
    fn holders_have_a_column_only_when_present() {
        let head = |keys: &[KeyInfo]| table(keys).render(HEAD).lines().next().unwrap().to_owned();
        assert!(!head(&[key(true, true, None, vec![])]).contains("HELD BY"));
        let held = key(true, false, None, vec![held(HeldBy::Client, 1, None)]);
        assert!(head(&[key(false, false, None, vec![]), held]).contains("HELD BY"));
    }
}
