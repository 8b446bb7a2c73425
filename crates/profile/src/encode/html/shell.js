'use strict';
// The controls of the page, its keys, and its beginning.

const COLUMNS = {
  samples: 'Samples', cpu: 'CPU time', faults: 'Page faults', alloc_objects: 'Allocations', alloc_space: 'Bytes allocated',
  inuse_objects: 'Live allocations', inuse_space: 'Live bytes',
};

// The choices of rows, each with its total and its share of everything.
function fillGroups() {
  const option = (value, text) => Object.assign(document.createElement('option'), { value, textContent: text });
  const groups = $('groups');
  groups.append(option('all', 'All together'), option('by-group', 'By group'));
  if (data.threads.length > 1) groups.append(option('by-thread', 'By thread'));
  for (const [by, label] of [['group', 'Groups'], ['thread', 'Threads']]) {
    const list = data[by + 's'];
    if (by === 'thread' && list.length < 2) continue;
    const totals = list.map((one, index) => new Selection(model, model.rows(by, index), data.main).total(0));
    const whole = totals.reduce((sum, one) => sum + one, 0);
    const { unit } = data.columns[data.main];
    const text = (index) => [model.label(by, index),
      formatted(totals[index], unit, model.isRate(data.main)), percent(totals[index], whole)].join(' · ');
    const section = Object.assign(document.createElement('optgroup'), { label });
    const order = [...list.keys()].sort((a, b) => totals[b] - totals[a]);
    section.append(...order.map((index) => option(by + ':' + index, text(index))));
    groups.append(section);
  }
  data.columns.forEach(({ name }, index) => $('column').append(option(index, COLUMNS[name] || name)));
  $('side').parentElement.hidden = !model.diff;
}

// What the profile has seen, and what is missing.
function tellCoverage() {
  const seen = data.coverage;
  const number = (amount) => amount.toLocaleString('en');
  const { unit } = data.columns[data.main];
  const facts = [];
  const fact = (text, bad) => facts.push([text, bad]);
  if (seen.total) fact(`${formatted(seen.total, unit)} ${data.measure} in ${formatted(data.seconds * 1e9, 'nanoseconds')}`);
  else fact(`${data.measure} over ${formatted(data.seconds * 1e9, 'nanoseconds')}`);
  fact(`${number(seen.samples)} samples`, !seen.samples);
  if (seen.total) fact(`${percent(seen.in_groups, seen.total)} in groups`);
  if (seen.samples) fact(`${percent(seen.ended, seen.samples)} of stacks whole`, seen.ended < 0.9 * seen.samples);
  if (seen.threads) fact(`${number(seen.armed)} of ${number(seen.threads)} threads sampled`, seen.armed < seen.threads);
  for (const [count, text] of [[seen.dropped, 'dropped'], [seen.cut, 'stacks cut'], [seen.in_library, 'stacks in a library without its caller'],
    [seen.uncopied, 'stacks not copied'], [seen.merged, 'without room for a stack'],
    [seen.refused, 'threads refused'], [seen.blocking, 'threads that block the signal']]) {
    if (count) fact(`${number(count)} ${text}`, true);
  }
  if (!seen.dropped) fact('none dropped');
  if (data.old) fact(`compared with ${number(data.old.samples)} samples in ${formatted(data.old.seconds * 1e9, 'nanoseconds')}`);
  $('coverage').replaceChildren(...facts.map(([text, bad]) => {
    const one = Object.assign(document.createElement('li'), { textContent: text });
    if (bad) one.className = 'bad';
    return one;
  }));
  const notes = [...data.ends, ...seen.notes];
  $('notes').hidden = !notes.length;
  $('notes').firstElementChild.textContent = notes.length === 1 ? '1 note' : `${notes.length} notes`;
  $('notes').lastElementChild.replaceChildren(...notes.map((text) => Object.assign(document.createElement('li'), { textContent: text })));
  const when = data.unix_ms ? new Date(data.unix_ms).toLocaleString('en-GB', { dateStyle: 'medium', timeStyle: 'medium' }) : '';
  $('process').textContent = [data.program, data.pid && `pid ${data.pid}`, when].filter(Boolean).join(' · ');
}

function pickGroup() {
  $('groups').focus();
  try {
    $('groups').showPicker();
  } catch {
    // The browser opens it by its own keys only.
  }
}

