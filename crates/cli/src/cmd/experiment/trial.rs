//! One experiment: turns and looks, until the time is over, the answer is clear or the user ends
//! it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dormouse_protocol::{Hello, Stat, StatRequest, WaitsRequest};

use super::judge::{ERROR, Judge};
use super::metric::{Metric, Turn, Use};
use super::pairs::{Contrast, Pair};
use super::plan::{Draw, Plan};
use super::switch::Switch;
use crate::client::{Client, waits};
use crate::exit::{Exit, Failure, Outcome};
use crate::sample::events::refused;
use crate::signals::Signals;

/// Looks at the length of requests before the first pair, and the time that they take: a part of
/// the experiment's, or this.
const BEFORE: u32 = 20;
const BEFORE_PART: u32 = 60;
const BEFORE_MOST: Duration = Duration::from_secs(1);
/// A route is rare if its share of all requests is less than one in this many.
const RARE: u64 = 50;

/// How an experiment came to its end.
#[derive(Debug)]
pub(super) enum End {
    /// The time was over.
    Time,
    /// More time would have improved the result little.
    Clear,
    /// The user ended it.
    Asked,
    /// An error ended it; the figures until then are complete.
    Broken(Failure),
}

/// An experiment, with its results so far.
pub(super) struct Trial {
    client: Client,
    /// The number of the service's first thread, as the service has it.
    main: u32,
    signals: Signals,
    pub(super) metric: Metric,
    /// The unit of the metric: `ns`, `bytes`, or `1`.
    pub(super) unit: String,
    pub(super) switch: Switch,
    pub(super) pairs: Vec<Pair>,
    pub(super) judge: Judge,
    /// Names of groups.
    pub(super) names: HashMap<u32, String>,
    pub(super) elapsed: Duration,
}

impl Trial {
    /// Prepares it: what cannot be measured or switched is refused before anything changes.
    pub(super) fn prepare(
        (mut client, hello): (Client, Hello),
        signals: Signals,
        metric: Metric,
        glob: &str,
    ) -> Outcome<Trial> {
        let counted = metric.to_request().ask(&mut client)?;
        if let Some(event) = counted.refused.first() {
            let message = format!("{} cannot be counted: {}", event.name, refused(event));
            return Err(
                Failure::new(Exit::Unsupported, message).hint("dormouse list TARGET lists those that can")
            );
        }
        let unit = match &metric {
            Metric::Event(name) => counted.counted.iter().find(|event| event.name == *name),
            _ => None,
        };
        let unit = unit.map_or_else(|| "ns".to_owned(), |event| event.unit.clone());
        if metric == Metric::Latency {
            waits::begin(&mut client, WaitsRequest::default())?;
        }
        let switch = Switch::take(&mut client, &hello, glob)?;
        Ok(Trial {
            client,
            main: hello.pid,
            signals,
            metric,
            unit,
            switch,
            pairs: Vec::new(),
            judge: Judge::new(ERROR),
            names: HashMap::new(),
            elapsed: Duration::ZERO,
        })
    }

    pub(super) fn pid(&self) -> u32 {
        self.client.pid
    }

    /// The service, for messages.
    pub(super) fn who(&self) -> &str {
        &self.client.who
    }

    /// Runs pairs for `length`, and calls `watch` after each. At the end the keys are as they were.
    pub(super) fn run(&mut self, length: Duration, watch: impl FnMut(&Trial)) -> End {
        let begun = Instant::now();
        let end = self.course(begun, length, watch).unwrap_or_else(End::Broken);
        self.elapsed = begun.elapsed();
        let end = match end {
            End::Broken(_) => end,
            end => self.switch.end(&mut self.client).map_or_else(End::Broken, |()| end),
        };
        // From here on nothing is held, however long the report takes.
        self.client.close();
        if matches!(end, End::Broken(_)) {
            // The trouble may have been there before it was seen.
            self.pairs.pop();
        }
        // A clear answer is that of the look before.
        if !matches!(end, End::Clear) {
            self.look(self.elapsed.div_duration_f64(length), true);
        }
        end
    }

    fn course(&mut self, begun: Instant, length: Duration, mut watch: impl FnMut(&Trial)) -> Outcome<End> {
        let before = (length / BEFORE_PART).min(BEFORE_MOST);
        let Some(request) = self.request(before)? else { return Ok(End::Asked) };
        let mut plan = Plan::new(length, request);
        loop {
            if !self.pair(plan.draw())? {
                return Ok(End::Asked);
            }
            self.elapsed = begun.elapsed();
            if self.elapsed >= length {
                return Ok(End::Time);
            }
            if self.look(self.elapsed.div_duration_f64(length), false) {
                return Ok(End::Clear);
            }
            watch(self);
        }
    }

    fn look(&mut self, t: f64, is_last: bool) -> bool {
        let Trial { judge, pairs, metric, .. } = self;
        judge.look(t, is_last, || Contrast::of(pairs, *metric == Metric::Latency))
    }

    /// The length of a request, from a time before anything is switched; `None` if the person wants
    /// no more.
    fn request(&mut self, length: Duration) -> Outcome<Option<Duration>> {
        let mut groups: HashMap<u32, Use> = HashMap::new();
        let mut before = self.read()?;
        let begun_ns = before.mono_ns;
        for _ in 0..BEFORE {
            if self.signals.came_before(Instant::now() + length / BEFORE)? {
                return Ok(None);
            }
            let now = self.read()?;
            for (id, used) in self.metric.between(&before, &now, self.main).groups {
                groups.entry(id).or_default().add(&used);
            }
            before = now;
        }
        // Little's law: the number of tasks alive equals the number that end during the life of
        // one. Routes with few requests are left out.
        let each = before.mono_ns.saturating_sub(begun_ns) as f64 / f64::from(BEFORE);
        let all: u64 = groups.values().map(|used| used.requests).sum();
        let lasting = groups.values().filter(|used| used.requests > all / RARE);
        let lasting = lasting.map(|used| each * used.alive as f64 / used.requests as f64);
        Ok(Some(Duration::from_nanos(lasting.fold(0.0, f64::max) as u64)))
    }

    /// A reading that has the measure: without it every change would be shown as none.
    fn read(&mut self) -> Outcome<Stat> {
        let stat: Stat = self.client.call(StatRequest::default())?;
        match self.metric.refusal(&stat) {
            Some(why) => Err(Failure::new(Exit::Unsupported, why)),
            None => Ok(stat),
        }
    }

    /// Both turns of a pair; false if the person wants no more.
    fn pair(&mut self, draw: Draw) -> Outcome<bool> {
        let mut turns = [Turn::default(), Turn::default()];
        let mut is_whole = true;
        for is_on in [draw.on_first, !draw.on_first] {
            self.switch.set(&mut self.client, is_on)?;
            if self.signals.came_before(Instant::now() + draw.settling)? {
                return Ok(false);
            }
            let before = self.read()?;
            if self.signals.came_before(Instant::now() + draw.length)? {
                return Ok(false);
            }
            let now = self.read()?;
            // Somebody has switched a key in between, perhaps one of these, or nothing was counted.
            let is_refused = self.metric.refusal(&now.since(&before)).is_some();
            is_whole &= before.keys_on == now.keys_on && !is_refused;
            turns[usize::from(is_on)] = self.metric.between(&before, &now, self.main);
            self.names.extend(now.groups.into_iter().map(|group| (group.id, group.name.into_owned())));
        }
        let [off, on] = turns;
        self.pairs.extend(is_whole.then_some(Pair { off, on }));
        Ok(true)
    }
}
