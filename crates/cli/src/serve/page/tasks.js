'use strict';
// The tasks of a process: what each does, since when, and where it waits. To look costs the service more
// than its groups do: for a second of each five it takes the place of each wait.

const STATES = { awaiting: 'awaiting', runnable: 'runnable', polled: 'in a poll' };
const DROPPED_BY = {
  connection: 'its connection: it ended, or the stream was reset',
  select: 'select!',
  shutdown: 'the end of its runtime',
  panic: 'a panic beside it',
  answer: 'no drop: its answer has the status of a cancelled request',
  function: '',
  unknown: 'stack unknown',
};

// What dropped a cancelled request, in words.
function droppedBy({ dropped_by: by, dropped_at: at }) {
  const words = DROPPED_BY[by] ?? clean(by);
  return at ? (words ? words + ' at ' : '') + placeOf([at]) : words || NO;
}

class TasksView {
  constructor(panel, pid) {
    Object.assign(this, { pid, tasks: [], places: new Map() });
    this.filter = filterBox('Filter tasks', route.now.find, (find) => {
      route.change({ find });
      this.draw();
    });
    this.group = choice('Group', [['', 'all groups']], '', (group) => {
      route.change({ group });
      this.draw();
    });
    this.state = choice(
      'State',
      [['', 'any state'], ...Object.entries(STATES)],
      route.now.state || '',
      (state) => {
        route.change({ state });
        this.draw();
      },
    );
    this.pause = button('Pause', () => this.toggle(), { 'aria-pressed': false, title: 'Pause (Space)' });
    this.told = make(
      'p.facts',
      { role: 'status' },
      'Times and places of all tasks are taken for a second …',
    );
    this.grid = new Grid({
      label: 'Tasks',
      sort: 'for',
      key: (row) => row.task,
      empty: 'No task.',
      onsort: (sort) => route.change({ sort }),
      tip: (row, column) =>
        column === 'place' &&
        frameLines(this.frames(row)),
      columns: [
        shown('task', 'Task', '84px', String, { narrowWidth: '64px', number: true, narrow: true }),
        shown('group', 'Group', 'minmax(120px, 1fr)', (group) => clean(group || 'in no group'), {
          narrow: true,
        }),
        {
          id: 'state',
          label: 'State',
          width: '92px',
          narrowWidth: '76px',
          narrow: true,
          value: (row) => row.state,
          fill: (cell, row) => {
            setText(cell, STATES[row.state] || clean(row.state));
            cell.dataset.state = row.state;
          },
        },
        {
          id: 'for',
          label: 'For',
          title: 'Time in this state',
          width: '88px',
          narrowWidth: '72px',
          number: true,
          narrow: true,
          value: (row) => row.for_ns,
          text: (row) => time(row.for_ns),
        },
        {
          id: 'age',
          label: 'Age',
          width: '88px',
          number: true,
          roomy: true,
          value: (row) => row.age_ns ?? Infinity,
          text: (row) => (row.age_ns === null ? '> ' + time(row.for_ns) : time(row.age_ns)),
        },
        {
          id: 'busy',
          label: 'Busy',
          title: 'Time in polls',
          width: '88px',
          number: true,
          value: (row) => row.poll_ns,
          text: (row) => time(row.poll_ns),
        },
        shown('polls', 'Polls', '72px', whole, { number: true, roomy: true }),
        shown('wakes', 'Wakes', '72px', whole, { number: true, roomy: true }),
        shown('place', 'Waits at', 'minmax(150px, 2fr)', asText),
      ],
    });
    this.cancelled = new Grid({
      label: 'Requests that were cancelled lately',
      sort: 'requests',
      key: (row) => [row.group, row.place, row.stack, row.waited].join(),
      empty: 'No request was cancelled.',
      tip: (row, column) => {
        const number = { at: row.place, by: row.stack }[column];
        return number && frameLines(this.places.get(number) || []);
      },
      columns: [
        shown('requests', 'Cancelled', '92px', whole, {
          title: 'Requests that were dropped before their end',
          narrowWidth: '84px',
          number: true,
          narrow: true,
        }),
        shown('group', 'Group', 'minmax(120px, 1fr)', clean, { narrow: true }),
        shown('age_p50_ns', 'p50 age', '88px', time, { number: true }),
        shown('age_max_ns', 'Max', '88px', time, { number: true, roomy: true }),
        shown('last_ns', 'Last', '88px', time, {
          title: 'How long ago the last one was cancelled',
          number: true,
          roomy: true,
          value: (row) => -row.last_ns,
        }),
        shown('at', 'Waited at', 'minmax(120px, 1fr)', asText),
        shown('by', 'Dropped by', 'minmax(150px, 2fr)', asText, { narrow: true }),
      ],
    });
    this.parts = [new LeaksPart(pid), new LocksPart(pid)];
    this.cancelled.element.hidden = true;
    this.cancelled.element.classList.add('below');
    if (route.now.sort) this.grid.setSort(route.now.sort);
    panel.append(
      make('div.bar', {}, this.filter, this.group, this.state, this.pause, ...this.parts.map((part) => part.button)),
      this.told,
      this.grid.element,
      ...this.parts.flatMap((part) => [part.told, part.grid.element]),
      this.cancelled.element,
    );
    this.grid.answered = false;
    this.draw();
    this.poll = new Poll(
      5000,
      () => processPath(pid, 'tasks'),
      (answer) => this.take(answer),
      (error) => page.fail(error),
    );
  }

