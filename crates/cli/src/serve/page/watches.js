'use strict';
// Watches: who writes a variable, by the debug registers of the process's threads.

const WATCH_FOR = [
  ['10s', '10 s'],
  ['30s', '30 s'],
  ['5m', '5 min'],
];
const HITS = 2000;

// The function of a hit, its callers, and whether there are more.
function stackOf(hit) {
  const framesOf = (place) =>
    (place.frames || []).length ? place.frames : [{ function: place.object || place.addr }];
  const callers = hit.stack || [];
  const inner = [hit, ...callers.slice(0, hit.inner ?? callers.length)].flatMap(framesOf);
  const frames = [...inner, ...callers.slice(hit.inner ?? callers.length).flatMap(framesOf)];
  const end = { cut: hit.stack_end === 'cut', lost: hit.stack_end === 'lost', inner: inner.length };
  return frameLines(wholeStack(frames, end));
}

class WatchesView {
  constructor(panel, pid) {
    Object.assign(this, { pid, hits: [], sites: new Map(), number: 0, seen: 0 });
    this.what = make('input.glob', {
      id: 'what',
      placeholder: 'ORDERS or 0x7f00c0a01230:8',
      autocomplete: 'off',
      spellcheck: 'false',
      'aria-label': 'A variable by name, or an address and length',
    });
    this.what.value = route.now.what || '';
    this.what.addEventListener('input', () => route.change({ what: this.what.value }));
    this.access = choice(
      'Access',
      [
        ['w', 'writes'],
        ['rw', 'reads and writes'],
        ['x', 'execution'],
      ],
      'w',
      () => {},
    );
    this.length = choice('Length', WATCH_FOR, '30s', () => {});
    this.go = make('button.main', { type: 'submit' }, 'Watch');
    this.told = make(
      'p.facts',
      { role: 'status' },
      'A watch takes a debug register of each thread, and gives it back when it ends. No thread is stopped.',
    );
    this.slots = make('div.slots');
    this.siteGrid = new Grid({
      label: 'Places',
      sort: 'hits',
      key: (row) => row.addr,
      empty: 'No hit yet.',
      tip: (row) => stackOf(row.last),
      columns: [
        {
          id: 'hits',
          label: 'Hits',
          width: '80px',
          number: true,
          narrow: true,
          value: (row) => row.hits,
          text: (row) => whole(row.hits),
        },
        {
          id: 'place',
          label: 'Place',
          width: 'minmax(160px, 2fr)',
          narrow: true,
          value: (row) => row.place,
          text: (row) => row.place,
        },
        {
          id: 'group',
          label: 'Last group',
          width: 'minmax(90px, 1fr)',
          value: (row) => row.last.group,
          text: (row) => clean(row.last.group || NO),
        },
        {
          id: 'value',
          label: 'Last',
          width: 'minmax(110px, 1fr)',
          narrow: true,
          text: (row) => values(row.last),
        },
      ],
    });
    this.grid = new Grid({
      label: 'Hits',
      key: (row) => row.number,
      empty: 'No hit yet.',
      tip: stackOf,
      columns: [
        {
          id: 'ago',
          label: 'At',
          width: '100px',
          number: true,
          narrow: true,
          text: (row) => `${((row.time_mono_ns - this.first) / 1e9).toFixed(6)}`,
        },
        {
          id: 'value',
          label: 'Value',
          width: 'minmax(110px, 1fr)',
          narrow: true,
          text: (row) => values(row),
        },
        {
          id: 'place',
          label: 'Place',
          width: 'minmax(160px, 2fr)',
          narrow: true,
          text: (row) => row.place,
        },
        { id: 'group', label: 'Group', width: 'minmax(90px, 1fr)', text: (row) => clean(row.group || NO) },
        {
          id: 'task',
          label: 'Task',
          width: '80px',
          roomy: true,
          number: true,
          text: (row) => (row.task ? String(row.task) : NO),
        },
        {
          id: 'thread',
          label: 'Thread',
          width: '130px',
          roomy: true,
          text: (row) => clean(`${row.thread || '?'}/${row.tid ?? row.inner_tid}`),
        },
      ],
    });
    const form = make(
      'form.bar',
      { onsubmit: (event) => (event.preventDefault(), this.start()) },
      make('label', { for: 'what' }, make('span', {}, 'Watch'), this.what),
      this.access,
      make('label', {}, make('span', {}, 'for'), this.length),
      this.go,
    );
    panel.append(
      form,
      this.slots,
      this.told,
      make('div.halves', {}, this.siteGrid.element, this.grid.element),
    );
    this.draw();
    this.poll = new Poll(
      3000,
      () => processPath(pid, 'slots'),
      (answer) => this.tellSlots(answer),
      (error) => page.fail(error),
    );
  }

