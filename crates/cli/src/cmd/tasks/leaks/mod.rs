//! `dormouse tasks --leaks`: tasks that nothing can wake any more, which is proved, and spawn sites
//! whose number of tasks keeps growing, which are suspected.
//!
//! A site grows by the service's own readings. Its tasks are read here: a site is suspected only if
//! tasks that were spawned in the time of the readings are still there in such a number. So a
//! service that gets more and more requests, which all end, is not.

pub(crate) mod document;
#[cfg(feature = "serve")]
pub(crate) mod encoded;
mod text;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use dormouse_profile::own::path_in_package;
use dormouse_protocol::{SiteGrowth, SpawnSiteRow, SpawnSites, SpawnSitesRequest, TaskRow};

use super::choice::Choice;
use super::width;
use crate::client::Client;
use crate::client::waits::await_times;
use crate::exit::{Exit, Outcome};
use crate::output::Context;
use crate::signals::Signals;
use crate::target::Target;
use crate::text::clean;
use crate::waiting::list::{self, Taken, TaskList};
use crate::waiting::place::PlaceNames;
use crate::waiting::stacks::UNLEARNED_PLACE;

use document::LeaksDocument;

/// For how long times are to have been taken before anything is said about growth.
const LENGTH: Duration = Duration::from_secs(10);
/// The service reads them when it is asked, once a second at most.
const STEP: Duration = Duration::from_secs(1);

/// A line that spawns.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SpawnLine {
    pub(super) file: String,
    pub(super) line: u32,
    pub(super) column: u32,
}

/// Tasks that were spawned at one line.
#[derive(Debug)]
pub(super) struct Leak<'a> {
    /// `None` if there was no room for the site.
    pub(super) line: Option<SpawnLine>,
    /// The tasks, the oldest first.
    pub(super) tasks: Vec<&'a TaskRow>,
    /// How their number grows, unless they are proved to be lost.
    pub(super) growth: Option<SiteGrowth>,
}

/// The findings.
#[derive(Debug)]
pub(super) struct Leaks<'a> {
    pub(super) pid: u32,
    pub(super) who: String,
    pub(super) taken: Taken,
    pub(super) watched_ns: u64,
    pub(super) judged_ns: Option<u64>,
    pub(super) proven: Vec<Leak<'a>>,
    pub(super) suspected: Vec<Leak<'a>>,
    pub(super) groups: BTreeMap<u32, &'a str>,
    pub(super) places: PlaceNames,
}

impl SpawnLine {
    fn of(row: &SpawnSiteRow) -> Self {
        Self { file: row.file.clone(), line: row.line, column: row.column }
    }

    /// `src/orders.rs:41`.
    pub(super) fn short(&self) -> String {
        format!("{}:{}", clean(path_in_package(&self.file)), self.line)
    }
}

impl<'a> Leak<'a> {
    fn new(line: Option<SpawnLine>, mut tasks: Vec<&'a TaskRow>, growth: Option<SiteGrowth>) -> Self {
        tasks.sort_by_key(|task| (Reverse(task.age_ns.unwrap_or(u64::MAX)), task.task));
        Self { line, tasks, growth }
    }

    /// The greatest known age.
    pub(super) fn oldest_ns(&self) -> Option<u64> {
        self.tasks.iter().filter_map(|task| task.age_ns).max()
    }

    /// The place of most of its tasks, and how many other places there are. A stack that is not
    /// known counts only if no other is.
    pub(super) fn place(&self) -> Option<(u32, usize)> {
        let first = |task: &TaskRow| task.places.first().copied();
        self.most(|task| first(task).filter(|place| *place > UNLEARNED_PLACE)).or_else(|| self.most(first))
    }

    /// The value that most of its tasks have, and how many other values there are.
    pub(super) fn most<K: Copy + Ord>(&self, of: impl Fn(&TaskRow) -> Option<K>) -> Option<(K, usize)> {
        let mut counts: BTreeMap<K, usize> = BTreeMap::new();
        for key in self.tasks.iter().filter_map(|task| of(task)) {
            *counts.entry(key).or_default() += 1;
        }
        let (key, _) = counts.iter().max_by_key(|(key, count)| (**count, Reverse(**key)))?;
        Some((*key, counts.len() - 1))
    }
}

/// Whether tasks that were spawned while the number grew are still there, in such a number. Those
/// of the last third may be about to end.
fn are_left(tasks: &[&TaskRow], growth: SiteGrowth) -> bool {
    let (least, most) = (growth.ns / 3, growth.ns);
    let is_left = |task: &&&TaskRow| task.age_ns.is_some_and(|age| (least..=most).contains(&age));
    tasks.iter().filter(is_left).count() as u64 >= growth.tasks.div_ceil(3)
}

