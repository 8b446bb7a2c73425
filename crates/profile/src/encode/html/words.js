'use strict';
// Numbers, names and colours: what the picture, the table and the page share.

const STEPS = {
  nanoseconds: [[1e9, 's'], [1e6, 'ms'], [1e3, 'µs'], [1, 'ns']],
  bytes: [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB'], [1, 'B']],
  count: [[1e9, 'G'], [1e6, 'M'], [1e4, 'k', 1e3], [1, '']],
};

// A value with its unit, three digits or more: "1.23 s", "48 MiB", "9,874".
function formatted(value, unit, perSecond) {
  if (!value) return '0';
  const size = Math.abs(value);
  const steps = STEPS[unit] || STEPS.count;
  const [from, name, by] = steps.find(([from]) => size >= from) || steps[steps.length - 1];
  const number = value / (by || from);
  const digits = Math.abs(number) >= 100 || Number.isInteger(number) ? 0 : Math.abs(number) >= 10 ? 1 : 2;
  const text = number.toLocaleString('en', { maximumFractionDigits: digits, minimumFractionDigits: digits });
  return text + (name ? '\u202f' + name : '') + (perSecond ? '/s' : '');
}

// A share: "12.3 %".
function percent(part, whole) {
  if (!whole) return '0\u202f%';
  const share = (100 * part) / whole;
  const digits = share >= 99.95 || share === 0 ? 0 : share < 0.1 ? 2 : 1;
  return share.toFixed(digits) + '\u202f%';
}

function signed(text, value) {
  return value > 0 ? '+' + text : text.replace('-', '−');
}

// How much a value has changed, in percent of what it was.
function change(now, before) {
  if (now === before) return now ? '±0\u202f%' : '';
  if (!before) return 'new';
  if (!now) return 'gone';
  const by = (100 * (now - before)) / before;
  if (by >= 1000) return '×' + Math.round(now / before);
  return signed(by.toFixed(Math.abs(by) < 10 ? 1 : 0) + '\u202f%', by);
}

// Names of a function from the longest to the shortest: whole, without generic arguments, without
// leading modules.
function shorter(name) {
  const names = [name];
  const add = (one) => one && one.length < names[names.length - 1].length && names.push(one);
  let plain = withoutArguments(name);
  add(plain);
  for (let parts = plain.split('::'); parts.length > 1;) {
    parts = parts.slice(1);
    if (parts.length > 1 || !/^[{<]/.test(parts[0])) add(parts.join('::'));
  }
  return names;
}

// "<a::B<T> as c::D>::e::<F>(int)" becomes "a::B::e".
function withoutArguments(name) {
  let text = name;
  if (text.startsWith('<')) {
    let depth = 0;
    for (let at = 0; at < text.length; at++) {
      if (text[at] === '<') depth++;
      else if (text[at] === '>' && text[at - 1] !== '-' && --depth === 0) {
        const self = text.slice(1, at);
        let end = self.length;
        for (let inner = 0, i = 0; i < self.length; i++) {
          if (self[i] === '<') inner++;
          else if (self[i] === '>' && self[i - 1] !== '-') inner--;
          else if (inner === 0 && self.startsWith(' as ', i)) { end = i; break; }
        }
        text = self.slice(0, end) + text.slice(at + 1);
        break;
      }
    }
  }
  let out = '';
  let depth = 0;
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (letter === '<') {
      if (depth++ === 0 && out.endsWith('::')) out = out.slice(0, -2);
    } else if (letter === '>' && text[at - 1] !== '-' && depth > 0) depth--;
    else if (letter === '(' && depth === 0 && out) break;
    else if (depth === 0) out += letter;
  }
  return out.trim() || name;
}

// Hues that are told apart; the first is the program's own.
const OWN = 70;
const HUES = [104, 130, 156, 184, 212, 240, 268, 296, 324, 352, 22];
const RUNTIME = new Set(['std', 'core', 'alloc', 'hashbrown', 'backtrace', 'compiler_builtins']);

// A hue for each library, by a hash of its name: it has the same on most pages. Of two that meet, the
// one that takes more of the picture keeps it, and the other takes the next free one; when none is
// free, the next round is darker. The runtime and whatever is unknown have none.
function hues(model) {
  if (model.hues) return model.hues;
  const { libraries, library, program, main } = model.data;
  const area = new Float64Array(libraries.length);
  for (const { total } of new Selection(model, null, main).functions()) {
    total.forEach((amount, fn) => (area[library[fn]] += amount));
  }
  const own = program.split('/').pop().replace(/-/g, '_');
  const rounds = HUES.map(() => 0);
  let taken = 0;
  model.hues = [];
  for (const index of [...area.keys()].sort((a, b) => area[b] - area[a])) {
    const name = libraries[index].replace(/-/g, '_');
    if (!name || RUNTIME.has(name)) continue;
    let hash = 2166136261;
    for (const letter of name) hash = Math.imul(hash ^ letter.codePointAt(0), 16777619);
    let at = ((hash ^ (hash >>> 15)) >>> 0) % HUES.length;
    if (name === own) {
      model.hues[index] = [OWN, 0];
      continue;
    }
    const round = Math.floor(taken / HUES.length);
    while (rounds[at] > round) at = (at + 4) % HUES.length;
    rounds[at] = round + 1;
    taken++;
    model.hues[index] = [HUES[at], round];
  }
  return model.hues;
}

// Colours of a theme. Every fill is as light as its text is dark, so that text on it can be read.
class Palette {
  constructor(dark, model) {
    this.dark = dark;
    this.hues = hues(model);
    this.group = dark ? 'oklch(0.41 0.025 255)' : 'oklch(0.845 0.022 255)';
    this.text = dark ? '#f1f3f5' : '#15181c';
    this.back = dark ? '#14171b' : '#fbfbf9';
    this.match = dark ? 'oklch(0.5 0.17 350)' : 'oklch(0.83 0.13 350)';
    this.focus = dark ? '#ffd75e' : '#0b3fb8';
    this.plain = dark ? 'oklch(0.35 0.008 250)' : 'oklch(0.91 0.006 250)';
    this.rest = dark ? 'oklch(0.26 0.006 250)' : 'oklch(0.945 0.004 250)';
  }

  of(library) {
    const [hue, round] = this.hues[library] || [];
    if (hue === undefined) return this.plain;
    const chroma = hue === OWN ? 0.1 : 0.062;
    const lower = 0.065 * Math.min(round, 2);
    return this.dark ? `oklch(${0.44 - lower} ${chroma * 0.85} ${hue})` : `oklch(${0.885 - lower} ${chroma} ${hue})`;
  }

  // Red: grew, blue: shrank. Pale while the change is a small part of the function's own value, or
  // below a hundredth of everything.
  change(now, before, whole) {
    const by = now - before;
    const share = Math.abs(by) / Math.max(now, before, 1e-9);
    const weight = Math.min(1, Math.abs(by) / (0.01 * whole || 1));
    const strength = Math.min(1, share * 1.5) * Math.sqrt(weight);
    if (strength < 0.04) return this.plain;
    const hue = by > 0 ? 27 : 255;
    const [light, strong] = this.dark ? [0.35 + 0.09 * strength, 0.15] : [0.92 - 0.19 * strength, 0.155];
    return `oklch(${light.toFixed(3)} ${(strong * strength).toFixed(3)} ${hue})`;
  }
}
