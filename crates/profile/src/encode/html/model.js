'use strict';
// The data of a page, and trees of it. A tree's boxes are made when somebody looks at them: a page of
// a hundred thousand frames shows some thousands at a time.

// What has no name of its own.
const NAMELESS = { group: 'in no group', thread: 'nameless' };

// All stacks are one tree whose nodes stand in the order of a walk from the root, so that what lies
// below a node is a range of nodes. Rows (samples that agree in stack, group and thread) are sorted
// by node: the weight below a node is a difference of two sums.
class FlameModel {
  constructor(data) {
    this.data = data;
    const count = data.nodes.length / 2 + 1;
    this.fn = new Int32Array(count).fill(-1);
    this.parent = new Int32Array(count).fill(-1);
    this.end = new Uint32Array(count);
    const open = [0];
    for (let node = 1; node < count; node++) {
      for (let up = data.nodes[2 * node - 2]; up > 0; up--) this.end[open.pop()] = node;
      this.parent[node] = open[open.length - 1];
      this.fn[node] = data.nodes[2 * node - 1];
      open.push(node);
    }
    while (open.length) this.end[open.pop()] = count;
    let last = 0;
    this.rowNode = Uint32Array.from(data.rows.node, (step) => (last += step));
    this.lists = {};
    this.diff = Boolean(data.old);
  }

  // What a value is divided by: two profiles are compared by what happened in a second.
  divisor(column, side) {
    const level = this.data.columns[column].name.startsWith('inuse_');
    if (!this.diff || level) return 1;
    return (side ? this.data.old.seconds : this.data.seconds) || 1;
  }

  isRate(column) {
    return this.diff && this.divisor(column, 0) !== 1;
  }

  // The rows of one group or thread: `by` is 'group' or 'thread'.
  rows(by, index) {
    let lists = this.lists[by];
    if (!lists) {
      lists = this.lists[by] = this.data[by + 's'].map(() => []);
      this.data.rows[by].forEach((of, row) => lists[of].push(row));
    }
    return lists[index];
  }

  // The name of a group or thread.
  label(by, index) {
    return this.data[by + 's'][index].name || NAMELESS[by];
  }

  name(fn) {
    return this.data.functions[fn];
  }

  // "pot.rs:12" or "pot.rs:12–40"; empty if nobody knows.
  place(fn) {
    let file = this.data.files[this.data.file[fn]];
    if (!file) return '';
    // Where a crate was unpacked is the same for all, and longer than the rest.
    file = file.replace(/^.*\/(registry\/src\/[^/]+|git\/checkouts|rustc\/[0-9a-f]{20,}\/library)\//, '');
    const first = this.data.line[2 * fn];
    const last = first + this.data.line[2 * fn + 1];
    return file + (first ? ':' + first + (last > first ? '–' + last : '') : '');
  }
}

// Some of the rows, with the values of one column.
class Selection {
  constructor(model, rows, column) {
    this.model = model;
    const { data } = model;
    const count = rows ? rows.length : model.rowNode.length;
    this.node = rows ? Uint32Array.from(rows, (row) => model.rowNode[row]) : model.rowNode;
    this.sums = [data.rows.now, data.rows.before].map((values, side) => {
      if (!values) return null;
      const sum = new Float64Array(count + 1);
      const by = model.divisor(column, side);
      for (let at = 0; at < count; at++) sum[at + 1] = sum[at] + values[column][rows ? rows[at] : at] / by;
      return sum;
    });
  }

  // The first row at a node, or after it.
  first(node) {
    let low = 0;
    let high = this.node.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.node[middle] < node) low = middle + 1;
      else high = middle;
    }
    return low;
  }

  // The weights of the nodes from `node` to before `end`: now, and before.
  weights(node, end) {
    const from = this.first(node);
    const to = this.first(end);
    return this.sums.map((sum) => (sum ? sum[to] - sum[from] : 0));
  }

  total(side) {
    const sum = this.sums[side];
    return sum ? sum[sum.length - 1] : 0;
  }

  // Self and total of each function, now and before. A function that called itself counts once.
  functions() {
    return (this.reckoned ||= this.reckon());
  }

  reckon() {
    const { fn, end } = this.model;
    const count = this.model.data.functions.length;
    return this.sums.map((sum) => {
      const self = new Float64Array(count);
      const total = new Float64Array(count);
      if (!sum) return { self, total };
      const open = new Uint32Array(count);
      const path = [];
      let row = 0;
      for (let node = 1; node < fn.length; node++) {
        while (path.length && end[path[path.length - 1]] <= node) open[fn[path.pop()]]--;
        let to = row;
        while (to < this.node.length && this.node[to] <= node) to++;
        self[fn[node]] += sum[to] - sum[row];
        row = to;
        if (open[fn[node]]++ === 0) {
          const [from, until] = [this.first(node), this.first(end[node])];
          total[fn[node]] += sum[until] - sum[from];
        }
        path.push(node);
      }
      return { self, total };
    });
  }

  // The weight of the stacks that hold a function of `matching`.
  matched(matching, side) {
    const { fn, parent } = this.model;
    const hit = new Uint8Array(fn.length);
    for (let node = 1; node < fn.length; node++) hit[node] = hit[parent[node]] | matching[fn[node]];
    const sum = this.sums[side];
    let weight = 0;
    for (let row = 0; row < this.node.length; row++) if (hit[this.node[row]]) weight += sum[row + 1] - sum[row];
    return weight;
  }
}

