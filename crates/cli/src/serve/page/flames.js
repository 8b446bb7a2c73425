'use strict';
// A profile of the process, as a flame graph. It is the picture of `dormouse profile -o x.html`.

const PROFILES = [
  ['cpu', 'CPU time'],
  ['wall', 'wall time of tasks'],
  ['alloc', 'allocations'],
  ['faults', 'page faults'],
];
const LENGTHS = [
  ['1', '1 s'],
  ['5', '5 s'],
  ['10', '10 s'],
  ['30', '30 s'],
  ['60', '1 min'],
];

class FlameView {
  constructor(panel, pid, live) {
    Object.assign(this, { pid, live, inverted: false });
    const place = route.now;
    this.kind = choice(
      'Kind',
      PROFILES,
      PROFILES.some(([key]) => key === place.kind) ? place.kind : 'cpu',
      (kind) => route.change({ kind }),
    );
    this.length = choice('Length', LENGTHS, LENGTHS.some(([key]) => key === place.s) ? place.s : '5', (s) =>
      route.change({ s }),
    );
    this.go = make('button.main', { type: 'submit' }, 'Record');
    this.group = choice('Show', [['by-group', 'by group']], 'by-group', () => this.render());
    this.column = choice('Value', [], '', () => this.render(), { hidden: true });
    this.invert = button('Inverted', () => this.turn(), {
      'aria-pressed': false,
      title: 'Callers of each function (i)',
    });
    this.reset = button('Reset', () => this.graph?.reset(), { title: 'Show everything (0)' });
    this.search = filterBox('Search functions', place.find, (find) => {
      route.change({ find });
      this.look();
    });
    this.found = make('output.quiet');
    this.told = make(
      'p.facts',
      { role: 'status' },
      'A profile samples the service for some seconds, and nothing at other times.',
    );
    this.canvas = make('canvas', {
      tabindex: 0,
      role: 'application',
      'aria-label': 'Flame graph. Arrows move, Enter zooms, Escape goes back.',
    });
    this.scroller = make('div.flame', { hidden: true }, make('div.sheet', {}, this.canvas));
    this.detail = make('p.facts.name', { role: 'status', 'aria-live': 'polite' });
    panel.append(
      make(
        'form.bar',
        { onsubmit: (event) => (event.preventDefault(), this.record()) },
        make('label', {}, make('span', {}, 'Profile'), this.kind),
        make('label', {}, make('span', {}, 'for'), this.length),
        this.go,
      ),
      make(
        'div.bar',
        { class: 'bar' },
        this.group,
        this.column,
        this.invert,
        this.reset,
        this.search,
        this.found,
      ),
      this.told,
      this.scroller,
      this.detail,
    );
  }

  async record() {
    if (this.controller) return this.controller.abort();
    const length = Number(this.length.value);
    this.controller = new AbortController();
    setText(this.go, 'Stop');
    const until = Date.now() + length * 1e3;
    const tell = () =>
      setText(
        this.told,
        Date.now() < until ? `Sampling for ${seconds(until - Date.now())} more …` : 'Looking up names …',
      );
    tell();
    const timer = setInterval(tell, 250);
    try {
      const data = await ask(
        processPath(this.pid, 'profile.json?' + query({ seconds: length, kind: this.kind.value })),
        { signal: this.controller.signal },
      );
      page.fail(null);
      this.take(data);
    } catch (error) {
      setText(this.told, error.name === 'AbortError' ? 'Stopped.' : error.message);
    }
    clearInterval(timer);
    this.controller = null;
    setText(this.go, 'Record');
  }