  tellSlots({ watches, threads }) {
    page.fail(null);
    if (!watches) return setText(this.slots, 'This process knows no watches.');
    const free = threads?.length ? Math.min(...threads.map((thread) => thread.free_registers)) : null;
    const holder = ({ by, uid, pid }) => holderName({ by, uid, pid });
    this.slots.replaceChildren(
      make(
        'span',
        {},
        `${plural(watches.registers, 'debug register')} a thread, ${watches.spare} left to debuggers` +
          (free === null ? '.' : `, at least ${free} free on each of ${plural(threads.length, 'thread')}.`),
      ),
      make(
        'ul',
        {},
        ...watches.held.map((held) =>
          make(
            'li',
            {},
            make('b.name', {}, clean(held.name)),
            ` ${plural(held.registers, 'register')}, ${holder(held)}${held.flexible ? ', takes turns' : ''}`,
            held.group ? ', in ' : '',
            held.group ? named(held.group) : '',
          ),
        ),
      ),
    );
  }

  start() {
    if (this.stream?.running) return this.stream.stop('Stopped. The registers are free again.');
    if (!this.what.value.trim()) return this.what.focus();
    Object.assign(this, { hits: [], seen: 0, first: undefined });
    this.sites.clear();
    this.draw();
    const body = { what: this.what.value.trim(), access: this.access.value, for: this.length.value };
    this.stream = new Stream(processPath(this.pid, 'watch'), body, {
      online: (line) => this.take(line),
      onend: (end) => this.end(end),
    });
    setText(this.go, 'Stop');
    setText(this.told, 'Arming …');
  }

  end({ text, bad }) {
    setText(this.go, 'Watch');
    setText(
      this.told,
      [text, this.coverage || plural(this.seen, 'hit') + '.', this.message || ''].join(' '),
    );
    this.told.classList.toggle('bad', bad);
    this.message = this.coverage = '';
    this.poll.run();
    this.draw();
  }

  take(line) {
    if (line.type === 'message') this.message = clean(line.message);
    else if (line.type === 'start') {
      this.told.classList.remove('bad');
      const from = line.outside ? ' from outside' : '';
      this.running = clean(
        `${line.name} at ${line.addr}, ${plural(line.length_bytes, 'byte')}, is watched${from}.`,
      );
    } else if (line.type === 'hit') this.hit(line);
    else if (line.type === 'report' || line.hits !== undefined) {
      const lost = line.lost ? `, ${whole(line.lost)} counted only` : '';
      this.coverage =
        `${plural(line.hits, 'hit')}${lost}; armed on ${line.threads_armed} of ` +
        `${plural(line.threads_alive, 'thread')}, ${share(line.armed_percent)} of the time. ` +
        (line.stale_because ? `These are of an earlier report: ${clean(line.stale_because)}. ` : '') +
        `Never seen: ${clean((line.blind_spots || []).join(', '))}.`;
    }
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.stream.running)
        setText(this.told, `${this.running || ''} ${plural(this.seen, 'hit')}. ${this.message || ''}`);
      this.draw();
    });
  }

  hit(line) {
    const frames = line.frames || [];
    const place = frames.length ? placeOf(frames) : clean(line.object || line.addr);
    const row = { ...line, frames, place, number: this.number++ };
    this.first ??= line.time_mono_ns;
    this.seen++;
    this.hits.push(row);
    if (this.hits.length > 1.2 * HITS) this.hits.splice(0, this.hits.length - HITS);
    const site = this.sites.get(line.addr) || { addr: line.addr, hits: 0, place, frames: row.frames };
    site.hits++;
    site.last = row;
    if (this.sites.size < 500 || this.sites.has(line.addr)) this.sites.set(line.addr, site);
  }

  draw() {
    this.siteGrid.show([...this.sites.values()]);
    this.grid.show(this.hits.slice(-HITS).reverse());
  }

  hide(hidden) {
    if (this.stream?.running) this.stream.hide(hidden);
  }

  close() {
    this.stream?.stop();
    this.poll.close();
    cancelAnimationFrame(this.frame);
    this.grid.close();
    this.siteGrid.close();
  }
}

const number = (value) => (value < 2 ** 32 ? String(value) : '0x' + value.toString(16));
function values({ old, new: now }) {
  if (now === null || now === undefined) return NO;
  return old === null || old === undefined ? `→ ${number(now)}` : `${number(old)} → ${number(now)}`;
}
