// Three elements that count and show: <tally-like>, <tally-plays>, <tally-count>. They show only numbers that Tally said,
// and what waits beside. docs/javascript.md says how to use and to style them. Comments have lines of their own.

const LIVE_S = 10;
const AGAIN_S_MAX = 30;
const STYLE = `
:host { display: inline-flex; align-items: center; gap: var(--tally-gap, .4em) }
:host([hidden]), [part=pending]:empty { display: none }
button { font: inherit; color: inherit; background: none; border: 1px solid; border-radius: var(--tally-radius, 9em); padding: .3em .9em }
[aria-pressed=true] { background: var(--tally-accent, #b3261e); color: var(--tally-on-accent, #fff) }
[part=pending] { color: var(--tally-muted, inherit) }
i { position: absolute; clip-path: inset(50%) }
`;

const make = (tag, part, ...children) => {
  const made = document.createElement(tag);
  made.setAttribute("part", part);
  made.append(...children);
  return made;
};

export const define = (tally) => {
  const style = new CSSStyleSheet();
  style.replaceSync(STYLE);
  const shown = new Set();
  // What Tally said of each number, by `counter:id`. `moves`: what was counted, and is not in the number yet.
  const board = new Map();
  let waits, asked, drawn, timer, againS;

  const place = (of) => board.get(of) ?? board.set(of, { moves: [] }).get(of);
  // Whether it counts this user: what Tally said of others stays theirs.
  const mine = (of, user) => place(`${of} ${user}`);
  const isLiked = (of) => mine(of, tally.user()).present;
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
  const names = (elements) => [...new Set(elements.map(({ of }) => of))];

  const by = ({ present = true, amount = 1 }) => (present ? amount : -amount);
  // What waits for an answer, or for a number that has it.
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
      // A number that was read stays while it cannot be read again.
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
      // A change that was counted meanwhile, or a later read, has overtaken this one.
      if (present != null && !(one.began > began)) Object.assign(one, { began, present });
    });
    render();
  };

  // Reads these elements, and goes on while a number lacks what was counted, or somebody looks at one that is live.
  const look = async (elements) => {
    const behind = () => all(({ of }) => place(of).moves.length);
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
      readMine(names(all((element) => element.button && (tally.user() || element.anonymous))));
    });
  };
  document.addEventListener("visibilitychange", () => document.hidden || refresh());

  tally.addEventListener("change", ({ detail: { entry, outcome } }) => {
    const of = `${entry.counter}:${entry.id}`;
    // An element may come back later.
    if (!board.has(of)) return;
    const one = place(of);
    const { state, answer } = outcome ?? {};
    // That of a problem document: it was refused.
    one.failed = answer?.detail;
    if (state === "counted") {
      const { present, changed = true } = answer;
      const began = performance.now();
      if (present != null) Object.assign(mine(of, entry.user), { began, present });
      // The first answer was lost: it may be otherwise by now.
      if (present != null && outcome.replayed) readMine([of]);
      // `at` is in the server's time, as `as_of` is. The client knows that to 2 s.
      if (changed) one.moves.push({ ...entry, began, at: Date.now() + tally.aheadMs + 2000 });
      againS ?? look();
    }
    render();
  });

  class Count extends HTMLElement {
    static observedAttributes = ["counter", "of", "live", "anonymous"];
    count = make("span", "count");
    beside = make("span", "pending");
    status = make("span", "status");
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

    get of() {
      return this.names.join(":");
    }

    connectedCallback() {
      shown.add(this);
      refresh();
    }

    disconnectedCallback() {
      shown.delete(this);
    }

    attributeChangedCallback() {
      refresh();
    }

    render() {
      const { value, error, failed } = place(this.of);
      const waits = pending(this.of);
      this.count.textContent = value?.toLocaleString() ?? "–";
      const sum = waits.toLocaleString([], { signDisplay: "always" });
      this.beside.replaceChildren(...(waits ? [sum, make("i", "", " waiting")] : []));
      // Only what Tally said has a status.
      this.status.textContent = failed || (error?.status && error.detail) || "";
    }
  }

  class Like extends Count {
    constructor() {
      super();
      this.words.append("♥ Like");
      this.button = make("button", "button", this.words);
      this.shadowRoot.prepend(this.button);
      // The second half of a double click is no wish of its own.
      this.button.onclick = ({ detail }) => detail > 1 || this.like();
    }

    // Whether who is not signed in likes by the secret of the browser.
    get anonymous() {
      return this.hasAttribute("anonymous");
    }

    like() {
      const present = this.button.ariaPressed !== "true";
      try {
        tally.like(...this.names, present, { anonymous: this.anonymous });
        this.button.ariaPressed = present;
      } catch (error) {
        if (tally.user()) throw error;
        this.dispatchEvent(new CustomEvent("tally-sign-in", { bubbles: true, composed: true }));
      }
    }

    render() {
      super.render();
      this.button.ariaPressed = wish(this.of)?.present ?? isLiked(this.of) ?? false;
    }
  }

  class Plays extends Count {
    // A playback counts once for this element, and once for this number.
    play({ id, paused }, { watchedS, counted }) {
      if (id !== this.getAttribute("for") || paused || watchedS < this.getAttribute("after")) return;
      const first = !counted.has(this) && !counted.has(this.of);
      counted.add(this).add(this.of);
      if (first) tally.increment(...this.names);
    }
  }

  // A playback belongs to its player: elements come and go. It lasts from where the player plays to where it ends, or to
  // another source, however often it pauses, seeks or loads again.
  const playbacks = new WeakMap();
  const follow = ({ type, target }) => {
    const source = target.srcObject ?? target.currentSrc;
    let one = playbacks.get(target);
    if (one?.source !== source) one = { source, at: target.currentTime, watchedS: 0, counted: new Set() };
    playbacks.set(target, one);
    const stepS = target.currentTime - one.at;
    one.at = target.currentTime;
    if (stepS > 0 && stepS < 2) one.watchedS += stepS;
    shown.forEach((element) => element.play?.(target, one));
    if (type === "ended") playbacks.delete(target);
  };
  for (const type of ["playing", "timeupdate", "ended"]) document.addEventListener(type, follow, true);

  customElements.define("tally-count", Count);
  customElements.define("tally-like", Like);
  customElements.define("tally-plays", Plays);
  return refresh;
};
