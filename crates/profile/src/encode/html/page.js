'use strict';
// The page around the picture: what is chosen, by the mouse, the keyboard or the address.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($('data').textContent);
const model = new FlameModel(data);
const state = { view: 'flame', show: '', column: data.main, inverted: false, side: 0, query: '', regex: false };
const named = data.groups.filter((group) => group.name).length;
const FIRST_SHOW = named ? 'by-group' : data.threads.length > 1 ? 'by-thread' : 'all';
let graph = null;
let matching = null;
let dark = false;
const table = new FunctionTable($('table'));

// The parts of a Tree's options that the choice of groups says.
function chosen() {
  const [what, index] = state.show.split(':');
  if (what.startsWith('by-')) return { by: what.slice(3) };
  return index === undefined ? {} : { only: [what, Number(index)] };
}

function tree() {
  return new Tree(model, { ...chosen(), column: state.column, inverted: state.inverted, side: state.side });
}

function value(amount) {
  return formatted(amount, data.columns[state.column].unit, model.isRate(state.column));
}

// Everything anew: after another choice of rows, values or shape.
function render(path) {
  const made = tree();
  if (graph) graph.show(made, path);
  else {
    graph = new FlameGraph($('canvas'), made, new Palette(dark, model));
    graph.onselect = describe;
    graph.onzoom = remember;
    graph.onhover = tip;
    if (path) graph.show(made, path);
  }
  search();
  $('empty').hidden = made.whole > 0;
  update();
}

// What is there already, in another dress.
function update() {
  const flame = state.view === 'flame';
  $('flame').hidden = !flame;
  $('table').hidden = flame;
  if (!flame) table.show(graph.tree, graph.palette, matching);
  for (const [id, on] of [['to-flame', flame], ['to-table', !flame], ['invert', state.inverted],
    ['regex', state.regex]]) $(id).setAttribute('aria-pressed', on);
  $('groups').value = state.show;
  $('column').value = state.column;
  $('side').value = state.side;
  $('invert').disabled = !flame;
  legend();
  describe(graph.selected);
  remember();
}

function set(changes) {
  Object.assign(state, changes);
  if ('view' in changes) update();
  else render();
}

// Looks for the functions whose names match, and says how much of everything their stacks are.
function search() {
  const { query, regex } = state;
  matching = null;
  let found = '';
  $('query').removeAttribute('aria-invalid');
  if (query) {
    try {
      const low = query.toLowerCase();
      const pattern = regex && new RegExp(query, 'i');
      matching = Uint8Array.from(data.functions, (name) => (pattern ? pattern.test(name) : name.toLowerCase().includes(low)));
      const count = matching.reduce((sum, one) => sum + one, 0);
      const { selection, side, whole } = graph.tree;
      state.share = selection.matched(matching, side) / (whole || 1);
      found = `${percent(state.share, 1)} in ${count.toLocaleString('en')} function${count === 1 ? '' : 's'}`;
    } catch (error) {
      found = 'not a regular expression';
      $('query').setAttribute('aria-invalid', 'true');
    }
  }
  if (!matching) state.share = null;
  $('found').textContent = found;
  graph.setMatching(matching);
}

function look(query) {
  state.query = query;
  search();
  update();
}

// The figures of a box, one sentence each.
function figures(box) {
  const { whole, side } = graph.tree;
  const width = side ? box.before : box.now;
  const parts = [`total ${value(width)} (${percent(width, whole)})`];
  if (graph.zoomed.depth && box.depth > graph.zoomed.depth) {
    parts.push(`${percent(width, graph.zoomed.width)} of ${shorter(graph.zoomed.label).pop()}`);
  }
  const self = graph.tree.self(box)[side];
  if (box.fn >= 0 && !(state.inverted && box.depth > 1 && !self)) parts.push(`self ${value(self)} (${percent(self, whole)})`);
  if (model.diff) {
    const by = box.now - box.before;
    parts.push(`before ${value(box.before)}, now ${value(box.now)}: ${signed(value(by), by)}, ${change(box.now, box.before)}`);
  }
  return parts;
}

function origin(fn) {
  if (fn < 0) return '';
  const inlined = data.inlined[fn] ? 'inlined' : '';
  return [data.libraries[data.library[fn]], model.place(fn), inlined].filter(Boolean).join(' · ');
}