// A box of the picture. `x` is where it begins, in the unit of its width.
class Box {
  constructor(parent, fn, label, now, before) {
    Object.assign(this, { parent, fn, label, now, before, x: 0, width: 0, made: null });
    this.depth = parent ? parent.depth + 1 : 0;
  }
}

// A tree of boxes. Options: `column`; `by` ('group', 'thread' or nothing) makes a box for each of
// them; `only` = [by, index] takes one of them; `inverted` has the functions that used it at the
// root, and their callers below; `side` 1 has the widths of the old profile.
class Tree {
  constructor(model, { column, by, only, inverted, side }) {
    Object.assign(this, { model, column, inverted, side: side || 0 });
    this.selection = new Selection(model, only ? model.rows(...only) : null, column);
    const [now, before] = [this.selection.total(0), this.selection.total(1)];
    const label = only ? model.label(...only) : 'all';
    this.root = new Box(null, -1, label, now, before);
    this.root.width = this.widthOf(this.root);
    const rooted = (box, selection) => Object.assign(box, this.start(selection));
    if (!by) {
      rooted(this.root, this.selection);
    } else {
      this.root.make = () =>
        model.data[by + 's'].map((_, index) => {
          const selection = new Selection(model, model.rows(by, index), column);
          const box = new Box(this.root, -1, model.label(by, index), selection.total(0), selection.total(1));
          box.key = 'g' + index;
          return rooted(box, selection);
        });
    }
  }

  get whole() {
    return this.root.width;
  }

  widthOf(box) {
    return this.side ? box.before : box.now;
  }

  // What the root of a tree over these rows needs to make its children.
  start(selection) {
    if (!this.inverted) return { selection, node: 0, make: null };
    const { sums, node } = selection;
    const list = [];
    for (let row = 0; row < node.length; row++) {
      const before = sums[1] ? sums[1][row + 1] - sums[1][row] : 0;
      list.push({ at: node[row], now: sums[0][row + 1] - sums[0][row], before });
    }
    return { callers: list, make: null };
  }

  // The children of a box, the widest first. Those that have no width come last.
  children(box) {
    if (box.made) return box.made;
    box.made = box.make ? box.make() : this.inverted ? this.callersOf(box) : this.calleesOf(box);
    for (const child of box.made) child.width = this.widthOf(child);
    box.made.sort((a, b) => b.width - a.width || (a.label < b.label ? -1 : 1));
    let x = box.x;
    for (const child of box.made) {
      child.x = x;
      x += child.width;
    }
    return box.made;
  }

  calleesOf(box) {
    const { model } = this;
    const { selection, node } = box;
    const found = [];
    for (let child = node + 1; child < model.end[node]; child = model.end[child]) {
      const [now, before] = selection.weights(child, model.end[child]);
      if (!now && !before) continue;
      const made = new Box(box, model.fn[child], model.name(model.fn[child]), now, before);
      found.push(Object.assign(made, { selection, node: child, key: String(model.fn[child]) }));
    }
    return found;
  }

  callersOf(box) {
    const { model } = this;
    const found = new Map();
    for (const { at, now, before } of box.callers) {
      if (at === 0) continue;
      const fn = model.fn[at];
      let made = found.get(fn);
      if (!made) {
        made = Object.assign(new Box(box, fn, model.name(fn), 0, 0), { callers: [], key: String(fn) });
        found.set(fn, made);
      }
      made.now += now;
      made.before += before;
      made.callers.push({ at: model.parent[at], now, before });
    }
    box.callers = null;
    return [...found.values()];
  }

  // What a box used by itself, not by what it called: now, and before. Callers used nothing.
  self(box) {
    if (box.fn < 0) return [0, 0];
    if (this.inverted) return box.parent.fn < 0 ? [box.now, box.before] : [0, 0];
    return box.selection.weights(box.node, box.node + 1);
  }

  // The way from the root to a box, as text that finds it again.
  path(box) {
    const keys = [];
    for (let at = box; at.parent; at = at.parent) keys.push(at.key);
    return keys.reverse().join('.');
  }

  // The box at the end of a path, or the last that there is on the way.
  find(path) {
    let box = this.root;
    for (const key of path.split('.')) {
      const next = this.children(box).find((child) => child.key === key);
      if (!next) break;
      box = next;
    }
    return box;
  }
}
