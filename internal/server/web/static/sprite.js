// Uploads to a folder of a sprite: by the button, or by dropping files on it. One after the other,
// each with its progress.
"use strict";
(() => {
  const size = n => { let i = 0; for (; n >= 1024 && i < 4; i++) n /= 1024; return (i ? n.toFixed(1) : n) + " " + ["B", "KiB", "MiB", "GiB", "TiB"][i]; };

  const ask = name => new Promise(resolve => {
    const d = document.getElementById("replace-it");
    document.getElementById("replace-name").textContent = name;
    d.returnValue = "no";
    d.addEventListener("close", () => resolve(d.returnValue === "yes"), { once: true });
    d.showModal();
  });

  const send = (at, file, over, bar) => new Promise(resolve => {
    const folder = at.dataset.folder.replace(/\/$/, ""), x = new XMLHttpRequest();
    x.open("POST", at.dataset.upload + "?path=" + encodeURIComponent(folder + "/" + file.name) + (over ? "&over=" + encodeURIComponent(over) : ""));
    x.setRequestHeader("X-Cove-Mark", document.querySelector('meta[name="cove-mark"]').content);
    x.setRequestHeader("X-Cove-Sprite", coveSprite());
    x.setRequestHeader("HX-Request", "true");
    x.setRequestHeader("Content-Type", "application/octet-stream");
    x.upload.onprogress = e => { if (e.lengthComputable) { bar.max = e.total || 1; bar.value = e.loaded; } };
    x.onload = () => resolve({ status: x.status, text: x.responseText, version: x.getResponseHeader("X-Cove-Version") });
    x.onerror = () => resolve({ status: 0, text: "" });
    x.send(file);
  });

  const upload = async files => {
    const at = document.getElementById("files"), list = document.getElementById("uploads");
    let failed = 0, done = 0;
    for (const file of files) {
      const li = document.createElement("li"), bar = document.createElement("progress"), said = document.createElement("span");
      bar.setAttribute("aria-label", "Upload of " + file.name);
      said.textContent = file.name + " (" + size(file.size) + ")";
      li.append(bar, " ", said);
      list.append(li);
      let r = await send(at, file, "", bar);
      if (r.status === 409 && r.version) {
        if (!await ask(file.name)) { li.remove(); continue; }
        r = await send(at, file, r.version, bar);
      }
      bar.remove();
      if (r.status === 204) { done++; said.textContent += ": uploaded"; continue; }
      failed++;
      const t = document.createElement("template");
      t.innerHTML = r.text;
      said.className = "bad";
      said.textContent += ": " + (t.content.querySelector(".bad")?.textContent || "it may not have been uploaded, for the server did not answer. Upload it again.");
    }
    if (done && !failed) coveLeave(location.href);
  };

  // A file that is edited here is not left without a question.
  document.addEventListener("DOMContentLoaded", () => {
    const text = document.getElementById("file-text");
    if (!text) return;
    let saving = false;
    text.form.addEventListener("submit", () => { saving = true; });
    document.addEventListener("htmx:afterRequest", e => { if (!e.detail.xhr || e.detail.xhr.status === 0 || e.detail.xhr.status >= 400) saving = false; });
    addEventListener("beforeunload", e => { if (!saving && text.value !== text.defaultValue) e.preventDefault(); });
    document.addEventListener("keydown", e => {
      if (e.key === "s" && (e.ctrlKey || e.metaKey) && !e.altKey) { e.preventDefault(); text.form.requestSubmit(); }
    });
  });

  document.addEventListener("DOMContentLoaded", () => {
    const at = document.getElementById("files"), input = document.getElementById("upload");
    if (!at?.dataset.upload || !input) return;
    input.addEventListener("change", () => upload([...input.files]));
    for (const kind of ["dragenter", "dragover"]) at.addEventListener(kind, e => {
      if (![...e.dataTransfer.types].includes("Files")) return;
      e.preventDefault();
      at.classList.add("is-over");
    });
    at.addEventListener("dragleave", e => { if (!at.contains(e.relatedTarget)) at.classList.remove("is-over"); });
    at.addEventListener("drop", e => {
      e.preventDefault();
      at.classList.remove("is-over");
      upload([...e.dataTransfer.files]);
    });
  });
})();
