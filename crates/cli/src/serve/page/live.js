'use strict';
// A process, second by second, as the server computes it. A tick is what was used since the sample
// before. Ten minutes of ticks are kept for the charts, or fewer where groups are many: their number
// is bounded, and so is the number of figures in them.

const TICKS = 600;
const MOST = 600000;

// The lower bound of a bucket, in ns.
const bound = ({ scale, unit_ns: unit }, index) => unit * 2 ** (index / 2 ** scale);

class Live {
  constructor(pid, onchange) {
    Object.assign(this, { pid, onchange, tries: 0, dropped: 0, keysOn: 0 });
    this.groups = new Map();
    this.threads = 0;
    this.ticks = [];
    this.size = 0;
    this.state = 'connecting';
    this.windows = [];
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

  // A page that nobody sees asks for nothing. The server keeps the readings that windows begin with.
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

  sample(sample) {
    const { full, groups, windows, elapsed_ns: ns } = sample;
    if (full) {
      // Another program has other groups by the same numbers.
      const isOther = ({ id, name }) => this.groups.has(id) && this.groups.get(id).name !== name;
      if (groups.some(isOther)) Object.assign(this, { ticks: [], size: 0 });
      this.groups.clear();
    }
    Object.assign(this, {
      name: sample.name || this.name,
      lastAt: sample.unix_ms,
      refused: sample.cpu_refused,
      ownBytes: sample.own_bytes,
      ownBytesIsMost: sample.own_bytes_is_most,
      limited: sample.limited,
      unmatched: sample.unmatched,
      leftOut: sample.left_out,
      threads: sample.threads,
      dropped: sample.dropped,
      keysOn: sample.keys_on,
      clock: sample.clock,
      windows,
    });
    // A sample has only the groups that may have changed: the others were idle.
    const idle = { cpu_percent: sample.cpu_refused ? null : 0, requests_per_s: 0 };
    const tick = { at: sample.unix_ms / 1000, groups: new Map(), idle, size: 8 };
    for (const group of groups) {
      this.groups.set(group.id, group);
      if (!group.tick) continue;
      tick.groups.set(group.id, group.tick);
      tick.size += 4 + 2 * group.tick.latency.length;
    }
    // The first sample has nothing before it; and no time has passed in one of a stopped clock.
    if (!ns) return;
    this.ticks.push(tick);
    this.size += tick.size;
    while (this.ticks.length > TICKS || (this.size > MOST && this.ticks.length > 2))
      this.size -= this.ticks.shift().size;
  }

  // A row for each group, as the table of groups shows it: a cell by the id of each column.
  rows(length) {
    const at = FIGURES.windows.indexOf(length);
    return [...this.groups.values()].map(({ id, name, windows }) => {
      const row = { id, name };
      FIGURES.columns.forEach((column, cell) => (row[column.id] = windows[at].cells[cell]));
      return { ...row, spent: spent(row, this.refused) };
    });
  }

  // The numbers of each histogram of a group.
  times(id, length) {
    return this.groups.get(id).windows[FIGURES.windows.indexOf(length)].times;
  }

  // A row for each peer that a group has called, with the cells of FIGURES.calls.
  calls(id, length) {
    return this.groups.get(id).windows[FIGURES.windows.indexOf(length)].calls || [];
  }
}

// The parts of the time of a group's tasks: on a CPU, stalled, runnable, awaiting, queued. Where
// no times are taken, CPU time is all that is known; null where that is refused.
const SHARES = FIGURES.columns.filter(({ unit }) => unit === 'share');
function spent(row, refused) {
  if (refused) return null;
  const parts = SHARES.map(({ id }) => row[id] ?? 0);
  return parts.some(Boolean) || !row.cpu_percent ? parts : SHARES.map((_, at) => (at ? 0 : 100));
}

// A bar of where time went: parts of one line.
function spentBar(bar, parts) {
  if (!bar.children.length) bar.replaceChildren(...SHARES.map(({ id }) => make('i.' + id)));
  SHARES.forEach((_, at) => {
    bar.children[at].style.width = (parts?.[at] || 0).toFixed(2) + '%';
  });
  bar.classList.toggle('none', !parts?.some(Boolean));
}
function spentLines(parts) {
  if (!parts) return ['CPU time is refused'];
  if (!parts.some(Boolean)) return ['no time was taken'];
  return SHARES.map(({ label }, at) => `${percent(parts[at], 100)} ${label}`);
}