  frames(row) {
    return (row.places || []).flatMap((place) => this.places.get(place) || []);
  }

  // The place where a task waits, in words.
  place(row) {
    const known = (row.places || []).filter((place) => (this.places.get(place) || []).length);
    if (!known.length) {
      if (row.state !== 'awaiting') return '';
      return row.has_waker ? NO : row.by_hand ? 'entered by hand' : 'nothing can wake it';
    }
    // A set comes last: its parts may be seen.
    const first = known.find((place) => !this.sets.has(place)) ?? known[0];
    const set = this.sets.has(first) ? ' (in a set: its parts are not seen)' : '';
    const rest = known.length - 1;
    const more = row.more_places ? ` and ${rest + 1} or more` : rest ? ` and ${rest} more` : '';
    const ago = row.polls_ago ? ` (as of ${plural(row.polls_ago, 'poll')} ago)` : '';
    return placeOf(this.places.get(first)) + set + more + ago;
  }

  take(answer) {
    page.fail(null);
    this.grid.answered = true;
    if (this.paused) return;
    this.places = new Map((answer.places || []).map((at) => [at.place, wholeStack(at.frames, at)]));
    this.sets = new Set((answer.places || []).filter(({ set }) => set).map(({ place }) => place));
    this.tasks = answer.tasks;
    for (const row of this.tasks) row.place = this.place(row);
    this.drops = answer.cancelled?.rows || [];
    for (const row of this.drops) {
      const frames = this.places.get(row.place) || [];
      const states = { not_begun: 'not polled yet', runnable: 'woken' };
      row.at = frames.length ? placeOf(frames) : states[row.waited] || NO;
      row.by = droppedBy(row);
    }
    const unlisted = (answer.unlisted || []).reduce((sum, one) => sum + one.tasks, 0);
    const rest = `; ${whole(unlisted)} began before times were taken and have not been polled since`;
    const known = `${plural(answer.known, 'task')} known; times and places were taken for a second`;
    const cost = ' Each look, every 5 s, costs the service a stack at each wait; Pause ends that.';
    setText(this.told, known + (unlisted ? rest : '') + '.' + cost);
    const groups = [...new Set(this.tasks.map(({ group }) => group))].sort();
    const wanted = route.now.group || '';
    if (wanted && !groups.includes(wanted)) groups.push(wanted);
    const list = groups.join('\n');
    if (list !== this.list) {
      this.list = list;
      this.group.replaceChildren(
        ...[['', 'all groups'], ...groups.map((group) => [group, group || 'in no group'])].map(
          ([key, text]) => make('option', { value: key }, clean(text)),
        ),
      );
      this.group.value = wanted;
    }
    this.draw();
  }

  draw() {
    const { find, group, state } = { find: '', ...route.now };
    const low = find.toLowerCase();
    const drops = (this.drops || []).filter(
      (row) =>
        (!group || row.group === group) &&
        (!low || `${row.group} ${row.at} ${row.by}`.toLowerCase().includes(low)),
    );
    this.cancelled.element.hidden = !drops.length;
    this.cancelled.show(drops);
    this.grid.show(
      this.tasks.filter(
        (row) =>
          (!group || row.group === group) &&
          (!state || row.state === state) &&
          (!low || `${row.task} ${row.group} ${row.place}`.toLowerCase().includes(low)),
      ),
    );
  }

  toggle() {
    this.paused = this.poll.paused = !this.paused;
    this.pause.setAttribute('aria-pressed', Boolean(this.paused));
    setText(this.pause, this.paused ? 'Go on' : 'Pause');
    if (!this.paused) this.poll.run();
  }

  onKey({ key }) {
    if (key !== ' ') return false;
    this.toggle();
    return true;
  }

  close() {
    this.poll.close();
    this.grid.close();
    this.cancelled.close();
    for (const part of this.parts) part.close();
  }
}
