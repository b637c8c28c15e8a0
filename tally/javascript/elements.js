// Three elements that count and show: <tally-like>, <tally-plays>, <tally-count>. They show only numbers of Tally, and
// beside them the changes that wait. docs/browser.md says how to use and style them. Comments have lines of their own.

const LIVE_S = 10;
const AGAIN_S_MAX = 30;
// React, Vue and Angular assign to properties. So each attribute has a property, which sets the attribute.
const ATTRIBUTES = ["counter", "of", "live", "anonymous", "for", "after"];
const STYLE = `
:host { display: inline-flex; align-items: center; gap: var(--tally-gap, .4em) }
:host([hidden]), [part=pending]:empty { display: none }
button { font: inherit; color: inherit; background: none; border: 1px solid; border-radius: var(--tally-radius, 9em); padding: .3em .9em }
[aria-pressed=true] { background: var(--tally-accent, #b3261e); color: var(--tally-on-accent, #fff) }
@media (forced-colors: active) { [aria-pressed=true] { forced-color-adjust: none; background: Highlight; color: HighlightText } }
[part=pending] { color: var(--tally-muted, inherit) }
i { position: absolute; clip-path: inset(50%) }
`;

const make = (tag, part, ...children) => {
  const made = document.createElement(tag);
  made.setAttribute("part", part);
  made.append(...children);
  return made;
};
// On a page that is written from right to left, a number keeps its sign in front.
const said = (part) => Object.assign(make("span", part), { dir: "auto" });

