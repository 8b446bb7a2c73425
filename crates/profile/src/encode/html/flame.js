'use strict';
// The picture: boxes of a Tree on a canvas. It knows nothing of the page around it, and tells what
// happened by `onselect`, `onzoom` and `onhover`. The canvas sticks to the top of an element as high as
// the whole picture, inside of one that scrolls: only rows in sight are drawn.

const ROW = 21;
const SMALLEST = 0.5;

class FlameGraph {
  constructor(canvas, tree, palette) {
    this.canvas = canvas;
    this.context = canvas.getContext('2d', { alpha: false });
    this.sheet = canvas.parentElement;
    this.scroller = this.sheet.parentElement;
    this.widths = new Map();
    this.names = new Map();
    this.onselect = this.onzoom = this.onhover = () => {};
    this.matching = null;
    this.painted = 0;
    this.palette = palette;
    this.listen();
    this.show(tree);
  }

  // Shows another tree, from its root.
  show(tree, path) {
    this.tree = tree;
    this.zoomed = path ? tree.find(path) : tree.root;
    this.past = [];
    this.selected = this.zoomed;
    this.leave();
    this.scroller.scrollTop = 0;
    this.view(this.zoomed);
  }

  setPalette(palette) {
    this.palette = palette;
    this.draw();
  }

  // A byte for each function, or nothing: functions that are looked for.
  setMatching(matching) {
    this.matching = matching;
    this.draw();
  }

  view(box) {
    this.from = box.x;
    this.to = box.x + (box.width || 1);
    this.layout();
  }

  // Zooms to a box, and remembers where it was before.
  zoom(box) {
    if (box === this.zoomed && this.from === box.x && this.to === box.x + box.width) return;
    this.past.push([this.zoomed, this.from, this.to]);
    this.zoomed = box;
    this.selected = box;
    this.leave();
    this.view(box);
    this.reveal(box);
    this.onzoom(box);
    this.onselect(box);
  }

  // Forgets where the mouse was: what lies there is another box now.
  leave() {
    this.hovered = null;
    this.onhover(null);
  }

  back() {
    const before = this.past.pop();
    if (!before) return this.zoomed === this.tree.root ? false : (this.reset(), true);
    [this.zoomed, this.from, this.to] = before;
    this.layout();
    this.reveal(this.selected);
    this.onzoom(this.zoomed);
    return true;
  }

  reset() {
    this.zoom(this.tree.root);
    this.past = [];
  }

  // Stretches the picture around a place, a share of its width: nearer for factors below 1.
  stretch(factor, place) {
    const { root } = this.tree;
    const fixed = this.from + place * (this.to - this.from);
    const wide = Math.min(root.width, Math.max(root.width * 1e-7, (this.to - this.from) * factor));
    this.shift(fixed - place * wide, wide);
  }

  shift(from, wide) {
    const { root } = this.tree;
    this.from = Math.min(Math.max(from, 0), root.width - wide);
    this.to = this.from + wide;
    this.layout();
  }

  // Finds the boxes that are wide enough to be seen, row by row. The rest of a box whose children
  // are too small is one grey piece.
  layout() {
    this.width = this.sheet.clientWidth || 1;
    this.scale = this.width / (this.to - this.from);
    const least = SMALLEST / this.scale;
    this.rows = [];
    for (let row = this.tree.root.width > 0 ? [{ box: this.tree.root }] : []; row.length;) {
      this.rows.push(row);
      const next = [];
      for (const { box } of row) {
        if (!box) continue;
        let seen = box.x;
        for (const child of this.tree.children(box)) {
          if (child.width < least || child.x >= this.to) break;
          seen = child.x + child.width;
          if (seen > this.from) next.push({ box: child });
        }
        const small = box.made.reduceRight((sum, child) => (child.width < least ? sum + child.width : sum), 0);
        if (small >= least && seen < this.to) next.push({ box: null, x: seen, width: small });
      }
      row = next;
    }
    this.high = Math.max(this.rows.length * ROW + 8, 60);
    this.sheet.style.height = this.high + 'px';
    this.resize();
  }

  resize() {
    const high = this.full ? this.high : Math.min(this.scroller.clientHeight, Math.max(this.high, 60));
    const ratio = window.devicePixelRatio || 1;
    this.height = high;
    this.canvas.style.width = this.width + 'px';
    this.canvas.style.height = high + 'px';
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.ratio = ratio;
    this.draw();
  }

