// Plays that count exactly, through reloads, closed tabs and lost answers: each is kept in localStorage from before it
// is sent until it is answered. docs/beacon.md#plays-that-count-exactly says how.
//
//   const plays = outbox("https://YOUR-API", 24 * 3600);
//   plays.flush();                  // when a page has loaded, and when it is online again
//   plays.play("9f3a");
//
// `lifeS`: for how many seconds Tally recognises the key of a play, from GET /health: receipts_live_s.plays.
function outbox(api, lifeS) {
  const PLAY = "tally-play:";
  const CLOCK = "tally-clock-ms";
  const MARGIN_S = 600; // requests take time, and `Date` has whole seconds
  const url = (video) => `${api}/videos/${encodeURIComponent(video)}/plays`;
  // The visitor's clock may be wrong, or be set right while plays wait. CLOCK is by how much, as the last answer told.
  const clockMs = () => localStorage.getItem(CLOCK);
  const heard = (answer) => {
    const date = Date.parse(answer.headers.get("date"));
    if (date) localStorage.setItem(CLOCK, date - Date.now());
    return answer;
  };

  async function send(name) {
    const { video } = JSON.parse(localStorage.getItem(name));
    // A string goes as text/plain: no preflight, so that the play leaves even as the visitor leaves.
    const body = JSON.stringify({ key: name.slice(PLAY.length) });
    const answer = heard(await fetch(url(video), { method: "POST", body, keepalive: true }));
    // Counted, or refused for good. Otherwise, as without an answer, the play stays for the next flush.
    if (answer.status < 500 && answer.status != 429) localStorage.removeItem(name);
  }

  return {
    /** Keep one play, and send it. */
    play(video) {
      const name = PLAY + crypto.randomUUID(); // an item for each, because tabs share the storage
      localStorage.setItem(name, JSON.stringify({ video, atMs: Date.now(), clockMs: clockMs() }));
      return send(name).catch(() => {});
    },

    /** Send what was not answered. A play whose key Tally has forgotten might count twice, so it is given up. */
    async flush() {
      for (const name of Object.keys(localStorage).filter((name) => name.startsWith(PLAY))) {
        const { video, ...kept } = JSON.parse(localStorage.getItem(name)) || {};
        if (!video) continue; // another tab had its answer
        try {
          heard(await fetch(url(video))); // what time it is
          const ageMs = Date.now() + Number(clockMs()) - kept.atMs - Number(kept.clockMs ?? clockMs());
          if (ageMs > (lifeS - MARGIN_S) * 1000) localStorage.removeItem(name);
          else await send(name);
        } catch {
          return; // offline
        }
      }
    },
  };
}