const nextColumn = () => set({ column: (state.column + 1) % data.columns.length });
const otherView = () => {
  set({ view: state.view === 'flame' ? 'table' : 'flame' });
  if (state.view === 'flame') $('canvas').focus();
  else table.move(0);
};
const inFlame = (act) => () => state.view === 'flame' && act();
const KEYS = {
  '/': () => ($('query').focus(), $('query').select()),
  i: inFlame(() => set({ inverted: !state.inverted })),
  g: pickGroup,
  t: otherView,
  v: nextColumn,
  o: () => model.diff && set({ side: 1 - state.side }),
  d: () => theme(!dark),
  n: inFlame(() => graph.next(1)),
  N: inFlame(() => graph.next(-1)),
  '+': inFlame(() => graph.stretch(0.7, 0.5)),
  '-': inFlame(() => graph.stretch(1 / 0.7, 0.5)),
  0: inFlame(() => graph.reset()),
  Home: inFlame(() => graph.reset()),
  Escape: () => (state.view === 'table' ? otherView() : graph.back() || clear()),
  Backspace: inFlame(() => graph.back()),
  Enter: () => (state.view === 'table' ? table.pick() : graph.zoom(graph.selected)),
  ArrowUp: () => (state.view === 'table' ? table.move(-1) : graph.move('up')),
  ArrowDown: () => (state.view === 'table' ? table.move(1) : graph.move('down')),
  ArrowLeft: inFlame(() => graph.move('left')),
  ArrowRight: inFlame(() => graph.move('right')),
  '?': () => $('help').showModal(),
};

function clear() {
  $('query').value = '';
  if (state.query) look('');
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || $('help').open) return;
  const { target } = event;
  if (target === $('query')) {
    if (event.key === 'Enter') ($('canvas').focus(), inFlame(() => graph.next(event.shiftKey ? -1 : 1))());
    else if (event.key === 'Escape') (clear(), $('canvas').focus());
    else return;
    event.preventDefault();
    return;
  }
  // A list takes all keys, a button those that press it; Escape leaves both.
  const takes = target.closest?.('select, button, summary');
  if (takes && event.key === 'Escape') return $('canvas').focus();
  if (takes && (takes.tagName === 'SELECT' || event.key === 'Enter' || event.key === ' ')) return;
  const act = KEYS[event.key];
  if (!act) return;
  event.preventDefault();
  act();
}

function listen() {
  const on = (id, kind, act) => $(id).addEventListener(kind, act);
  on('to-flame', 'click', () => set({ view: 'flame' }));
  on('to-table', 'click', () => set({ view: 'table' }));
  on('groups', 'change', () => set({ show: $('groups').value }));
  on('column', 'change', () => set({ column: Number($('column').value) }));
  on('side', 'change', () => set({ side: Number($('side').value) }));
  on('invert', 'click', KEYS.i);
  on('back', 'click', () => graph.back());
  on('reset', 'click', () => graph.reset());
  on('query', 'input', () => look($('query').value));
  on('regex', 'click', () => {
    state.regex = !state.regex;
    look(state.query);
  });
  on('theme', 'click', KEYS.d);
  on('show-help', 'click', KEYS['?']);
  on('close-help', 'click', () => $('help').close());
  table.onpick = ({ name }) => {
    state.regex = false;
    $('query').value = name;
    state.view = 'flame';
    look(name);
    graph.next(1);
    $('canvas').focus();
  };
  table.onsort = remember;
  table.onselect = (row) => {
    $('what').textContent = row.name;
    $('figures').textContent = `self ${value(row.self)} · total ${value(row.total)}`;
    $('where').textContent = origin(row.fn);
  };
  document.addEventListener('keydown', onKey);
  addEventListener('hashchange', recall);
  const system = matchMedia('(prefers-color-scheme: dark)');
  system.addEventListener('change', () => theme(system.matches));
  theme(system.matches);
  // Paper is white, and as long as the picture.
  addEventListener('beforeprint', () => {
    graph.full = true;
    graph.setPalette(new Palette(false, model));
    graph.layout();
  });
  addEventListener('afterprint', () => {
    graph.full = false;
    theme(dark);
    graph.layout();
  });
}

fillGroups();
tellCoverage();
listen();
recall();

// For tests, and for the curious at the console.
window.flame = {
  state, data, model, table, painted: performance.now(),
  get graph() { return graph; },
  get selected() { return { label: graph.selected.label, now: graph.selected.now, before: graph.selected.before, depth: graph.selected.depth }; },
  get zoomed() { return graph.zoomed.label; },
  get dark() { return dark; },
  // The boxes in sight, with their places on the page.
  get boxes() {
    const { left, top } = $('canvas').getBoundingClientRect();
    return graph.rows.flat().filter(({ box }) => box).map(({ box }) => {
      const [from, to] = graph.edges(box.x, box.width);
      return { label: box.label, depth: box.depth, now: box.now, before: box.before, colour: graph.colour(box),
        x: left + (from + to) / 2, y: top + (box.depth + 0.5) * ROW - graph.scroller.scrollTop, width: to - from };
    });
  },
};
