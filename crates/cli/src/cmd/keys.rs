//! `dormouse keys`: what can be switched, and what is on.

use dormouse::wire::{KeyInfo, Keys, Op};

use crate::args::help;
use crate::client::Client;
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
    let mut table = Table::new([
        ("NAME", Align::Left),
        ("STATE", Align::Left),
        ("KIND", Align::Left),
        ("SITES", Align::Right),
        ("FIELDS", Align::Left),
        ("WHERE", Align::Left),
    ]);
    for key in keys {
        let fields = key.fields.iter().map(|name| clean(name)).collect::<Vec<_>>().join(" ");
        table.row([
            clean(&key.name),
            state(key),
            clean(&key.kind),
            key.sites.to_string(),
            fields,
            format!("{}:{}", clean(&key.file), key.line),
        ]);
    }
    table
}

/// `on` or `off`, and what keeps it so where that is not the baseline alone.
fn state(key: &KeyInfo) -> String {
    match (key.on, key.leases) {
        (false, _) => "off".into(),
        (true, 0) => format!("{GOOD}on{GOOD:#}"),
        (true, leases) => {
            let kept = if key.baseline { "kept, " } else { "" };
            format!("{GOOD}on{GOOD:#} ({kept}{})", crate::text::count(leases.into(), "lease"))
        }
    }
}
