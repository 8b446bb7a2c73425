'use strict';
// The frame around the views: the place, the tabs, the line of coverage, keys of the keyboard, and
// the token.

const VIEWS = [
  ['groups', 'Groups', 'g', GroupsView],
  ['keys', 'Keys', 'k', KeysView],
  ['trace', 'Trace', 'r', TraceView],
  ['tasks', 'Tasks', 't', TasksView],
  ['flame', 'Flame graph', 'f', FlameView],
  ['watches', 'Watches', 'w', WatchesView],
  ['doctor', 'Doctor', 'd', DoctorView],
];

const page = {
  live: null,
  view: null,
  shown: '',
  me: null,

  // Shows the place that the address says.
  show(place) {
    const pid = /^\d+$/.test(place.p || '') ? place.p : '';
    if (pid !== (this.live?.pid || '')) {
      this.live?.close();
      this.warn('live', '');
      this.live = pid ? new Live(pid, () => this.tick()) : null;
    }
    const name = !pid ? 'processes' : VIEWS.some(([id]) => id === place.v) ? place.v : 'groups';
    const shown = `${pid} ${name}`;
    if (shown === this.shown) this.view?.follow?.(place);
    else {
      const isNext = Boolean(this.view);
      this.leave();
      this.shown = shown;
      this.name = name;
      const View = pid ? VIEWS.find(([id]) => id === name)[3] : ProcessesView;
      const panel = $('panel');
      panel.setAttribute('role', pid ? 'tabpanel' : 'region');
      if (pid) panel.setAttribute('aria-labelledby', 'tab-' + name);
      else panel.setAttribute('aria-label', 'Processes');
      this.view = new View(panel, pid, this.live);
      // The element that had the focus has gone with the view before.
      if (isNext && document.activeElement === document.body) panel.focus();
    }
    this.frame();
    this.tick();
  },

  leave() {
    this.view?.close?.();
    this.view = null;
    showTip(null);
    this.fail(null);
    this.fail(null, 'switch');
    $('panel').replaceChildren();
  },

  // The words for the process that is looked at.
  who() {
    const { name, pid } = this.live || {};
    return name ? `${clean(name)} (pid ${pid})` : `pid ${pid}`;
  },

  frame() {
    const { live } = this;
    $('tabs').hidden = $('coverage').hidden = !live;
    $('process').hidden = !live;
    if (!live) document.title = 'dormouse';
    if (!live) return;
    this.title();
    if (!$('tabs').children.length) {
      $('tabs').append(
        ...VIEWS.map(([id, label, letter]) =>
          make(
            'a.tab',
            {
              id: 'tab-' + id,
              role: 'tab',
              title: `${label} (g ${letter})`,
              'aria-controls': 'panel',
              'data-view': id,
            },
            label,
          ),
        ),
      );
    }
    for (const tab of $('tabs').children) {
      const is = tab.dataset.view === this.name;
      tab.href = route.link({ p: live.pid, v: tab.dataset.view });
      tab.setAttribute('aria-selected', is);
      tab.tabIndex = is ? 0 : -1;
      if (is) tab.scrollIntoView({ block: 'nearest', inline: 'nearest' });
    }
  },

  title() {
    const { name, pid } = this.live;
    const title = `${this.who()} · ${VIEWS.find(([id]) => id === this.name)[1]} · dormouse`;
    if (document.title !== title) document.title = title;
    if ($('process').children.length !== 2)
      $('process').replaceChildren(make('b.name'), make('span.quiet'));
    setText($('process').firstChild, clean(name || ''));
    setText($('process').lastChild, pid);
  },

  // A sample has come, or the connection is another one.
  tick() {
    const { live } = this;
    const status = $('status');
    status.hidden = !live;
    if (!live) return;
    this.title();
    const words = {
      connecting: ['connecting', ''],
      live: ['live', ''],
      silent: ['silent', `The process does not answer ${live.why}. It may be stopped.`],
      lost: ['disconnected', `${live.why} Trying again; what is shown is the last that came.`],
      ended: [
        'ended',
        (live.why ? `Ended: ${live.why}.` : 'The process has ended.') +
          (live.groups.size ? ` What is shown is the last that came, at ${clock(live.lastAt)}.` : ''),
      ],
    }[live.state];
    if (status.dataset.state !== live.state) {
      status.dataset.state = live.state;
      status.textContent = words[0];
    }
    this.warn('live', words[1]);
    this.cover();
    this.view?.tick?.();
  },

  // The share of the process that the figures cover stands where the figures are.
  cover() {
    const { live } = this;
    const last = live.windows[FIGURES.windows.indexOf(10)];
    const facts = [];
    if (last?.elapsed_ns) {
      const part = last.in_groups_percent;
      facts.push([
        `CPU ${share(last.cpu_percent)}`,
        0,
        'CPU time of the process, of one CPU, in the last 10 s',
      ]);
      if (live.refused)
        facts.push(['CPU time of groups is refused', true, clean(live.refused)]);
      else if (part !== null)
        facts.push([
          `${share(part)} of it in groups`,
          part < 50,
          'The rest was used outside of all groups',
        ]);
    }
    if (last && last.own_percent !== null)
      facts.push([
        `dormouse costs ${last.own_is_whole ? '' : 'at least '}${share(last.own_percent)} and ${live.ownBytesIsMost ? 'at most ' : ''}${formatted(live.ownBytes, 'bytes')}`,
        0,
        'Its own CPU time, of one CPU, in the last 10 s: its threads exactly, the rest estimated; and its resident memory, without its code and profiles',
      ]);
    if (last?.throttled)
      facts.push(['throttled at its CPU limit', true, 'In the last 10 s ' + clean(last.throttled)]);
    if (live.unmatched?.length)
      facts.push(['objectives match no group', true, clean(live.unmatched.join('; '))]);
    if (live.limited) facts.push(['parts of dormouse are asleep', true, clean(live.limited)]);
    if (live.leftOut) facts.push(['figures are left out', true, clean(live.leftOut)]);
    for (const of of last?.runtimes || []) {
      const busy = of.busy_percent === null ? [] : [`${share(of.busy_percent)} busy`];
      const waits = of.blocking_queue ? [`${whole(of.blocking_queue)} for the blocking threads`] : [];
      facts.push([
        [
          `runtime ${clean(of.name)}: ${plural(of.workers, 'worker')}`,
          ...busy,
          plural(of.tasks, 'task'),
          `${whole(of.global_queue)} queued`,
          ...waits,
        ].join(', '),
        waits.length > 0,
        'Busy time of all workers in the last 10 s; tasks that wait in the queue of all workers now',
      ]);
    }
    facts.push(
      [plural(live.groups.size, 'group')],
      ...(live.threads === null ? [] : [[plural(live.threads, 'thread')]]),
      [`${plural(live.keysOn, 'key')} on`],
      [
        live.dropped ? `${plural(live.dropped, 'record')} dropped` : 'no record dropped',
        live.dropped > 0,
        'Records that found no room since the process began',
      ],
    );
    if (live.clock)
      facts.push([
        `clock ${clean(live.clock.tier)}`,
        0,
        `Times of groups are right to ${time(live.clock.error_bound_ns)} for each thread`,
      ]);
    const list = $('coverage');
    while (list.children.length < facts.length) list.append(make('li'));
    while (list.children.length > facts.length) list.lastChild.remove();
    facts.forEach(([text, bad, title], at) => {
      const item = list.children[at];
      setText(item, text);
      item.title = title || '';
      item.classList.toggle('bad', Boolean(bad));
    });
  },

  warnings: {},

  // One line above the view for as long as something is wrong.
  warn(about, text) {
    this.warnings[about] = text;
    const all = Object.values(this.warnings).filter(Boolean).join(' ');
    setText($('notice'), all);
    $('notice').hidden = !all;
  },

  // Shows why a request of the view failed; null: it did not. A poll that goes well takes nothing
  // back of what is about a switch.
  fail(error, about = 'view') {
    const known = error && this.live && ['lost', 'ended', 'silent'].includes(this.live.state);
    this.warn(about, error && !known && error.status !== 401 ? error.message : '');
  },

  async learnMe() {
    try {
      this.me = await ask('api/me');
      setText($('me'), clean(`${this.me.user ?? this.me.uid} on ${this.me.host}`));
      $('me').title = clean(`dormouse ${this.me.version}, user ${this.me.uid}`);
    } catch {
      // It is asked again when it is needed.
    }
  },

  // The form for the token, in the place of all else.
  askToken() {
    if ($('token')) return;
    this.live?.close();
    this.live = null;
    this.leave();
    this.shown = 'token';
    this.frame();
    $('status').hidden = true;
    const box = make('input', {
      id: 'token',
      type: 'password',
      autocomplete: 'off',
      spellcheck: 'false',
      required: true,
      'aria-describedby': 'token-why',
    });
    const was = token.value
      ? 'The server does not take this token. It may have been started anew.'
      : 'This page needs the token of the server.';
    $('panel').append(
      make(
        'form.token',
        {
          onsubmit: (event) => {
            event.preventDefault();
            token.value = box.value;
            this.begin();
          },
        },
        make('h1', {}, 'Token'),
        make(
          'p',
          { id: 'token-why' },
          was,
          ' It has printed an address with it, and has it in a file that only its user can read.',
        ),
        make('label', { for: 'token' }, 'Token'),
        box,
        make('button.main', { type: 'submit' }, 'Continue'),
      ),
    );
    box.focus();
  },

  begin() {
    $('panel').replaceChildren();
    this.shown = '';
    route.follow();
    if (token.value) this.learnMe();
  },

  theme(dark) {
    this.dark = dark;
    document.documentElement.dataset.theme = dark ? 'dark' : 'light';
    $('theme').setAttribute('aria-pressed', dark);
    this.view?.repaint?.();
  },

  gridKeys(event) {
    const grid = $('panel').querySelector('.grid')?.grid;
    if (!grid) return false;
    grid.focus();
    grid.onKey(event);
    return true;
  },

  leaveFilter(box) {
    if (box.value) {
      box.value = '';
      box.dispatchEvent(new Event('input'));
    } else if (!this.gridKeys({})) box.blur();
  },

  // The letter behind a `g`, before a table takes it for itself.
  second(event) {
    const waits = this.pending && performance.now() - this.pending < 1500;
    this.pending = 0;
    if (!waits || document.querySelector('dialog[open]') || event.ctrlKey || event.metaKey || event.altKey)
      return;
    const view = VIEWS.find(([, , letter]) => letter === event.key);
    if (event.key === 'p') route.go({});
    else if (view && this.live) route.go({ p: this.live.pid, v: view[0] });
    else return;
    $('panel').querySelector('.grid')?.grid.focus();
    event.preventDefault();
    event.stopPropagation();
  },

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector('dialog[open]')) return;
    const { target, key } = event;
    const typing = target.matches?.('input, select, textarea');
    if (typing) {
      if (key === 'Escape')
        event.preventDefault(), target.matches('.filter') ? this.leaveFilter(target) : target.blur();
      else if (key === 'Enter' && target.matches('.filter'))
        this.gridKeys({ key: 'Home', preventDefault() {}, stopPropagation() {} });
      return;
    }
    if (target.getAttribute?.('role') === 'tab' && /^Arrow(Left|Right)$/.test(key)) {
      const tabs = [...$('tabs').children];
      const to = tabs[(tabs.indexOf(target) + (key === 'ArrowRight' ? 1 : tabs.length - 1)) % tabs.length];
      to.click();
      to.focus();
      return event.preventDefault();
    }
    const act = {
      g: () => (this.pending = performance.now()),
      '/': () => $('panel').querySelector('.filter')?.focus(),
      '?': () => $('help').showModal(),
      d: () => this.theme(!this.dark),
      Escape: () => this.view?.back?.() || (this.live && route.go({})),
    }[key];
    if (act) {
      event.preventDefault();
      act();
    } else if (this.view?.onKey?.(event)) event.preventDefault();
    else if (/^(j|k|s|S|ArrowDown|ArrowUp)$/.test(key) && !target.closest?.('.rows, button, a'))
      this.gridKeys(event);
  },

  start() {
    document.addEventListener('keydown', (event) => this.second(event), true);
    document.addEventListener('keydown', (event) => this.onKey(event));
    document.addEventListener('visibilitychange', () => {
      this.live?.hide(document.hidden);
      this.view?.hide?.(document.hidden);
    });
    $('tabs').addEventListener('click', (event) => {
      const tab = event.target.closest('.tab');
      if (!tab || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      route.go({ p: this.live.pid, v: tab.dataset.view });
    });
    $('show-help').addEventListener('click', () => $('help').showModal());
    $('close-help').addEventListener('click', () => $('help').close());
    $('theme').addEventListener('click', () => this.theme(!this.dark));
    const system = matchMedia('(prefers-color-scheme: dark)');
    system.addEventListener('change', () => this.theme(system.matches));
    this.theme(system.matches);
    this.begin();
  },
};

page.start();
