'use strict';
// The keys of a process. All that is switched on goes off by itself; before, the page says
// what goes on, by whom, and when it goes off again.

const HOLDS = [
  [10e3, '10 s'],
  [30e3, '30 s'],
  [300e3, '5 min'],
];
const KINDS = { key: 'key', probe: 'probe', tracing: 'tracing' };

function holderName({ by, uid, pid, client }) {
  return (
    {
      client: `process ${pid}${client ? ` (${clean(client)})` : ''} of user ${uid}`,
      user: `user ${uid}`,
      recorder: 'the flight recorder',
      service: 'the service itself (its code or a trigger)',
      nobody: 'its dwell time',
    }[by] || 'somebody'
  );
}

// Sites whose code is not what the key's state makes it.
function astray({ on, sites, sites_stale: stale = 0, sites_foreign: foreign = 0 }) {
  const act = on ? sites - stale - foreign : stale;
  const again = on ? 'off and on again' : 'on and off again';
  return (
    (stale ? `, ${act} of ${sites} sites act: ${again}` : '') +
    (foreign ? `, ${foreign} of ${sites} sites unknown: foreign code (a breakpoint?)` : '')
  );
}

class KeysView {
  constructor(panel, pid, live) {
    Object.assign(this, { pid, live, keys: [], path: '' });
    this.filter = filterBox('Filter keys', route.now.find, (find) => {
      route.change({ find });
      this.draw();
    });
    this.glob = make('input.glob', {
      id: 'glob',
      placeholder: 'db.*,!db.pool',
      autocomplete: 'off',
      spellcheck: 'false',
      'aria-label': 'Names of keys, as a glob',
    });
    this.glob.value = route.now.glob || '';
    this.glob.addEventListener('input', () => route.change({ glob: this.glob.value }));
    const form = make(
      'form.bar',
      { onsubmit: (event) => (event.preventDefault(), this.on(this.glob.value, 30e3)) },
      make('label', { for: 'glob' }, make('span', {}, 'Switch'), this.glob),
      ...HOLDS.map(([ms, label]) => button(`On ${label}`, () => this.on(this.glob.value, ms))),
      button('Off', () => this.off(this.glob.value)),
    );
    this.held = make('ul.held', { 'aria-label': 'Switched on' });
    this.only = button(
      'On only',
      () => {
        route.change({ on: route.now.on ? '' : '1' });
        this.draw();
      },
      { 'aria-pressed': false },
    );
    this.grid = new Grid({
      label: 'Keys',
      sort: 'name',
      down: false,
      key: (row) => row.key,
      empty: 'No key has this name.',
      open: (row) => this.choose(row),
      onsort: (sort) => route.change({ sort }),
      tip: (row) =>
        [
          row.name,
          row.fields?.length ? `fields: ${row.fields.join(', ')}` : '',
          `${row.file}:${row.line}, ${row.object}`,
          ...(row.held || []).map((held) => `on by ${holderName(held)}`),
        ].filter(Boolean),
      columns: [
        {
          id: 'name',
          label: 'Key',
          width: 'minmax(150px, 2fr)',
          narrow: true,
          value: (row) => row.name,
          text: (row) => clean(row.name),
        },
        {
          id: 'state',
          label: 'State',
          width: '150px',
          narrowWidth: '96px',
          narrow: true,
          value: (row) => (row.on ? 1 : 0),
          fill: (cell, row) => this.state(cell, row),
        },
        {
          id: 'kind',
          label: 'Kind',
          width: '84px',
          value: (row) => row.kind,
          text: (row) => KINDS[row.kind] || clean(row.kind),
        },
        {
          id: 'sites',
          label: 'Sites',
          width: '70px',
          number: true,
          value: (row) => row.sites,
          text: (row) => whole(row.sites),
        },
        {
          id: 'held',
          label: 'Held by',
          width: 'minmax(100px, 1fr)',
          value: (row) => row.leases,
          text: (row) => (row.held || []).map(holderName).join(', ') || (row.baseline ? 'baseline' : ''),
        },
        {
          id: 'place',
          label: 'Place',
          width: 'minmax(120px, 1.2fr)',
          value: (row) => row.file,
          text: (row) => clean(`${row.file.split('/').slice(-2).join('/')}:${row.line}`),
        },
      ],
    });
    if (route.now.sort) this.grid.setSort(route.now.sort);
    panel.append(form, this.held, make('div.bar', {}, this.filter, this.only), this.grid.element);
    this.grid.answered = false;
    this.draw();
    this.poll = new Poll(
      2000,
      () => processPath(pid, 'keys'),
      (answer) => this.take(answer.keys),
      (error) => page.fail(error),
    );
    this.timer = setInterval(() => !document.hidden && this.draw(), 1000);
  }

  state(cell, row) {
    const left = row.offAt && row.offAt - Date.now();
    const now = row.on ? (left > 0 ? `on, off in ${seconds(left)}` : row.baseline ? 'on, kept' : 'on') : 'off';
    setText(cell, now + astray(row));
    cell.title = cell.textContent;
    cell.classList.toggle('on', row.on);
  }

