// Keeps a page true: it reads the server-sent events of the stream that the page names (data-live
// of <body>), and puts what they bring into it. A stream that breaks off is begun again, from the
// number that came last. A page that is not looked at has none: browsers have few connections.
"use strict";
(() => {
  const hiddenFor = 10000, slowest = 10000, slowestFull = 120000;
  let source = null, last = "", wait = 0, timer = 0, sleep = 0, since = null;

  const say = text => {
    const p = document.getElementById("connection");
    if (p && p.textContent !== text) p.textContent = text;
    if (p) p.hidden = !text;
    document.body.classList.toggle("is-stale", !!text);
  };

  const put = c => {
    const at = document.getElementById(c.target);
    if (!at) return;
    const keep = document.activeElement && at.contains(document.activeElement) ? document.activeElement.id : "";
    const atEnd = b => b.scrollHeight - b.scrollTop - b.clientHeight < 40;
    const within = e => [...(e.matches("[data-follow]") ? [e] : []), ...e.querySelectorAll("[data-follow]")];
    const follows = [];
    for (let b = at.closest("[data-follow]"); b; b = b.parentElement.closest("[data-follow]")) if (atEnd(b)) follows.push(b);
    const left = new Map(within(at).filter(b => b.id && !atEnd(b)).map(b => [b.id, b.scrollTop])); // where a person reads
    if (c.how === "remove") { at.remove(); document.dispatchEvent(new CustomEvent("cove:changed", { detail: [] })); return; }
    const asks = [...at.querySelectorAll("dialog[id][open]")].filter(d => !d.querySelector(".htmx-request")).map(d => d.id);
    const t = document.createElement("template");
    t.innerHTML = c.html;
    const made = [...t.content.children];
    if (c.how === "replace" && at.dataset.sum && at.dataset.sum === made[0]?.dataset.sum) return; // nothing in it is new, and a person may be typing
    if (c.how === "replace") {
      if (at.dataset.over === "false" && made[0]?.dataset.over === "true") document.querySelector("#said > [data-before]")?.remove(); // such as that the job is begun; what this page has done stays
      coveKeep(at, t.content);
      at.replaceWith(t.content);
    } else if (c.how === "inner") at.replaceChildren(t.content);
    else if (c.how === "prepend") at.prepend(t.content);
    else at.append(t.content);
    for (const e of made) if (e.isConnected) htmx.process(e);
    for (const id of asks) { // a person is asked still, unless nothing on the page asks that any more
      const d = document.getElementById(id);
      if (d && !d.open && document.querySelector(`[data-opens="${CSS.escape(id)}"]`)) d.showModal();
    }
    if (keep) document.getElementById(keep)?.focus({ preventScroll: true });
    for (const e of made) if (e.isConnected) for (const b of within(e)) b.scrollTop = left.get(b.id) ?? b.scrollHeight;
    for (const b of follows) b.scrollTop = b.scrollHeight;
    document.dispatchEvent(new CustomEvent("cove:changed", { detail: made }));
  };

  const open = () => {
    clearTimeout(timer);
    const live = document.body.dataset.live;
    if (!live || source || document.hidden) return;
    source = new EventSource(last ? live + (live.includes("?") ? "&" : "?") + "from=" + encodeURIComponent(last) : live);
    source.onopen = () => {
      since = null; wait = 0; say("");
    };
    source.onmessage = e => {
      if (e.lastEventId) last = e.lastEventId;
      for (const c of JSON.parse(e.data)) put(c);
    };
    source.onerror = () => {
      close();
      since ??= new Date();
      wait = Math.min(slowest, wait ? wait * 2 : 500);
      say("Not connected to the server since " + since.toLocaleTimeString() + ". Connecting again…");
      timer = setTimeout(probe, wait);
    };
  };

  // A stream does not say why it was refused: a page asks.
  const probe = async () => {
    try {
      const r = await fetch("/web/alive", { headers: { "HX-Request": "true" } });
      if (r.status === 401) { coveLoggedOut(); return; }
      if (r.status === 429) { full(Number(r.headers.get("Retry-After")) || 5); return; }
    } catch { /* the server is away still */ }
    open();
  };

  // The server is there, and follows no more pages. Not all that wait ask at once, and they ask ever less often.
  const full = seconds => {
    wait = Math.min(slowestFull, Math.max(seconds * 1000, 2 * wait));
    say("This page is not live: too many pages are open. Close some, or load it again to see what is new. It tries again by itself.");
    timer = setTimeout(probe, wait * (1 + Math.random() / 2));
  };

  const close = () => { source?.close(); source = null; };

  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleep);
    if (document.hidden) sleep = setTimeout(close, hiddenFor);
    else open();
  });
  addEventListener("pagehide", close);
  addEventListener("pageshow", e => { if (e.persisted) location.reload(); });
  document.addEventListener("DOMContentLoaded", () => {
    if (document.querySelector('[data-over="false"]')) for (const b of document.querySelectorAll("pre[data-follow]")) b.scrollTop = b.scrollHeight;
    last = document.body.dataset.from || "";
    open();
  });
})();
