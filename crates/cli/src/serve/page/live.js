'use strict';
// A process, second by second. The server sends totals; a tick is all that has been added
// to them since the sample before. Ten minutes of ticks are kept, or fewer where groups are many:
// their number is bounded, and so is the number of figures in them.

const TICKS = 600;
const FIGURES = 600000;

// Durations in exponential buckets, [index, count] each, as OpenTelemetry defines them.
const HISTOGRAMS = ['requests', 'polls', 'delays', 'awaits'];

class Buckets {
  constructor() {
    this.counts = new Map();
    this.count = 0;
    this.zero = 0;
  }

  // Adds pairs of a tick: index, count, index, count …; index null is the bucket of zero.
  add(pairs, scale) {
    Object.assign(this, scale);
    for (let at = 0; at < pairs.length; at += 2) {
      const [index, count] = [pairs[at], pairs[at + 1]];
      if (index === null) this.zero += count;
      else this.counts.set(index, (this.counts.get(index) || 0) + count);
      this.count += count;
    }
  }

  // The duration below which a share of them stays, in ns: a bucket is even inside.
  quantile(part) {
    if (!this.count) return null;
    const wanted = part * this.count;
    let seen = this.zero;
    if (seen >= wanted) return Math.min((this.floor * wanted) / (this.zero || 1), this.most || Infinity);
    for (const index of [...this.counts.keys()].sort((a, b) => a - b)) {
      const count = this.counts.get(index);
      if (seen + count >= wanted) {
        const [low, high] = [bound(this, index), bound(this, index + 1)];
        return Math.min(low + ((high - low) * (wanted - seen)) / count, this.most || Infinity);
      }
      seen += count;
    }
    return this.most;
  }
}

// The lower bound of a bucket, in ns.
const bound = ({ scale, unit }, index) => unit * 2 ** (index / 2 ** scale);
const scaleOf = (row) => ({
  scale: row.scale,
  unit: row.unit_ns || 1,
  floor: row.zero_threshold_ns,
  most: row.max_ns,
});

// The pairs that were added from one histogram to the next; null if it has gone back.
function added(now, before) {
  const had = new Map(before ? before.buckets : []);
  const pairs = [];
  for (const [index, count] of now.buckets) {
    const by = count - (had.get(index) || 0);
    if (by < 0) return null;
    if (by) pairs.push(index, by);
  }
  const zero = now.zero_count - (before ? before.zero_count : 0);
  if (zero < 0) return null;
  if (zero) pairs.push(null, zero);
  return pairs;
}

// The work of a group between two rows; null if its counts have begun anew.
function step(now, before) {
  const did = {
    cpu: now.cpu_ns - before.cpu_ns,
    requests: now.requests - before.requests,
    polls: now.polls - before.polls,
  };
  if (did.cpu < 0 || did.requests < 0 || did.polls < 0) return null;
  if (!now.waits || !before.waits) return did;
  did.poll = now.waits.poll_ns - before.waits.poll_ns;
  did.runnable = now.waits.runnable_ns - before.waits.runnable_ns;
  did.awaiting = now.waits.await_ns - before.waits.await_ns;
  if (did.poll < 0 || did.runnable < 0 || did.awaiting < 0)
    return { ...did, poll: 0, runnable: 0, awaiting: 0 };
  for (const name of HISTOGRAMS) {
    const pairs = added(now.waits[name], before.waits[name]);
    if (pairs?.length) did['of_' + name] = pairs;
  }
  return did;
}

// What a group had before it was there: one that comes between two samples begins at zero.
const ABSENT = { cpu_ns: 0, requests: 0, polls: 0, waits: { poll_ns: 0, runnable_ns: 0, await_ns: 0 } };

const sizeOf = (did) => HISTOGRAMS.reduce((sum, name) => sum + (did['of_' + name]?.length || 0), 8);

class Live {
  constructor(pid, onchange) {
    Object.assign(this, { pid, onchange, tries: 0, dropped: 0, keysOn: 0 });
    this.groups = new Map();
    this.threads = new Map();
    this.ticks = [];
    this.size = 0;
    this.state = 'connecting';
    this.windows = new Map();
    this.connect();
  }

