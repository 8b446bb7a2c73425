'use strict';
// The stream of a verb lives as long as somebody looks at it. A trace is one.

// A page that nobody sees keeps its stream for this long, in ms: people go to another window to make
// a request.
const UNSEEN_FOR = 60e3;

class Stream {
  constructor(path, body, { online, onend }) {
    Object.assign(this, { onend, running: true });
    this.controller = new AbortController();
    this.run(path, body, online);
  }

  async run(path, body, online) {
    let end = { text: 'The server has ended the stream.', bad: true };
    try {
      await events(
        path,
        { method: 'POST', body, signal: this.controller.signal },
        (kind, data) => {
          if (kind === 'error') end = { text: clean(data.error?.message || 'It failed.'), bad: true };
          else if (kind === 'end') end = end.bad && end.said ? end : { text: 'It has ended.', bad: false };
          else if (kind === 'message' && data.message !== undefined)
            online({ type: 'message', message: data.message });
          else online(data);
        },
        exact,
      );
    } catch (error) {
      end =
        error.name === 'AbortError'
          ? { text: this.why || 'Stopped.', bad: false }
          : { text: error.message, bad: true };
    }
    this.running = false;
    clearTimeout(this.timer);
    this.onend(end);
  }

  hide(hidden) {
    clearTimeout(this.timer);
    if (hidden)
      this.timer = setTimeout(
        () => this.stop('Stopped: nobody looked at this page for a minute.'),
        UNSEEN_FOR,
      );
  }

  stop(why) {
    this.why = why;
    this.controller.abort();
  }
}

// Rows that are kept of a trace.
const KEPT = 5000;

class TraceView {
  constructor(panel, pid) {
    Object.assign(this, { pid, rows: [], number: 0, seen: 0, stream: null });
    this.glob = make('input.glob', {
      id: 'glob',
      placeholder: 'db.*,!db.pool',
      autocomplete: 'off',
      spellcheck: 'false',
      'aria-label': 'Names of probes, as a glob',
    });
    this.glob.value = route.now.glob || '';
    this.glob.addEventListener('input', () => route.change({ glob: this.glob.value }));
    this.go = make('button.main', { type: 'submit' }, 'Trace');
    this.pause = button('Pause', () => this.toggle(), { 'aria-pressed': false, title: 'Pause (Space)' });
    this.filter = filterBox('Filter records', route.now.find, (find) => {
      route.change({ find });
      this.draw();
    });
    this.told = make(
      'p.facts',
      { role: 'status' },
      'A trace switches its probes on for as long as it runs. They go off when it ends, or this page does.',
    );
    this.grid = new Grid({
      label: 'Records',
      key: (row) => row.number,
      empty: 'No record yet.',
      tip: (row) => [
        row.probe,
        ...Object.entries(row.fields || {}).map(([name, value]) => `${name} = ${show(value)}`),
      ],
      columns: [
        {
          id: 'time',
          label: 'Time',
          width: '136px',
          narrowWidth: '112px',
          narrow: true,
          text: (row) => row.at,
        },
        {
          id: 'probe',
          label: 'Probe',
          width: 'minmax(110px, 1fr)',
          narrow: true,
          text: (row) => clean(row.probe),
        },
        {
          id: 'phase',
          label: 'Phase',
          width: '70px',
          roomy: true,
          text: (row) => (row.phase === 'point' ? '' : clean(row.phase || '')),
        },
        {
          id: 'group',
          label: 'Group',
          width: 'minmax(90px, 0.8fr)',
          text: (row) => clean(row.group || NO),
        },
        {
          id: 'task',
          label: 'Task',
          width: '84px',
          number: true,
          text: (row) => (row.task ? String(row.task) : NO),
        },
        {
          id: 'thread',
          label: 'Thread',
          width: '130px',
          roomy: true,
          text: (row) => clean(`${row.thread || '?'}/${row.tid}`),
        },
        {
          id: 'fields',
          label: 'Fields',
          width: 'minmax(120px, 2fr)',
          narrow: true,
          text: (row) => row.said,
        },
      ],
    });
    const form = make(
      'form.bar',
      { onsubmit: (event) => (event.preventDefault(), this.start()) },
      make('label', { for: 'glob' }, make('span', {}, 'Probes'), this.glob),
      this.go,
      this.pause,
      this.filter,
    );
    panel.append(form, this.told, this.grid.element);
    this.draw();
  }

  start() {
    if (this.stream?.running)
      return this.stream.stop('Stopped. The probes are off again, unless others hold them.');
    if (!this.glob.value.trim()) return this.glob.focus();
    this.rows = [];
    this.seen = this.lost = 0;
    this.draw();
    this.stream = new Stream(
      processPath(this.pid, 'trace'),
      { glob: this.glob.value },
      { online: (line) => this.take(line), onend: (end) => this.end(end) },
    );
    setText(this.go, 'Stop');
    setText(this.told, 'Starting …');
  }

  end({ text, bad }) {
    setText(this.go, 'Trace');
    setText(this.told, `${text} ${this.tally()}`);
    this.told.classList.toggle('bad', bad);
    this.draw();
  }

  tally() {
    const kept = this.seen > this.rows.length ? `, the last ${whole(this.rows.length)} are kept` : '';
    return `${plural(this.seen, 'record')}${kept}${this.lost ? `, ${whole(this.lost)} dropped` : ''}.`;
  }

  take(line) {
    if (line.type === 'start') {
      this.on = plural(line.matched.length, 'key');
      this.told.classList.remove('bad');
    } else if (line.type === 'record') {
      const ms = line.time_unix_ns / 1e6;
      const [stamp, rest] = [new Date(ms), String(Math.floor((ms % 1000) * 1000)).padStart(6, '0')];
      const said = Object.entries(line.fields || {})
        .map(([name, value]) => `${clean(name)}=${clean(show(value))}`)
        .join('  ');
      this.rows.push({
        ...line,
        number: this.number++,
        at: `${stamp.toLocaleTimeString('en-GB')}.${rest}`,
        said,
      });
      this.seen++;
      if (this.rows.length > 1.2 * KEPT) this.rows.splice(0, this.rows.length - KEPT);
    } else if (line.type === 'end') {
      this.lost = (line.tally?.dropped_in_rings || 0) + (line.tally?.dropped_by_slow_reader || 0);
    } else if (line.dropped) this.lost = (this.lost || 0) + line.dropped;
    // Many records come at once, and one picture shows them all.
    this.frame ||= requestAnimationFrame(() => {
      this.frame = 0;
      if (this.stream.running) setText(this.told, `${this.on || '0 keys'} on. ${this.tally()}`);
      if (!this.paused) this.draw();
    });
  }

  toggle() {
    this.paused = !this.paused;
    this.pause.setAttribute('aria-pressed', this.paused);
    setText(this.pause, this.paused ? 'Go on' : 'Pause');
    if (!this.paused) this.draw();
  }

  draw() {
    const find = (route.now.find || '').toLowerCase();
    const rows = find
      ? this.rows.filter((row) =>
          `${row.probe} ${row.group} ${row.thread} ${row.said}`.toLowerCase().includes(find),
        )
      : this.rows;
    this.grid.show(rows.slice(-KEPT).reverse());
  }

  onKey({ key }) {
    if (key !== ' ') return false;
    this.toggle();
    return true;
  }

  hide(hidden) {
    if (this.stream?.running) this.stream.hide(hidden);
  }

  close() {
    this.stream?.stop();
    cancelAnimationFrame(this.frame);
    this.grid.close();
  }
}

const show = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