  draw() {
    const { context, palette } = this;
    const top = this.full ? 0 : this.scroller.scrollTop;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = palette.back;
    context.fillRect(0, 0, this.width, this.height);
    context.textBaseline = 'middle';
    this.drawn = 0;
    const last = Math.min(this.rows.length, Math.ceil((top + this.height) / ROW));
    for (let depth = Math.floor(top / ROW); depth < last; depth++) {
      for (const piece of this.rows[depth]) this.drawPiece(piece, depth * ROW - top);
    }
    this.outline(this.hovered, top, 1);
    this.outline(this.selected, top, 2);
    this.painted++;
  }

  // Left and right edges in pixels of the screen: neighbours never overlap, whatever the zoom.
  edges(x, width) {
    const snap = (value) => Math.round(value * this.ratio) / this.ratio;
    const left = snap(Math.max(0, (x - this.from) * this.scale));
    const right = snap(Math.min(this.width, (x + width - this.from) * this.scale));
    return [left, Math.max(right, left + 1 / this.ratio)];
  }

  drawPiece({ box, x, width }, y) {
    const { context, palette } = this;
    const [left, right] = box ? this.edges(box.x, box.width) : this.edges(x, width);
    const gap = right - left > 3 ? 1 : 0;
    const wide = right - left - gap;
    context.globalAlpha = 1;
    context.fillStyle = box ? this.colour(box) : palette.rest;
    context.fillRect(left, y, wide, ROW - 1);
    this.drawn++;
    if (!box || wide < 26) return;
    const bold = box.fn < 0;
    context.fillStyle = palette.text;
    context.font = this.font(bold);
    context.fillText(this.fit(box, wide - 10, bold), left + 5, y + ROW / 2);
  }

  font(bold) {
    return (bold ? '600 ' : '') + '12px ' + FlameGraph.FONT;
  }

  colour(box) {
    const { palette, tree } = this;
    if (this.matching) return box.fn >= 0 && this.matching[box.fn] ? palette.match : palette.plain;
    if (tree.model.diff) return palette.change(box.now, box.before, tree.whole);
    return box.fn < 0 ? palette.group : palette.of(tree.model.data.library[box.fn]);
  }

  outline(box, top, thick) {
    if (!box || box.x + box.width <= this.from || box.x >= this.to) return;
    const { context } = this;
    const [left, right] = this.edges(box.x, box.width);
    context.strokeStyle = thick > 1 ? this.palette.focus : this.palette.text;
    context.lineWidth = thick;
    const inset = thick / 2;
    const wide = Math.max(right - left - 2 * inset - (right - left > 3 ? 1 : 0), 1);
    context.strokeRect(left + inset, box.depth * ROW - top + inset, wide, ROW - 1 - 2 * inset);
  }

  measure(text, bold) {
    let sum = 0;
    for (const letter of text) {
      const key = bold ? '*' + letter : letter;
      let wide = this.widths.get(key);
      if (wide === undefined) {
        this.context.font = this.font(bold);
        wide = this.context.measureText(letter).width;
        this.widths.set(key, wide);
      }
      sum += wide;
    }
    return sum;
  }

  // The longest name of a box that fits, with its share where there is room.
  fit(box, room, bold) {
    const { tree } = this;
    let names = this.names.get(box.label);
    if (!names) {
      names = box.fn < 0 ? [box.label] : shorter(box.label);
      this.names.set(box.label, names);
    }
    const share = tree.model.diff ? change(box.now, box.before) : percent(box.width, tree.whole);
    const tail = bold || tree.model.diff ? '  ' + share : '';
    for (const name of names) {
      // A function alone says less than its type and function with some letters missing.
      if (name === names[names.length - 1] && !bold && names.length > 1) break;
      const wide = this.measure(name, bold);
      if (wide > room) continue;
      return wide + this.measure(tail, bold) <= room ? name + tail : name;
    }
    // A type is cut before its function is: "Upgradea…::poll".
    const [, type, last] = (names[names.length - 2] || '').match(/^(\w+)(::.+)$/) || [];
    if (type && this.measure(type.slice(0, 3) + '…' + last, bold) <= room) return this.cut(type, last, room, bold);
    const name = names[names.length - 1];
    return this.measure(name, bold) <= room ? name : this.cut(name.slice(0, 200), '', room, bold);
  }

