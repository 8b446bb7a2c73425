//! The origin's figures beside ours.

use crate::report::{Row, find};
use crate::table::{Table, value};

/// What the machine does, and what the names of its rows end in.
const MACHINES: [(&str, &str); 2] = [("", ""), (", under a compile", "/busy")];

/// The origin's table, and ours in its columns.
pub(super) fn table(rows: &[Row]) -> Table {
    let median = |name: String| find(rows, &name).median;
    let mut table = Table::new(
        Some(
            "Origin: jump labels updated in batches, Linux 2019, 24-processor Xeon 2.27 GHz, kernel text, \
             int3, 56 sites, under a\ncompile with two jobs a processor; means. Here: this process's text, 56 sites; \
             this run's medians.",
        ),
        &["", "one by one", "batched", "ratio"],
    );
    let mut line = |label: String, unit: &str, [single, batch]: [Option<f64>; 2], upwards: bool| {
        let cell = |number: Option<f64>| match number {
            Some(_) => format!("{} {unit}", value(number)).trim_end().to_owned(),
            None => "-".to_owned(),
        };
        let ratio = match (single, batch) {
            (Some(single), Some(batch)) if upwards && single > 0.0 => format!("{:.2}x", batch / single),
            (Some(single), Some(batch)) if batch > 0.0 => format!("{:.1}x", single / batch),
            _ => "-".to_owned(),
        };
        table.row([label, cell(single), cell(batch), ratio]);
    };
    let here = |kind: &str, protocol: &str, suffix: &str| {
        ["one-by-one", "batch"].map(|way| median(format!("{kind}/{way}-{protocol}{suffix}")))
    };

    line("origin, update".to_owned(), "ms", [Some(57.0), Some(1.4)], false);
    for protocol in ["int3", "flip"] {
        for (machine, suffix) in MACHINES {
            let update = here("update", protocol, suffix);
            line(format!("here, update by {protocol}{machine}"), "us", update, false);
        }
    }
    line("origin, IPIs".to_owned(), "", [Some(168.0), Some(3.0)], false);
    for protocol in ["int3", "flip"] {
        let [cal, tlb] = ["/cal", "/tlb"].map(|kind| here("ipis", &format!("{protocol}{kind}"), ""));
        // What remains of the calls without the flushes of page permissions is what the origin counts.
        let barriers = [0, 1].map(|way| cal[way].zip(tlb[way]).map(|(cal, tlb)| cal - tlb));
        line(format!("here, IPIs for barriers by {protocol}"), "", barriers, false);
        line(format!("here, IPIs for page permissions by {protocol}"), "", tlb, false);
    }
    line("origin, int3 handler, table of 1 and 56".to_owned(), "ns", [Some(45.0), Some(180.0)], true);
    for (what, kind) in [("handler's search", "trap-search"), ("trap, signal included", "trap")] {
        for (machine, suffix) in MACHINES {
            let traps = ["1", "56"].map(|size| median(format!("{kind}/{size}{suffix}")));
            line(format!("here, {what}{machine}"), "ns", traps, true);
        }
    }
    for (machine, suffix) in MACHINES {
        line(format!("here, hits taken an update{machine}"), "", here("traps", "int3", suffix), false);
    }
    table.remark("origin, hits taken", "10 % fewer when batched");
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::Spec;

    #[test]
    fn the_table_has_the_origins_figures_beside_ours() {
        let row = |name: &str, number: f64| Row::new(&Spec::new(name, ""), vec![number]);
        let rows = [
            row("update/one-by-one-int3", 2000.0),
            row("update/batch-int3", 40.0),
            row("trap/1", 1500.0),
            row("trap/56", 1650.0),
        ];
        let mut out = Vec::new();
        table(&rows).write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for figure in
            ["57.00 ms", "1.400 ms", "40.7x", "168.0", "180.0 ns", "4.00x", "2000 us", "50.0x", "1.10x"]
        {
            assert!(text.contains(figure), "{figure} in\n{text}");
        }
    }
}
