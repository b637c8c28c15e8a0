// Counts the visits of the page that embeds it: <script src="https://…/client/beacon.js" async></script>.
// docs/visits.md defines a visit. The script stores nothing, keeps nothing about the visitor, and throws no error into
// the page. The API serves it without comments and indentation.
(() => {
  try {
    const nav = navigator;
    const script = document.currentScript;
    const visits = new URL("../visits", script.src).href;
    // The last checked address, the address of the page as it was loaded, and that page's canonical link or address.
    let seen, first, canonical;
    // The visit that is not sent yet, as the body of its request; 0: every visit is sent. Only the visit of a pushed
    // address waits, for 2 s or until the page is hidden, because Turbo, PJAX and swup push the address of a link, and
    // replace the address if the server redirects.
    let visit, timer;
    const sendVisit = () => {
      clearTimeout(timer);
      if (visit) send(visit);
      visit = 0;
    };

    // A page may embed the script twice, or a framework may run it twice. Only the first run counts visits.
    if (self[visits]) return;
    self[visits] = 1;

    // Sends a visit. If `sendBeacon` cannot queue the visit, sends a request, and after errors three retries.
    // Retries send the same body with the same key, so the visit counts once.
    const send = (body, tries = 0) => {
      if (!tries && nav.sendBeacon && nav.sendBeacon(visits, body)) return;
      fetch(visits, { method: "POST", body, keepalive: true, credentials: "omit" })
        .then((answer) => {
          if (answer.status == 429 || answer.status > 499) throw 0;
        })
        .catch(() => {
          // The pauses of up to 1, 4 and 16 s are random, so that visitors do not retry at the same time.
          if (tries < 3) setTimeout(send, 4 ** tries * 500 * (1 + Math.random()), body, tries + 1);
        });
    };

    const address = (at) => location.origin + at.pathname + at.search;

    // Sets `first` and `canonical`. Throws if the page has no canonical link. The link counts if its host is the page's
    // host. The scheme may be wrong, because many servers do not know that a proxy in front of them ends TLS. A
    // single-page application changes its link late or never, so the link applies only to the first address.
    const readCanonical = (page) => {
      first = canonical = page;
      const link = new URL(document.head.querySelector("link[rel~=canonical]").href);
      if (link.host == location.host) canonical = address(link);
    };

    // Counts a visit if the page is new. `how`: "load" if the page was loaded or shown, "push" or "replace" if history
    // changed the address so. Any other value: the user went back or forward. `check` compares addresses up to `end`.
    // After history.replaceState queries do not count, because sites rewrite filters and campaign parameters. No result
    // of `address` has a "#", so otherwise whole addresses are compared.
    const check = (how) => {
      try {
        const page = address(location);
        const end = how == "replace" ? "?" : "#";
        const changed = how == "load" || page.split(end)[0] != seen.split(end)[0];
        seen = page;
        // A replacement is a redirect if a visit waits. Then the new visit takes the place of the visit that waits.
        const redirected = how == "replace" && visit;
        if (changed && !redirected) sendVisit();
        try {
          first || readCanonical(page);
        } catch {}
        if (
          changed &&
          !document.prerendering &&
          /^http/.test(page) &&
          nav.doNotTrack !== "1" &&
          !nav.globalPrivacyControl &&
          script.dataset.tally != "off"
        ) {
          visit = JSON.stringify({
            url: page == first ? canonical : page,
            key: crypto.getRandomValues(new Uint8Array(16)).join("-"),
          });
          if (how == "push") timer = setTimeout(sendVisit, 2000);
          else if (!redirected) sendVisit();
        }
      } catch {}
    };

    // Without the Navigation API, `navigation` may be the page's element with this id, which has no `currentEntry`.
    if ((self.navigation || 0).currentEntry)
      navigation.addEventListener("currententrychange", (event) => check(event.navigationType));
    else {
      for (const how of ["push", "replace"]) {
        const original = history[how + "State"];
        history[how + "State"] = function () {
          original.apply(this, arguments);
          check(how);
        };
      }
      addEventListener("popstate", check);
    }
    // Going back to a page is a visit, whether the browser kept the page or loads it again.
    addEventListener("pageshow", (event) => event.persisted && check("load"));
    document.addEventListener("prerenderingchange", () => check("load"));
    document.addEventListener("visibilitychange", sendVisit);

    // The canonical link may follow this script, so the script waits until the page has a body. So a page that
    // redirects visitors from its head counts no visit.
    const begin = () => seen || (document.body && check("load"));
    begin();
    new MutationObserver(begin).observe(document.documentElement, { childList: true });
  } catch {}
})();
