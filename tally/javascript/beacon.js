// Counts the visits of the page that embeds it: <script src="https://…/client/beacon.js" async></script>.
// docs/visits.md defines a visit. The script stores nothing, keeps nothing about the visitor, and throws nothing into
// the page. The API serves it without comments and indentation.
(() => {
  try {
    const nav = navigator;
    const script = document.currentScript;
    const endpoint = new URL("../visits", script.src).href;
    // The last address, without its fragment; the first one, and the page's own name for that.
    let seen, first, name;
    // The visit of an address that was pushed, until it is sent. Turbo, PJAX and swup push the address of a link, and
    // replace it if the server redirects. So the visit waits for a moment, or until its page is hidden.
    let pushed, timer;
    const leave = () => {
      clearTimeout(timer);
      if (pushed) send(pushed);
      pushed = 0;
    };

    // A page may embed it twice, or a framework may run it again: only one of them counts.
    if (self[endpoint]) return;
    self[endpoint] = 1;

    // Retries send the same body with the same key, so the visit counts once.
    const send = (body, tries = 0) => {
      if (!tries && nav.sendBeacon && nav.sendBeacon(endpoint, body)) return;
      fetch(endpoint, { method: "POST", body, keepalive: true, credentials: "omit" })
        .then((answer) => {
          if (answer.status == 429 || answer.status > 499) throw 0;
        })
        .catch(() => {
          // Within 1, 4 and 16 s, at random: visitors must not retry all at once.
          if (tries < 3) setTimeout(send, 4 ** tries * 500 * (1 + Math.random()), body, tries + 1);
        });
    };

    const address = (at) => location.origin + at.pathname + at.search;

    // The canonical link of the page as it was loaded, if it is of this host. Its scheme may be wrong: many servers do not
    // know that a proxy in front of them ends TLS. A single-page application changes its link after the address, or
    // never: so the link has the first address alone.
    const read = (page) => {
      first = name = page;
      const link = new URL(document.head.querySelector("link[rel~=canonical]").href);
      if (link.host == location.host) name = address(link);
    };

    // Look at the address. `how` says how it changed: "load", "replace", or anything else. After history.replaceState
    // only a new path is a new page: sites rewrite filters and campaign parameters with it.
    const look = (how) => {
      try {
        const page = address(location);
        const end = how == "replace" ? "?" : "#";
        const changed = how == "load" || page.split(end)[0] != seen.split(end)[0];
        seen = page;
        const redirected = how == "replace" && pushed;
        if (changed && !redirected) leave();
        try {
          first || read(page);
        } catch {}
        if (
          changed &&
          !document.prerendering &&
          /^http/.test(page) &&
          nav.doNotTrack !== "1" &&
          !nav.globalPrivacyControl &&
          script.dataset.tally != "off"
        ) {
          pushed = JSON.stringify({
            url: page == first ? name : page,
            key: crypto.getRandomValues(new Uint8Array(16)).join("-"),
          });
          if (how == "push") timer = setTimeout(leave, 2000);
          else if (!redirected) leave();
        }
      } catch {}
    };

    // An element with the id "navigation" is not the Navigation API.
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
    // Going back to a page is a visit, whether the browser kept the page or loads it again.
    addEventListener("pageshow", (event) => event.persisted && look("load"));
    document.addEventListener("prerenderingchange", () => look("load"));
    document.addEventListener("visibilitychange", leave);

    // The link may follow this script: look when the head is complete. A page that sends visitors on from its head is
    // not visited.
    const begin = () => seen || (document.body && look("load"));
    begin();
    new MutationObserver(begin).observe(document.documentElement, { childList: true });
  } catch {}
})();
