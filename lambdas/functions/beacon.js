// Counts the visits of the page that embeds it: <script src="https://…/beacon.js" async></script>.
// What is a visit, and what is not, is said in docs/beacon.md. It stores nothing, keeps nothing of the visitor, and
// throws nothing into the page. beacon.py takes away comments and indentation before it is deployed.
(() => {
  try {
    const nav = navigator;
    const script = document.currentScript;
    const endpoint = new URL("visits", script.src).href;
    // The address that was seen last, without its fragment.
    let seen;

    // Embedded twice, or run again by a framework that swaps bodies: one of them counts.
    if (self[endpoint]) return;
    self[endpoint] = 1;

    // The same body, and so the same key, as often as it takes: it is counted once.
    const send = (body, tries) => {
      if (!tries && nav.sendBeacon && nav.sendBeacon(endpoint, body)) return;
      fetch(endpoint, { method: "POST", body, keepalive: true, credentials: "omit" })
        .then((answer) => {
          if (answer.status == 429 || answer.status > 499) throw 0;
        })
        .catch(() => {
          // Within 1, 4 and 16 s, and not all visitors at once.
          if (tries < 3) setTimeout(send, 4 ** tries * 500 * (1 + Math.random()), body, tries + 1);
        });
    };

    // Look at the address. `how` it came: "load", "replace", or anything else. In history.replaceState the page stays
    // the same but for its path: filters and campaign parameters are rewritten so.
    const look = (how) => {
      try {
        const page = location.origin + location.pathname + location.search;
        const end = how == "replace" ? "?" : "#";
        const changed = how == "load" || page.split(end)[0] != seen.split(end)[0];
        seen = page;
        if (
          changed &&
          !document.prerendering &&
          /^http/.test(page) &&
          nav.doNotTrack !== "1" &&
          !nav.globalPrivacyControl &&
          script.dataset.tally != "off"
        )
          send(JSON.stringify({ url: page, key: crypto.getRandomValues(new Uint8Array(16)).join("-") }), 0);
      } catch {}
    };

    // An element with the id "navigation" is no Navigation API.
    if ((self.navigation || 0).currentEntry)
      navigation.addEventListener("currententrychange", (event) => look(event.navigationType));
    else {
      for (const how of ["push", "replace"]) {
        const original = history[how + "State"];
        history[how + "State"] = function () {
          original.apply(this, arguments);
          look(how);
        };
      }
      addEventListener("popstate", look);
    }
    // Back to a page that the browser kept whole is a visit, as it is where the browser loads it again.
    addEventListener("pageshow", (event) => event.persisted && look("load"));
    document.addEventListener("prerenderingchange", () => look("load"));
    look("load");
  } catch {}
})();
