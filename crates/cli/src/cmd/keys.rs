//! `dormouse keys`: what can be switched, and what is on.

use dormouse::wire::{KeyHolder, KeyInfo, Keys, Op};

use super::off::who;
use crate::args::help;
use crate::client::Client;
use crate::duration::short;
use crate::exit::{Exit, Outcome};
use crate::output::{Context, GOOD, HEAD, say};
use crate::target::Target;
use crate::text::{Align, Table, clean};

/// List the keys of a process, and which are on
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(help = help::TARGET)]
    target: Target,
    #[arg(help = help::GLOB)]
    glob: Option<String>,
}

pub(crate) fn run(args: &Args, context: &mut Context) -> Outcome {
    let (mut client, _) = Client::open(&args.target, context.patience)?;
    let keys: Keys = client.call(Op::Keys { glob: args.glob.clone() })?;
    if context.json {
        context.document(&keys)?;
    } else if !keys.keys.is_empty() {
        context.text(table(&keys.keys).render(HEAD))?;
    }
    if keys.keys.is_empty() {
        say(format_args!("{} has no keys", client.who()));
        return Ok(Exit::Failed);
    }
    Ok(Exit::Ok)
}

fn table(keys: &[KeyInfo]) -> Table {
    // Only where somebody does, because it is wide.
    let held = keys.iter().any(|key| !key.held.is_empty());
    let mut heads = vec![("NAME", Align::Left), ("STATE", Align::Left)];
    heads.extend(held.then_some(("HELD BY", Align::Left)));
    heads.extend([
        ("KIND", Align::Left),
        ("SITES", Align::Right),
        ("FIELDS", Align::Left),
        ("WHERE", Align::Left),
    ]);
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

/// `on` or `off`, and what is to become of that.
fn state(key: &KeyInfo) -> String {
    match (key.on, key.off_in_ms) {
        (false, _) => "off".into(),
        (true, Some(0)) => format!("{GOOD}on{GOOD:#}, off is due"),
        (true, Some(ms)) => format!("{GOOD}on{GOOD:#}, off in {}", short(ms.saturating_mul(1_000_000))),
        (true, None) if key.baseline => format!("{GOOD}on{GOOD:#}, kept"),
        (true, None) => format!("{GOOD}on{GOOD:#}"),
    }
}

fn holders(held: &[KeyHolder]) -> String {
    let each = held.iter().map(|held| match held.leases {
        1 => who(&held.holder),
        n => format!("{} ({n} times)", who(&held.holder)),
    });
    each.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse::wire::{HeldBy, Holder};

    fn key(on: bool, baseline: bool, off_in_ms: Option<u64>, held: Vec<KeyHolder>) -> KeyInfo {
        KeyInfo {
            name: "a.key".into(),
            kind: "key".into(),
            on,
            baseline,
            leases: held.iter().map(|h| h.leases).sum(),
            held,
            off_in_ms,
            sites: 1,
            file: "a.rs".into(),
            line: 1,
            object: String::new(),
            fields: Vec::new(),
        }
    }

    fn held(by: HeldBy, leases: u32, left_ms: Option<u64>) -> KeyHolder {
        KeyHolder { leases, holder: Holder { by, uid: 0, pid: 7, left_ms } }
    }

    #[test]
    fn a_key_says_what_keeps_it_on_and_until_when() {
        let plain = |key: &KeyInfo| anstream::adapter::strip_str(&state(key)).to_string();
        assert_eq!(plain(&key(false, false, None, vec![])), "off");
        assert_eq!(plain(&key(true, true, None, vec![])), "on, kept");
        assert_eq!(plain(&key(true, false, None, vec![held(HeldBy::Client, 1, None)])), "on");
        let lingers = key(true, false, Some(3_200), vec![held(HeldBy::Nobody, 1, Some(3_200))]);
        assert_eq!(plain(&lingers), "on, off in 3.20 s");
        assert_eq!(holders(&lingers.held), "the dwell time for 3.20 s more");
        let both = [held(HeldBy::Client, 2, None), held(HeldBy::Service, 1, None)];
        assert_eq!(holders(&both), "process 7 of user 0 (2 times), the service itself");
    }

    #[test]
    fn the_holders_have_a_column_where_there_are_any() {
        let head = |keys: &[KeyInfo]| table(keys).render(HEAD).lines().next().unwrap().to_owned();
        assert!(!head(&[key(true, true, None, vec![])]).contains("HELD BY"));
        let held = key(true, false, None, vec![held(HeldBy::Client, 1, None)]);
        assert!(head(&[key(false, false, None, vec![]), held]).contains("HELD BY"));
    }
}