  cut(text, last, room, bold) {
    let left = text;
    while (left && this.measure(left + '…' + last, bold) > room) left = left.slice(0, -1);
    return left ? left + '…' + last : '';
  }

  // The box at a point of the canvas.
  at(x, y) {
    const row = this.rows[Math.floor((y + this.scroller.scrollTop) / ROW)];
    const value = this.from + x / this.scale;
    const piece = row && row.find(({ box }) => box && value >= box.x && value < box.x + box.width);
    return piece ? piece.box : null;
  }

  select(box) {
    if (!box) return;
    this.selected = box;
    this.reveal(box);
    this.draw();
    this.onselect(box);
  }

  // Scrolls until the row of a box is in sight.
  reveal(box) {
    const top = box.depth * ROW;
    const { scroller } = this;
    if (top < scroller.scrollTop) scroller.scrollTop = top - ROW;
    if (top + 2 * ROW > scroller.scrollTop + scroller.clientHeight) {
      scroller.scrollTop = top + 2 * ROW - scroller.clientHeight;
    }
  }

  // Moves the selection: 'up', 'down', 'left' or 'right'.
  move(way) {
    const { selected } = this;
    const row = (this.rows[selected.depth] || []).filter(({ box }) => box).map(({ box }) => box);
    const at = row.indexOf(selected);
    if (at < 0) return this.select(this.zoomed);
    if (way === 'up') return this.select(selected.parent);
    if (way === 'left') return this.select(row[at - 1]);
    if (way === 'right') return this.select(row[at + 1]);
    const below = this.rows[selected.depth + 1] || [];
    return this.select((below.find(({ box }) => box && box.parent === selected) || {}).box);
  }

  // Selects the next box in sight whose function is looked for; the one before by a `step` of -1.
  next(step) {
    const found = this.rows.flat().filter(({ box }) => box && box.fn >= 0 && this.matching?.[box.fn]);
    if (!found.length) return;
    const at = found.findIndex(({ box }) => box === this.selected);
    const to = at < 0 ? (step > 0 ? 0 : found.length - 1) : (at + step + found.length) % found.length;
    this.select(found[to].box);
  }

  listen() {
    const { canvas } = this;
    const point = (event) => {
      const { left, top } = canvas.getBoundingClientRect();
      return [event.clientX - left, event.clientY - top];
    };
    let drag = null;
    canvas.addEventListener('pointerdown', (event) => {
      drag = { x: event.clientX, from: this.from, moved: false, mouse: event.pointerType === 'mouse' };
    });
    canvas.addEventListener('pointermove', (event) => {
      if (drag?.mouse && event.buttons & 1 && (drag.moved || Math.abs(event.clientX - drag.x) > 4)) {
        drag.moved = true;
        this.shift(drag.from - (event.clientX - drag.x) / this.scale, this.to - this.from);
        return;
      }
      const box = this.at(...point(event));
      if (box !== this.hovered) {
        this.hovered = box;
        this.draw();
      }
      this.onhover(event.pointerType === 'mouse' ? box : null, event);
    });
    canvas.addEventListener('pointerleave', () => {
      this.leave();
      this.draw();
    });
    canvas.addEventListener('click', (event) => {
      const box = this.at(...point(event));
      if (box && !drag?.moved) this.zoom(box);
      drag = null;
    });
    canvas.addEventListener('wheel', (event) => {
      const sideways = event.shiftKey ? event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.stretch(Math.exp(event.deltaY / 200), point(event)[0] / this.width);
      } else if (Math.abs(sideways) > Math.abs(event.shiftKey ? 0 : event.deltaY)) {
        event.preventDefault();
        this.shift(this.from + sideways / this.scale, this.to - this.from);
      }
    }, { passive: false });
    this.scroller.addEventListener('scroll', () => this.draw(), { passive: true });
    new ResizeObserver(() => {
      if (this.scroller.clientWidth) this.layout();
    }).observe(this.scroller);
  }
}

FlameGraph.FONT = 'ui-sans-serif, system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif';
