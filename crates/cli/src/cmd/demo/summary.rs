//! The result of a demo: requests beside the CPU time that they took.

use std::borrow::Cow;

use dormouse_protocol::{BatchStat, Hello, Stat};
use dormouse_teaparty::load::{Report, RouteReport};
use serde::Serialize;

use crate::duration::short;
use crate::exit::{Exit, Outcome};
use crate::output::{BAD, Context, HEAD};
use crate::render::table::Table;
use crate::text::{clean, count};

/// The work of switching all keys.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(super) struct Batches {
    pub(super) on: BatchStat,
    pub(super) off: BatchStat,
    /// Records that were printed in between.
    #[serde(rename = "records_printed")]
    pub(super) records: u64,
}

/// Everything at once.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(in crate::cmd) struct Summary {
    #[serde(rename = "type")]
    kind: &'static str,
    pid: u32,
    url: String,
    keys: usize,
    sites: usize,
    #[serde(flatten)]
    batches: Option<Batches>,
    served: u64,
    served_per_s: f64,
    errors: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    first_error: Option<String>,
    process_cpu_ns: u64,
    unattributed_cpu_ns: u64,
    records_dropped: u64,
    routes: Vec<Route>,
    others: Vec<Other>,
}

/// One route: what the clients measured, and its cost in the service.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Route {
    #[serde(rename = "route")]
    name: Cow<'static, str>,
    served: u64,
    errors: u64,
    p50_us: u32,
    p99_us: u32,
    cpu_ns: u64,
    cpu_ns_per_request: u64,
}

/// A group that is no route.
#[derive(Debug, Serialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
struct Other {
    group: String,
    cpu_ns: u64,
}

