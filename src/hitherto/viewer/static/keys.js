// Keys. Single letters can be switched off (WCAG 2.1.4): speech input and slips of the hand would press them.
const SHEET = [
  ["/", "search all conversations"],
  ["Ctrl F", "find in this conversation; again: the browser's own"],
  ["j k", "next and previous message"],
  ["J K", "next and previous prompt"],
  ["{ }", "previous and next fork"],
  ["h l", "the branch before and after, at this fork"],
  ["[ ]", "the conversation before and after"],
  ["g G", "beginning and end"],
  ["t", "open and close thoughts"],
  ["o", "open and close tools"],
  ["m", "the branch map"],
  ["?", "this sheet"],
];
const SWITCH = "hitherto-keys";

export function startKeys({ reader, find }) {
  const sheet = makeSheet();
  const actions = { ...pageKeys(), ...(reader ? readerKeys(reader) : {}), "?": () => sheet.showModal() };
  document.querySelector("[data-action=keys]")?.addEventListener("click", () => sheet.showModal());
  document.querySelector("[data-action=find]")?.addEventListener("click", () => find?.open());
  addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key === "f" && find && document.activeElement !== find.input) {
      event.preventDefault();
      find.open();
      return;
    }
    const inside = event.target.closest?.("input, textarea, select, [contenteditable], dialog[open]");
    if (inside || event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (localStorage.getItem(SWITCH) === "off" && event.key.length === 1) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
}

function pageKeys() {
  const list = [...document.querySelectorAll(".card > a:first-child")];
  const step = (by) => {
    const at = list.indexOf(document.activeElement);
    list[at < 0 ? 0 : Math.max(0, Math.min(list.length - 1, at + by))]?.focus();
  };
  return { "/": () => document.getElementById("search").focus(), j: () => step(1), k: () => step(-1) };
}

function readerKeys(reader) {
  let skeleton = null;
  const load = async () => {
    skeleton ??= fetch(reader.thread.dataset.skeleton, { credentials: "same-origin" }).then((answer) => answer.json());
    return skeleton;
  };
  const jump = async (kind, by) => {
    const places = (await load())[kind];
    const picked = reader.picked?.isConnected ? reader.picked : reader.at(120);
    const here = Number(picked?.dataset.position ?? 0);
    const to = by > 0 ? places.find(([at]) => at > here) : places.findLast(([at]) => at < here);
    if (to) reader.pick(await reader.go(to[1], to[0]));
  };
  const fold = (selector) => {
    const all = [...document.querySelectorAll(`.thread ${selector}`)];
    const open = all.some((one) => !one.open);
    for (const one of all) one.open = open;
  };
  const sibling = (rel) => (reader.picked ?? reader.at(120))?.querySelector(`.switch a[rel=${rel}]`)?.click();
  return {
    j: () => reader.step(1),
    k: () => reader.step(-1),
    J: () => jump("prompts", 1),
    K: () => jump("prompts", -1),
    "}": () => jump("forks", 1),
    "{": () => jump("forks", -1),
    h: () => sibling("prev"),
    l: () => sibling("next"),
    g: async () => { const [first] = (await load()).ends; reader.pick(await reader.go(first[1], first[0])); },
    G: async () => { const last = (await load()).ends[1]; reader.pick(await reader.go(last[1], last[0], "end")); },
    t: () => fold("details.thinking"),
    o: () => fold("details.tool"),
    m: () => openMap(),
    "]": () => neighbour(1),
    "[": () => neighbour(-1),
  };
}

export function openMap() {
  const side = document.getElementById("side");
  if (!side) return;
  side.classList.toggle("open");
  side.querySelector("[role=treeitem][tabindex='0'], .prompts a")?.focus();
}

async function neighbour(by) {
  const { base, conversation } = document.body.dataset;
  let ids = JSON.parse(sessionStorage.getItem("hitherto-list") ?? "[]");
  if (!ids.includes(conversation)) {
    const answer = await fetch(`${base}/index.json`, { credentials: "same-origin" });
    ids = (await answer.json()).conversations.map((one) => one.id);
  }
  const to = ids[ids.indexOf(conversation) + by];
  if (to) location.assign(`${base}/c/${to}`);
}

function makeSheet() {
  const sheet = document.createElement("dialog");
  sheet.className = "sheet";
  sheet.setAttribute("aria-labelledby", "sheet-title");
  const title = Object.assign(document.createElement("h2"), { textContent: "Keys", id: "sheet-title" });
  const list = document.createElement("dl");
  for (const [keys, words] of SHEET) {
    const term = document.createElement("dt");
    for (const key of keys.split(" ")) term.append(Object.assign(document.createElement("kbd"), { textContent: key }));
    list.append(term, Object.assign(document.createElement("dd"), { textContent: words }));
  }
  const label = document.createElement("label");
  const box = Object.assign(document.createElement("input"), { type: "checkbox" });
  box.checked = localStorage.getItem(SWITCH) !== "off";
  box.addEventListener("change", () => localStorage.setItem(SWITCH, box.checked ? "on" : "off"));
  label.append(box, " Keys of a single letter");
  const close = Object.assign(document.createElement("button"), { type: "button", textContent: "Close" });
  close.addEventListener("click", () => sheet.close());
  sheet.append(title, list, label, close);
  document.body.append(sheet);
  return sheet;
}