  take(keys) {
    page.fail(null);
    this.grid.answered = true;
    const now = Date.now();
    const seen = new Map();
    this.keys = keys.map((key) => {
      const name = `${key.name} ${key.object} ${key.file}:${key.line}`;
      const again = seen.get(name) || 0;
      seen.set(name, again + 1);
      return { ...key, key: `${name} ${again}`, offAt: key.off_in_ms ? now + key.off_in_ms : null };
    });
    this.draw();
  }

  draw() {
    const find = (route.now.find || '').toLowerCase();
    this.only.setAttribute('aria-pressed', Boolean(route.now.on));
    this.grid.show(
      this.keys.filter(
        (key) => (!find || key.name.toLowerCase().includes(find)) && (!route.now.on || key.on),
      ),
    );
    this.tellHeld();
  }

  // The keys that are on for a time, with what is left of it.
  tellHeld() {
    const on = this.keys
      .filter((key) => key.on && key.offAt > Date.now())
      .sort((a, b) => a.offAt - b.offAt);
    const shown = on.slice(0, 4);
    while (this.held.children.length > shown.length) this.held.lastChild.remove();
    while (this.held.children.length < shown.length) {
      const item = make('li', {}, make('p', {}, make('b.name'), ' ', make('span'), ' ', make('span')));
      item.append(button('Off', () => this.off(item.dataset.glob)));
      this.held.append(item);
    }
    shown.forEach((key, at) => {
      const item = this.held.children[at];
      item.dataset.glob = literal(key.name);
      const parts = item.firstChild.children;
      setText(parts[0], clean(key.name));
      setText(parts[1], `on, goes off in ${seconds(key.offAt - Date.now())}, at ${clock(key.offAt)}`);
      setText(parts[2], at === 3 && on.length > 4 ? `and ${on.length - 4} more` : '');
    });
  }

  // The row's own switch.
  choose(row) {
    return row.on ? this.off(literal(row.name)) : this.on(literal(row.name), 30e3);
  }

  async matched(glob) {
    const { keys } = await ask(processPath(this.pid, 'keys?' + query({ glob })));
    if (!keys.length) throw new Refused(0, 'no-match', 'No key has such a name.');
    return keys;
  }

  async whoAmI() {
    if (!page.me) await page.learnMe();
    if (!page.me) throw new Refused(0, 'unreachable', 'The server does not say which user switches.');
    const { user, uid, host } = page.me;
    const name = `${clean(user ?? '')} (uid ${uid}) on ${clean(host)}`;
    return `You switch by the token of this server, as its user: ${name}.`;
  }

  async on(glob, ms) {
    if (!glob.trim()) return this.glob.focus();
    await this.tried(async () => {
      const [keys, me] = [await this.matched(glob), await this.whoAmI()];
      const [go, self] = keys.length === 1 ? ['goes', 'itself'] : ['go', 'themselves'];
      const sites = keys.reduce((sum, key) => sum + key.sites, 0);
      const later = keys.filter((key) => key.on);
      const lines = [
        me,
        ...this.names(keys),
        () =>
          `${plural(keys.length, 'key')} with ${plural(sites, 'site')} in ${page.who()} ${go} on now, and ` +
          `off by ${self} ${seconds(ms)} later, at ${clock(Date.now() + ms)}, even if this page or its ` +
          'server is gone by then.',
      ];
      if (later.length)
        lines.push(`${whole(later.length)} of them on already, which may stay on longer, by others.`);
      if (
        !(await confirmed(
          `Switch on for ${seconds(ms)}?`,
          lines,
          `Switch on ${plural(keys.length, 'key')}`,
        ))
      )
        return;
      const answer = await this.post({ glob, on: true, for_ms: ms });
      say(`${plural(answer.changed ?? 0, 'key')} went on, for ${seconds(ms)}`);
    });
  }

  async off(glob) {
    if (!glob.trim()) return this.glob.focus();
    await this.tried(async () => {
      const [keys, me] = [await this.matched(glob), await this.whoAmI()];
      const lines = [
        me,
        ...this.names(keys),
        `${plural(keys.length, 'key')} in ${page.who()} ${keys.length === 1 ? 'goes' : 'go'} off now, ` +
          'before their time. Keys that others hold stay on.',
      ];
      if (!(await confirmed('Switch off?', lines, `Switch off ${plural(keys.length, 'key')}`))) return;
      const answer = await this.post({ glob, on: false });
      const held = (answer.held || []).reduce((sum, one) => sum + one.keys, 0);
      say(`${plural(answer.changed ?? 0, 'key')} went off${held ? `, ${held} stay on by others` : ''}`);
    });
  }

  names(keys) {
    const list = keys.slice(0, 6).map(({ name }) => make('li.name', {}, clean(name)));
    if (keys.length > 6) list.push(make('li', {}, `and ${keys.length - 6} more`));
    return [make('ul', {}, ...list)];
  }

  post(body) {
    return ask(processPath(this.pid, 'keys'), { method: 'POST', body });
  }

  async tried(act) {
    page.fail(null, 'switch');
    try {
      await act();
    } catch (error) {
      page.fail(error, 'switch');
      say(error.message);
    }
    this.poll.run();
  }

  close() {
    this.poll.close();
    clearInterval(this.timer);
    this.grid.close();
  }
}

// A glob that matches this name alone.
const literal = (name) => name.replace(/[\\*?[\]{},!]/g, (letter) => '\\' + letter);