impl<'a> Leaks<'a> {
    fn new(
        (pid, who): (u32, &str),
        taken: Taken,
        list: &'a TaskList,
        sites: &SpawnSites,
        choice: &Choice,
    ) -> Self {
        let groups: BTreeMap<u32, &str> =
            list.groups.iter().map(|(&id, group)| (id, group.name.as_str())).collect();
        let is_wanted = |task: &&TaskRow| {
            choice.has(task) && choice.has_group(groups.get(&task.group).copied().unwrap_or_default())
        };
        let lines: HashMap<u32, SpawnLine> =
            sites.sites.iter().map(|row| (row.site, SpawnLine::of(row))).collect();
        let by_line = |is_meant: fn(&TaskRow) -> bool| {
            let mut tasks: BTreeMap<Option<SpawnLine>, Vec<&TaskRow>> = BTreeMap::new();
            for task in list.tasks.iter().filter(|task| is_meant(task)) {
                tasks.entry(lines.get(&task.site).cloned()).or_default().push(task);
            }
            tasks
        };
        let mut proven = by_line(|task| task.unwakeable);
        proven.retain(|_, tasks| {
            tasks.retain(is_wanted);
            !tasks.is_empty()
        });
        // Those that are proved are not suspected, too.
        let mut rest = by_line(|task| !task.unwakeable);
        // A line of a generic function may be several sites.
        let mut grown: BTreeMap<SpawnLine, SiteGrowth> = BTreeMap::new();
        for (line, growth) in sites.sites.iter().filter_map(|row| Some((SpawnLine::of(row), row.growth?))) {
            let known = grown.entry(line).or_insert(SiteGrowth { tasks: 0, ns: growth.ns });
            known.tasks = known.tasks.saturating_add(growth.tasks);
            known.ns = known.ns.max(growth.ns);
        }
        let suspect = |(line, growth): (SpawnLine, SiteGrowth)| {
            let line = Some(line);
            let mut tasks = rest.remove(&line)?;
            // The growth is that of all tasks of the line.
            let is_suspected = are_left(&tasks, growth);
            tasks.retain(is_wanted);
            (is_suspected && !tasks.is_empty()).then(|| Leak::new(line, tasks, Some(growth)))
        };
        let mut suspected: Vec<_> = grown.into_iter().filter_map(suspect).collect();
        suspected.sort_by_key(|leak| Reverse(leak.growth.map(|growth| growth.tasks)));
        let mut proven: Vec<_> =
            proven.into_iter().map(|(line, tasks)| Leak::new(line, tasks, None)).collect();
        proven.sort_by_key(|leak| Reverse(leak.tasks.len()));
        Self {
            pid,
            who: who.to_owned(),
            taken,
            watched_ns: sites.watched_ns.unwrap_or(0),
            judged_ns: sites.judged_ns,
            proven,
            suspected,
            groups,
            places: PlaceNames::default(),
        }
    }

    /// The places where tasks of suspected sites wait.
    fn wanted_places(&self) -> BTreeSet<u32> {
        self.suspected.iter().flat_map(|leak| &leak.tasks).flat_map(|task| &task.places).copied().collect()
    }

    pub(super) fn group(&self, number: u32) -> &'a str {
        self.groups.get(&number).copied().unwrap_or_default()
    }
}

/// Lists them.
pub(super) fn run(
    length: Option<Duration>,
    choice: &Choice,
    target: &Target,
    context: &mut Context,
) -> Outcome {
    with_leaks(length, choice, target, context, |leaks, context| {
        if context.json {
            context.document(&LeaksDocument::new(leaks))?;
        } else {
            context.text(text::report(leaks, width()))?;
        }
        Ok(if leaks.proven.is_empty() && leaks.suspected.is_empty() { Exit::Failed } else { Exit::Ok })
    })
}