export const define = (tally) => {
  // A visit of Turbo, an effect of React or a second bundle calls this again. The elements stay, and take the new client.
  const before = customElements.get("tally-count");
  if (before) return before.use(tally);

  const style = new CSSStyleSheet();
  style.replaceSync(STYLE);
  const shown = new Set();
  // The last answer for each number, by `counter:id`. `moves`: the counted changes that the number lacks.
  const board = new Map();
  let waits, asked, drawn, timer, againS;

  const place = (of) => board.get(of) ?? board.set(of, { moves: [] }).get(of);
  // Whether a number counts this user. Each user has an answer of their own.
  const mine = (of, user) => place(`${of} ${user}`);
  const isLiked = (of) => mine(of, tally.user()).present;
  // Whether a button likes by the secret of the browser if no user is signed in.
  const isAnonymous = (element) => element.hasAttribute("anonymous");
  const all = (test) => [...shown].filter(test);
  const live = () => all((element) => element.hasAttribute("live"));
  const render = () => {
    drawn ??= requestAnimationFrame(() => {
      drawn = undefined;
      waits = tally.waiting();
      shown.forEach((element) => element.render());
    });
  };
  const waiting = (of) => waits.filter(({ counter, id }) => `${counter}:${id}` === of);
  const wish = (of) => waiting(of).findLast(({ present, user }) => present != null && user === tally.user());
  const names = (elements) => [...new Set(elements.map(({ number }) => number))];

  const by = ({ present = true, amount = 1 }) => (present ? amount : -amount);
  // The sum of the changes that wait for an answer, or for a number that includes them.
  const pending = (of) => {
    const { moves } = place(of);
    const last = wish(of);
    let sum = last && last.present !== isLiked(of) ? by(last) : 0;
    for (const entry of waiting(of)) if (entry.present == null) sum += by(entry);
    for (const move of moves) sum += by(move);
    return sum;
  };

  const read = async (elements, fresh) => {
    const ofs = names(elements);
    const began = performance.now();
    const values = await tally.values(ofs, { fresh }).catch(() => []);
    values.forEach(({ value, as_of, error }, index) => {
      const one = place(ofs[index]);
      // A later read has overtaken this one.
      if (one.began > began) return;
      one.error = error;
      // If a read fails, the last number stays.
      if (value == null) return;
      const moves = one.moves.filter((move) => move.began > began || as_of * 1000 < move.at);
      Object.assign(one, { began, value, moves });
    });
    render();
  };

  const readMine = async (ofs) => {
    const user = tally.user();
    const began = performance.now();
    const found = await tally.mine(ofs).catch(() => []);
    found.forEach(({ present }, index) => {
      const one = mine(ofs[index], user);
      // A change that was counted during the read, or a later read, is newer.
      if (present != null && !(one.began > began)) Object.assign(one, { began, present });
    });
    render();
  };

  // Reads these elements, and again while a number lacks a counted change, or while a live element is visible.
  const look = async (elements) => {
    const behind = () => all(({ number }) => place(number).moves.length);
    clearTimeout(timer);
    if (document.hidden) return;
    await read(elements ?? [...live(), ...behind()], behind().length > 0);
    againS = behind().length ? Math.min(AGAIN_S_MAX, 2 * (againS ?? 0.5)) : undefined;
    const nextS = againS ?? Math.min(...live().map((element) => +element.getAttribute("live") || LIVE_S));
    clearTimeout(timer);
    if (nextS < Infinity) timer = setTimeout(look, Math.max(1, nextS) * 1000);
  };

  // All elements that a page makes at once are read with one request.
  const refresh = () => {
    asked ??= Promise.resolve().then(() => {
      asked = undefined;
      render();
      look([...shown]);
      readMine(names(all((element) => element.button && (tally.user() || isAnonymous(element)))));
    });
  };
  document.addEventListener("visibilitychange", () => document.hidden || refresh());

  const heard = ({ detail: { entry, outcome } }) => {
    const of = `${entry.counter}:${entry.id}`;
    // No element has shown this number. One may be added later.
    if (!board.has(of)) return;
    const one = place(of);
    const { state, answer } = outcome ?? {};
    // The detail of a problem document, if the change was refused.
    one.failed = answer?.detail;
    if (state === "counted") {
      const { present, changed = true } = answer;
      const began = performance.now();
      if (present != null) Object.assign(mine(of, entry.user), { began, present });
      // The first answer was lost: the like may have changed since.
      if (present != null && outcome.replayed) readMine([of]);
      // `at` is in the server's time, as `as_of` is. The client knows that to 2 s.
      if (changed) one.moves.push({ ...entry, began, at: Date.now() + tally.aheadMs + 2000 });
      againS ?? look();
    }
    render();
  };
  // The client whose user and token the elements ask for: the last one of the same API.
  const use = (next) => {
    if (next.api !== tally.api) console.warn(`tally: this page's elements are those of ${tally.api}, not of ${next.api}`);
    else {
      tally.removeEventListener("change", heard);
      tally = next;
      tally.addEventListener("change", heard);
      refresh();
    }
    return refresh;
  };

  class Count extends HTMLElement {
    static observedAttributes = ["counter", "of", "live", "anonymous"];
    static use = use;
    count = said("count");
    beside = said("pending");
    status = said("status");
    words = make("slot", "");

    constructor() {
      super();
      this.attachShadow({ mode: "open" }).adoptedStyleSheets = [style];
      this.status.role = "status";
      this.shadowRoot.append(this.count, this.beside, this.words, this.status);
    }

    get names() {
      return [this.getAttribute("counter") ?? "plays", this.getAttribute("of")];
    }

    get number() {
      return tally.of(...this.names);
    }

    connectedCallback() {
      // Takes what a framework assigned before the element was defined.
      for (const name of ATTRIBUTES.filter((name) => Object.hasOwn(this, name))) {
        const value = this[name];
        delete this[name];
        this[name] = value;
      }
      shown.add(this);
      refresh();
    }

    disconnectedCallback() {
      shown.delete(this);
    }

    attributeChangedCallback() {
      this.why = undefined;
      refresh();
    }

    render() {
      const { value, error, failed } = place(this.number);
      const waits = pending(this.number);
      this.count.textContent = value?.toLocaleString() ?? "–";
      const sum = waits.toLocaleString([], { signDisplay: "always" });
      this.beside.replaceChildren(...(waits ? [sum, make("i", "", " waiting")] : []));
      // Only an answer of Tally has a status.
      this.status.textContent = failed || (error?.status && error.detail) || "";
    }
  }

  for (const name of ATTRIBUTES)
    Object.defineProperty(Count.prototype, name, {
      // An element has a method `after`.
      get() {
        return HTMLElement.prototype[name] ?? this.getAttribute(name);
      },
      set(value) {
        if (value == null || value === false) this.removeAttribute(name);
        else this.setAttribute(name, value === true ? "" : value);
      },
    });

  class Like extends Count {
    constructor() {
      super();
      this.words.append("♥ Like");
      this.button = make("button", "button", this.words);
      this.shadowRoot.prepend(this.button);
      // The second half of a double click is not another click.
      this.button.onclick = ({ detail }) => detail > 1 || this.like();
    }

    like() {
      const present = this.button.ariaPressed !== "true";
      this.why = undefined;
      try {
        tally.like(...this.names, present, { anonymous: isAnonymous(this) });
        this.button.ariaPressed = present;
      } catch (error) {
        this.why = { user: tally.user(), text: error.message.replace("tally: ", "") };
        render();
        // A sign-in does not help if the id is malformed.
        if (tally.user() || error instanceof TypeError) throw error;
        this.dispatchEvent(new CustomEvent("tally-sign-in", { bubbles: true, composed: true }));
      }
    }

    render() {
      super.render();
      this.button.ariaPressed = wish(this.number)?.present ?? isLiked(this.number) ?? false;
      const { why, status } = wish(this.number) ?? {};
      if (why === "denied") this.status.textContent ||= `waits: the answer was ${status}`;
      if (this.why?.user === tally.user()) this.status.textContent ||= this.why?.text;
    }
  }

  class Plays extends Count {
    // A player is what has the id of `for`, or is inside of it: video.js gives the id to a box around the player.
    play(player, viewing) {
      const box = this.getAttribute("for");
      if (!this.warned && !document.getElementById(box)) {
        this.warned = true;
        console.warn(`tally: <tally-plays for="${box}">: the page has no such element.`);
      }
      if (!player.closest(`[id="${CSS.escape(box)}"]`) || viewing.watchedS < this.getAttribute("after")) return;
      const first = !viewing.elements.has(this) && !viewing.numbers.has(this.number);
      viewing.elements.add(this);
      if (!first) return;
      // A viewer who leaves a number for another one and returns views it again.
      const shownNow = names(all((one) => one.getAttribute("for") === box));
      viewing.numbers = new Set([...viewing.numbers, this.number].filter((number) => shownNow.includes(number)));
      tally.increment(...this.names);
    }
  }

  // A viewing belongs to its player: elements come and go. It goes on through pauses, seeks, other addresses of the film
  // and advertisements. It ends when the player has played to an end, and begins again with a film that it has played
  // before. An advertisement is less than half as long as a film.
  const viewings = new WeakMap();
  const follow = ({ type, target }) => {
    let one = viewings.get(target);
    if (one && type === "ended") one.over = true;
    // A player that loads another source reports 0 s, with the address of the source before.
    if (type === "ended" || target.paused || target.readyState === 0) return;
    const atS = target.currentTime;
    const source = target.srcObject ?? target.currentSrc;
    // A signature is in the query of an address.
    const film = source?.split?.(/[?#]/)[0] ?? source;
    const again = one?.over && atS < 1 && one.films.has(film) && target.duration >= one.longestS / 2;
    if (!one || again) one = { atS, watchedS: 0, longestS: 0, films: new Set(), numbers: new Set() };
    viewings.set(target, one);
    if (one.source !== source) {
      // An element whose number has changed waits for a new source. A film that starts at 0 s is watched from its start.
      Object.assign(one, { source, atS, elements: new WeakSet(), watchedS: atS < 1 ? 0 : one.watchedS });
      one.films.add(film);
    }
    one.over = false;
    one.longestS = Math.max(one.longestS, target.duration || 0);
    const stepS = atS - one.atS;
    one.atS = atS;
    if (stepS > 0 && stepS < 2) one.watchedS += stepS;
    shown.forEach((element) => element.play?.(target, one));
  };
  for (const type of ["playing", "timeupdate", "ended"]) document.addEventListener(type, follow, true);

  use(tally);
  customElements.define("tally-count", Count);
  customElements.define("tally-like", Like);
  customElements.define("tally-plays", Plays);
  return refresh;
};
