'use strict';
// The place in the address: what is looked at, as `p=PID&v=VIEW&…`. Each place has a link, and the
// browser's own back and forward go between places. A place only says what is looked at; nothing is
// switched, traced or watched because somebody followed a link.

const route = {
  now: {},

  read() {
    return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  },

  link(place) {
    return '#' + query(place);
  },

  // Goes to another place.
  go(place) {
    const hash = this.link(place);
    if (hash === (location.hash || '#')) return;
    history.pushState(null, '', hash);
    this.follow();
  },

  // The same place with other words, such as a filter: one step back leaves it.
  change(changes) {
    const place = Object.fromEntries(
      Object.entries({ ...this.now, ...changes }).filter(([, value]) => value),
    );
    this.now = place;
    history.replaceState(null, '', this.link(place));
  },

  follow() {
    const before = this.now;
    this.now = this.read();
    // The token comes in the address once, and does not stay there.
    if ('token' in this.now) {
      token.value = this.now.token;
      delete this.now.token;
      history.replaceState(null, '', this.link(this.now));
    }
    page.show(this.now, before);
  },
};

addEventListener('popstate', () => route.follow());
addEventListener('hashchange', () => {
  if (query(route.read()) !== query(route.now)) route.follow();
});
