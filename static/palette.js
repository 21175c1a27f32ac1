// A palette to go to a lock, an owner or a page: `/` or Ctrl-K. It offers nothing that the pages do not, and works by
// keyboard alone. What it finds is what the list of locks finds.
"use strict";
(() => {
  const DELAY = 150; // ms after the last key
  const TIMEOUT = 5000; // ms for one answer
  const NAMES_MAX = 8;
  const OWNERS_MAX = 4;
  const make = (tag, attributes, ...children) => {
    const e = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) e.setAttribute(name, value);
    e.append(...children);
    return e;
  };

  const input = make("input", { type: "text", role: "combobox", "aria-expanded": "true", "aria-controls": "palette-list",
    "aria-autocomplete": "list", "aria-label": "Go to a lock, an owner or a page", placeholder: "lock, owner or page",
    autocomplete: "off", spellcheck: "false", maxlength: "255" });
  const list = make("ul", { id: "palette-list", role: "listbox", "aria-label": "Found" });
  const status = make("p", { class: "hidden", role: "status" });
  const dialog = make("dialog", { class: "palette", "aria-label": "Go to" }, make("div", {}, input, list, status));
  const button = make("button", { type: "button", class: "find", "aria-keyshortcuts": "/ Control+K" }, "Go to… /");
  const pages = [...document.querySelectorAll("header nav a")].map((a) => ({ text: a.textContent, href: a.getAttribute("href"), kind: "page" }));
  let found = [];
  let at = 0;
  let timer = 0;
  let asked = 0; // only the answer to the last question counts

  const choose = (index) => {
    at = found.length === 0 ? 0 : (index + found.length) % found.length;
    [...list.children].forEach((e, i) => e.setAttribute("aria-selected", String(i === at)));
    const option = list.children[at];
    if (option) {
      input.setAttribute("aria-activedescendant", option.id);
      option.scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };

  const show = (items) => {
    found = items;
    list.replaceChildren(...items.map((item, i) => {
      const option = make("li", { id: `palette-${i}`, role: "option", "aria-selected": "false" }, make("bdi", {}, item.text), make("span", {}, item.kind));
      option.addEventListener("click", () => location.assign(item.href));
      return option;
    }));
    status.textContent = items.length === 1 ? "1 found" : `${items.length} found`;
    choose(0);
  };

  // A link with the same text is offered once.
  const links = (page, css, kind, limit) => {
    const all = new Map([...page.querySelectorAll(css)].map((a) => [a.textContent, { text: a.textContent, href: a.getAttribute("href"), kind }]));
    return [...all.values()].slice(0, limit);
  };

  const find = async () => {
    const text = input.value.trim();
    const question = ++asked;
    const matching = pages.filter((page) => page.text.toLowerCase().includes(text.toLowerCase()));
    if (text === "") return show(matching);
    const answer = await fetch(`/ui/?find=${encodeURIComponent(text)}`, {
      headers: { accept: "text/html" }, signal: AbortSignal.timeout(TIMEOUT),
    }).then((a) => a.text()).catch(() => "");
    if (question !== asked) return;
    const page = new DOMParser().parseFromString(answer, "text/html");
    const owners = links(page, ".locks a.owner", "owner", Infinity).filter((o) => o.text.toLowerCase().includes(text.toLowerCase()));
    show([...matching, ...links(page, ".locks a.name", "lock", NAMES_MAX), ...owners.slice(0, OWNERS_MAX)]);
  };

  const open = () => {
    input.value = "";
    show(pages);
    dialog.showModal();
  };

  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(find, DELAY);
  });
  input.addEventListener("keydown", (event) => {
    const move = { ArrowDown: at + 1, ArrowUp: at - 1 }[event.key];
    if (move !== undefined) choose(move);
    else if (event.key === "Enter" && found[at]) location.assign(found[at].href);
    else return;
    event.preventDefault();
  });
  document.addEventListener("keydown", (event) => {
    const writes = event.target.closest("input, select, textarea, [contenteditable]") !== null;
    const isPlain = !event.ctrlKey && !event.metaKey && !event.altKey;
    if (dialog.open || !((event.key === "/" && isPlain && !writes) || (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)))) return;
    event.preventDefault();
    open();
  });
  button.addEventListener("click", open);
  document.querySelector("header nav").after(button);
  document.body.append(dialog);
})();
