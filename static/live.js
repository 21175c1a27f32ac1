// Refreshes a page: fetches it again after an event, and replaces the parts that changed. Pages work without it.
// Paused while the page is hidden, while a dialog is open, and while the focus is in a table or the confirmation
// form, so that nothing moves while it is used.
"use strict";
(() => {
  const MIN_INTERVAL = 2000; // ms between two fetches
  const MAX_INTERVAL = 10000; // ms; for changes without an event: waiters, ages, other instances
  const TIMEOUT = 5000; // ms for one answer: a service that is stopped keeps the connection open
  const STALE = MAX_INTERVAL + TIMEOUT; // ms; what is older is not shown as live
  const state = document.getElementById("live");
  const seen = new WeakMap(); // by part, what the server sent last
  let loaded = performance.now();
  let asked = loaded; // when the last fetch began, answered or not
  let wanted = false;
  let busy = false;
  let hasEnded = false; // the session
  let source = null;
  let timer = 0;

  const isPaused = () => document.hidden || document.querySelector("dialog[open]") !== null ||
    (document.activeElement !== null && document.activeElement.closest("table, .confirm") !== null);

  // A page without answers is dimmed, so that nobody takes an old state for the present one.
  const showStatus = (status, text) => {
    document.documentElement.classList.toggle("stale", status === "lost");
    if (state.className === `live ${status}` && state.textContent === text) return;
    state.className = `live ${status}`;
    state.textContent = text;
  };

  // The same as `format::clock` on the server.
  const clock = (ms) => {
    const s = Math.max(0, Math.floor(ms / 1000));
    const two = (n) => String(n).padStart(2, "0");
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} m ${two(s % 60)} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${two(Math.floor((s % 3600) / 60))} m`;
    return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
  };

  const tick = () => {
    const passed = performance.now() - loaded;
    for (const e of document.querySelectorAll(".count[data-left]")) {
      const left = Number(e.dataset.left) - passed;
      e.textContent = left > 0 ? clock(left) : "run out";
      e.classList.toggle("over", left <= 0);
      if (left <= 0) wanted = true; // renewed or gone: there are no events for renewals
    }
    const show = (e, text) => { if (e.textContent !== text) e.textContent = text; };
    for (const e of document.querySelectorAll(".count[data-held]")) show(e, clock(Number(e.dataset.held) + passed));
    for (const e of document.querySelectorAll(".count[data-age]")) show(e, clock(Number(e.dataset.age) + passed));
    for (const e of document.querySelectorAll(".bar[data-ttl]")) {
      const percent = Math.max(0, Math.min(100, ((Number(e.dataset.left) - passed) * 100) / Number(e.dataset.ttl)));
      e.querySelector(".fill").setAttribute("width", percent.toFixed(1));
      e.classList.toggle("low", percent < 15);
    }
    if (isPaused() && !document.hidden) showStatus("paused", `Paused while you read the table: ${clock(passed)} old`);
    else {
      if (passed >= STALE) showLost();
      if (wanted || passed >= MAX_INTERVAL) plan();
    }
  };

  const showLost = () => {
    const why = hasEnded ? "You are logged out" : "No answer from the service";
    showStatus("lost", `${why}: this page is ${clock(performance.now() - loaded)} old`);
  };

  // Makes `from` equal to `to` with as few changes as possible, so that what is selected, focused or scrolled stays. Children
  // with a `data-key` are matched by it, the others by their place.
  const patch = (from, to) => {
    if (from.nodeName !== to.nodeName) {
      from.replaceWith(to);
      return;
    }
    if (from.nodeType !== Node.ELEMENT_NODE) {
      if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
      return;
    }
    for (const { name } of [...from.attributes])
      if (!to.hasAttribute(name) && !(name === "open" && from.nodeName === "DETAILS")) from.removeAttribute(name);
    for (const { name, value } of to.attributes) if (from.getAttribute(name) !== value) from.setAttribute(name, value);
    patchChildren(from, to);
  };

  const patchChildren = (from, to) => {
    const keyed = new Map([...from.children].filter((e) => e.dataset.key).map((e) => [e.dataset.key, e]));
    let at = from.firstChild;
    for (const next of [...to.childNodes]) {
      const key = next.dataset?.key;
      const known = key ? keyed.get(key) : at;
      if (!known || (!key && (at.dataset?.key || at.nodeName !== next.nodeName))) {
        from.insertBefore(next, at);
        continue;
      }
      if (known === at) at = at.nextSibling;
      else from.insertBefore(known, at);
      patch(known, next);
    }
    while (at !== null) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  };

  // What had the focus and was moved or replaced keeps it, as long as the page still has the like of it.
  const keepFocus = (part, focused) => {
    if (focused === document.activeElement) return;
    const same = (e) => e.outerHTML === focused.outerHTML || (focused.hasAttribute("href") && e.getAttribute("href") === focused.getAttribute("href"));
    const now = focused.isConnected ? focused : [...part.querySelectorAll(focused.localName)].find(same);
    now?.focus({ preventScroll: true });
  };

  // The server writes UTC; the time of the reader's clock, and how long ago it was, are shown at the pointer.
  const showLocalTimes = () => {
    for (const e of document.querySelectorAll("time[datetime]")) {
      const at = Date.parse(e.dateTime);
      if (!Number.isNaN(at)) e.title = `${new Date(at).toLocaleString()} on your clock, ${clock(Date.now() - at)} ago`;
    }
  };

  const replace = (fresh) => {
    document.title = fresh.title;
    for (const part of document.querySelectorAll("[data-live]")) {
      const other = fresh.getElementById(part.id);
      if (other === null) continue;
      const text = other.innerHTML;
      if (text === seen.get(part) || (part.hasAttribute("aria-live") && part.textContent === other.textContent)) continue;
      const focused = document.activeElement;
      // What the script counted is not what the server sent.
      patchChildren(part, document.adoptNode(other));
      keepFocus(part, focused);
      seen.set(part, text);
    }
    showLocalTimes();
  };

  const refresh = async () => {
    timer = 0;
    if (busy || isPaused()) return;
    busy = true;
    wanted = false;
    const began = performance.now();
    asked = began;
    try {
      const answer = await fetch(location.href, {
        headers: { accept: "text/html" }, cache: "no-store", signal: AbortSignal.timeout(TIMEOUT),
      });
      hasEnded = answer.status === 401;
      if (hasEnded) return;
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (fresh.getElementById("content") === null) throw new Error(String(answer.status));
      // Not if the focus has moved into a table meanwhile.
      if (!isPaused()) {
        replace(fresh);
        loaded = began;
        showStatus("on", "Live");
        tick();
      }
    } catch {
      showLost();
    } finally {
      busy = false;
      if (hasEnded) showLost();
    }
  };

  const plan = () => {
    if (timer === 0 && !busy) timer = setTimeout(refresh, Math.max(0, MIN_INTERVAL - (performance.now() - asked)));
  };

  const want = () => {
    wanted = true;
    if (!isPaused()) plan();
  };

  // Connected only while the page is visible: browsers limit the connections per server.
  const listen = () => {
    if (document.hidden) {
      source?.close();
      source = null;
    } else if (source === null) {
      source = new EventSource("/ui/stream");
      for (const kind of ["acquired", "released", "expired", "forced", "lost", "deadlock", "node_down", "node_up", "quarantined",
        "two_servers", "quorum_lost", "quorum_back",
        "started", "stopping", "reloaded"])
        source.addEventListener(kind, want);
      want();
    }
  };

  document.addEventListener("visibilitychange", listen);
  document.addEventListener("focusout", () => { if (wanted) setTimeout(want); });
  showStatus("on", "Live");
  showLocalTimes();
  listen();
  setInterval(tick, 1000);
})();
