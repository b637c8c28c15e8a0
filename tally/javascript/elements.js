// Defines <tally-like>, <tally-plays> and <tally-count>. They show Tally's number, and beside it the sum of the changes
// that wait for an answer. docs/browser.md says how to use them. The API serves this file without comment lines.

// How often a `live` element is read by default. A number that lacks a counted change is read after 1, 2, 4, … 30 s.
const LIVE_S = 10;
const REREAD_S_MAX = 30;
// React, Vue and Angular assign to properties. So each of these attributes has a property, which sets the attribute.
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
  const element = document.createElement(tag);
  element.setAttribute("part", part);
  element.append(...children);
  return element;
};
// `dir` keeps the sign in front of the number on a page that is written from right to left.
const makeText = (part) => Object.assign(make("span", part), { dir: "auto" });

export const define = (tally) => {
  // A page change by Turbo, an effect of React or a second bundle calls `define` again. The elements use the new client.
  const before = customElements.get("tally-count");
  if (before) return before.use(tally);

  const style = new CSSStyleSheet();
  style.replaceSync(STYLE);
  const connected = new Set();
  // The last answer for each number, by its name `counter:id`, and for each like, by `counter:id user`. `knownMs`: the
  // answer is not older. `moves`: counted changes that the number lacks. `failed`, `error`: why a change or read failed.
  const answers = new Map();
  // `unanswered`: the changes that wait for an answer. `refreshing`, `frame`, `timer`: scheduled calls. `rereadS`: the
  // pause before a number that lacks a counted change is read; undefined: no number lacks a change.
  let unanswered, refreshing, frame, timer, rereadS;

  const answerOf = (name) => answers.get(name) ?? answers.set(name, { moves: [] }).get(name);
  const likeAnswerOf = (name, user) => answerOf(`${name} ${user}`);
  const isLiked = (name) => likeAnswerOf(name, tally.user()).present;
  // Returns whether the like of an element counts this browser if no user is signed in.
  const isAnonymous = (element) => element.hasAttribute("anonymous");
  const all = (test) => [...connected].filter(test);
  const live = () => all((element) => element.hasAttribute("live"));
  const render = () => {
    frame ??= requestAnimationFrame(() => {
      frame = undefined;
      unanswered = tally.waiting();
      connected.forEach((element) => element.render());
    });
  };
  const isLike = ({ present }) => present != null;
  const waiting = (name) => unanswered.filter(({ counter, id }) => `${counter}:${id}` === name);
  const lastLike = (name) => waiting(name).findLast((entry) => isLike(entry) && entry.user === tally.user());
  const numberNames = (elements) => [...new Set(elements.map(({ numberName }) => numberName))];

  const amountOf = ({ present = true, amount = 1 }) => (present ? amount : -amount);
  // Returns the sum of the changes that wait for an answer, or that the number does not include.
  const pending = (name) => {
    const last = lastLike(name);
    let sum = last && last.present !== isLiked(name) ? amountOf(last) : 0;
    const increments = waiting(name).filter((entry) => !isLike(entry));
    for (const change of [...increments, ...answerOf(name).moves]) sum += amountOf(change);
    return sum;
  };

  // Reads the numbers of these elements. `fresh`: past the browser's cache.
  const read = async (elements, fresh) => {
    const names = numberNames(elements);
    const beganMs = performance.now();
    const values = await tally.values(names, { fresh }).catch(() => []);
    values.forEach(({ value, as_of, error }, index) => {
      const last = answerOf(names[index]);
      // An answer of a later read came before this answer.
      if (last.knownMs > beganMs) return;
      last.error = error;
      // If a read fails, the last number stays.
      if (value == null) return;
      // The number lacks the changes that counted after the read began, or after `as_of`.
      const moves = last.moves.filter((move) => move.countedMs > beganMs || as_of * 1000 < move.serverMs);
      Object.assign(last, { knownMs: beganMs, value, moves });
    });
    render();
  };

  const readMine = async (names) => {
    const user = tally.user();
    const beganMs = performance.now();
    const likes = await tally.mine(names).catch(() => []);
    likes.forEach(({ present }, index) => {
      const last = likeAnswerOf(names[index], user);
      // `last` is newer if a change was counted during this read, or if a later read was answered first.
      if (present != null && !(last.knownMs > beganMs)) Object.assign(last, { knownMs: beganMs, present });
    });
    render();
  };

  // Reads these elements, or else all live elements and all elements whose number lacks a counted change. While there
  // are live elements or such numbers, reads once more after a pause.
  const poll = async (elements) => {
    const behind = () => all(({ numberName }) => answerOf(numberName).moves.length);
    clearTimeout(timer);
    if (document.hidden) return;
    await read(elements ?? [...live(), ...behind()], behind().length > 0);
    rereadS = behind().length ? Math.min(REREAD_S_MAX, 2 * (rereadS ?? 0.5)) : undefined;
    const nextS = rereadS ?? Math.min(...live().map((element) => +element.getAttribute("live") || LIVE_S));
    clearTimeout(timer);
    if (nextS < Infinity) timer = setTimeout(poll, Math.max(1, nextS) * 1000);
  };

  // Reads all elements soon, so that the elements that a page makes in one task share one request.
  const refresh = () => {
    refreshing ??= Promise.resolve().then(() => {
      refreshing = undefined;
      render();
      poll([...connected]);
      readMine(numberNames(all((element) => element.button && (tally.user() || isAnonymous(element)))));
    });
  };
  document.addEventListener("visibilitychange", () => document.hidden || refresh());

  const onChange = ({ detail: { entry, outcome } }) => {
    const name = `${entry.counter}:${entry.id}`;
    // No element of this page has shown the number.
    if (!answers.has(name)) return;
    const last = answerOf(name);
    const { state, answer } = outcome ?? {};
    last.failed = answer?.detail;
    if (state === "counted") {
      const { present, changed = true } = answer;
      const countedMs = performance.now();
      if (present != null) Object.assign(likeAnswerOf(name, entry.user), { knownMs: countedMs, present });
      // An earlier attempt had counted, and the like may have changed since, so the elements read the like again.
      if (present != null && outcome.replayed) readMine([name]);
      // `serverMs` is by the server's clock, as `as_of` is. The client may be wrong about this clock by 2 s.
      if (changed) last.moves.push({ ...entry, countedMs, serverMs: Date.now() + tally.aheadMs + 2000 });
      if (rereadS === undefined) poll();
    }
    render();
  };
  // Makes the elements use another client of the same API.
  const use = (next) => {
    if (next.api !== tally.api) console.warn(`tally: this page's elements use ${tally.api}, so they cannot use ${next.api}`);
    else {
      tally.removeEventListener("change", onChange);
      tally = next;
      tally.addEventListener("change", onChange);
      refresh();
    }
    return refresh;
  };

  class Count extends HTMLElement {
    static observedAttributes = ["counter", "of", "live", "anonymous"];
    static use = use;
    count = makeText("count");
    pending = makeText("pending");
    status = makeText("status");
    label = make("slot", "");

    constructor() {
      super();
      this.attachShadow({ mode: "open" }).adoptedStyleSheets = [style];
      this.status.role = "status";
      this.shadowRoot.append(this.count, this.pending, this.label, this.status);
    }

    get counterAndId() {
      return [this.getAttribute("counter") ?? "plays", this.getAttribute("of")];
    }

    get numberName() {
      return tally.of(...this.counterAndId);
    }

    connectedCallback() {
      // Before the element was defined, a framework may have assigned properties, which hide the properties of Count.
      for (const name of ATTRIBUTES.filter((name) => Object.hasOwn(this, name))) {
        const value = this[name];
        delete this[name];
        this[name] = value;
      }
      connected.add(this);
      refresh();
    }

    disconnectedCallback() {
      connected.delete(this);
    }

    attributeChangedCallback() {
      this.refusal = undefined;
      refresh();
    }

    render() {
      const { value, error, failed } = answerOf(this.numberName);
      const amount = pending(this.numberName);
      this.count.textContent = value?.toLocaleString() ?? "–";
      const sum = amount.toLocaleString([], { signDisplay: "always" });
      this.pending.replaceChildren(...(amount ? [sum, make("i", "", " waiting")] : []));
      // If a read has no answer, the status of its error is 0, and the element shows no error.
      this.status.textContent = failed || (error?.status && error.detail) || "";
    }
  }

  for (const name of ATTRIBUTES)
    Object.defineProperty(Count.prototype, name, {
      // `after` is a method of every HTML element, so reading the property still gives the method.
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
      this.label.append("♥ Like");
      this.button = make("button", "button", this.label);
      this.shadowRoot.prepend(this.button);
      // The second click of a double click does not revert the first.
      this.button.onclick = ({ detail }) => detail > 1 || this.like();
    }

    like() {
      const present = this.button.ariaPressed !== "true";
      this.refusal = undefined;
      try {
        tally.like(...this.counterAndId, present, { anonymous: isAnonymous(this) });
        this.button.ariaPressed = present;
      } catch (error) {
        // Why the last click made no change, and for which user.
        this.refusal = { user: tally.user(), text: error.message.replace("tally: ", "") };
        render();
        // A sign-in does not help if a user is signed in, or if the id is malformed.
        if (tally.user() || error instanceof TypeError) throw error;
        this.dispatchEvent(new CustomEvent("tally-sign-in", { bubbles: true, composed: true }));
      }
    }

    render() {
      super.render();
      this.button.ariaPressed = lastLike(this.numberName)?.present ?? isLiked(this.numberName) ?? false;
      const { why, status } = lastLike(this.numberName) ?? {};
      if (why === "denied") this.status.textContent ||= `waits: the answer was ${status}`;
      if (this.refusal?.user === tally.user()) this.status.textContent ||= this.refusal?.text;
    }
  }

  class Plays extends Count {
    // `for` has the id of the player, or of a box around the player, because video.js moves the id to such a box.
    play(player, viewing) {
      const boxId = this.getAttribute("for");
      if (!this.warned && !document.getElementById(boxId)) {
        this.warned = true;
        console.warn(`tally: <tally-plays for="${boxId}">: the page has no such element.`);
      }
      if (!player.closest(`[id="${CSS.escape(boxId)}"]`) || viewing.watchedS < this.getAttribute("after")) return;
      const isFirst = !viewing.elements.has(this) && !viewing.numbers.has(this.numberName);
      viewing.elements.add(this);
      if (!isFirst) return;
      // Forgets numbers that the page does not show for this player now. If the page shows them again, they count again.
      const shownNow = numberNames(all((element) => element.getAttribute("for") === boxId));
      viewing.numbers = new Set([...viewing.numbers, this.numberName].filter((name) => shownNow.includes(name)));
      tally.increment(...this.counterAndId);
    }
  }

  // A viewing belongs to a player, because elements may be added and removed. Pauses, seeks and other addresses do not
  // end a viewing. `films`: the addresses that were played, also of advertisements. `longestS`: the longest duration.
  // After an end, a new viewing begins if one of `films` starts at 0 s. But if it is less than half as long as the
  // longest, it is taken for an advertisement, and begins no viewing. `numbers`: the names of the numbers that counted.
  const viewings = new WeakMap();
  const follow = ({ type, target }) => {
    let viewing = viewings.get(target);
    if (viewing && type === "ended") viewing.isOver = true;
    // While a player loads another source, it reports 0 s, and still the address of the earlier source.
    if (type === "ended" || target.paused || target.readyState === 0) return;
    const atS = target.currentTime;
    const source = target.srcObject ?? target.currentSrc;
    // A new signature in the query of an address does not make another film.
    const film = source?.split?.(/[?#]/)[0] ?? source;
    const isNew = !viewing || (viewing.isOver && atS < 1 && viewing.films.has(film) && target.duration >= viewing.longestS / 2);
    if (isNew) viewing = { atS, watchedS: 0, longestS: 0, films: new Set(), numbers: new Set() };
    viewings.set(target, viewing);
    if (viewing.source !== source) {
      // `elements` have counted this source. An element counts if neither `elements` nor `numbers` has it. A start at
      // 0 s resets `watchedS`.
      Object.assign(viewing, { source, atS, elements: new WeakSet(), watchedS: atS < 1 ? 0 : viewing.watchedS });
      viewing.films.add(film);
    }
    viewing.isOver = false;
    viewing.longestS = Math.max(viewing.longestS, target.duration || 0);
    const stepS = atS - viewing.atS;
    viewing.atS = atS;
    // A longer step is a seek.
    if (stepS > 0 && stepS < 2) viewing.watchedS += stepS;
    connected.forEach((element) => element.play?.(target, viewing));
  };
  for (const type of ["playing", "timeupdate", "ended"]) document.addEventListener(type, follow, true);

  use(tally);
  customElements.define("tally-count", Count);
  customElements.define("tally-like", Like);
  customElements.define("tally-plays", Plays);
  return refresh;
};
