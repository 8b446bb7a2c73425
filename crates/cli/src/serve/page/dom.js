'use strict';
// Elements, names and figures. A name that a service, a program or a user has given is a
// stranger's: it becomes the text of an element or of a canvas, and nothing else.

const $ = (id) => document.getElementById(id);

// Letters that are not seen, or that turn the order of those around them, as their numbers.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
const clean = (text) => String(text).replace(UNSEEN, (one) => `\\u{${one.charCodeAt(0).toString(16)}}`);

// An element: "tag.class", attributes, and children, of which a string is text. `on…` is a listener.
function make(tag, attributes, ...children) {
  const [name, ...classes] = tag.split('.');
  const element = document.createElement(name);
  if (classes.length) element.className = classes.join(' ');
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else if (value !== false && value !== undefined && value !== null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== undefined && child !== null && child !== false));
  return element;
}

// A stranger's name.
const named = (text, tag = 'span') => make(tag + '.name', {}, clean(text));

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

const NO = '–';
const time = (ns) =>
  ns === null || ns === undefined || Number.isNaN(ns) ? NO : formatted(Math.round(ns), 'nanoseconds');
const whole = (value) =>
  value === null || value === undefined ? NO : Math.round(value).toLocaleString('en');

// A number of as many digits as people compare: "0.42", "7.3", "812", "12,340".
function figure(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return NO;
  const digits = value === 0 ? 0 : value < 1 ? 2 : value < 100 ? 1 : 0;
  return value.toLocaleString('en', { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

const share = (value) =>
  value === null || value === undefined || Number.isNaN(value) ? NO : value.toFixed(1) + '\u202f%';
const plural = (count, word) => `${whole(count)} ${word}${count === 1 ? '' : 's'}`;
const clock = (unixMs) => new Date(unixMs).toLocaleTimeString('en-GB');
const seconds = (ms) =>
  ms >= 90e3 ? `${Math.round(ms / 60e3)} min` : `${Math.max(0, Math.ceil(ms / 1e3))} s`;

// The frames of a stack, and in place of those that are missing why they are.
function wholeStack(frames, { cut, inner, lost }) {
  const more = { function: '(cut: more functions than there is room for)' };
  if (cut) frames = [...frames.slice(0, inner ?? frames.length), more, ...frames.slice(inner ?? frames.length)];
  return lost ? [...frames, { function: '(its callers are not known)' }] : frames;
}

const frameLines = (frames) =>
  frames.map(
    ({ function: name, file, line }) =>
      name + (file ? `  ${file.split('/').slice(-2).join('/')}:${line}` : ''),
  );

// A place in the code for people: the innermost function that is not of the runtime, and its line.
function placeOf(frames) {
  const isOwn = ({ function: name }) => !/^(\(|<?(tokio|std|core|alloc|futures\w*|mio|hyper)\b)/.test(name);
  const { function: name, file, line } = frames.find(isOwn) || frames[0];
  const short = shorter(name).find((short) => short.length < 48) || withoutArguments(name);
  return clean(short + (file ? `  ${file.split('/').pop()}:${line}` : ''));
}

// Says something to those who listen rather than look.
function say(text) {
  $('said').textContent = text;
}

// The colours of the theme, for canvases.
const colour = (name) =>
  getComputedStyle(document.documentElement)
    .getPropertyValue('--' + name)
    .trim();

// A button, and a choice with a label.
const button = (label, onclick, attributes) =>
  make('button', { type: 'button', onclick, ...attributes }, label);
function choice(label, options, value, onchange, attributes) {
  const select = make(
    'select',
    { ...attributes, 'aria-label': label, onchange: () => onchange(select.value) },
    ...options.map(([key, text]) => make('option', { value: key }, clean(text))),
  );
  select.value = value;
  return select;
}

// The box for filters, which `/` goes to.
function filterBox(label, value, oninput) {
  const box = make('input.filter', {
    type: 'search',
    placeholder: label + '  ( / )',
    'aria-label': label,
    autocomplete: 'off',
    spellcheck: 'false',
  });
  box.value = value || '';
  box.addEventListener('input', () => oninput(box.value));
  return box;
}

// Text beside the mouse, in lines.
function showTip(lines, event) {
  const tip = $('tip');
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(...lines.map((line, at) => make(at ? 'span' : 'b', {}, clean(line))));
  const { offsetWidth: wide, offsetHeight: high } = tip;
  const below = event.clientY + 18;
  tip.style.left = Math.max(8, Math.min(event.clientX + 14, innerWidth - wide - 8)) + 'px';
  tip.style.top = (below + high > innerHeight - 8 ? Math.max(8, event.clientY - high - 12) : below) + 'px';
}

// Asks whether to do something: a promise of yes or no. `lines` are elements, text, or functions of
// text that is another one each second.
function confirmed(title, lines, yes) {
  const dialog = $('confirm');
  $('confirm-title').textContent = title;
  const moving = [];
  $('confirm-text').replaceChildren(
    ...lines.map((line) => {
      if (typeof line !== 'function') return typeof line === 'string' ? make('p', {}, line) : line;
      const element = make('p', {}, line());
      moving.push(setInterval(() => setText(element, line()), 250));
      return element;
    }),
  );
  $('confirm-yes').textContent = yes;
  return new Promise((done) => {
    const end = (answer) => () => {
      dialog.onclose = null;
      moving.forEach(clearInterval);
      dialog.close();
      done(answer);
    };
    $('confirm-yes').onclick = end(true);
    $('confirm-no').onclick = dialog.onclose = end(false);
    dialog.showModal();
    $('confirm-no').focus();
  });
}