  get ended() {
    return this.state === 'ended';
  }

  set(state, why = '') {
    if (this.ended && state !== 'ended') return;
    Object.assign(this, { state, why });
    this.onchange();
  }

  async connect() {
    clearTimeout(this.timer);
    if (this.closed || this.ended || document.hidden) return;
    this.controller = new AbortController();
    const mine = this.controller;
    try {
      await events(processPath(this.pid, 'live'), { signal: mine.signal }, (kind, data) =>
        this.take(kind, data),
      );
      if (mine === this.controller && !this.ended)
        throw new Refused(0, 'unreachable', 'The server has ended the stream.');
    } catch (error) {
      if (mine !== this.controller || this.closed || error.name === 'AbortError') return;
      if (error.status === 404) return this.set('ended', error.message);
      const wait = backOff(this.tries++);
      this.retryAt = Date.now() + wait;
      this.set('lost', error instanceof Refused ? error.message : 'The connection was lost.');
      this.timer = setTimeout(() => this.connect(), wait);
    }
  }

  // A page that nobody sees asks for nothing. All figures are totals: what it has missed is in the
  // first tick afterwards.
  hide(hidden) {
    if (hidden) {
      this.controller?.abort();
      clearTimeout(this.timer);
    } else this.connect();
  }

  close() {
    this.closed = true;
    this.controller?.abort();
    clearTimeout(this.timer);
  }

  take(kind, data) {
    if (kind === 'end') {
      // A stream that ends for another reason, as an agent with too many clients, is asked for again.
      const why = clean(data.reason || 'The server has ended the stream.');
      if (!data.ended) throw new Refused(0, 'refused', why);
      return this.set('ended');
    }
    if (kind === 'silent')
      return this.set(
        'silent',
        data.since_ms === undefined ? '' : `since ${clock(Date.now() - data.since_ms)}`,
      );
    if (kind !== 'sample') return;
    this.tries = 0;
    this.sample(data);
    this.set('live');
  }

  sample({ stat, unix_ms: unixMs, name, full, ended_threads: gone }) {
    const isFirst = this.mono === undefined;
    if (name) this.name = name;
    this.lastAt = unixMs;
    if (full) this.threads.clear();
    const tick = { at: unixMs / 1000, ns: stat.mono_ns - this.mono, groups: new Map(), size: 8 };
    tick.cpu = stat.process_cpu_ns - this.cpu;
    tick.unattributed = stat.unattributed_cpu_ns - this.unattributed;
    this.refused = stat.cpu_refused;
    for (const row of stat.groups) {
      // NaN: every figure that is computed from it is NaN, too.
      if (this.refused) row.cpu_ns = NaN;
      const before = this.groups.get(row.id) || (isFirst ? null : { ...ABSENT, name: row.name });
      this.groups.set(row.id, row);
      const did = before && before.name === row.name && step(row, before);
      if (!did) continue;
      tick.groups.set(row.id, did);
      tick.size += sizeOf(did);
    }
    // Rows that have not changed since, too.
    if (this.refused) for (const row of this.groups.values()) row.cpu_ns = NaN;
    for (const row of stat.threads) {
      const before = this.threads.get(row.tid);
      row.recent = before && tick.ns > 0 ? (100 * (row.cpu_ns - before.cpu_ns)) / tick.ns : 0;
      this.threads.set(row.tid, row);
    }
    for (const tid of gone || []) this.threads.delete(tid);
    Object.assign(this, {
      mono: stat.mono_ns,
      cpu: stat.process_cpu_ns,
      unattributed: stat.unattributed_cpu_ns,
      dropped: stat.dropped,
      keysOn: stat.keys_on,
      clock: stat.clock,
    });
    this.windows.clear();
    // The first sample has nothing before it; and no time has passed in one of a stopped clock.
    if (!(tick.ns > 0) || !(tick.cpu >= 0)) return;
    this.ticks.push(tick);
    this.size += tick.size;
    while (this.ticks.length > TICKS || (this.size > FIGURES && this.ticks.length > 2))
      this.size -= this.ticks.shift().size;
  }