  take(data) {
    this.data = data;
    this.model = new FlameModel(data);
    const seen = data.coverage || {};
    const facts = [
      `${plural(seen.samples || 0, 'sample')} in ${data.seconds.toFixed(1)} s`,
      `by ${clock(data.unix_ms)}`,
    ];
    if (seen.threads) facts.push(`${whole(seen.armed)} of ${plural(seen.threads, 'thread')} sampled`);
    if (seen.samples) facts.push(`${percent(seen.ended, seen.samples)} of stacks whole`);
    for (const [count, text] of [
      [seen.dropped, 'dropped'],
      [seen.cut, 'stacks cut'],
      [seen.refused, 'threads refused'],
      [seen.blocking, 'threads that block the signal'],
    ])
      if (count) facts.push(`${whole(count)} ${text}`);
    setText(this.told, clean([...facts, ...(data.ends || []), ...(seen.notes || [])].join(' · ')));
    const options = [
      ['by-group', 'by group'],
      ['by-thread', 'by thread'],
      ['all', 'all together'],
      ...data.groups.map((_, at) => [`group:${at}`, this.model.label('group', at)]),
      ...data.threads.map((_, at) => [`thread:${at}`, `thread ${this.model.label('thread', at)}`]),
    ];
    this.group.replaceChildren(
      ...options.map(([key, text]) => make('option', { value: key }, clean(text))),
    );
    const wanted = data.groups.findIndex(({ name }) => name && name === route.now.group);
    this.group.value = wanted >= 0 ? `group:${wanted}` : 'by-group';
    this.column.replaceChildren(
      ...data.columns.map(({ name }, at) => make('option', { value: at }, name.replace(/_/g, ' '))),
    );
    this.column.value = data.main;
    this.column.hidden = false;
    this.scroller.hidden = false;
    this.render();
    this.canvas.focus();
  }

  render() {
    if (!this.model) return;
    const [what, index] = this.group.value.split(':');
    const shown = what.startsWith('by-')
      ? { by: what.slice(3) }
      : index === undefined
        ? {}
        : { only: [what, Number(index)] };
    this.col = Number(this.column.value);
    const tree = new Tree(this.model, { ...shown, column: this.col, inverted: this.inverted });
    const palette = new Palette(page.dark, this.model);
    if (this.graph) {
      this.graph.setPalette(palette);
      this.graph.show(tree);
    } else {
      this.graph = new FlameGraph(this.canvas, tree, palette);
      this.graph.onselect = (box) => this.describe(box);
      this.graph.onhover = (box, event) => showTip(box && this.lines(box), event);
    }
    this.describe(this.graph.selected);
    this.look();
  }

  lines(box) {
    const { unit } = this.data.columns[this.col];
    const self = this.graph.tree.self(box)[0];
    const of = [`total ${formatted(box.now, unit)} (${percent(box.now, this.graph.tree.whole)})`];
    if (box.fn >= 0) of.push(`self ${formatted(self, unit)} (${percent(self, this.graph.tree.whole)})`);
    const where =
      box.fn >= 0
        ? [this.data.libraries[this.data.library[box.fn]], this.model.place(box.fn)]
            .filter(Boolean)
            .join(' · ')
        : '';
    return [box.label, ...of, where].filter(Boolean);
  }

  describe(box) {
    setText(
      this.detail,
      this.graph.tree.whole ? clean(this.lines(box).join(' · ')) : 'Nothing was sampled.',
    );
  }

  look() {
    if (!this.graph) return;
    const low = (route.now.find || '').toLowerCase();
    const matching = low
      ? Uint8Array.from(this.data.functions, (name) => name.toLowerCase().includes(low))
      : null;
    this.graph.setMatching(matching);
    const { selection, whole: all } = this.graph.tree;
    const count = matching?.reduce((sum, one) => sum + one, 0);
    const part = matching && percent(selection.matched(matching, 0), all);
    setText(this.found, matching ? `${part} in ${plural(count, 'function')}` : '');
  }

  turn() {
    this.inverted = !this.inverted;
    this.invert.setAttribute('aria-pressed', this.inverted);
    this.render();
  }

  onKey({ key, target }) {
    if (!this.graph || target.closest?.('button, a')) return false;
    const { graph } = this;
    const act = {
      ArrowUp: () => graph.move('up'),
      ArrowDown: () => graph.move('down'),
      ArrowLeft: () => graph.move('left'),
      ArrowRight: () => graph.move('right'),
      Enter: () => graph.zoom(graph.selected),
      0: () => graph.reset(),
      n: () => graph.next(1),
      N: () => graph.next(-1),
      i: () => this.turn(),
      '+': () => graph.stretch(0.7, 0.5),
      '-': () => graph.stretch(1 / 0.7, 0.5),
    }[key];
    act?.();
    return Boolean(act);
  }

  back() {
    return Boolean(this.graph?.back());
  }

  repaint() {
    this.graph?.setPalette(new Palette(page.dark, this.model));
  }

  close() {
    this.controller?.abort();
  }
}
