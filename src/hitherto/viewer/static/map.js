// The branch map beside a conversation: fetched after the messages are there, and a tree for the keyboard.
export async function startMap(side, reader) {
  const map = document.querySelector(".map");
  if (map) makeTree(map);
  if (!side) return;
  const answer = await fetch(side.dataset.map, { credentials: "same-origin" });
  if (!answer.ok) return;
  const holder = side.querySelector(".holder");
  holder.innerHTML = await answer.text();
  side.hidden = false;
  makeTree(side);
  const items = [...side.querySelectorAll("a.active[role=treeitem]")];
  side.addEventListener("click", async (event) => {
    const item = event.target.closest("a.active[role=treeitem]");
    if (!item || event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    side.classList.remove("open");
    if (!(await reader?.go(item.dataset.id, Number(item.dataset.position)))) location.assign(item.href);
  });
  document.addEventListener("reading", (event) => {
    // The stretch that is read now: the last one that begins at or before this message.
    const passed = items.filter((item) => Number(item.dataset.position ?? -1) <= event.detail.position);
    for (const item of items) item.classList.toggle("here", item === passed.at(-1));
  });
}

// One stop for Tab; arrows move inside.
function makeTree(map) {
  const items = [...map.querySelectorAll("[role=treeitem]")];
  const start = items.find((item) => item.classList.contains("has-head")) ?? items[0];
  for (const item of items) item.tabIndex = item === start ? 0 : -1;
  map.addEventListener("keydown", (event) => {
    const at = items.indexOf(document.activeElement);
    if (at < 0) return;
    const level = (item) => Number(item.ariaLevel);
    const to = {
      ArrowDown: () => items[at + 1],
      ArrowUp: () => items[at - 1],
      Home: () => items[0],
      End: () => items.at(-1),
      ArrowLeft: () => items.slice(0, at).findLast((item) => level(item) < level(items[at])),
      ArrowRight: () => items.slice(at + 1).find((item) => level(item) === level(items[at]) + 1),
    }[event.key]?.();
    if (!to) return;
    event.preventDefault();
    event.stopPropagation();
    items[at].tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  });
}