impl Summary {
    /// Brings the service's account and the clients' together.
    pub(super) fn of(
        house: (u32, String),
        hello: &Hello,
        batches: Option<Batches>,
        stat: Stat,
        load: Report,
    ) -> Summary {
        let mut groups = stat.groups;
        let route = |route: RouteReport| {
            let of_route = groups.iter().position(|group| group.name == route.route);
            let cpu_ns = of_route.map_or(0, |at| groups.swap_remove(at).cpu_ns);
            Route {
                name: route.route,
                served: route.served,
                errors: route.errors,
                p50_us: route.latency.p50_us,
                p99_us: route.latency.p99_us,
                cpu_ns,
                cpu_ns_per_request: cpu_ns.checked_div(route.served + route.errors).unwrap_or(0),
            }
        };
        let routes = load.routes.into_iter().map(route).collect();
        groups.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then_with(|| a.name.cmp(&b.name)));
        let others =
            groups.into_iter().map(|group| Other { group: group.name.into_owned(), cpu_ns: group.cpu_ns });
        Summary {
            kind: "summary",
            pid: house.0,
            url: house.1,
            keys: hello.keys,
            sites: hello.sites,
            batches,
            served: load.served,
            served_per_s: load.served_per_s,
            errors: load.errors,
            first_error: load.first_error,
            process_cpu_ns: stat.process_cpu_ns,
            unattributed_cpu_ns: stat.unattributed_cpu_ns,
            records_dropped: stat.dropped,
            routes,
            others: others.collect(),
        }
    }

    /// A demo in which the service failed its clients is no success.
    pub(super) fn exit(&self) -> Exit {
        if self.errors == 0 && self.served > 0 { Exit::Ok } else { Exit::Failed }
    }

    pub(super) fn print(&self, context: &mut Context) -> Outcome<()> {
        if context.json {
            return context.document(self);
        }
        let errors = match self.errors {
            0 => "no error".to_owned(),
            n => format!("{BAD}{}{BAD:#}", count(n, "error")),
        };
        context.line(format_args!(
            "{HEAD}{} served ({:.0}/s), {errors}{HEAD:#}",
            count(self.served, "request"),
            self.served_per_s
        ))?;
        if let Some(error) = &self.first_error {
            context.line(format_args!("  the first: {}", clean(error)))?;
        }
        context.line(format_args!(
            "{}, {}",
            count(self.keys as u64, "key"),
            count(self.sites as u64, "site")
        ))?;
        if let Some(Batches { on, off, .. }) = &self.batches {
            for (what, batch) in [("on", on), ("off", off)] {
                context.line(format_args!(
                    "all {what}: {} in {}, {}, {}",
                    count(batch.sites as u64, "site"),
                    short(batch.elapsed_ns),
                    count(batch.pages as u64, "page"),
                    count(batch.barriers as u64, "barrier")
                ))?;
            }
        }
        context.line("")?;
        context.text(self.table().render(HEAD))
    }

    fn table(&self) -> Table {
        let heads = ["CPU TIME OF", ">CPU s", ">SHARE %", ">SERVED", ">CPU us/REQUEST", ">p50 us", ">p99 us"];
        let mut table = Table::new(heads);
        let cpu = |ns: u64| {
            let share = ns as f64 / self.process_cpu_ns.max(1) as f64 * 100.0;
            [format!("{:.3}", ns as f64 / 1e9), format!("{share:.1}")]
        };
        for route in &self.routes {
            let [seconds, share] = cpu(route.cpu_ns);
            table.row([
                clean(&route.name),
                seconds,
                share,
                route.served.to_string(),
                (route.cpu_ns_per_request / 1000).to_string(),
                route.p50_us.to_string(),
                route.p99_us.to_string(),
            ]);
        }
        let others = self.others.iter().map(|other| (clean(&other.group), other.cpu_ns));
        let sums =
            [("(unattributed)".into(), self.unattributed_cpu_ns), ("(process)".into(), self.process_cpu_ns)];
        for (name, ns) in others.chain(sums) {
            let [seconds, share] = cpu(ns);
            table.row([name, seconds, share]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dormouse_protocol::GroupRow;

    fn group(name: &str, cpu_ns: u64, finished: u64) -> GroupRow {
        GroupRow {
            id: 1,
            name: name.to_owned().into(),
            cpu_ns,
            entries: 0,
            alive: 0,
            started: finished,
            finished,
            requests: finished,
            outcomes: None,
            polls: 0,
            counts: Vec::new(),
            waits: None,
            objectives: Vec::new(),
            blocking: None,
            outliving: None,
            long_lived: None,
        }
    }

    fn summary(errors: u64, served: u64) -> Summary {
        let hello: Hello = serde_json::from_value(serde_json::json!({
            "protocol": 1, "version": "1", "pid": 7, "start_ticks": 1, "name": "tea", "exe": "/tea", "uid": 0,
            "keys": 9, "sites": 12,
        }))
        .unwrap();
        let load: Report = serde_json::from_value(serde_json::json!({
            "served": served, "errors": errors, "first_error": null, "served_per_s": 50.0,
            "elapsed_ns": 1, "asked_per_s": 50, "latency": {"p50_us": 1, "p90_us": 1, "p99_us": 1, "max_us": 1},
            "routes": [{"route": "GET /menu", "served": served, "errors": errors,
                        "latency": {"p50_us": 100, "p90_us": 1, "p99_us": 900, "max_us": 1}}],
        }))
        .unwrap();
        let stat = Stat {
            process_cpu_ns: 4_000_000_000,
            unattributed_cpu_ns: 500_000_000,
            groups: vec![group("load", 1_000_000_000, 0), group("GET /menu", 2_000_000_000, 1_000)],
            ..Stat::default()
        };
        Summary::of((7, "http://x".into()), &hello, None, stat, load)
    }

    #[test]
    fn requests_stand_beside_what_they_cost() {
        let text = anstream::adapter::strip_str(&summary(0, 1_000).table().render(HEAD)).to_string();
        assert_eq!(
            text,
            "\
CPU TIME OF     CPU s  SHARE %  SERVED  CPU us/REQUEST  p50 us  p99 us
GET /menu       2.000     50.0    1000            2000     100     900
load            1.000     25.0
(unattributed)  0.500     12.5
(process)       4.000    100.0
"
        );
    }

    #[test]
    fn failed_requests_are_no_success() {
        assert_eq!(summary(0, 10).exit(), Exit::Ok);
        assert_eq!(summary(1, 10).exit(), Exit::Failed);
        assert_eq!(summary(0, 0).exit(), Exit::Failed);
    }
}