function describe(box) {
  if (state.view !== 'flame') {
    $('what').textContent = $('where').textContent = '';
    $('figures').textContent = 'Enter, or a second click, shows a function in the flame graph.';
    return;
  }
  $('what').textContent = box.label;
  $('figures').textContent = figures(box).join(' · ');
  $('where').textContent = origin(box.fn);
}

function tip(box, event) {
  const tip = $('tip');
  tip.hidden = !box;
  if (!box) return;
  const line = (text, of) => Object.assign(document.createElement(of), { textContent: text });
  tip.replaceChildren(line(box.label, 'b'), ...figures(box).map((text) => line(text, 'span')));
  if (origin(box.fn)) tip.append(line(origin(box.fn), 'small'));
  const { offsetWidth: wide, offsetHeight: high } = tip;
  const x = Math.min(event.clientX + 14, innerWidth - wide - 8);
  const below = event.clientY + 18;
  tip.style.left = Math.max(8, x) + 'px';
  tip.style.top = (below + high > innerHeight - 8 ? Math.max(8, event.clientY - high - 12) : below) + 'px';
}

// What the colours stand for: the libraries that used most by themselves.
function legend() {
  const chips = [];
  const chip = (colour, text) => {
    const one = document.createElement('li');
    const box = document.createElement('i');
    box.style.background = colour;
    one.append(box, text);
    chips.push(one);
  };
  const { palette, tree } = graph;
  if (matching) {
    chip(palette.match, 'found');
    chip(palette.plain, 'everything else');
  } else if (model.diff) {
    for (const [now, text] of [[0, 'less than before'], [0.7, ''], [1, 'as before'], [1.3, ''], [9, 'more than before']]) {
      chip(palette.change(now * 100, 100, 100), text);
    }
  } else if (tree.whole) {
    const of = new Float64Array(data.libraries.length);
    const { self } = tree.selection.functions()[tree.side];
    self.forEach((amount, fn) => (of[data.library[fn]] += amount));
    chips.push(Object.assign(document.createElement('li'), { textContent: 'Self by library:' }));
    const order = [...of.keys()].filter((one) => of[one] > 0.001 * tree.whole).sort((a, b) => of[b] - of[a]);
    for (const one of order.slice(0, 9)) {
      chip(palette.of(one), `${data.libraries[one] || 'unknown'} ${percent(of[one], tree.whole)}`);
    }
  }
  $('legend').replaceChildren(...chips);
}

function theme(to) {
  dark = to;
  document.documentElement.dataset.theme = dark ? 'dark' : 'light';
  $('theme').setAttribute('aria-pressed', dark);
  if (!graph) return;
  graph.setPalette(new Palette(dark, model));
  update();
}

// What is chosen is in the address: a link shows the same.
function remember() {
  const zoom = graph.zoomed === graph.tree.root ? '' : graph.tree.path(graph.zoomed);
  const all = {
    view: state.view === 'flame' ? '' : state.view,
    show: state.show === FIRST_SHOW ? '' : state.show,
    value: state.column === data.main ? '' : data.columns[state.column].name,
    inverted: state.inverted ? '1' : '', old: state.side ? '1' : '',
    find: state.query, regex: state.regex ? '1' : '',
    sort: table.sort === 'self' && table.down ? '' : (table.down ? '' : '-') + table.sort, zoom,
  };
  const hash = new URLSearchParams(Object.entries(all).filter(([, text]) => text)).toString();
  if (hash !== location.hash.slice(1)) history.replaceState(null, '', '#' + hash);
}

function recall() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const get = (key) => wanted.get(key) || '';
  const options = [...$('groups').options].map((option) => option.value);
  const column = data.columns.findIndex(({ name }) => name === get('value'));
  state.view = get('view') === 'table' ? 'table' : 'flame';
  state.show = options.includes(get('show')) ? get('show') : FIRST_SHOW;
  state.column = column < 0 ? data.main : column;
  state.inverted = Boolean(get('inverted'));
  state.side = model.diff && get('old') ? 1 : 0;
  state.query = $('query').value = get('find');
  state.regex = Boolean(get('regex'));
  table.down = !get('sort').startsWith('-');
  table.sort = /^-?(self|total|name|selfChange|totalChange)$/.test(get('sort')) ? get('sort').replace('-', '') : 'self';
  render(get('zoom'));
}