/// Watches the service for `length`, or for as long as it takes until growth can be judged, and
/// passes on what was found.
fn with_leaks(
    length: Option<Duration>,
    choice: &Choice,
    target: &Target,
    context: &mut Context,
    then: impl FnOnce(&Leaks<'_>, &mut Context) -> Outcome,
) -> Outcome {
    let (mut client, hello) = Client::open(target, context.patience)?;
    let signals = context.cancel()?;
    client.demand::<SpawnSitesRequest>()?;
    list::begin(&mut client, &hello, false)?;
    let sites = watch(&mut client, length, &signals)?;
    let taken = list::taken(&mut client)?;
    let list = list::list(&mut client)?;
    let mut leaks = Leaks::new((client.pid, &client.who), taken, &list, &sites, choice);
    let wanted = leaks.wanted_places();
    leaks.places = PlaceNames::of(&mut client, &wanted, context)?;
    then(&leaks, context)
}

/// Has the service look once a second; the last answer.
fn watch(client: &mut Client, length: Option<Duration>, signals: &Signals) -> Outcome<SpawnSites> {
    let begun = Instant::now();
    loop {
        let sites: SpawnSites = client.call(SpawnSitesRequest {})?;
        let left = match length {
            Some(length) => length.saturating_sub(begun.elapsed()),
            None if sites.judged_ns.is_some() => Duration::ZERO,
            None => LENGTH.saturating_sub(begun.elapsed()),
        };
        if left.is_zero() || await_times(client, STEP.min(left), signals)? {
            return Ok(sites);
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::cmd::tasks::Request;
    use crate::waiting::place::tests::frame;
    use crate::waiting::tests::{list, task};
    use dormouse_protocol::WireTaskState;

    const SECOND_NS: u64 = 1_000_000_000;

    fn site(number: u32, line: u32, grown: Option<u64>) -> SpawnSiteRow {
        let growth = grown.map(|tasks| SiteGrowth { tasks, ns: 9 * SECOND_NS });
        SpawnSiteRow { site: number, file: "src/tea.rs".into(), line, column: 5, growth }
    }

    /// A task of a site, with its age in seconds.
    fn aged(number: u64, site: u32, seconds: u64) -> TaskRow {
        let waits = task(number, 1, WireTaskState::Awaiting, seconds * SECOND_NS);
        TaskRow { site, age_ns: Some(seconds * SECOND_NS), places: vec![4], ..waits }
    }

    /// Has both kinds, from sites 1 (proved), 2 (leaks), 3 (its tasks end), 4 (stays as it is).
    pub(in super::super) fn leaks<T>(then: impl FnOnce(&Leaks<'_>) -> T) -> T {
        let lost = (1..3).map(|n| TaskRow { unwakeable: true, places: vec![], ..aged(n, 1, n) });
        let leaking = (0..9).map(|n| aged(10 + n, 2, n));
        let busy = (0..50).map(|n| aged(30 + n, 3, n % 2));
        let steady = (0..7).map(|n| aged(90 + n, 4, 3600));
        let list = list(lost.chain(leaking).chain(busy).chain(steady).collect());
        let sites =
            vec![site(1, 10, Some(9)), site(2, 20, Some(9)), site(3, 30, Some(40)), site(4, 40, None)];
        let sites = SpawnSites { watched_ns: Some(10 * SECOND_NS), judged_ns: Some(9 * SECOND_NS), sites };
        let taken = Taken { times_ns: 10 * SECOND_NS, places_ns: Some(10 * SECOND_NS) };
        let choice = Choice::new(&Request::default()).unwrap();
        let mut leaks = Leaks::new((7, "tea (process 7)"), taken, &list, &sites, &choice);
        leaks.places = PlaceNames([(4, vec![frame("shop::brew", "/a/brew.rs", 7)])].into());
        then(&leaks)
    }

    #[test]
    fn only_what_stays_is_suspected() {
        leaks(|leaks| {
            let lines = |of: &[Leak<'_>]| -> Vec<_> {
                of.iter().map(|leak| (leak.line.as_ref().unwrap().line, leak.tasks.len())).collect()
            };
            assert_eq!(lines(&leaks.proven), [(10, 2)]);
            assert_eq!(lines(&leaks.suspected), [(20, 9)], "30 has new tasks only, 10 is proved");
        });
    }

    #[test]
    fn both_lists_are_tables() {
        let text = leaks(|leaks| anstream::adapter::strip_str(&text::report(leaks, None)).to_string());
        insta::assert_snapshot!("leaks", text);
    }

    #[test]
    fn a_short_time_proves_no_growth() {
        leaks(|leaks| {
            let text = text::report(
                &Leaks {
                    judged_ns: None,
                    proven: vec![],
                    suspected: vec![],
                    places: PlaceNames::default(),
                    who: String::new(),
                    groups: BTreeMap::new(),
                    ..*leaks
                },
                None,
            );
            assert!(
                text.contains("growth is not known: numbers of tasks were compared for 10.0 s"),
                "{text}"
            );
        });
    }
}