  // The work of the last so many seconds: sums by group.
  window(length) {
    let sums = this.windows.get(length);
    if (sums) return sums;
    sums = { ns: 0, cpu: 0, unattributed: 0, groups: new Map() };
    this.windows.set(length, sums);
    for (let at = this.ticks.length - 1; at >= 0 && sums.ns < (length - 0.5) * 1e9; at--) {
      const tick = this.ticks[at];
      sums.ns += tick.ns;
      sums.cpu += tick.cpu;
      sums.unattributed += Math.max(0, tick.unattributed);
      for (const [id, did] of tick.groups) {
        let sum = sums.groups.get(id);
        if (!sum)
          sums.groups.set(id, (sum = { cpu: 0, requests: 0, polls: 0, poll: 0, runnable: 0, awaiting: 0 }));
        for (const key of ['cpu', 'requests', 'polls', 'poll', 'runnable', 'awaiting'])
          sum[key] += did[key] ?? 0;
        if (!did.of_requests) continue;
        sum.latency ||= new Buckets();
        sum.latency.add(did.of_requests, scaleOf(this.groups.get(id).waits.requests));
      }
    }
    return sums;
  }

  // The buckets of one histogram of a group in the last so many seconds.
  buckets(id, name, length) {
    const all = new Buckets();
    const row = this.groups.get(id)?.waits?.[name];
    let ns = 0;
    for (let at = this.ticks.length - 1; row && at >= 0 && ns < (length - 0.5) * 1e9; at--) {
      ns += this.ticks[at].ns;
      const pairs = this.ticks[at].groups.get(id)?.['of_' + name];
      if (pairs) all.add(pairs, scaleOf(row));
    }
    return all;
  }

  // A row for each group, as the table of groups shows it.
  rows(length) {
    const sums = this.window(length);
    const rate = (value) => (sums.ns ? (1e9 * value) / sums.ns : 0);
    return [...this.groups.values()].map((group) => {
      const did = sums.groups.get(group.id) || {
        cpu: this.refused ? NaN : 0,
        requests: 0,
        polls: 0,
        poll: 0,
        runnable: 0,
        awaiting: 0,
      };
      // Alive through all of it without a word: its tasks await.
      return {
        id: group.id,
        name: group.name,
        alive: group.alive,
        did,
        cpu: rate(did.cpu) / 1e7,
        requests: rate(did.requests),
        polls: rate(did.polls),
        perRequest: did.requests ? did.cpu / did.requests : null,
        p50: did.latency ? did.latency.quantile(0.5) : null,
        p99: did.latency ? did.latency.quantile(0.99) : null,
        spent: spent(did),
      };
    });
  }
}

// The parts of the time of a group's tasks, in ns: on a CPU, stalled in the midst of a poll, runnable,
// awaiting.
function spent(did) {
  const on = did.poll ? Math.min(did.cpu, did.poll) : did.cpu;
  return [on, Math.max(0, did.poll - on), did.runnable, did.awaiting];
}
const SPENT = [
  ['on', 'on CPU'],
  ['stalled', 'stalled in a poll'],
  ['runnable', 'runnable'],
  ['awaiting', 'awaiting'],
];

// A bar of where time went: four parts of one line.
function spentBar(bar, parts) {
  if (bar.children.length !== 4) bar.replaceChildren(...SPENT.map(([name]) => make('i.' + name)));
  const sum = parts.reduce((a, b) => a + b, 0);
  parts.forEach((part, at) => {
    bar.children[at].style.width = (sum ? (100 * part) / sum : 0).toFixed(2) + '%';
  });
  bar.classList.toggle('none', !sum);
}
const spentLines = (parts) => {
  const sum = parts.reduce((a, b) => a + b, 0);
  if (Number.isNaN(sum)) return ['CPU time is refused'];
  return sum ? SPENT.map(([, name], at) => `${percent(parts[at], sum)} ${name}`) : ['no time was taken'];
};
