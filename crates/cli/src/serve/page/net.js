'use strict';
// Requests to the server that gave this page, and streams from it. Paths are relative, so that a proxy
// may put the page below any other. Each request carries the token, which came in the address of the
// page and is kept for this tab alone.

const TOKEN = 'dormouse-token';
// Time between two tries, in ms, grows up to the last.
const BACK_OFF = [500, 1000, 2000, 4000, 8000, 15000];
const backOff = (tries) => BACK_OFF[Math.min(tries, BACK_OFF.length - 1)] * (0.8 + 0.4 * Math.random());

class Refused extends Error {
  constructor(status, kind, message) {
    super(message);
    Object.assign(this, { status, kind });
  }
}

const token = {
  get value() {
    return sessionStorage.getItem(TOKEN) || '';
  },
  set value(text) {
    sessionStorage.setItem(TOKEN, text.trim());
  },
};

async function request(path, { method = 'GET', body, signal } = {}) {
  const headers = { Authorization: 'Bearer ' + token.value };
  if (body) headers['Content-Type'] = 'application/json';
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      signal,
      body: body && JSON.stringify(body),
      cache: 'no-store',
      credentials: 'omit',
      redirect: 'error',
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new Refused(0, 'unreachable', 'The server does not answer.');
  }
  if (answer.ok) return answer;
  let said = {};
  try {
    said = (await answer.json()).error || {};
  } catch {
    // An answer of another form has its number alone.
  }
  if (answer.status === 401) page.askToken();
  throw new Refused(
    answer.status,
    said.kind || '',
    clean(said.message || `The server answers ${answer.status}.`),
  );
}

const ask = async (path, options) => (await request(path, options)).json();
const query = (values) =>
  new URLSearchParams(
    Object.entries(values).filter(([, value]) => value !== '' && value !== undefined),
  ).toString();
const processPath = (pid, rest) => `api/processes/${encodeURIComponent(pid)}/${rest}`;

// A whole number that JavaScript rounds: it has the digits of its text where it is shown, and is
// the rounded number elsewhere.
class Exact extends Number {
  constructor(text) {
    super(text);
    this.text = text;
  }

  toString(base) {
    return BigInt(this.text).toString(base);
  }

  toJSON() {
    return JSON.rawJSON(this.text);
  }
}

// For JSON.parse. An older browser does not give the text: it shows what JavaScript makes of it.
const exact = (_, value, context) =>
  typeof value === 'number' && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? '')
    ? new Exact(context.source)
    : value;

// The longest event that a server may send: all groups of a large service.
const LONGEST = 32 << 20;

// Reads server-sent events to the end of the answer. `on` gets each kind and its data, as `revive`
// makes it.
async function events(path, options, on, revive) {
  const reader = (await request(path, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    if (rest.length > LONGEST)
      throw new Refused(0, 'too-long', 'The server sends an event that is too long.');
    let from = 0;
    for (let end; (end = rest.indexOf('\n\n', from)) >= 0; from = end + 2) {
      let kind = 'message';
      const data = [];
      for (const line of rest.slice(from, end).split('\n')) {
        if (line.startsWith('data:')) data.push(line.slice(5).trimStart());
        else if (line.startsWith('event:')) kind = line.slice(6).trim();
      }
      if (data.length) on(kind, JSON.parse(data.join('\n'), revive));
    }
    rest = rest.slice(from);
  }
}

// Asks again and again while a view is in sight. The pause is longer when answers take long, so
// that a large process pays as much as a small one.
class Poll {
  constructor(every, path, onanswer, onerror) {
    Object.assign(this, { every, path, onanswer, onerror, tries: 0, paused: false });
    this.controller = new AbortController();
    this.run();
  }

  async run() {
    clearTimeout(this.timer);
    if (this.controller.signal.aborted || this.busy) return;
    const begun = performance.now();
    let wait = this.every;
    if (!document.hidden && !this.paused) {
      this.busy = true;
      try {
        const answer = await ask(this.path(), { signal: this.controller.signal });
        this.tries = 0;
        if (!this.controller.signal.aborted) this.onanswer(answer);
        wait = Math.max(wait, 5 * (performance.now() - begun));
      } catch (error) {
        if (error.name === 'AbortError') return;
        this.onerror(error);
        wait = Math.max(wait, backOff(this.tries++));
      } finally {
        this.busy = false;
      }
    }
    if (!this.controller.signal.aborted) this.timer = setTimeout(() => this.run(), wait);
  }

  close() {
    clearTimeout(this.timer);
    this.controller.abort();
  }
}
